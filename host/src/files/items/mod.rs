//! Finds the items in a matrix of tokens, by the tensors beside it.
//!
//! Names say what a tensor is, in any case and without regard to `_`: `offsets` or `cu_seqlens`,
//! `lengths` or `doclens`, `mask` or `attention_mask`, and their singular forms. What they say must
//! add up, and more than one must agree. A tensor of another name that could be one of them is an
//! error: padding that is scored as tokens changes rankings without a word.

mod valid;
mod zeros;

use std::borrow::Cow;

use safetensors::Dtype;

use super::bytes::reserved;
use super::error::{Advice, FileError, Result, bail, ensure};
use crate::tokens::layout::TokenLayout;
pub(super) use valid::ValidRows;
use valid::masked;
pub(super) use zeros::check as check_zeros;

/// Most items of a padded array of length 0: such items cost a file nothing, but the program 9
/// bytes each, and a file of 100 bytes must not ask for gigabytes.
const MAX_EMPTY_ITEMS: usize = 1 << 16;

/// Meaning of a tensor beside the embeddings, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `[n + 1]`: where items start, and the number of rows.
    Offsets,
    /// `[n]`: how many tokens items have.
    Lengths,
    /// `[n, len]`: which tokens there are.
    Mask,
}

impl Role {
    /// The role of a name, where it has one.
    pub fn of(name: &str) -> Option<Role> {
        match plain(name).as_str() {
            "offsets" | "offset" | "cuseqlens" | "cuseqlen" => Some(Role::Offsets),
            "lengths" | "length" | "doclens" | "doclen" => Some(Role::Lengths),
            "mask" | "masks" | "attentionmask" | "attentionmasks" => Some(Role::Mask),
            _ => None,
        }
    }

    /// As [`Role::of`], where the embeddings are called `tensor`: `documents_mask` is the mask of
    /// `documents`.
    pub fn beside(name: &str, tensor: &str) -> Option<Role> {
        Role::of(name).or_else(|| Role::of(plain(name).strip_prefix(&plain(tensor))?))
    }
}

/// A name in lower case, letters and digits alone.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A tensor beside the embeddings.
#[derive(Clone, Debug)]
pub(crate) struct Beside<'a> {
    /// Name of the tensor in messages.
    pub name: String,
    /// Role of the tensor, where its name has one.
    pub role: Option<Role>,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Elements of the tensor, little-endian; none where it has no role.
    pub bytes: Cow<'a, [u8]>,
}

/// A matrix of tokens: embeddings, or what they are compressed to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// `[rows]` or `[n, len]`.
    pub tokens: &'a [usize],
    /// Elements per token.
    pub dim: usize,
    /// How messages write the last dimension: `, dim`, or nothing.
    pub last: &'a str,
}

/// Places of the items.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    /// The rows of each item, of the valid rows where not all are.
    pub layout: TokenLayout,
    /// Valid rows of the matrix, where they are not the first of every item.
    pub valid: Option<ValidRows>,
    /// Whether the file or an option states how long items are.
    pub is_stated: bool,
}

impl Items {
    /// Items without stated lengths.
    pub fn unstated(layout: TokenLayout) -> Items {
        Items { layout, valid: None, is_stated: false }
    }
}

/// Works out where items lie.
pub(crate) fn items(matrix: &Matrix<'_>, beside: &[Beside<'_>]) -> Result<Items> {
    let of_role = |role| beside.iter().filter(move |tensor| tensor.role == Some(role));
    let (name, last) = (matrix.name, matrix.last);
    match matrix.tokens {
        &[rows] => {
            if let Some(mask) = of_role(Role::Mask).next() {
                bail!(
                    "`{}` goes with {name} [n, len{last}]; with [rows{last}] give `offsets` or \
                     `lengths`",
                    mask.name
                );
            }
            let mut stated: Vec<(&Beside<'_>, Vec<i64>)> = Vec::new();
            for tensor in of_role(Role::Offsets) {
                stated.push((tensor, offsets(tensor, rows)?));
            }
            for tensor in of_role(Role::Lengths) {
                stated.push((tensor, offsets_of_lengths(tensor, rows)?));
            }
            agree(&stated)?;
            let Some((_, offsets)) = stated.into_iter().next() else {
                bail!(
                    "{name} [rows{last}] need a tensor `offsets` [n + 1] or `lengths` [n], which \
                     say where items are"
                )
            };
            check_others(beside, &[offsets.len() - 1], rows)?;
            let layout = TokenLayout::packed(rows, matrix.dim, &offsets)?;
            Ok(Items { layout, valid: None, is_stated: true })
        }
        &[n, len] => {
            if let Some(offsets) = of_role(Role::Offsets).next() {
                bail!(
                    "{name} [n, len{last}] take `lengths`, not `offsets`; there is a tensor `{}`",
                    offsets.name
                );
            }
            check_others(beside, &[n, len], n * len)?;
            let lengths =
                of_role(Role::Lengths).map(|tensor| Ok((tensor, lengths(tensor, n, len)?)));
            let lengths: Vec<(&Beside<'_>, Vec<i64>)> = lengths.collect::<Result<_>>()?;
            agree(&lengths)?;
            let masks: Vec<&Beside<'_>> = of_role(Role::Mask).collect();
            padded(matrix, [n, len], &lengths, &masks)
        }
        shape => {
            let mut shape = shape.to_vec();
            if !last.is_empty() {
                shape.push(matrix.dim);
            }
            bail!("{name} have shape {shape:?}; expected [rows{last}] or [n, len{last}]")
        }
    }
}

fn padded(
    matrix: &Matrix<'_>,
    [n, len]: [usize; 2],
    lengths: &[(&Beside<'_>, Vec<i64>)],
    masks: &[&Beside<'_>],
) -> Result<Items> {
    let whole = padded_layout([n, len, matrix.dim], None)?;
    let shorter = |lengths: &[i64]| -> Result<Items> {
        let layout = padded_layout([n, len, matrix.dim], Some(lengths))?;
        Ok(Items { layout, valid: None, is_stated: true })
    };
    let Some((first, others)) = masks.split_first() else {
        return match lengths.first() {
            Some((_, lengths)) => shorter(lengths),
            None => Ok(Items::unstated(whole)),
        };
    };
    let mask = mask(first, n, len)?;
    for other in others {
        let found = self::mask(other, n, len)?;
        if let Some(row) = (0..n * len).find(|&row| mask[row] != found[row]) {
            let (item, token) = (row / len, row % len);
            bail!("`{}` and `{}` differ in token {token} of item {item}", first.name, other.name);
        }
    }
    let rows_of = |item: usize| &mask[item * len..][..len];
    let counts = (0..n).map(|item| rows_of(item).iter().filter(|&&is| is).count() as i64);
    let counts: Vec<i64> = counts.collect();
    if let Some((tensor, lengths)) = lengths.first()
        && let Some(item) = (0..n).find(|&item| lengths[item] != counts[item])
    {
        bail!(
            "`{}` says that item {item} has {} tokens, `{}` that it has {}",
            tensor.name,
            lengths[item],
            first.name,
            counts[item]
        );
    }
    if (0..n).all(|item| rows_of(item)[..counts[item] as usize].iter().all(|&is| is)) {
        return shorter(&counts);
    }
    let (layout, valid) = masked(&whole, |row| mask[row])?;
    Ok(Items { layout, valid: Some(valid), is_stated: true })
}

/// Checks that tensors which state the same agree. Offsets may be sums of lengths.
fn agree(stated: &[(&Beside<'_>, Vec<i64>)]) -> Result<()> {
    let Some(((first, expected), others)) = stated.split_first() else { return Ok(()) };
    for (other, found) in others {
        let (a, b) = (&first.name, &other.name);
        let n = |tensor: &Beside<'_>, values: &[i64]| {
            values.len() - usize::from(tensor.role == Some(Role::Offsets))
        };
        ensure!(
            expected.len() == found.len(),
            "`{a}` is of {} items and `{b}` of {}",
            n(first, expected),
            n(other, found)
        );
        let differs = (0..found.len()).find(|&i| expected[i] != found[i]);
        if let Some(i) = differs {
            // An offset that differs is the end of the item before.
            let is_packed = stated.iter().any(|(tensor, _)| tensor.role == Some(Role::Offsets));
            let item = if is_packed { i.saturating_sub(1) } else { i };
            bail!("`{a}` and `{b}` do not agree on item {item}");
        }
    }
    Ok(())
}

/// Reads offsets, which must begin with 0, not go down, and end with the number of rows.
fn offsets(tensor: &Beside<'_>, rows: usize) -> Result<Vec<i64>> {
    let (values, name) = (integers(tensor)?, &tensor.name);
    let meaning = "offsets are n + 1 numbers for n items, from 0 to the number of rows";
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
        bail!("{name} has no entries; {meaning}")
    };
    let hint = match (first == 0, last == rows as i64) {
        (true, false) => format!("; if they are where items start, append {rows}"),
        (false, true) => "; if they are where items end, prepend 0".to_string(),
        _ => "; leave rows that are no item's out of the file".to_string(),
    };
    ensure!(first == 0, "{name}[0] is {first}; expected 0: {meaning}{hint}");
    for (i, pair) in values.windows(2).enumerate() {
        ensure!(
            pair[0] <= pair[1],
            "{name}[{}] is {}, after {}; offsets never decrease",
            i + 1,
            pair[1],
            pair[0]
        );
    }
    let end = values.len() - 1;
    ensure!(last == rows as i64, "{name}[{end}] is {last}; expected {rows}: {meaning}{hint}");
    Ok(values)
}

/// Offsets of items of some lengths, which must come to the number of rows.
fn offsets_of_lengths(tensor: &Beside<'_>, rows: usize) -> Result<Vec<i64>> {
    let (lengths, name) = (integers(tensor)?, &tensor.name);
    let mut offsets = reserved(lengths.len() + 1)?;
    let mut end = 0i64;
    offsets.push(0);
    for (i, &length) in lengths.iter().enumerate() {
        ensure!(length >= 0, "{name}[{i}] is {length}; expected 0 or more");
        // More than there are rows will not do, and need not be counted further.
        end = end.saturating_add(length);
        offsets.push(end);
    }
    ensure!(end == rows as i64, "{name} come to {end} tokens; there are {rows} rows");
    Ok(offsets)
}

/// Lengths of padded items.
fn lengths(tensor: &Beside<'_>, n: usize, len: usize) -> Result<Vec<i64>> {
    let (values, name) = (integers(tensor)?, &tensor.name);
    ensure!(
        values.len() == n,
        "{name} has {} entries; expected {n}, one for each item",
        values.len()
    );
    for (i, &value) in values.iter().enumerate() {
        ensure!(
            (0..=len as i64).contains(&value),
            "{name}[{i}] is {value}; expected a number from 0 to {len}"
        );
    }
    Ok(values)
}

/// The numbers of a vector.
pub(super) fn integers(tensor: &Beside<'_>) -> Result<Vec<i64>> {
    let Beside { name, shape, bytes, .. } = tensor;
    let &[n] = shape.as_slice() else {
        bail!("`{name}` has shape {shape:?}; expected one dimension")
    };
    let mut values = reserved(n)?;
    match tensor.dtype {
        Dtype::I64 => {
            values.extend(bytes.as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b)));
        }
        Dtype::I32 => {
            let decode = |&b: &[u8; 4]| i64::from(i32::from_le_bytes(b));
            values.extend(bytes.as_chunks::<4>().0.iter().map(decode));
        }
        other => bail!("`{name}` is {other:?}; expected I64 or I32"),
    }
    Ok(values)
}

/// Whether each token is one. Numbers other than 0 and 1 are no mask.
fn mask(tensor: &Beside<'_>, n: usize, len: usize) -> Result<Vec<bool>> {
    let Beside { name, shape, bytes, dtype, .. } = tensor;
    ensure!(*shape == [n, len], "`{name}` has shape {shape:?}; expected [{n}, {len}], [n, len]");
    let size = match dtype {
        Dtype::BOOL | Dtype::U8 | Dtype::I8 => 1,
        Dtype::I16 | Dtype::U16 => 2,
        Dtype::I32 | Dtype::U32 => 4,
        Dtype::I64 | Dtype::U64 => 8,
        other => bail!("`{name}` is {other:?}; masks are bool or integers, 1 for tokens, else 0"),
    };
    let mut mask = reserved(n * len)?;
    for (row, value) in bytes.chunks_exact(size).enumerate() {
        let (low, high) = (value[0], &value[1..]);
        ensure!(
            low <= 1 && high.iter().all(|&byte| byte == 0),
            "`{name}` is neither 0 nor 1 for token {} of item {}",
            row % len,
            row / len
        );
        mask.push(low == 1);
    }
    Ok(mask)
}

/// Refuses tensors without a role that could be offsets, lengths or a mask. `extents` are `[n]` of
/// packed items and `[n, len]` of padded ones.
fn check_others(beside: &[Beside<'_>], extents: &[usize], rows: usize) -> Result<()> {
    for tensor in beside.iter().filter(|tensor| tensor.role.is_none()) {
        let shape = tensor.shape.strip_suffix(&[1]).filter(|shape| !shape.is_empty());
        let shape = shape.unwrap_or(&tensor.shape);
        let (what, role) = match (shape, extents) {
            (&[m], &[n, ..]) if m == n => ("the items' lengths", "lengths"),
            (&[m], &[n]) if m == n + 1 => ("offsets", "offsets"),
            (&[m], &[_]) if m == rows => ("a mask of the rows", "lengths"),
            (shape, &[_, _]) if shape == extents => ("a mask", "mask"),
            _ => continue,
        };
        let Beside { name, dtype, shape, .. } = tensor;
        let text = format!(
            "tensor `{name}`, {dtype:?} {shape:?}, could be {what}: rename it to `{role}` if it is"
        );
        return Err(FileError::new(text).advise(Advice::Ignore { name: name.clone() }));
    }
    Ok(())
}

/// Layout of `[n, len, dim]`, of which an item may use fewer than `len` tokens.
fn padded_layout([n, len, dim]: [usize; 3], lengths: Option<&[i64]>) -> Result<TokenLayout> {
    ensure!(
        len > 0 || n <= MAX_EMPTY_ITEMS,
        "embeddings: {n} items of 0 tokens each; at most {MAX_EMPTY_ITEMS} empty items are \
         supported"
    );
    let layout = TokenLayout::padded(n, len, dim)?;
    Ok(match lengths {
        Some(lengths) => layout.with_lengths(lengths)?,
        None => layout,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_items_are_bounded() {
        assert!(padded_layout([MAX_EMPTY_ITEMS, 0, 4], None).is_ok());
        assert!(padded_layout([MAX_EMPTY_ITEMS + 1, 0, 4], None).is_err());
    }
}
