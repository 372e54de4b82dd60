//! The oracle and the suites that every engine must pass.
//!
//! A [`case::Case`] describes a problem; its data goes to the [`oracle`] and, on every engine of
//! the machine, to the library; [`agree`] says whether the two answers agree. [`quantized`] is the
//! same for compressed tokens, and [`coarse`] where they find what full precision scores.
//! [`gradients`] is the same for training: its oracle, and whether gradients agree, and [`saved`]
//! where documents are saved as codes; [`losses`] has what losses on devices are compared with, and
//! [`residual`] what decoded tokens are; [`projection`] has documents that are hidden states,
//! [`top_k`] rankings of any scores, [`chamfer`] clouds of points with their distances, and
//! [`xtr`] scores of retrieved tokens.
//!
//! Environment: MAXSIM_CASES (random cases per suite, 200 by default), MAXSIM_SUITE=small (8 by
//! default, and of repetitions and long runs a few: for machines that are emulated),
//! MAXSIM_RECORD_DIR (each suite writes its counts there), MAXSIM_REQUIRE_GPU=1 (no GPU is a
//! failure), MAXSIM_UNTIMED=1 (times are recorded but never too long, as under a sanitizer).

pub mod agree;
pub mod case;
pub mod chamfer;
pub mod coarse;
pub mod engines;
pub mod gpu;
pub mod gradients;
pub mod losses;
pub mod misuse;
pub mod projection;
pub mod quantized;
pub mod residual;
pub mod saved;
pub mod strategy;
pub mod suite;
pub mod top_k;
pub mod values;
pub mod xtr;

pub use maxsim_oracle as oracle;
