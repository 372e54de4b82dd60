#!/usr/bin/env bash
# Builds the targets, gives each its corpus, and lets each look for more for some seconds:
# `check.sh [--seconds SECONDS] [TARGET ..]`, 20 s and all targets by default. Other options of
# `campaign.py` count inputs over many runs. What is found is left in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
triple=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=$root/target/fuzz CARGO_INCREMENTAL=0

cargo fmt --check

# Counters at every edge and comparison, as `cargo fuzz` has them, but without the sanitizers, which
# a stable compiler does not have. With a target of its own, so that build scripts have none.
coverage=(-Cpasses=sancov-module -Ccodegen-units=16)
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=("-Cllvm-args=-sanitizer-coverage-$argument")
done
export RUSTFLAGS="--cfg fuzzing ${coverage[*]}"
profile=dev
[[ " $* " != *" --record "* ]] || profile=campaign
cargo build --locked --quiet --profile "$profile" --target "$triple" --bins

exec python3 campaign.py "$@"
