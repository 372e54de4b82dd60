//! What needs no device: the oracle, the comparison, planning, errors, losses, rankings and
//! residual codecs; and what every target computes alike.

mod agree;
mod digests;
mod errors;
mod losses;
mod oracle;
mod plan;
mod plan_of_codes;
mod plan_of_residuals;
mod plan_short;
mod residual_codec;
mod strategy;
mod topk;
