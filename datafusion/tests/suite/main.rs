//! Functions, rankings, files and clusters: scores and order are those of the library.

mod data;
mod files;
mod functions;
mod nulls;
mod ranking;
