//! The tool on the sample of Debian packages, and on files beside it.

mod candidates;
mod commands;
mod devices;
mod edges;
mod explain;
#[path = "../files/mod.rs"]
mod files;
mod ids;
mod part;
mod process;
mod quantize;
mod quantize_plaid;
mod reference;
mod screen;
#[path = "../tool/mod.rs"]
mod tool;
mod winners;
