//! Residual-compressed tokens on every engine of this machine: scores, gradients, refused inputs.

mod errors;
mod gradients;
mod scores;
mod streamed;
