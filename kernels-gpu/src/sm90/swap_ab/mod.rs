//! Consumers of long queries of codes: documents are the rows of products, queries their columns.
//!
//! Products of one byte take half the time of those of two, and what follows them as long. Two
//! consumers are too few to hide it: each waits for its product, then folds while the other waits.
//! Here are four, of 64 document tokens × 128 query rows, two of which are a team and have a
//! document together. Teams have documents, stages and a loading warp of their own: a document's
//! end is met by one, while the other goes on, and by each half as often as if all four had a part
//! of every tile. Threads have 64 sums and 32 maxima in 104 registers, which works because a
//! thread's columns are query rows: it needs two scales of a tile, its document tokens', where the
//! other way round it needs 32, and shared memory has no time to read those for four.
//!
//! The price is a document's end: maxima of a query row are with 8 lanes of 4 warps. Lanes of a
//! warp tell each other, and the storing warp does the rest ([`store`]).
//!
//! Maxima are those of floats until each query row has one in the warp that is not negative, mostly
//! after a document's first product; then those of bits, which takes half the instructions
//! ([`super::fold`] says why that is right): what negative ones become stays below. Sums of INT8
//! are folded as they are, and their maxima kept in that form. A product whose rows are not all
//! document tokens is folded as floats.

mod consumer;
mod epilogue;
pub(super) mod kernel;
mod maxima;
mod partial;
mod producer;
mod smem;
mod tile_scheduler;

pub(super) use self::epilogue::leave_rows;
pub use self::kernel::forward;
