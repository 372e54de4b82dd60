//! Weights of the query tokens of a file, from a file of their own.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use maxsim::format::TokenFormat;

use super::TokenFile;
use crate::residual::Array;

/// Reads the weights of a file's tokens, of one `.npy` array with a number for every row that the
/// file has: `[n, len]` beside embeddings `[n, len, dim]`, or `[rows]`. Gives those of the layout's
/// rows. Rows of no token may have any.
///
/// # Errors
/// Where there are others than that many, and where a token's is not finite.
pub(super) fn read(path: &Path, file: &TokenFile) -> Result<Vec<f32>> {
    let of = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(of)?;
    let array = Array::of_npy(&bytes).with_context(of)?;
    let all = array.floats().with_context(of)?;
    let rows = n_stored_rows(file);
    let n_items = file.n_items();
    // Items lie where a padded array has them: packed ones of unequal lengths may have as many
    // rows.
    let is_padded = |len: usize| {
        let mut items = (0..n_items).filter(|&item| file.layout().item_len(item) > 0);
        items.all(|item| {
            let first = file.layout().item_rows(item).start;
            file.stored_row(first) - file.stored_token(item, 0) == item * len
        })
    };
    let is_shape = match array.shape[..] {
        [n] => n == rows,
        [n, len] => n == n_items && Some(rows) == n_items.checked_mul(len) && is_padded(len),
        _ => false,
    };
    ensure!(
        is_shape,
        "{}: shape {:?}; expected a weight for each row of {}: [{rows}], or [{n_items}, len] where \
         embeddings are [{n_items}, len, dim]",
        of(),
        array.shape,
        file.path().display()
    );
    let mut weights = vec![0.0; file.layout().rows()];
    for item in 0..n_items {
        for (token, row) in file.layout().item_rows(item).enumerate() {
            let weight = all[file.stored_row(row)];
            if !weight.is_finite() {
                let token = file.stored_token(item, token);
                bail!(
                    "{}: the weight of token {token} of query {item} is {weight}; weights must be \
                     finite",
                    of()
                );
            }
            weights[row] = weight;
        }
    }
    Ok(weights)
}

/// Rows that the file has, those of no token included.
fn n_stored_rows(file: &TokenFile) -> usize {
    let contents = file.contents();
    let size_bytes = match contents.format {
        TokenFormat::Element(element) => element.size_bytes(),
        _ => 1,
    };
    contents.data.len() / (contents.layout.dim() * size_bytes)
}
