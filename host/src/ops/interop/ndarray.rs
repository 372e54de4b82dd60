//! Tokens from arrays of the crate `ndarray`, and scores as such, with the feature `ndarray`.
//!
//! ```
//! use maxsim::{Device, Pairing, Tokens};
//! use ndarray::{Array3, array};
//!
//! let queries: Array3<f32> = array![[[1.0, 0.0], [0.0, 1.0]]];
//! let documents: Array3<f32> = array![[[2.0, 0.0]], [[3.0, 4.0]]];
//! let [queries, documents] = [queries.view(), documents.view()];
//! let [queries, documents] = [Tokens::try_from(queries)?, Tokens::try_from(documents)?];
//! let scores = Device::cpu().score(&queries, &documents, &Pairing::cross())?;
//! assert_eq!(scores.into_array().unwrap(), array![[2.0, 7.0]]);
//! # Ok::<(), maxsim::Error>(())
//! ```

use ndarray::{Array2, ArrayView3};

use crate::error::{Error, Result};
use crate::problem::scores::Scores;
use crate::problem::shape::ScoreShape;
use crate::tokens::Tokens;
use crate::tokens::element::Element;

impl<'a, T: Element> TryFrom<ArrayView3<'a, T>> for Tokens<'a, T> {
    type Error = Error;

    /// Items of equal length, `[n, len, dim]`, borrowed.
    ///
    /// # Errors
    /// [`Error::Shape`] where the array is not contiguous in row-major order: a copy that is has
    /// `as_standard_layout`. Those of [`Tokens::padded`].
    fn try_from(array: ArrayView3<'a, T>) -> Result<Tokens<'a, T>> {
        let (n, len, dim) = array.dim();
        let data = array.to_slice().ok_or_else(|| Error::Shape {
            argument: "array",
            expected: "a contiguous array in row-major order (see `as_standard_layout`)".into(),
            found: format!("strides {:?} of shape {:?}", array.strides(), array.shape()),
        })?;
        Tokens::padded(data, n, len, dim)
    }
}

impl Scores {
    /// The scores as an array with one row per query, without a copy. `None` of pairs, which have
    /// no rows. With the feature `ndarray`.
    pub fn into_array(self) -> Option<Array2<f32>> {
        let shape = match self.shape() {
            ScoreShape::Cross { n_queries, n_documents } => (n_queries, n_documents),
            ScoreShape::Candidates { n_queries, k } => (n_queries, k),
            ScoreShape::Pairs { .. } => return None,
        };
        Array2::from_shape_vec(shape, self.into_values()).ok()
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    #[test]
    fn arrays_in_another_order_are_refused() {
        let array = Array3::<f32>::zeros((2, 3, 4));
        assert!(Tokens::try_from(array.view()).is_ok());
        let error = Tokens::try_from(array.view().permuted_axes([1, 0, 2])).unwrap_err();
        assert!(error.to_string().contains("as_standard_layout"), "{error}");
        // A part of the rows that lies in one piece is a view, too.
        let part = array.slice(ndarray::s![1.., .., ..]);
        assert_eq!(Tokens::try_from(part).unwrap().layout().n_items(), 1);
    }
}
