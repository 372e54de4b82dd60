//! Ranks files of token embeddings with MaxSim.
fn main() {}
