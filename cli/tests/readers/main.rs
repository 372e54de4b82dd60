//! Readers and writers of files, in process and on the CPU.

#[path = "../files/mod.rs"]
mod files;
mod plaid_indexes;
mod residual_fidelity;
mod residual_files;
#[path = "../tool/mod.rs"]
mod tool;
