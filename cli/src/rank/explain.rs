//! Translates errors of the library, which know rows of a call, into files and options.

use std::fmt;
use std::path::Path;

use anyhow::{Result, anyhow};
use maxsim::Error;
use maxsim::format::{Element, Quantized, with_format};

use crate::input::TokenFile;

/// A score that is NaN, or infinite.
#[derive(Clone, Copy, Debug)]
pub struct BadScore {
    /// Index of the query.
    pub query: usize,
    /// Index of the document.
    pub document: usize,
    /// The score.
    pub score: f32,
}

impl fmt::Display for BadScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadScore { query, document, score } = self;
        write!(f, "the score of query {query} and document {document} is {score}")
    }
}

impl std::error::Error for BadScore {}

/// Reason why there is no GPU, and how to get it.
const NOT_BUILT: &str = if cfg!(target_os = "linux") {
    "this maxsim was installed without GPU support; `cargo install --git REPOSITORY maxsim-cli`, \
     without --no-default-features, installs one that has it"
} else {
    "maxsim has GPU support on Linux only; use --device cpu"
};

/// Explains an error of scoring with the files and the rows at fault, where they can be found;
/// `documents` is the file's name, and `files` the documents and what else they are scored by.
pub(crate) fn scoring(
    error: anyhow::Error,
    queries: &TokenFile,
    documents: &Path,
    files: &[&TokenFile],
) -> anyhow::Error {
    let Some(&bad) = error.downcast_ref::<BadScore>() else { return error };
    let of_documents = files.iter().map(|&file| (file, bad.document, "document"));
    let items = [(queries, bad.query, "query")].into_iter().chain(of_documents);
    let largest = |(file, item, kind): (&TokenFile, usize, &str)| {
        let (row, x) = largest(file, item).ok()??;
        let row = file.stored_row(row);
        Some((x, format!("row {row} of {} ({kind} {item})", file.path().display())))
    };
    let mut found: Vec<(f32, String)> = items.filter_map(largest).collect();
    if let Some((_, place)) = found.iter().find(|(x, _)| !x.is_finite()) {
        return anyhow!("{bad}: {place} has an infinity");
    }
    if files.is_empty() {
        found.push((0.0, format!("document {} of {}", bad.document, documents.display())));
    }
    let places = found.into_iter().map(|(x, place)| match x {
        0.0 => place,
        x => format!("{place}, which has an element of {x:e}"),
    });
    let places: Vec<String> = places.collect();
    anyhow!(
        "{bad}: products of the embeddings are too large for f32, those of {}; scale them down",
        places.join(" and ")
    )
}

/// Explains a device's error in the words of the command line.
pub(crate) fn device(error: &Error) -> String {
    if matches!(error, Error::CudaNotBuilt) {
        return NOT_BUILT.to_string();
    }
    error.to_string().replace("use Device::cpu()", "use --device cpu")
}

/// The first row of an item that has its largest element by magnitude, and that; an infinity is the
/// largest, and NaN none.
fn largest(file: &TokenFile, item: usize) -> Result<Option<(usize, f32)>> {
    let rows = file.layout().item_rows(item);
    let values = values(file, item)?;
    let rows = rows.zip(values.chunks(file.layout().dim()));
    let elements = rows.flat_map(|(row, values)| values.iter().map(move |&x| (row, x)));
    Ok(elements.fold(None, |most, (row, x)| match most {
        Some((_, y)) if x.abs() <= f32::abs(y) || x.is_nan() => most,
        _ => Some((row, x)),
    }))
}

/// The elements of an item, or what its codes stand for.
fn values(file: &TokenFile, item: usize) -> Result<Vec<f32>> {
    fn elements<T: Element>(file: &TokenFile, item: usize) -> Result<Vec<f32>> {
        let elements = file.elements::<T>(file.layout().item_rows(item))?;
        Ok(elements.iter().map(|x| x.to_f32()).collect())
    }
    fn codes<F: Quantized>(file: &TokenFile, item: usize) -> Result<Vec<f32>> {
        Ok(file.codes::<F>(item..item + 1)?.dequantize()?.data().to_vec())
    }
    with_format!(file.contents().format, {
        element T => elements::<T>(file, item),
        codes F => codes::<F>(file, item),
        _ => Ok(Vec::new()),
    })
}
