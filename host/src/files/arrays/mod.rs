//! Several arrays in one place, an archive or a folder: tensors of one file by their names, or a
//! matrix `[len, dim]` for each item.

pub(super) mod archive;
pub(super) mod folder;

use std::borrow::Cow;
use std::cmp::Ordering;

use safetensors::Dtype;

use super::bytes::FileBytes;
use super::contents::Contents;
use super::error::{Context, FileError, Result, bail, ensure};
use super::ids::{self, IDS};
use super::items::{Beside, Items, Matrix, Role, items};
use super::npy;
use super::options::FileOptions;
use super::tensors::{self, Listed, is_embeddings};
use super::token_file::Opened;

/// An array's header is not looked for any further.
const MAX_HEADER_BYTES: u64 = 1 << 16;

/// Meaning of several arrays together.
enum Form {
    /// Embeddings, and arrays that say or could say where items are.
    Table(usize, Vec<(usize, Option<Role>)>),
    /// An item each, in this order.
    List(Vec<usize>),
}

/// Embeddings of several arrays. `read` gives the bytes of an array's whole `.npy` file.
fn open(
    arrays: &[Listed],
    options: &FileOptions,
    files: &[Beside<'_>],
    read: impl Fn(usize) -> Result<FileBytes>,
) -> Result<Opened> {
    let named = |i: usize| read(i).with_context(|| format!("`{}`", arrays[i].name));
    match form(arrays, options)? {
        Form::Table(embeddings, roles) => {
            let beside = roles.into_iter().map(|(i, role)| beside(&arrays[i], role, || named(i)));
            let mut beside: Vec<Beside<'_>> = beside.collect::<Result<_>>()?;
            beside.extend(files.iter().cloned());
            let name = &arrays[embeddings].name;
            let bytes = named(embeddings)?;
            let contents = npy::contents(&bytes, name, &beside)?;
            let is_ids =
                |array: &Listed| array.name == IDS && !options.ignored.contains(&array.name);
            let ids = match arrays.iter().position(is_ids) {
                Some(i) => Some(ids::numpy(&named(i)?, contents.layout.n_items())?),
                None => None,
            };
            Ok(Opened { ids, ..Opened::new(bytes, contents) })
        }
        Form::List(order) => {
            let (bytes, contents) = list(arrays, &order, files, named)?;
            let names: Vec<&str> = order.iter().map(|&i| arrays[i].name.as_str()).collect();
            // Names that are the items' numbers say no more than the numbers.
            let are_numbers = names.iter().enumerate().all(|(i, name)| number(name) == Some(i));
            let ids = (!are_numbers).then(|| names.iter().map(|name| (*name).to_owned()).collect());
            Ok(Opened { ids, ..Opened::new(FileBytes::in_memory(bytes), contents) })
        }
    }
}

fn beside(
    array: &Listed,
    role: Option<Role>,
    read: impl Fn() -> Result<FileBytes>,
) -> Result<Beside<'static>> {
    let Listed { name, dtype, shape } = array;
    if role.is_some() {
        return npy::beside(name, role, &read()?).with_context(|| format!("`{name}`"));
    }
    // Elements that are no numbers are no lengths either: any type that the shape cannot matter
    // for.
    let shape = if dtype.is_some() { shape.clone() } else { Vec::new() };
    let (dtype, bytes) = (dtype.unwrap_or(Dtype::U8), Cow::Borrowed(&[][..]));
    Ok(Beside { name: name.clone(), role, dtype, shape, bytes })
}

fn form(arrays: &[Listed], options: &FileOptions) -> Result<Form> {
    ensure!(!arrays.is_empty(), "no .npy arrays in it");
    if options.tensor.is_some() || arrays.iter().any(|array| is_embeddings(&array.name)) {
        let embeddings = tensors::embeddings(arrays, options)?;
        return Ok(Form::Table(embeddings, tensors::beside(arrays, embeddings, &[], options)));
    }
    let is_taken = |&i: &usize| !options.ignored.contains(&arrays[i].name);
    let mut order: Vec<usize> = (0..arrays.len()).filter(is_taken).collect();
    let is_matrix = |array: &Listed| {
        matches!(array.dtype, Some(Dtype::F16 | Dtype::F32 | Dtype::F64)) && array.shape.len() == 2
    };
    let other = order.iter().map(|&i| &arrays[i]).find(|array| !is_matrix(array));
    if let Some(other) = other {
        let what = format!(
            "no array `embeddings`, and `{}` is no matrix [len, dim] of one item",
            other.name
        );
        return Err(tensors::with_list(&what, arrays));
    }
    order.sort_by(|&a, &b| natural(&arrays[a].name, &arrays[b].name));
    let pairs = || order.windows(2).map(|pair| (&arrays[pair[0]], &arrays[pair[1]]));
    if let Some((a, b)) = pairs().find(|(a, b)| natural(&a.name, &b.name).is_eq()) {
        bail!("`{}` and `{}` have the same place in the order of names", a.name, b.name);
    }
    if let Some((a, b)) = pairs().find(|(a, b)| a.dtype != b.dtype || a.shape[1] != b.shape[1]) {
        bail!(
            "`{}` is {:?} {:?} and `{}` {:?} {:?}; all items must have one type and dim",
            a.name,
            a.dtype.unwrap_or(Dtype::F32),
            a.shape,
            b.name,
            b.dtype.unwrap_or(Dtype::F32),
            b.shape
        );
    }
    Ok(Form::List(order))
}

/// One item after the other in memory.
fn list(
    arrays: &[Listed],
    order: &[usize],
    files: &[Beside<'_>],
    read: impl Fn(usize) -> Result<FileBytes>,
) -> Result<(Vec<u8>, Contents)> {
    let mut bytes = Vec::new();
    let mut lengths = Vec::new();
    let (mut rows, mut dim, mut element) = (0usize, 0, None);
    for &i in order {
        let part = read(i)?;
        let mut add = || -> Result<()> {
            let (header, data) = npy::array(&part)?;
            ensure!(header.shape == arrays[i].shape, "the file changed while it was read");
            let found = npy::element_type(&header.descr)?;
            header.check_bytes(found.size_bytes(), data)?;
            element = Some(found);
            dim = header.shape[1];
            rows = rows.checked_add(header.shape[0]).context("too many rows")?;
            lengths.extend_from_slice(&(header.shape[0] as i64).to_le_bytes());
            bytes.try_reserve(data.len()).map_err(FileError::of)?;
            bytes.extend_from_slice(data);
            Ok(())
        };
        add().with_context(|| format!("`{}`", arrays[i].name))?;
    }
    let element = element.context("every array is ignored")?;
    let mut beside = vec![Beside {
        name: "the arrays' lengths".to_string(),
        role: Some(Role::Lengths),
        dtype: Dtype::I64,
        shape: vec![order.len()],
        bytes: lengths.into(),
    }];
    beside.extend(files.iter().cloned());
    let matrix = Matrix { name: "the arrays' rows", tokens: &[rows], dim, last: ", dim" };
    // Arrays may be cut out of a padded batch, and as long as that.
    let items = Items { is_stated: !files.is_empty(), ..items(&matrix, &beside)? };
    let contents = Contents::new(element.into(), 0..bytes.len(), None, items);
    Ok((bytes, contents))
}

/// The number at the end of a name.
fn number(name: &str) -> Option<usize> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name[name.len() - digits..].parse().ok()
}

/// The order of names in which runs of digits count as numbers: `2` before `10`. Names that differ
/// in zeros before a number alone are equal.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (n, m) = (digits(a), digits(b));
        let order = if n > 0 && m > 0 {
            let [x, y] = [&a[..n], &b[..m]].map(|digits| digits.trim_start_matches('0'));
            (a, b) = (&a[n..], &b[m..]);
            x.len().cmp(&y.len()).then_with(|| x.cmp(y))
        } else {
            let (x, y) = (a.chars().next(), b.chars().next());
            let (Some(c), Some(d)) = (x, y) else { return x.cmp(&y) };
            (a, b) = (&a[c.len_utf8()..], &b[d.len_utf8()..]);
            c.cmp(&d)
        };
        if order.is_ne() {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let names = ["", "2", "10", "a", "a1b2", "a1b10", "a2", "arr_0", "arr_9", "arr_10", "é"];
        for (i, a) in names.iter().enumerate() {
            for (j, b) in names.iter().enumerate() {
                assert_eq!(natural(a, b), i.cmp(&j), "{a} {b}");
            }
        }
        assert!(natural("doc_01", "doc_1").is_eq());
        assert!(natural("99999999999999999999999", "100000000000000000000000").is_lt());
    }
}
