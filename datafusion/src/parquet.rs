//! Documents as record batches and Parquet files.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
use futures::TryStreamExt;
use maxsim::AnyTokens;
use maxsim::files::TokenFile;
use tempfile::NamedTempFile;

use crate::columns::{execution_error, external};
use crate::literal::{scale_lists, token_lists};

/// Bytes of tokens in a row group, which a reader has in memory as a whole: so few that allocators
/// use the memory of one for the next. Of more (glibc: 32 MB) each is mapped anew, page by page.
const GROUP_BYTES: usize = 16 << 20;

/// End of the names of Parquet files.
const PARQUET: &str = ".parquet";

/// Ids of a file's items: those that it gives them, or else their numbers from 0 on.
///
/// # Errors
/// Those of [`TokenFile::ids`].
pub fn ids(file: &TokenFile) -> Result<ArrayRef> {
    Ok(match file.ids().map_err(external)? {
        Some(ids) => Arc::new(StringArray::from(ids)),
        None => Arc::new(Int64Array::from_iter_values(0..file.n_items() as i64)),
    })
}

/// A record batch of documents: the columns `id` and `tokens`, a list of fixed-size lists; of INT8
/// tokens `id`, `codes` and `scales`. Masked tokens are left out.
///
/// # Errors
/// Where there are not as many ids as items, or tokens are neither f16, f32 nor INT8.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::arrow::array::{Array, Int64Array};
/// use maxsim::Tokens;
///
/// let tokens = Tokens::padded(&[1.0f32, 0.0], 1, 1, 2).unwrap().into();
/// let documents = maxsim_datafusion::batch(Arc::new(Int64Array::from(vec![7])), &tokens)?;
/// let tokens = documents["tokens"].data_type().to_string();
/// assert_eq!(tokens, "List(non-null FixedSizeList(2 x non-null Float32))");
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
pub fn batch(ids: ArrayRef, tokens: &AnyTokens<'_>) -> Result<RecordBatch> {
    let n_items = tokens.layout().n_items();
    if ids.len() != n_items {
        return execution_error(format!(
            "ids: expected one for each of {n_items} items, found {}",
            ids.len()
        ));
    }
    let lists: ArrayRef = Arc::new(token_lists(tokens)?);
    let mut columns = vec![("id", ids)];
    match tokens {
        AnyTokens::Int8(tokens) => {
            columns.extend([("codes", lists), ("scales", Arc::new(scale_lists(tokens)?) as _)]);
        }
        _ => columns.push(("tokens", lists)),
    }
    let field = |(name, array): &(&str, ArrayRef)| {
        Field::new(*name, array.data_type().clone(), *name == "id" && array.is_nullable())
    };
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let columns = columns.into_iter().map(|(_, array)| array).collect();
    Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
}

/// The documents of a Parquet file, or of all `.parquet` files of a folder, on this machine or
/// wherever the session has an object store.
///
/// DataFusion reads a folder as if its files of no bytes were not there; these are refused, since
/// a ranking without their documents would be wrong. Columns may be those of [`batch`] or others
/// ([`TopK`](crate::TopK) says which it takes).
///
/// # Errors
/// Where there is no such file, one has no bytes, or their footers are broken or differ. What is
/// broken further inside shows when the documents are read.
pub async fn read_parquet(session: &SessionContext, path: &str) -> Result<DataFrame> {
    let url = ListingTableUrl::parse(path)?;
    // What a session remembers of a folder may be no more.
    if let Some(cache) = session.runtime_env().cache_manager.get_list_files_cache() {
        cache.clear();
    }
    let store = session.runtime_env().object_store(&url)?;
    let state = session.state();
    let mut files = url.list_all_files(&state, &store, PARQUET).await?;
    let mut n_files = 0;
    while let Some(file) = files.try_next().await? {
        n_files += 1;
        if file.size == 0 {
            return execution_error(format!(
                "{}: expected a Parquet file, found 0 bytes; write it again, or remove it",
                file.location
            ));
        }
    }
    if n_files == 0 {
        return execution_error(format!("{path}: no {PARQUET} files"));
    }
    session.read_parquet(path, ParquetReadOptions::default()).await
}

/// Writes documents to a Parquet file, whole or not at all: the columns of [`batch`].
///
/// Numbers are stored as they are, since compression finds nothing in embeddings; but INT8 codes
/// by a dictionary, since Parquet has no numbers of one byte. Row groups have 16 MB, so that a
/// large file is several partitions.
///
/// # Errors
/// Those of [`batch`]; where the file cannot be written.
///
/// ```
/// use datafusion::arrow::array::AsArray;
/// use datafusion::arrow::datatypes::Int64Type;
/// use maxsim::Device;
/// use maxsim::files::{FileOptions, TokenFile};
/// use maxsim_datafusion::{TopK, ids, query, read_parquet, session, write_parquet};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/examples/debian-packages");
/// let file = TokenFile::open(format!("{sample}/documents.safetensors"), &FileOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// write_parquet(folder.path().join("part-0.parquet"), &ids(&file)?, &file.all()?)?;
///
/// let session = session(&Device::cpu())?;
/// let documents = read_parquet(&session, &folder.path().display().to_string()).await?;
/// let queries =
///     TokenFile::open(format!("{sample}/queries.safetensors"), &FileOptions::default())?;
/// let best = TopK::new(3).of(documents, query(&queries.all()?, 7)?)?.collect().await?;
/// assert_eq!(best[0]["id"].as_primitive::<Int64Type>().values()[..], [7, 61, 107]);
/// # Ok(())
/// # }
/// ```
pub fn write_parquet(path: impl AsRef<Path>, ids: &ArrayRef, tokens: &AnyTokens<'_>) -> Result<()> {
    let path = path.as_ref();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let file = unfinished(folder.unwrap_or(Path::new(".")));
    let file = file.map_err(|error| named(path, error.into()))?;
    write(file.as_file(), ids, tokens).map_err(|error| named(path, error))?;
    file.persist(path).map_err(|error| named(path, error.error.into()))?;
    Ok(())
}

/// A file in the folder of the one that it will be, which all may read that may read others.
fn unfinished(folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// Puts a file's name before an error.
fn named(path: &Path, error: DataFusionError) -> DataFusionError {
    error.context(format!("writing {}", path.display()))
}

fn write(file: &std::fs::File, ids: &ArrayRef, tokens: &AnyTokens<'_>) -> Result<()> {
    let layout = tokens.layout();
    let n_items = layout.n_items();
    let bytes = layout.rows() * layout.dim() * tokens.format().size_bytes();
    let per_group = (GROUP_BYTES * n_items).checked_div(bytes).unwrap_or(n_items).max(1);
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(matches!(tokens, AnyTokens::Int8(_)))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_statistics_enabled("id".into(), EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(per_group));
    // The schema, and the check of ids, also where there are no items.
    let schema = batch(ids.clone(), tokens).map(|batch| batch.schema());
    let mut writer = ArrowWriter::try_new(file, schema?, Some(properties.build()))?;
    for start in (0..n_items).step_by(per_group) {
        let end = n_items.min(start + per_group);
        let tokens = tokens.items(start..end).map_err(external)?;
        writer.write(&batch(ids.slice(start, end - start), &tokens)?)?;
        writer.flush()?;
    }
    writer.close()?;
    file.sync_all()?;
    Ok(())
}
