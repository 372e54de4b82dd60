//! Arrays in `.npy` files: padded embeddings `[n, len, dim]` of f16 or f32, with tensors
//! beside them.
//!
//! Format versions 1 to 3 (NEP 1): magic, version, header length (u16, from version 2 on u32),
//! and a Python dictionary with `descr`, `fortran_order` and `shape`. Only what describes
//! such an array is taken; the dictionary is never evaluated and no pickled object is read.

use std::borrow::Cow;

use safetensors::Dtype;

use super::contents::Contents;
use super::error::{Advice, Context, FileError, Result, bail, ensure};
use super::items::{Beside, Matrix, Role, items};
use super::options::FileOptions;
use super::tensors;
use crate::tokens::element::ElementType;

const MAGIC: &[u8] = b"\x93NUMPY";

/// numpy itself stops at 64 dimensions.
const MAX_DIMENSIONS: usize = 64;

/// Reads the contents of a file of embeddings.
pub(super) fn parse(bytes: &[u8], options: &FileOptions, files: &[Beside<'_>]) -> Result<Contents> {
    tensors::check_nameless(options)?;
    let (header, _) = array(bytes)?;
    let shape = &header.shape;
    // Check the elements first: a list of arrays has no dimensions.
    element_type(&header.descr)?;
    if !(shape.len() == 3 || shape.len() == 2 && !files.is_empty()) {
        let text = format!(
            "the array has shape {shape:?}; expected [n, len, dim], or [rows, dim] with lengths in \
             a file of their own"
        );
        return Err(FileError::new(text).advise(Advice::LengthsFile));
    }
    contents(bytes, "the array", files)
}

/// Reads the array of a whole file as embeddings, with the tensors that describe its items.
pub(super) fn contents(bytes: &[u8], name: &str, beside: &[Beside<'_>]) -> Result<Contents> {
    let (header, data) = array(bytes)?;
    let element = element_type(&header.descr)?;
    header.check_bytes(element.size_bytes(), data)?;
    let (&dim, tokens) = header.shape.split_last().unwrap_or((&0, &[]));
    let items = items(&Matrix { name, tokens, dim, last: ", dim" }, beside)?;
    let data = bytes.len() - data.len()..bytes.len();
    Ok(Contents::new(element.into(), data, None, items))
}

/// The array of a whole file beside embeddings.
pub(super) fn beside(name: &str, role: Option<Role>, bytes: &[u8]) -> Result<Beside<'static>> {
    let (header, data) = array(bytes)?;
    let descr = &header.descr;
    let dtype = header.dtype().with_context(|| format!("elements are '{descr}'"))?;
    header.check_bytes(dtype.bitsize() / 8, data)?;
    let bytes = Cow::Owned(data.to_vec());
    Ok(Beside { name: name.into(), role, dtype, shape: header.shape, bytes })
}

/// The header's text and where the array starts.
fn split_header(bytes: &[u8]) -> Result<(&str, usize)> {
    let rest = bytes.strip_prefix(MAGIC).context("not an npy file")?;
    let (&[major, minor], rest) =
        rest.split_first_chunk::<2>().context("cut off within the npy header")?;
    let (header_bytes, rest) = match (major, minor) {
        (1, 0) => {
            rest.split_first_chunk().map(|(&n, rest)| (u32::from(u16::from_le_bytes(n)), rest))
        }
        (2 | 3, 0) => rest.split_first_chunk().map(|(&n, rest)| (u32::from_le_bytes(n), rest)),
        _ => bail!("npy format version {major}.{minor} is not one of 1.0, 2.0 and 3.0"),
    }
    .context("cut off within the npy header")?;
    let header = rest.get(..header_bytes as usize).context("cut off within the npy header")?;
    let data_start = bytes.len() - rest.len() + header.len();
    let text = std::str::from_utf8(header).map_err(FileError::of);
    Ok((text.context("the npy header is not text")?, data_start))
}

/// The element type of embeddings, by numpy's name.
pub(super) fn element_type(descr: &str) -> Result<ElementType> {
    match descr {
        "<f2" => Ok(ElementType::F16),
        "<f4" => Ok(ElementType::F32),
        "<f8" => {
            bail!("elements are '<f8' (f64); save the array as numpy.float32 or numpy.float16")
        }
        ">f2" | ">f4" => bail!("the array is big-endian; save it as '<f2' or '<f4'"),
        "|O" | "O" => bail!("the array holds pickled objects, which are never read"),
        other => bail!("elements are '{other}'; expected '<f2' (f16) or '<f4' (f32)"),
    }
}

/// An array as an `.npy` file has it: element type, shape, and bytes.
///
/// ```
/// use maxsim::files::NpyArray;
///
/// let mut file = b"\x93NUMPY\x01\x00".to_vec();
/// let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n";
/// file.extend((header.len() as u16).to_le_bytes());
/// file.extend(header.bytes());
/// file.extend([7i32, 9].iter().flat_map(|x| x.to_le_bytes()));
/// let array = NpyArray::parse(&file)?;
/// assert_eq!((array.descr(), array.shape()), ("<i4", &[2][..]));
/// assert_eq!(array.data(), [7, 0, 0, 0, 9, 0, 0, 0]);
/// # Ok::<(), maxsim::files::FileError>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct NpyArray<'a> {
    header: Header,
    data: &'a [u8],
}

impl<'a> NpyArray<'a> {
    /// Splits the bytes of a whole file (format versions 1.0 to 3.0, NEP 1) into header and data.
    ///
    /// # Errors
    /// Where the header is broken or the array in Fortran order. Whether there are as many bytes of
    /// data as the shape says is not checked: element types may be any.
    pub fn parse(bytes: &'a [u8]) -> Result<NpyArray<'a>, FileError> {
        let (header, data) = array(bytes)?;
        Ok(NpyArray { header, data })
    }

    /// Element type, in numpy's words, such as `<f4`; that of fields is an error.
    pub fn descr(&self) -> &str {
        &self.header.descr
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Elements in C order; a file that is cut off or has more has other than there should be.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}

/// The dictionary of an npy header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Element type, in numpy's words.
    pub descr: String,
    fortran_order: bool,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

/// Splits a file into its header and the bytes behind it, whose number is not checked yet.
pub(crate) fn array(bytes: &[u8]) -> Result<(Header, &[u8])> {
    let (header, data_start) = split_header(bytes)?;
    let header = Header::parse(header).context("the npy header is broken")?;
    ensure!(
        !header.fortran_order,
        "the array is in Fortran order; save it with numpy.ascontiguousarray"
    );
    Ok((header, &bytes[data_start..]))
}

impl Header {
    /// Element type, where the elements are numbers in this byte order.
    pub fn dtype(&self) -> Option<Dtype> {
        Some(match self.descr.as_str() {
            "|b1" => Dtype::BOOL,
            "|i1" => Dtype::I8,
            "|u1" => Dtype::U8,
            "<i2" => Dtype::I16,
            "<u2" => Dtype::U16,
            "<f2" => Dtype::F16,
            "<i4" => Dtype::I32,
            "<u4" => Dtype::U32,
            "<f4" => Dtype::F32,
            "<i8" => Dtype::I64,
            "<u8" => Dtype::U64,
            "<f8" => Dtype::F64,
            _ => return None,
        })
    }

    /// Checks that there are as many bytes as the shape says.
    pub fn check_bytes(&self, element_bytes: usize, data: &[u8]) -> Result<()> {
        let Header { shape, descr, .. } = self;
        let factors = shape.iter().chain([&element_bytes]);
        let expected = factors
            .copied()
            .try_fold(1u64, |product, factor| product.checked_mul(factor as u64))
            .with_context(|| format!("shape {shape:?} is too large for any file"))?;
        let found = data.len() as u64;
        ensure!(
            expected == found,
            "an array {shape:?} of '{descr}' takes {expected} bytes, the file has {found}"
        );
        Ok(())
    }

    fn parse(text: &str) -> Result<Header> {
        let mut cursor = Cursor { rest: text };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        cursor.expect('{')?;
        while !cursor.eat('}') {
            let key = cursor.string()?;
            cursor.expect(':')?;
            let repeated = match key {
                "descr" => descr.replace(cursor.descr()?).is_some(),
                "fortran_order" => fortran_order.replace(cursor.boolean()?).is_some(),
                "shape" => shape.replace(cursor.shape()?).is_some(),
                other => bail!("unknown key '{other}'"),
            };
            ensure!(!repeated, "key '{key}' appears twice");
            if !cursor.eat(',') {
                cursor.expect('}')?;
                break;
            }
        }
        ensure!(cursor.rest.trim().is_empty(), "text after the dictionary");
        Ok(Header {
            descr: descr.context("no key 'descr'")?,
            fortran_order: fortran_order.context("no key 'fortran_order'")?,
            shape: shape.context("no key 'shape'")?,
        })
    }
}

/// The rest of a header. Each method takes one thing off its front, and the space before.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn eat(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.eat(wanted) {
            return Ok(());
        }
        match self.rest.chars().next() {
            Some(found) => bail!("expected '{wanted}', found '{found}'"),
            None => bail!("expected '{wanted}', found the end"),
        }
    }

    /// A quoted string. numpy writes none with an escape where one is wanted here.
    fn string(&mut self) -> Result<&'a str> {
        let quote = if self.eat('"') { '"' } else { '\'' };
        if quote == '\'' {
            self.expect(quote)?;
        }
        let (string, rest) = self.rest.split_once(quote).context("a string without an end")?;
        ensure!(!string.contains('\\'), "a string with an escape");
        self.rest = rest;
        Ok(string)
    }

    fn descr(&mut self) -> Result<String> {
        ensure!(!self.eat('['), "the array has fields; expected plain f16 or f32");
        Ok(self.string()?.to_string())
    }

    fn boolean(&mut self) -> Result<bool> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        bail!("expected True or False")
    }

    /// A tuple of whole numbers from 0.
    fn shape(&mut self) -> Result<Vec<usize>> {
        let mut shape = Vec::new();
        self.expect('(')?;
        while !self.eat(')') {
            ensure!(shape.len() < MAX_DIMENSIONS, "more than {MAX_DIMENSIONS} dimensions");
            self.rest = self.rest.trim_start();
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = self.rest.split_at(digits);
            let number = number.parse().map_err(FileError::of);
            shape.push(number.context("expected whole numbers of 0 or more in the shape")?);
            self.rest = rest;
            if !self.eat(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_as_numpy_writes_them() {
        let header = "{'descr': '<f2', 'fortran_order': False, 'shape': (3, 4, 5), }      \n";
        let read = Header::parse(header).unwrap();
        assert_eq!(
            read,
            Header { descr: "<f2".into(), fortran_order: false, shape: vec![3, 4, 5] }
        );
        assert_eq!(
            Header::parse("{'shape': (), 'descr': \"x\", 'fortran_order': True}").unwrap(),
            { Header { descr: "x".into(), fortran_order: true, shape: vec![] } }
        );
        assert_eq!(Cursor { rest: "(7,)" }.shape().unwrap(), [7]);
    }

    #[test]
    fn other_headers_are_errors() {
        for header in [
            "",
            "{",
            "{}",
            "{'descr'}",
            "{'descr': '<f2', 'fortran_order': False}",
            "{'descr': '<f2', 'descr': '<f2', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': [('a', '<f2')], 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f2', 'fortran_order': 0, 'shape': (1,)}",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (1 2)}",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (1,), 'extra': 1}",
            "{'descr': '<f2', 'fortran_order': False, 'shape': (1,)} x",
            "{'descr': '<f\\x32', 'fortran_order': False, 'shape': (1,)}",
        ] {
            assert!(Header::parse(header).is_err(), "{header}");
        }
    }
}
