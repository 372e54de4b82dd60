//! Scores of uncompressed tokens: every engine of this machine agrees with the oracle.

mod accuracy;
mod agreement;
mod contiguous;
mod contiguous_stream_k;
mod devices;
mod document_splits;
mod edges;
mod normalize;
mod stream_k;
mod streamed;
mod streamed_errors;
mod streamed_scores;
mod top_k;
mod top_k_calls;
mod weights;
