//! Residual-compressed tokens in files: a format of this tool's own, and the index folders of
//! ColBERT, fast-plaid and next-plaid.
//!
//! The file is a `.safetensors` file of
//!
//! | tensor | element type | shape |
//! |---|---|---|
//! | `codes` | I32 or I64 | `[rows]`, or `[n, len]` where items are padded |
//! | `residuals` | U8 | `[rows, ceil(dim · nbits / 8)]`, or `[n, len, …]` |
//! | `centroids` | F16, BF16 or F32 | `[n_centroids, dim]` |
//! | `bucket_weights` | F32 or F16 | `[2^nbits]` |
//! | `bucket_cutoffs`, where tokens can be encoded | F32 or F16 | `[2^nbits - 1]` |
//! | `offsets`, with `codes` `[rows]` | I64 or I32 | `[n + 1]`: where items begin, and the end |
//! | `lengths`, optional with `codes` `[n, len]` | I64 or I32 | `[n]` |
//!
//! and `__metadata__` with the strings
//!
//! | key | value |
//! |---|---|
//! | `format` | `maxsim-residual` |
//! | `version` | `1` |
//! | `nbits` | `1`, `2`, `4` or `8` |
//! | `bit_order` | `colbert` or `little-endian` (see [`BitOrder`](maxsim::residual::BitOrder)) |
//! | `normalize` | `true` or `false`: whether decoded tokens are divided by their lengths |
//!
//! Nothing is guessed: a file without one of these is refused. Other tensors and keys are ignored.

mod array;
mod file;
mod folder;
mod pt;

pub(crate) use array::Array;
pub(crate) use file::write_into;
pub use file::{ResidualFile, write};
pub use folder::{IndexFormat, read_index};
