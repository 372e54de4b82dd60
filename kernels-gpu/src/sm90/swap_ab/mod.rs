//! Swap-AB main loop for 8-bit operands: documents on M, queries on N.
//!
//! Products of one byte take half the time of those of two, and the online max as long. Two
//! consumers are too few to hide it: each waits for its product, then reduces while the other
//! waits. Here are four consumer warpgroups of 64 document tokens × 128 query rows, in two pairs,
//! one document per pair. Pairs have documents, stages and a producer warp of their own: a
//! document's epilogue is met by one, while the other continues, and by each half as often as if
//! all four had a part of every tile. Threads have 64 sums and 32 maxima in 104 registers, which
//! works because a thread's columns are query rows: it needs two scales of a tile, its document
//! tokens', where the other way round it needs 32, and shared memory has no time to read those for
//! four.
//!
//! The price is the epilogue: maxima of a query row are with 8 lanes of 4 warps. Lanes of a warp
//! exchange them, and the storing warp does the rest ([`epilogue`]).
//!
//! Maxima are those of floats until each query row has one in the warp that is not negative, mostly
//! after a document's first product; then those of bits, which takes half the instructions
//! ([`crate::sm90::bitwise_max`] explains why that is right): the bits of negative ones stay below.
//! INT32 accumulators skip the conversion, and their maxima are kept in that form. A product whose
//! rows are not all document tokens is reduced as floats.

mod consumer;
mod epilogue;
mod kernel;
mod maxima;
mod partial;
mod producer;
mod tile_scheduler;

pub use self::kernel::forward;
