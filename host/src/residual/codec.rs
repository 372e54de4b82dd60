//! The tables that residual-compressed tokens refer to: centroids and buckets.

use std::borrow::Cow;
use std::fmt;

use maxsim_kernels::abi::residual::NBITS;

use crate::error::{Error, Result};
use crate::runtime::alloc::copy_of;
use crate::tokens::dispatch::{for_each_element, with_element};
use crate::tokens::element::{Element, ElementType};
use crate::tokens::format::widen;
use crate::tokens::layout::limits::check_dim;
use crate::tokens::layout::{check_count, check_len};
use crate::tokens::scaled_rows::LARGEST;

macro_rules! centroids {
    ($($variant:ident($element:ty): $what:literal,)*) => {
        /// Centroids `[n_centroids, dim]`, row-major, in one of the library's element types.
        #[derive(Clone, Debug)]
        pub enum Centroids<'a> {
            $(
                #[doc = $what]
                $variant(Cow<'a, [$element]>),
            )*
        }

        $(impl<'a> From<Cow<'a, [$element]>> for Centroids<'a> {
            fn from(elements: Cow<'a, [$element]>) -> Self {
                Centroids::$variant(elements)
            }
        })*

        /// Evaluates an expression with the elements of centroids.
        macro_rules! with_elements {
            ($centroids:expr, $elements:ident => $value:expr) => {
                match $centroids {
                    $(Centroids::$variant($elements) => $value,)*
                }
            };
        }
    };
}
for_each_element!(centroids);

impl Centroids<'_> {
    /// Rounds to the nearest value of `element` (ties to even).
    pub fn rounded(values: Vec<f32>, element: ElementType) -> Centroids<'static> {
        // Without a copy.
        if element == ElementType::F32 {
            return Centroids::F32(values.into());
        }
        with_element!(element, T => {
            let elements: Cow<'static, [T]> = values.into_iter().map(T::from_f32).collect();
            elements.into()
        })
    }

    /// Element type.
    pub fn element(&self) -> ElementType {
        fn of<T: Element>(_: &[T]) -> ElementType {
            T::TYPE
        }
        with_elements!(self, elements => of(elements))
    }

    /// The elements as f32, which is exact.
    pub fn to_f32(&self) -> Cow<'_, [f32]> {
        match self {
            Centroids::F32(values) => Cow::Borrowed(values),
            _ => with_elements!(self, elements => elements.iter().map(|x| x.to_f32()).collect()),
        }
    }

    /// The elements' bytes as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        with_elements!(self, elements => bytemuck::cast_slice(elements))
    }

    fn copied(&self) -> Result<Centroids<'static>> {
        Ok(with_elements!(self, elements => Cow::from(copy_of(elements)?).into()))
    }

    fn len(&self) -> usize {
        with_elements!(self, elements => elements.len())
    }

    /// The largest magnitude, NaN above all.
    fn largest_magnitude(&self) -> f32 {
        with_elements!(self, elements => Element::largest_magnitude(elements))
    }

    /// Row `i` as f32.
    pub(crate) fn load(&self, i: usize, row: &mut [f32]) {
        fn load<T: Element>(values: &[T], row: &mut [f32]) {
            widen::<T>(values, row);
        }
        let range = i * row.len()..(i + 1) * row.len();
        with_elements!(self, elements => load(&elements[range], row));
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
        check_dim(dim)?;
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
    ///
    /// ```
    /// use maxsim::Tokens;
    /// use maxsim::residual::{BitOrder, Centroids, EncodeOptions};
    /// use maxsim::residual::{ResidualCodec, ResidualTokens};
    ///
    /// // Another program's tables: one centroid, buckets of 2 bits.
    /// let centroids = Centroids::F32(vec![1.0, 0.0].into());
    /// let codec = ResidualCodec::new(2, 2, centroids, &[-0.75, -0.25, 0.25, 0.75], false)?;
    /// let codec = codec.with_cutoffs(&[-0.5, 0.0, 0.5])?;
    /// assert_eq!(codec.bucket_cutoffs().map(<[f32]>::len), Some(3));
    /// assert_eq!(codec.row_bytes(), 1); // two buckets
    ///
    /// let tokens = Tokens::packed(&[0.375f32, 0.125], 2, &[0i64, 1])?;
    /// let options = EncodeOptions::default().order(BitOrder::LittleEndian);
    /// let encoded = ResidualTokens::encode(codec.into(), &tokens, &options)?;
    /// // The buckets of -0.625 and 0.125: 0 and 2, the first in the low bits.
    /// assert_eq!((encoded.codes(), encoded.residuals()), (&[0][..], &[0b1000][..]));
    /// assert_eq!((encoded.order(), encoded.codec().dim()), (BitOrder::LittleEndian, 2));
    /// assert_eq!(encoded.decode::<f32>()?.data(), [0.25, 0.25]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
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
        // Nearly always all are small, which the largest says: there may be many millions, and each
        // search over documents that pass by asks.
        let largest = self.centroids.largest_magnitude();
        if !largest.is_finite() || is_large(largest) {
            check("centroids", &self.centroids.to_f32(), &is_large)?;
        }
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

pub(crate) fn check_nbits(nbits: u32) -> Result<()> {
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
    use half::{bf16, f16};

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
