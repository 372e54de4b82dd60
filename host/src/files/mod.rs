//! Reads files of token embeddings: `.safetensors`, `.npy`, `.npz`, and folders of `.npy` files.
//!
//! [`TokenFile`] opens a file, checks everything that it says about its embeddings, and reads any
//! range of its items as [`Tokens`](crate::Tokens) or [`AnyTokens`](crate::AnyTokens), borrowed
//! where the file has them on element boundaries. [`ResidualFile`] is the same for
//! residual-compressed tokens, and [`AnyFile`] opens either.
//!
//! ```
//! use maxsim::files::{AnyFile, FileFormat, FileOptions, TokenFile};
//! use maxsim::{AnyTokens, Device, Pairing, ScoreOptions, Tokens};
//!
//! # let folder = std::env::temp_dir().join(format!("maxsim-files-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let header = br#"{"embeddings":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},
//! #     "lengths":{"dtype":"I32","shape":[2],"data_offsets":[24,32]}}"#;
//! # let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! # file.extend(header);
//! # file.extend([2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0].iter().flat_map(|x| x.to_le_bytes()));
//! # file.extend([1i32, 2].iter().flat_map(|x| x.to_le_bytes()));
//! # let path = folder.join("documents.safetensors");
//! # std::fs::write(&path, file)?;
//! // `embeddings` [3, 2] of f32, and `lengths` [2].
//! let file = TokenFile::open(&path, &FileOptions::default())?;
//! assert_eq!((file.n_items(), file.layout().item_len(1)), (2, 2));
//! let documents: AnyTokens = file.all()?;
//! let queries = AnyTokens::from(Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?);
//! let (cross, options) = (Pairing::cross(), ScoreOptions::default());
//! let scores = Device::cpu().score_any(&queries, &documents, &cross, &options)?;
//! assert_eq!(scores.values(), [2.0, 8.0]);
//!
//! // A part in the type that it has, and files of either kind.
//! let second: Tokens<f32> = file.tokens(1..2)?;
//! assert_eq!(second.data(), [3.0, 4.0, -1.0, 5.0]);
//! assert!(matches!(AnyFile::open(&path, &FileOptions::default())?, AnyFile::Tokens(_)));
//! assert_eq!(FileFormat::of(&path)?, FileFormat::Safetensors);
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a file has
//!
//! | file | content |
//! |---|---|
//! | `.safetensors`, packed | `embeddings` `[rows, dim]`; `offsets` `[n + 1]` or `lengths` `[n]` |
//! | `.safetensors`, padded | `embeddings` `[n, len, dim]`; `lengths` `[n]` or `mask` `[n, len]` |
//! | `.npy` | one array `[n, len, dim]` |
//! | `.npz`, or a folder of `.npy` files | arrays of these names, or one `[len, dim]` per item |
//!
//! Embeddings are f16, bf16 (not in `.npy`) or f32; or, in `.safetensors`, codes with `scales`:
//! INT8 (I8), INT8 affine (U8, with `mins`) or FP8 (F8_E4M3). Offsets and lengths are i64 or i32, a
//! mask is bool or integers 0 and 1, in any pattern: tokens that it excludes are no part of the
//! layout. What a file says must add up, and more than one statement must agree; a tensor of
//! another name that could be offsets, lengths or a mask is an error ([`FileOptions::ignore`]),
//! since padding that is scored as tokens changes rankings without a word.
//!
//! The formats are those of the [`safetensors`] crate's documentation and of NumPy (NEP 1, versions
//! 1.0 to 3.0). Headers are checked against the file's size; pickled objects are never read, and no
//! bytes whatsoever make a reader panic.
//!
//! [`safetensors`]: https://docs.rs/safetensors

mod arrays;
mod bytes;
mod contents;
mod error;
mod format;
mod ids;
mod items;
mod npy;
mod options;
mod residual;
mod safetensors;
mod tensors;
#[cfg(test)]
mod tests;
mod token_file;

pub use bytes::{Change, settle};
pub use contents::{Contents, ScalesPlace};
pub use error::{Advice, FileError};
pub use format::FileFormat;
pub use npy::NpyArray;
pub use options::{FileOptions, TrailingZeros};
pub use residual::{AnyFile, ResidualFile};
pub use safetensors::type_name;
pub use token_file::{TokenFile, Warning};
