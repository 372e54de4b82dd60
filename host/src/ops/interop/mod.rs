//! Views of other crates' arrays, each behind a feature of its name.

#[cfg(feature = "ndarray")]
mod ndarray;
