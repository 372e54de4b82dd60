//! Gradients of scores, of saved codes too, and losses: every engine of this machine agrees with
//! the oracle.

mod bits;
mod device_losses;
mod errors;
mod saved;
mod scores;
mod sides;
mod xtr;
