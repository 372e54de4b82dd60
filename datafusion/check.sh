#!/usr/bin/env bash
# Lints and tests of the crate with all its features: one set of them, so that nothing of the query
# engine is compiled twice. With --no-run, all but the tests' run.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
# As .cargo/config.toml says, whatever the caller's environment does.
export CARGO_TARGET_DIR=$root/target/datafusion
# What a second build could reuse is half of the target folder.
export CARGO_INCREMENTAL=0

cargo fmt --check
# `cargo clippy` and `cargo doc` would check all crates of the query engine before `cargo test`
# compiles them once more. So this crate is compiled by the compiler that lints, as `cargo clippy`
# runs it, and rustdoc writes the pages when it runs their examples.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
export CLIPPY_ARGS="-Dwarnings__CLIPPY_HACKERY__"
export RUSTDOC=$PWD/rustdoc.sh
cargo test --locked --all-features "$@"
