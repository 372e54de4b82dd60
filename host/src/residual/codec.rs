//! The tables that residual-compressed tokens refer to: centroids and buckets.

use std::borrow::Cow;
use std::fmt;

use half::{bf16, f16};
use maxsim_kernels::abi::residual::NBITS;

use crate::error::{Error, Result};
use crate::runtime::alloc::copy_of;
use crate::tokens::element::{Element, ElementType};
use crate::tokens::layout::{TokenLayout, check_count, check_len};
use crate::tokens::scaled_rows::LARGEST;

/// Centroids `[n_centroids, dim]`, row-major, in one of the library's element types.
#[derive(Clone, Debug)]
pub enum Centroids<'a> {
    /// IEEE 754 binary16, as ColBERT and fast-plaid store them.
    F16(Cow<'a, [f16]>),
    /// bfloat16.
    Bf16(Cow<'a, [bf16]>),
    /// IEEE 754 binary32, as next-plaid stores them.
    F32(Cow<'a, [f32]>),
}

impl Centroids<'_> {
    /// Rounds to the nearest value of `element` (ties to even).
    pub fn rounded(values: Vec<f32>, element: ElementType) -> Centroids<'static> {
        match element {
            ElementType::F16 => Centroids::F16(values.into_iter().map(f16::from_f32).collect()),
            ElementType::Bf16 => Centroids::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            ElementType::F32 => Centroids::F32(values.into()),
        }
    }

    /// Element type.
    pub fn element(&self) -> ElementType {
        match self {
            Centroids::F16(_) => ElementType::F16,
            Centroids::Bf16(_) => ElementType::Bf16,
            Centroids::F32(_) => ElementType::F32,
        }
    }

    /// The elements as f32, which is exact.
    pub fn to_f32(&self) -> Cow<'_, [f32]> {
        match self {
            Centroids::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Centroids::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Centroids::F32(values) => Cow::Borrowed(values),
        }
    }

    /// The elements' bytes as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Centroids::F16(values) => bytemuck::cast_slice(values),
            Centroids::Bf16(values) => bytemuck::cast_slice(values),
            Centroids::F32(values) => bytemuck::cast_slice(values),
        }
    }

    fn copied(&self) -> Result<Centroids<'static>> {
        Ok(match self {
            Centroids::F16(values) => Centroids::F16(copy_of(values)?.into()),
            Centroids::Bf16(values) => Centroids::Bf16(copy_of(values)?.into()),
            Centroids::F32(values) => Centroids::F32(copy_of(values)?.into()),
        })
    }

    fn len(&self) -> usize {
        match self {
            Centroids::F16(values) => values.len(),
            Centroids::Bf16(values) => values.len(),
            Centroids::F32(values) => values.len(),
        }
    }

    /// Row `i` as f32.
    pub(crate) fn load(&self, i: usize, row: &mut [f32]) {
        fn widen<T: Element>(values: &[T], row: &mut [f32]) {
            row.iter_mut().zip(values).for_each(|(to, from)| *to = from.to_f32());
        }
        let range = i * row.len()..(i + 1) * row.len();
        match self {
            Centroids::F16(values) => widen(&values[range], row),
            Centroids::Bf16(values) => widen(&values[range], row),
            Centroids::F32(values) => widen(&values[range], row),
        }
    }
}

/// Centroids, buckets, and whether decoded tokens are normalised: all that tokens are decoded with
/// besides their own bytes.
///
/// ```text
/// token = centroids[code] + bucket_weights[bucket], divided by its length where `normalize`
/// ```
#[derive(Clone)]
#[must_use]
pub struct ResidualCodec<'a> {
    nbits: u32,
    dim: usize,
    n_centroids: usize,
    centroids: Centroids<'a>,
    bucket_weights: Vec<f32>,
    bucket_cutoffs: Option<Vec<f32>>,
    normalize: bool,
}

/// Prints everything but the tables.
impl fmt::Debug for ResidualCodec<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidualCodec")
            .field("nbits", &self.nbits)
            .field("dim", &self.dim)
            .field("n_centroids", &self.n_centroids)
            .field("normalize", &self.normalize)
            .finish_non_exhaustive()
    }
}

impl<'a> ResidualCodec<'a> {
    /// Checks and takes `centroids` `[n_centroids, dim]` and `bucket_weights` `[2^nbits]`, with
    /// `nbits` one of 1, 2, 4 and 8. ColBERT, fast-plaid and next-plaid normalise decoded tokens;
    /// here `normalize` decides.
    pub fn new(
        nbits: u32,
        dim: usize,
        centroids: Centroids<'a>,
        bucket_weights: &[f32],
        normalize: bool,
    ) -> Result<Self> {
        check_nbits(nbits)?;
        // Checks dim as every token matrix's is.
        let _ = TokenLayout::padded(0, 0, dim)?;
        let n = centroids.len();
        if n == 0 || !n.is_multiple_of(dim) {
            return Err(Error::Shape {
                argument: "centroids",
                expected: format!("one or more rows of {dim} elements"),
                found: format!("{n} elements"),
            });
        }
        check_count("number of centroids", n / dim)?;
        check_len("bucket_weights", 1 << nbits, "2^nbits", bucket_weights.len())?;
        Ok(ResidualCodec {
            nbits,
            dim,
            n_centroids: n / dim,
            centroids,
            bucket_weights: bucket_weights.to_vec(),
            bucket_cutoffs: None,
            normalize,
        })
    }

    /// Adds the cutoffs that tokens are encoded with: `[2^nbits - 1]` numbers that do not fall. A
    /// residual is in the bucket whose number is how many of them are below it.
    pub fn with_cutoffs(self, bucket_cutoffs: &[f32]) -> Result<Self> {
        let expected = self.bucket_weights.len() - 1;
        check_len("bucket_cutoffs", expected, "2^nbits - 1", bucket_cutoffs.len())?;
        if let Some(i) = bucket_cutoffs.iter().position(|cutoff| cutoff.is_nan()) {
            return Err(Error::Shape {
                argument: "bucket_cutoffs",
                expected: "numbers in rising order, or equal".into(),
                found: format!("NaN at {i}"),
            });
        }
        if let Some(i) = bucket_cutoffs.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(Error::Shape {
                argument: "bucket_cutoffs",
                expected: "numbers in rising order, or equal".into(),
                found: format!("{} at {i} before {}", bucket_cutoffs[i], bucket_cutoffs[i + 1]),
            });
        }
        Ok(ResidualCodec { bucket_cutoffs: Some(bucket_cutoffs.to_vec()), ..self })
    }

    /// Bits of a bucket: 1, 2, 4 or 8.
    pub fn nbits(&self) -> u32 {
        self.nbits
    }

    /// Elements per token.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of centroids: codes go from 0 to `n_centroids - 1`.
    pub fn n_centroids(&self) -> usize {
        self.n_centroids
    }

    /// `[n_centroids, dim]`.
    pub fn centroids(&self) -> &Centroids<'a> {
        &self.centroids
    }

    /// Makes a copy that borrows nothing.
    pub(super) fn copied(&self) -> Result<ResidualCodec<'static>> {
        Ok(ResidualCodec {
            nbits: self.nbits,
            dim: self.dim,
            n_centroids: self.n_centroids,
            centroids: self.centroids.copied()?,
            bucket_weights: copy_of(&self.bucket_weights)?,
            bucket_cutoffs: self.bucket_cutoffs.as_deref().map(copy_of).transpose()?,
            normalize: self.normalize,
        })
    }

    pub(super) fn into_centroids(self) -> Centroids<'a> {
        self.centroids
    }

    /// `[2^nbits]`: what a bucket adds to an element of a centroid.
    pub fn bucket_weights(&self) -> &[f32] {
        &self.bucket_weights
    }

    /// `[2^nbits - 1]`, where tokens can be encoded.
    pub fn bucket_cutoffs(&self) -> Option<&[f32]> {
        self.bucket_cutoffs.as_deref()
    }

    /// Checks that a CUDA device can decode tokens for queries of type `T`: that centroids that are
    /// finite are so in that type, and that squares of sums are within f32 where tokens are
    /// normalised.
    ///
    /// # Errors
    /// [`Error::Shape`] that names the first number that is too large.
    pub(crate) fn check_range<T: Element>(&self) -> Result<()> {
        let most = if self.normalize { LARGEST / 2.0 } else { f32::MAX };
        let is_large =
            |x: f32| x.is_finite() && (x.abs() > most || T::from_f32(x).to_f32().is_infinite());
        let check = |argument, numbers: &[f32], is_large: &dyn Fn(f32) -> bool| match numbers
            .iter()
            .position(|&x| is_large(x))
        {
            None => Ok(()),
            Some(i) => Err(Error::Shape {
                argument,
                expected: format!(
                    "numbers that are finite as {}{} on a CUDA device; scale the embeddings down",
                    T::TYPE,
                    if self.normalize { " and below 5e14" } else { "" }
                ),
                found: format!("{:.1e} at {i}", numbers[i]),
            }),
        };
        check("centroids", &self.centroids.to_f32(), &is_large)?;
        // A weight that is infinite as `T` is found where weights are rounded.
        check("bucket_weights", &self.bucket_weights, &|x| x.is_finite() && x.abs() > most)
    }

    /// Whether decoded tokens are normalised.
    pub fn normalize(&self) -> bool {
        self.normalize
    }

    /// Bytes of a token's buckets: ceil(dim · nbits / 8).
    pub fn row_bytes(&self) -> usize {
        maxsim_kernels::abi::residual::row_bytes(self.dim, self.nbits)
    }
}

pub(super) fn check_nbits(nbits: u32) -> Result<()> {
    if NBITS.contains(&nbits) {
        return Ok(());
    }
    Err(Error::Shape {
        argument: "nbits",
        expected: "1, 2, 4 or 8".into(),
        found: nbits.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::normalize::row_norm;

    #[test]
    fn rows_of_any_length_have_their_norm() {
        assert_eq!(row_norm(&[3e30, 4e30]), 2e-31);
        assert_eq!(row_norm(&[3.0, 4.0]), 0.2);
        assert_eq!(row_norm(&[1e-20, 0.0]), row_norm(&[0.0]));
        assert_eq!(row_norm(&[f32::INFINITY, 1.0]), 0.0);
        assert!(row_norm(&[f32::NAN, 1e30]).is_nan());
    }

    #[test]
    fn tables_that_devices_cannot_hold_are_named() {
        let check = |centroids: [f32; 4], normalize| {
            let centroids = Centroids::F32(centroids.to_vec().into());
            let codec = ResidualCodec::new(1, 2, centroids, &[-0.5, 0.5], normalize).unwrap();
            let said = |checked: Result<()>| checked.err().map(|error| error.to_string());
            [said(codec.check_range::<f16>()), said(codec.check_range::<bf16>())]
        };
        assert_eq!(check([1.0, -2.0, f32::NAN, f32::INFINITY], true), [None, None]);
        let [f16, bf16] = check([1.0, 7e4, 0.0, 0.0], true);
        assert!(f16.unwrap().contains("at 1") && bf16.is_none());
        let [_, bf16] = check([1.0, 0.0, -1e15, 0.0], true);
        assert!(bf16.unwrap().contains("-1.0e15 at 2"));
        assert_eq!(check([1.0, 0.0, -1e15, 0.0], false)[1], None);
    }
}
