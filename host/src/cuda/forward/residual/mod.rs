//! What is computed of residual-compressed documents before they are scored: the scores of their
//! centroids, or their rows.

#[allow(unsafe_code)]
pub(in crate::cuda) mod centroid_scores;
#[allow(unsafe_code)]
pub(in crate::cuda) mod decoding;
