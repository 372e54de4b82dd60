//! Fallible allocation of vectors: an error in place of an abort.

use crate::error::{Error, Result};

/// A vector of `n` copies of `value`.
pub(crate) fn filled<T: Clone>(n: u64, value: T) -> Result<Vec<T>> {
    let requested_bytes = n.saturating_mul(size_of::<T>() as u64);
    let missing = |source| Error::HostMemory { requested_bytes, source };
    let n = usize::try_from(n).map_err(|_| missing(None))?;
    let mut values = Vec::new();
    values.try_reserve_exact(n).map_err(|error| missing(Some(error)))?;
    values.resize(n, value);
    Ok(values)
}

/// A copy of `values`.
pub(crate) fn copy_of<V: Copy>(values: &[V]) -> Result<Vec<V>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len()).map_err(|error| Error::HostMemory {
        requested_bytes: size_of_val(values) as u64,
        source: Some(error),
    })?;
    copy.extend_from_slice(values);
    Ok(copy)
}

/// Makes `values` `len` copies of `value`, or says how much memory is missing.
pub(crate) fn fill<T: Clone>(values: &mut Vec<T>, len: usize, value: T) -> Result<()> {
    values.clear();
    reserve(values, len)?;
    values.resize(len, value);
    Ok(())
}

/// Reserves room for `additional` more values, or says how much memory is missing.
pub(crate) fn reserve<T>(values: &mut Vec<T>, additional: usize) -> Result<()> {
    values.try_reserve(additional).map_err(|error| Error::HostMemory {
        requested_bytes: (values.len() as u64 + additional as u64)
            .saturating_mul(size_of::<T>() as u64),
        source: Some(error),
    })
}
