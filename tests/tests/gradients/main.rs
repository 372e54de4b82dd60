//! Gradients of scores, of saved codes too, and losses: every engine of this machine agrees with
//! the oracle.

mod device_losses;
mod saved;
mod scores;
