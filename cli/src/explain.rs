//! Errors in the words of files and options, where the library knows rows of a call and its own names.

use std::fmt;

use anyhow::{Result, anyhow};
use half::{bf16, f16};
use maxsim::{Element, ElementType, Error, Fp8, Int8, Int8Affine, Quantized, TokenFormat};

use crate::input::TokenFile;

/// A score that is not a number.
#[derive(Clone, Copy, Debug)]
pub struct NanScore {
    /// Its query.
    pub query: usize,
    /// Its document.
    pub document: usize,
}

impl fmt::Display for NanScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the score of query {} and document {} is NaN", self.query, self.document)
    }
}

impl std::error::Error for NanScore {}

/// Why there is no GPU, and what to do about it.
const NOT_BUILT: &str = if cfg!(target_os = "linux") {
    "this maxsim was installed without GPU support; `cargo install --git REPOSITORY maxsim-cli`, \
     without --no-default-features, installs one that has it"
} else {
    "maxsim has GPU support on Linux only; use --device cpu"
};

/// An error of scoring with the file and the row at fault, where they can be found.
pub(crate) fn scoring(
    error: anyhow::Error,
    queries: &TokenFile,
    documents: &[&TokenFile],
) -> anyhow::Error {
    if let Some(&nan) = error.downcast_ref::<NanScore>() {
        let of_documents = documents.iter().map(|&file| (file, nan.document));
        let items = [(queries, nan.query)].into_iter().chain(of_documents);
        let found = items.filter_map(|(file, item)| Some((file, not_finite(file, item).ok()??)));
        return match found.into_iter().next() {
            Some((file, row)) => {
                anyhow!("{nan}: {} has a NaN or an infinity in row {row}", file.path().display())
            }
            None => anyhow!("{nan}: look for infinite or huge values in their embeddings"),
        };
    }
    if let Some(Error::Shape { argument: "scales", .. }) = error.downcast_ref() {
        let mut files = [queries].into_iter().chain(documents.iter().copied());
        if let Some(wrong) = files.find_map(|file| wrong_scale(file).ok().flatten()) {
            return wrong;
        }
    }
    error
}

/// What the library says of a device, in the words of the command line.
pub(crate) fn device(error: &Error) -> String {
    if matches!(error, Error::CudaNotBuilt) {
        return NOT_BUILT.to_string();
    }
    error.to_string().replace("use Device::cpu()", "say --device cpu")
}

/// The first row of an item that has elements which are not finite.
fn not_finite(file: &TokenFile, item: usize) -> Result<Option<usize>> {
    let rows = file.layout().item_rows(item);
    let values = values(file, item)?;
    let mut found = values.chunks(file.layout().dim());
    let wrong = found.position(|row| !row.iter().all(|x| x.is_finite()));
    Ok(wrong.map(|row| rows.start + row))
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
    match file.contents().format {
        TokenFormat::Element(ElementType::F16) => elements::<f16>(file, item),
        TokenFormat::Element(ElementType::Bf16) => elements::<bf16>(file, item),
        TokenFormat::Element(ElementType::F32) => elements::<f32>(file, item),
        TokenFormat::Int8 => codes::<Int8>(file, item),
        TokenFormat::Int8Affine => codes::<Int8Affine>(file, item),
        TokenFormat::Fp8 => codes::<Fp8>(file, item),
        _ => Ok(Vec::new()),
    }
}

/// An error about the first scale that cannot be one.
fn wrong_scale(file: &TokenFile) -> Result<Option<anyhow::Error>> {
    fn of<F: Quantized>(file: &TokenFile) -> Result<Option<anyhow::Error>> {
        for item in 0..file.n_items() {
            let codes = file.codes::<F>(item..item + 1)?;
            let mut scales = (0..codes.layout().rows()).map(|row| codes.scales().scale(row));
            let is_wrong = |scale: f32| scale < 0.0 || scale.is_infinite();
            if let Some(row) = scales.position(is_wrong) {
                return Ok(Some(anyhow!(
                    "{}: the scale of row {} is {}; expected a finite number from 0 on, or NaN",
                    file.path().display(),
                    file.layout().item_rows(item).start + row,
                    codes.scales().scale(row)
                )));
            }
        }
        Ok(None)
    }
    match file.contents().format {
        TokenFormat::Int8 => of::<Int8>(file),
        TokenFormat::Int8Affine => of::<Int8Affine>(file),
        TokenFormat::Fp8 => of::<Fp8>(file),
        _ => Ok(None),
    }
}
