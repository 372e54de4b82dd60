//! Arrays as index files have them, and the numbers in them.

use std::borrow::Cow;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use maxsim::residual::{Centroids, Codes};

use crate::input::said;

use maxsim::files::NpyArray;

/// Element types that occur in indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    F16,
    Bf16,
    F32,
    I32,
    I64,
    U8,
}

impl Kind {
    fn size_bytes(self) -> usize {
        match self {
            Kind::U8 => 1,
            Kind::F16 | Kind::Bf16 => 2,
            Kind::F32 | Kind::I32 => 4,
            Kind::I64 => 8,
        }
    }
}

/// An array in memory, row-major and little-endian.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub kind: Kind,
    pub shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Array {
    /// Checks that there are as many bytes as the shape says.
    pub fn new(kind: Kind, shape: &[usize], bytes: Vec<u8>) -> Result<Array> {
        ensure!(!shape.is_empty(), "a single number; expected an array of one or two dimensions");
        let expected = shape
            .iter()
            .chain([&kind.size_bytes()])
            .try_fold(1u64, |product, &factor| product.checked_mul(factor as u64))
            .with_context(|| format!("shape {shape:?} is too large for any file"))?;
        let found = bytes.len();
        ensure!(
            expected == found as u64,
            "an array {shape:?} of {kind:?} takes {expected} bytes, the file has {found}"
        );
        Ok(Array { kind, shape: shape.to_vec(), bytes })
    }

    /// Reads an `.npy` file.
    pub fn of_npy(file: &[u8]) -> Result<Array> {
        let array = NpyArray::parse(file).map_err(said)?;
        let kind = match array.descr() {
            "<f2" => Kind::F16,
            "<f4" => Kind::F32,
            "<i4" => Kind::I32,
            "<i8" => Kind::I64,
            // fast-plaid writes the second, which means nothing for single bytes.
            "|u1" | "<u1" => Kind::U8,
            "|O" | "O" => bail!("the array holds pickled objects, which are never read"),
            other => bail!("elements are '{other}', which is not supported"),
        };
        Array::new(kind, array.shape(), array.data().to_vec())
    }

    /// Rows of a matrix, or elements of a vector.
    pub fn n_rows(&self) -> usize {
        self.shape[0]
    }

    /// The rows of a range. There must be so many.
    pub fn rows(&self, range: std::ops::Range<usize>) -> Array {
        let row_bytes = self.bytes.len() / self.n_rows().max(1);
        let bytes = self.bytes[range.start * row_bytes..range.end * row_bytes].to_vec();
        let shape = [&[range.len()], &self.shape[1..]].concat();
        Array { kind: self.kind, shape, bytes }
    }

    /// Floating-point numbers as f32, which is exact.
    pub fn floats(&self) -> Result<Vec<f32>> {
        Ok(match self.kind {
            Kind::F16 => self.elements::<f16>().iter().map(|x| x.to_f32()).collect(),
            Kind::Bf16 => self.elements::<bf16>().iter().map(|x| x.to_f32()).collect(),
            Kind::F32 => self.elements::<f32>().into_owned(),
            other => bail!("elements are {other:?}; expected F16, BF16 or F32"),
        })
    }

    /// A matrix of centroids, with its dim.
    pub fn centroids(&self) -> Result<(Centroids<'static>, usize)> {
        let &[_, dim] = self.shape.as_slice() else {
            bail!("centroids have shape {:?}; expected [n, dim]", self.shape)
        };
        let centroids = match self.kind {
            Kind::F16 => Centroids::F16(self.elements::<f16>().into_owned().into()),
            Kind::Bf16 => Centroids::Bf16(self.elements::<bf16>().into_owned().into()),
            Kind::F32 => Centroids::F32(self.elements::<f32>().into_owned().into()),
            other => bail!("centroids are {other:?}; expected F16, BF16 or F32"),
        };
        Ok((centroids, dim))
    }

    /// A vector of codes.
    pub fn codes(&self) -> Result<Codes<'static>> {
        ensure!(self.shape.len() == 1, "codes have shape {:?}; expected [rows]", self.shape);
        Ok(match self.kind {
            Kind::I32 => self.elements::<i32>().into_owned().into(),
            Kind::I64 => self.elements::<i64>().into_owned().into(),
            other => bail!("codes are {other:?}; expected I32 or I64"),
        })
    }

    /// A matrix of bytes `[rows, row_bytes]`.
    pub fn into_residuals(self, row_bytes: usize) -> Result<Vec<u8>> {
        ensure!(
            self.kind == Kind::U8 && self.shape.len() == 2 && self.shape[1] == row_bytes,
            "residuals are {:?} {:?}; expected U8 [rows, {row_bytes}]",
            self.kind,
            self.shape
        );
        Ok(self.bytes)
    }

    /// The same memory where it is aligned, a copy where it is not.
    fn elements<T: bytemuck::Pod>(&self) -> Cow<'_, [T]> {
        match bytemuck::try_cast_slice(&self.bytes) {
            Ok(elements) => Cow::Borrowed(elements),
            Err(_) => {
                let elements = self.bytes.chunks_exact(size_of::<T>());
                Cow::Owned(elements.map(bytemuck::pod_read_unaligned).collect())
            }
        }
    }
}
