//! What needs no device: the oracle, the comparison, planning, errors, losses, rankings and
//! residual codecs.

mod agree;
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
