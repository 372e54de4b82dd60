//! Parquet files of the tool's sample.

use std::fs;
use std::path::Path;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::concat_batches;
use datafusion::error::Result;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
use maxsim::format::{ScaleType, TokenFormat};
use maxsim::{AnyTokens, Device, Tokens};
use maxsim_datafusion::{TopK, batch, ids, query, read_parquet, session, write_parquet};

use crate::data::{self, expected_ranking, ranked, sample, tokens};

/// Writes the documents to four files.
pub fn write(folder: &Path, documents: &AnyTokens<'_>) {
    write_parts(folder, documents, 4);
}

/// Writes the documents to so many files.
pub fn write_parts(folder: &Path, documents: &AnyTokens<'_>, n_parts: usize) {
    let n_items = documents.layout().n_items();
    let ids = data::ids(n_items);
    for part in 0..n_parts {
        let [start, end] = [part, part + 1].map(|part| part * n_items / n_parts);
        let path = folder.join(format!("part-{part}.parquet"));
        let documents = documents.items(start..end).unwrap();
        write_parquet(path, &ids.slice(start, end - start), &documents).unwrap();
    }
}

pub async fn read(session: &SessionContext, folder: &Path) -> Result<DataFrame> {
    read_parquet(session, folder.to_str().unwrap()).await
}

async fn read_rows(folder: &Path) -> RecordBatch {
    let frame = read(&session(&Device::cpu()).unwrap(), folder).await.unwrap();
    let rows =
        frame.sort_by(vec![datafusion::prelude::col("id")]).unwrap().collect().await.unwrap();
    concat_batches(&rows[0].schema(), &rows).unwrap()
}

#[tokio::test]
async fn files_rank_as_the_library_does() {
    let (queries, documents) = (sample("queries"), sample("documents"));
    let (queries, documents) = (queries.all().unwrap(), documents.all().unwrap());
    let codes = documents.quantize(TokenFormat::Int8, ScaleType::F16).unwrap();
    let folders = [&documents, &codes].map(|documents| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), documents);
        folder
    });
    let session = session(&Device::cpu()).unwrap();
    for item in [0, 7, 49] {
        let one = queries.items(item..item + 1).unwrap();
        let frame = read(&session, folders[0].path()).await.unwrap();
        let found = TopK::new(20).of(frame, query(&queries, item).unwrap()).unwrap();
        let found = ranked(&found.collect().await.unwrap());
        assert_eq!(found, expected_ranking(&one, &documents, 20));

        let frame = read(&session, folders[1].path()).await.unwrap();
        let top = TopK::new(20).int8("codes", "scales");
        let found = top.of(frame, query(&queries, item).unwrap()).unwrap();
        let one = one.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
        let found = ranked(&found.collect().await.unwrap());
        assert_eq!(found, expected_ranking(&one, &codes, 20));
    }
}

#[tokio::test]
async fn what_is_written_is_read() {
    let f32s: AnyTokens<'_> = tokens(1, &[3, 0, 1, 2, 5], 7).into();
    let half: Vec<_> = (0..42).map(|x| maxsim::half::f16::from_f32(x as f32 / 3.0)).collect();
    let half = AnyTokens::from(Tokens::padded(&half, 3, 2, 7).unwrap());
    let codes = f32s.quantize(TokenFormat::Int8, ScaleType::F32).unwrap();
    let empty = f32s.items(0..0).unwrap();
    for tokens in [&f32s, &half, &codes, &empty] {
        let folder = tempfile::tempdir().unwrap();
        let ids = data::ids(tokens.layout().n_items());
        write_parquet(folder.path().join("all.parquet"), &ids, tokens).unwrap();
        let frame = read(&session(&Device::cpu()).unwrap(), folder.path()).await.unwrap();
        let expected = batch(ids, tokens).unwrap();
        let types = |batch: &RecordBatch| -> Vec<_> {
            batch.columns().iter().map(|column| column.data_type().to_string()).collect()
        };
        assert_eq!(frame.clone().count().await.unwrap(), expected.num_rows());
        if expected.num_rows() > 0 {
            let found = read_rows(folder.path()).await;
            assert_eq!(types(&found), types(&expected));
            assert_eq!(found.columns(), expected.columns());
        }
    }
}

#[test]
fn masked_tokens_are_not_written() {
    let padded = Tokens::padded(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3, 1).unwrap();
    let masked = padded.with_mask(&[1u8, 0, 1, 0, 0, 1][..]).unwrap();
    let codes = masked.quantize::<maxsim::format::Int8>(ScaleType::F32).unwrap();
    let found = batch(data::ids(2), &masked.into()).unwrap();
    let lists = found["tokens"].as_list::<i32>();
    assert_eq!(lists.value_offsets(), [0, 2, 3]);
    let elements = lists.values().as_fixed_size_list().values().clone();
    let expected: &[f32] = &[1.0, 3.0, 6.0];
    assert_eq!(
        elements.as_primitive::<datafusion::arrow::datatypes::Float32Type>().values()[..],
        *expected
    );
    let found = batch(data::ids(2), &codes.into()).unwrap();
    assert_eq!(found["scales"].as_list::<i32>().value_offsets(), [0, 2, 3]);
}

#[test]
fn ids_are_the_files_or_numbers() {
    let file = sample("documents");
    let ids = ids(&file).unwrap();
    match file.ids().unwrap() {
        Some(names) => {
            assert!(ids.as_string::<i32>().iter().flatten().eq(names.iter().map(|x| &x[..])))
        }
        None => assert_eq!(ids.to_data(), data::ids(file.n_items()).to_data()),
    }
}

/// The table of a folder has the files that are there when it is asked, not those that were.
pub async fn check_files_that_come_later(session: &SessionContext) {
    let (queries, documents) = (sample("queries"), sample("documents"));
    let (queries, documents) = (queries.all().unwrap(), documents.all().unwrap());
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &documents);
    let (last, away) = (folder.path().join("part-3.parquet"), folder.path().join("away"));
    fs::rename(&last, &away).unwrap();
    let path = folder.path().to_str().unwrap();
    session.register_parquet("documents", path, ParquetReadOptions::default()).await.unwrap();
    let first = documents.items(0..150).unwrap();
    let item = 0;
    let one = queries.items(item..item + 1).unwrap();
    for (is_there, documents) in [(false, &first), (true, &documents)] {
        if is_there {
            fs::rename(&away, &last).unwrap();
        }
        let table = session.table("documents").await.unwrap();
        let found = TopK::new(200).of(table, query(&queries, item).unwrap()).unwrap();
        let found = ranked(&found.collect().await.unwrap());
        assert_eq!(found, expected_ranking(&one, documents, 200));
    }
}

#[tokio::test]
async fn files_that_come_later_are_seen() {
    check_files_that_come_later(&session(&Device::cpu()).unwrap()).await;
}

#[tokio::test]
async fn a_truncated_file_is_an_error() {
    let documents = sample("documents");
    let queries = sample("queries");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &documents.all().unwrap());
    let path = folder.path().join("part-2.parquet");
    let bytes = fs::read(&path).unwrap();
    let session = session(&Device::cpu()).unwrap();
    let query = query(&queries.all().unwrap(), 0).unwrap();
    for len in [0, 5, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let found = async {
            let frame = read(&session, folder.path()).await?;
            TopK::new(5).of(frame, query.clone())?.collect().await
        };
        assert!(found.await.is_err(), "{len} bytes");
    }
    let none = read(&session, &folder.path().join("none")).await;
    assert!(none.is_err());
    // A footer that is whole, behind data that is not.
    let mut broken = bytes[..4].to_vec();
    broken.extend(&bytes[bytes.len() / 2..]);
    fs::write(&path, broken).unwrap();
    let found = async {
        let frame = read(&session, folder.path()).await?;
        TopK::new(5).of(frame, query.clone())?.collect().await
    };
    assert!(found.await.is_err());
    // What is right again, is.
    fs::write(&path, &bytes).unwrap();
    let frame = read(&session, folder.path()).await.unwrap();
    assert!(TopK::new(5).of(frame, query).unwrap().collect().await.is_ok());
}

/// Executors need not be of the writer's user.
#[cfg(unix)]
#[test]
fn others_may_read_what_is_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    fs::write(folder.path().join("any"), "").unwrap();
    let tokens = tokens(1, &[1], 4).into();
    write_parquet(folder.path().join("all.parquet"), &data::ids(1), &tokens).unwrap();
    assert_eq!(mode("all.parquet"), mode("any"));
}

#[test]
fn nothing_half_written_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.parquet");
    let tokens = tokens(1, &[1, 1], 4).into();
    fs::write(&path, "what was there").unwrap();
    let error = write_parquet(&path, &data::ids(3), &tokens).unwrap_err().to_string();
    assert!(error.contains("all.parquet") && error.contains("ids"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(write_parquet(folder.path().join("none/all.parquet"), &data::ids(2), &tokens).is_err());
}
