//! Converts embeddings to residual-compressed tokens: trains a codec on all of them, then encodes
//! them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use maxsim::format::{Element, with_format};
use maxsim::residual::{ResidualCodec, ResidualTokens, TrainOptions};
use maxsim::{Error, TokenLayout};
use rayon::prelude::*;
use serde::Serialize;

use super::errors::{Errors, used_rows};
use super::write::CHUNK_LEN;
use crate::input::TokenFile;
use crate::progress::progress_bar;

/// How far a token's length may be from 1: a unit token in bf16 is off by 0.004 at most.
const LENGTH_TOLERANCE: f64 = 0.01;

/// The codec of residual-compressed tokens, for a report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Codec {
    /// Bits of a bucket.
    pub nbits: u32,
    /// Number of centroids.
    pub n_centroids: usize,
    /// How the bits of buckets lie.
    pub bit_order: String,
    /// Bytes of centroids and buckets' tables.
    pub bytes: u64,
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Codec { nbits, n_centroids, bit_order, .. } = self;
        write!(f, "{nbits} bits around {n_centroids} centroids, bit order {bit_order}")
    }
}

impl Codec {
    /// Describes the codec of some tokens.
    pub(super) fn of(tokens: &ResidualTokens<'_>) -> Codec {
        let codec = tokens.codec();
        let cutoffs = codec.bucket_cutoffs().unwrap_or_default();
        let buckets = size_of_val(codec.bucket_weights()) + size_of_val(cutoffs);
        Codec {
            nbits: codec.nbits(),
            n_centroids: codec.n_centroids(),
            bit_order: tokens.order().name().to_string(),
            bytes: (codec.centroids().bytes().len() + buckets) as u64,
        }
    }
}

/// Trains a codec on all tokens of a file and encodes them with it, a run of items at a time; items
/// come out one after the other.
///
/// # Errors
/// Where the file holds compressed tokens, where a token's length is not 1 and the codec
/// normalises, and as [`ResidualCodec::train`] and [`ResidualTokens::encode`].
pub fn compress(
    file: &TokenFile,
    options: &TrainOptions,
) -> Result<(ResidualTokens<'static>, Errors)> {
    compress_in(file, options, CHUNK_LEN)
}

/// `chunk_len` elements at a time.
fn compress_in(
    file: &TokenFile,
    options: &TrainOptions,
    chunk_len: usize,
) -> Result<(ResidualTokens<'static>, Errors)> {
    let format = file.contents().format;
    with_format!(format, {
        element T => of::<T>(file, options, chunk_len),
        format => bail!("the tokens are {format} already; give the original embeddings"),
    })
}

fn of<T: Element>(
    file: &TokenFile,
    options: &TrainOptions,
    chunk_len: usize,
) -> Result<(ResidualTokens<'static>, Errors)> {
    let (n_items, dim) = (file.n_items(), file.layout().dim());
    ensure!(file.layout().total_len() > 0, "no tokens to train centroids on");
    let tokens = file.tokens::<T>(0..n_items)?;
    if options.normalize {
        check_lengths(file, tokens.data())?;
    }
    let progress = progress_bar(0, "tokens trained on");
    let codec = ResidualCodec::train_with_progress(&tokens, options, &|n_done, n_all| {
        progress.set_length(n_all);
        // Threads may arrive here in any order.
        progress.update(|bar| bar.set_pos(bar.pos().max(n_done)));
    });
    progress.finish_and_clear();
    let codec = Arc::new(codec.map_err(|error| match error {
        Error::Shape { argument: "n_centroids", expected, found } => {
            anyhow!("--centroids {found}: expected {expected}")
        }
        error => error.into(),
    })?);

    let progress = progress_bar(n_items, "items");
    let row_bytes = codec.row_bytes();
    let (mut codes, mut residuals, mut offsets) = (Vec::new(), Vec::new(), vec![0i64]);
    let mut errors = Errors::default();
    let mut start = 0;
    while start < n_items {
        let items = next_items(file.layout(), start, chunk_len);
        let part = file.tokens::<T>(items.clone())?;
        let encoded = ResidualTokens::encode(codec.clone(), &part, &options.encode)?;
        for item in 0..items.len() {
            let rows = part.layout().item_rows(item);
            codes.extend_from_slice(&encoded.codes()[rows.clone()]);
            let bytes = rows.start * row_bytes..rows.end * row_bytes;
            residuals.extend_from_slice(&encoded.residuals()[bytes]);
            offsets.push(codes.len() as i64);
        }
        let values = encoded.decode::<f32>()?;
        let is_used = used_rows(part.layout());
        errors = errors.and(Errors::of(part.data(), values.data(), dim, &is_used));
        progress.inc(items.len() as u64);
        start = items.end;
    }
    progress.finish_and_clear();
    let layout = TokenLayout::packed(codes.len(), dim, &offsets)?;
    let order = options.encode.order;
    Ok((ResidualTokens::new(codec, codes, residuals, order, layout)?, errors))
}

/// Finds the items from `start` on that come to `chunk_len` elements, with the rows between them,
/// at least one item. The items of files never go backwards.
fn next_items(layout: &TokenLayout, start: usize, chunk_len: usize) -> Range<usize> {
    let first = layout.item_rows(start).start;
    let fits = |&item: &usize| (layout.item_rows(item).end - first) * layout.dim() <= chunk_len;
    let n_more = (start + 1..layout.n_items()).take_while(fits).count();
    start..start + 1 + n_more
}

/// Checks that all tokens have length 1. Tokens that are not finite are refused later, by the
/// training.
fn check_lengths<T: Element>(file: &TokenFile, elements: &[T]) -> Result<()> {
    let layout = file.layout();
    let dim = layout.dim();
    let length = |row: usize| {
        let row = &elements[row * dim..][..dim];
        row.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum::<f64>().sqrt()
    };
    let is_other = |row: usize| {
        let length = length(row);
        length.is_finite() && (length - 1.0).abs() > LENGTH_TOLERANCE
    };
    let items = 0..layout.n_items();
    let found = items.into_par_iter().find_map_first(|item| {
        let mut rows = layout.item_rows(item).enumerate();
        rows.find(|&(_, row)| is_other(row)).map(|(i, row)| (item, i, row))
    });
    let Some((item, i, row)) = found else { return Ok(()) };
    // Too short for a square may be more than zeros.
    let is_zeros = elements[row * dim..][..dim].iter().all(|x| x.to_f32() == 0.0);
    ensure!(
        !is_zeros || file.states_lengths(),
        "token {i} of item {item} is all zeros, as padding is, and the file does not say how long \
         items are: give it a tensor `lengths` [n], or use --lengths-file, --mask-file or \
         --trailing-zeros pad; --keep-lengths is for zeros that are tokens"
    );
    bail!(
        "token {i} of item {item} has length {:.4}, and decoded ones would have 1; \
         --keep-lengths is for such tokens",
        length(row)
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::errors::Written;
    use super::*;
    use crate::input::Reading;

    #[test]
    fn runs_of_items_are_as_long_as_they_may_be() {
        // Items of 3, 0, 5, 0 and 2 tokens.
        let layout = TokenLayout::packed(10, 4, &[0i64, 3, 3, 8, 8, 10]).unwrap();
        let runs = |layout: &TokenLayout, chunk_len: usize| {
            let mut runs = vec![0];
            while runs[runs.len() - 1] < layout.n_items() {
                runs.push(next_items(layout, runs[runs.len() - 1], chunk_len).end);
            }
            runs
        };
        assert_eq!(runs(&layout, 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(runs(&layout, 4 * 5), [0, 2, 4, 5]);
        assert_eq!(runs(&layout, 4 * 8 - 1), [0, 2, 5]);
        assert_eq!(runs(&layout, 4 * 8), [0, 4, 5]);
        assert_eq!(runs(&layout, 4 * 10), [0, 5]);
        // Rows between items count, too.
        let padded = TokenLayout::padded(3, 4, 4).unwrap().with_lengths(&[1i64, 1, 1]).unwrap();
        assert_eq!(runs(&padded, 4 * 4), [0, 1, 2, 3]);
        assert_eq!(runs(&padded, 4 * 5), [0, 2, 3]);
    }

    #[test]
    fn runs_of_items_change_nothing() {
        let path = Path::new("examples/debian-packages/queries.safetensors");
        let file = TokenFile::open(path, Reading::Map).unwrap();
        let options = TrainOptions::default().n_centroids(16);
        let (whole, errors) = compress_in(&file, &options, CHUNK_LEN).unwrap();
        let (parts, errors_of_parts) = compress_in(&file, &options, 5000).unwrap();
        assert_eq!((whole.codes(), whole.residuals()), (parts.codes(), parts.residuals()));
        assert_eq!(whole.layout(), parts.layout());
        let [whole, parts] =
            [errors, errors_of_parts].map(|errors| Written::new(errors, 128, [1, 1]));
        assert_eq!((whole.n_tokens, whole.max_error), (parts.n_tokens, parts.max_error));
        assert!((whole.mean_error - parts.mean_error).abs() < 1e-12);
    }
}
