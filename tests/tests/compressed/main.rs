//! Scores of compressed tokens, and search with them: every engine of this machine agrees with the
//! oracle.

mod coarse;
mod f16_scales;
mod foreign_memory;
mod handles;
mod maxima;
mod scores;
mod search;
mod search_streamed;
mod shortlist;
mod stream_k;
mod trusted;
mod weights;
