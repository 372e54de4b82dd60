//! Files of embeddings, encoded.

use anyhow::{Result, bail};
use half::{bf16, f16};
use maxsim::residual::{EncodeOptions, ResidualCodec, ResidualTokens, TrainOptions};
use maxsim::{Element, ElementType};

use crate::input::TokenFile;

/// Trains a codec on all tokens of a file and encodes them with it.
///
/// # Errors
/// Where the file holds compressed tokens, and as [`ResidualCodec::train`] and [`ResidualTokens::encode`].
pub fn compress(file: &TokenFile, options: &TrainOptions) -> Result<ResidualTokens<'static>> {
    let format = file.contents().format;
    match format.element() {
        Some(ElementType::F16) => of::<f16>(file, options),
        Some(ElementType::Bf16) => of::<bf16>(file, options),
        Some(ElementType::F32) => of::<f32>(file, options),
        None => bail!("the tokens are {format} already; encode the embeddings they were made of"),
    }
}

fn of<T: Element>(file: &TokenFile, options: &TrainOptions) -> Result<ResidualTokens<'static>> {
    let tokens = file.tokens::<T>(0..file.n_items())?;
    let codec = ResidualCodec::train(&tokens, options)?;
    let encode: &EncodeOptions = &options.encode;
    Ok(ResidualTokens::encode(codec.into(), &tokens, encode)?)
}
