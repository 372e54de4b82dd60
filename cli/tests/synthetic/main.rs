//! The tool on files that the tests write themselves: nothing but the tool is needed.

mod faults;
#[path = "../files/mod.rs"]
mod files;
mod inputs;
mod interrupted;
mod provenance;
#[path = "../tool/mod.rs"]
mod tool;
mod values;
