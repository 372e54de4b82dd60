//! Functions, rankings, files and clusters: scores and order are those of the library.

#[cfg(feature = "ballista")]
mod cluster;
mod data;
mod files;
mod functions;
mod gpu;
mod nulls;
mod ranking;
