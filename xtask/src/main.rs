//! Builds and checks the PTX, gathers bundles, compares evidence.
fn main() {}
