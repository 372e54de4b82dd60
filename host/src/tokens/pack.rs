//! One packed matrix from the matrices of single items, in the forms that programs have them.

use super::Tokens;
use super::element::Element;
use super::layout::TokenLayout;
use super::layout::limits::check_row_len;
use crate::error::{Error, Result};

mod sealed {
    pub trait Sealed {}
}

/// Element of the slices that [`Tokens::pack`] takes as matrices. Sealed.
///
/// | slice of | example of an item |
/// |---|---|
/// | elements, rows one after the other | `Vec<f32>`, `&[f16]` |
/// | arrays, one per row | `Vec<[f32; 128]>` |
/// | vectors or slices, one per row | `Vec<Vec<f32>>`, `Vec<&[f32]>` |
#[diagnostic::on_unimplemented(
    message = "a slice of `{Self}` is no matrix of token embeddings",
    label = "expected f32, f16 or bf16 elements, or rows of them",
    note = "an item is a `Vec<T>` of whole rows, a `Vec<[T; DIM]>` or a `Vec<Vec<T>>`",
    note = "with `T` one of `f32`, `maxsim::half::f16` and `maxsim::half::bf16`"
)]
pub trait Row: sealed::Sealed + Sized {
    /// The type of the elements.
    type Element: Element;

    /// The elements of some rows, a run of consecutive ones at a time.
    #[doc(hidden)]
    fn runs(rows: &[Self]) -> impl Iterator<Item = &[Self::Element]>;

    /// Whether each run is one row, and not any number of them.
    #[doc(hidden)]
    const IS_ONE: bool;
}

impl<T: Element> sealed::Sealed for T {}

impl<T: Element> Row for T {
    type Element = T;
    const IS_ONE: bool = false;

    fn runs(rows: &[T]) -> impl Iterator<Item = &[T]> {
        std::iter::once(rows)
    }
}

macro_rules! rows {
    ($(($($generics:tt)*) $row:ty;)*) => {$(
        impl<$($generics)*> sealed::Sealed for $row {}
        impl<$($generics)*> Row for $row {
            type Element = T;
            const IS_ONE: bool = true;

            fn runs(rows: &[Self]) -> impl Iterator<Item = &[T]> {
                rows.iter().map(|row| &row[..])
            }
        }
    )*};
}

rows! {
    (T: Element, const D: usize) [T; D];
    (T: Element) Vec<T>;
    (T: Element) &[T];
}

impl<T: Element> Tokens<'static, T> {
    /// Copies a list of matrices, one per item, into one packed matrix.
    ///
    /// Each is `[len, dim]`, row-major: elements in one run, or [`Row`]s of `dim` elements each.
    ///
    /// ```
    /// use maxsim::Tokens;
    ///
    /// // Two documents, of one and two tokens; dim 2.
    /// let tokens = Tokens::pack(&[vec![2.0f32, 0.0], vec![3.0, 4.0, -1.0, 5.0]], 2)?;
    /// let of_rows = Tokens::pack(&[vec![[2.0f32, 0.0]], vec![[3.0, 4.0], [-1.0, 5.0]]], 2)?;
    /// assert_eq!(tokens.data(), of_rows.data());
    /// assert_eq!(tokens.layout().segments(), [[0, 1], [1, 2]]);
    /// # Ok::<(), maxsim::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] where an item's elements, or one of its rows, do not come to whole rows of
    /// `dim`: the item is named. [`Error::HostMemory`].
    pub fn pack<M: AsRef<[R]>, R: Row<Element = T>>(matrices: &[M], dim: usize) -> Result<Self> {
        check_row_len(dim)?;
        let mut total = 0usize;
        for (item, matrix) in matrices.iter().enumerate() {
            for (row, run) in R::runs(matrix.as_ref()).enumerate() {
                check_run::<R>(run.len(), dim, item, row)?;
                total = total.saturating_add(run.len());
            }
        }
        let mut data: Vec<T> = Vec::new();
        data.try_reserve_exact(total).map_err(|error| Error::HostMemory {
            requested_bytes: (total as u64).saturating_mul(size_of::<T>() as u64),
            source: Some(error),
        })?;
        let mut offsets = vec![0usize];
        for matrix in matrices {
            R::runs(matrix.as_ref()).for_each(|run| data.extend_from_slice(run));
            offsets.push(data.len() / dim);
        }
        let layout = TokenLayout::packed(data.len() / dim, dim, &offsets)?;
        Tokens::from_layout(data, layout)
    }
}

/// Checks that a run of an item's elements is a row, or comes to whole rows.
fn check_run<R: Row>(len: usize, dim: usize, item: usize, row: usize) -> Result<()> {
    let (fits, expected, found) = match R::IS_ONE {
        true => (
            len == dim,
            format!("rows of {dim} elements"),
            format!("{len} elements in row {row} of item {item}"),
        ),
        false => (
            len.is_multiple_of(dim),
            format!("whole rows of {dim} elements"),
            format!("{len} elements in item {item}"),
        ),
    };
    match fits {
        true => Ok(()),
        false => Err(Error::Shape { argument: "matrices", expected, found }),
    }
}
