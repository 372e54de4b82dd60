#!/usr/bin/env bash
# Builds the targets, gives each its corpus, and lets each look for more for some seconds:
# `check.sh [SECONDS] [TARGET ..]`, 20 s and all targets by default. What it finds is left in
# target/fuzz; `--merge` as the first argument adds inputs that reach something new to the corpora.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
triple=x86_64-unknown-linux-gnu
export CARGO_TARGET_DIR=$root/target/fuzz CARGO_INCREMENTAL=0
is_merge=
if [ "${1:-}" = --merge ]; then is_merge=1; shift; fi
seconds=${1:-20}
[ $# -eq 0 ] || shift

cargo fmt --check

# Counters at every edge and comparison, as `cargo fuzz` has them, but without the sanitizers, which
# a stable compiler does not have. With a target of its own, so that build scripts have none.
coverage=(-Cpasses=sancov-module -Ccodegen-units=16)
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage+=("-Cllvm-args=-sanitizer-coverage-$argument")
done
export RUSTFLAGS="--cfg fuzzing ${coverage[*]}"
cargo build --locked --quiet --target "$triple" --bins

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
for target in "${targets[@]}"; do
    found=$CARGO_TARGET_DIR/found/$target
    new=$CARGO_TARGET_DIR/new/$target
    mkdir -p "$found" "$new" "corpus/$target"
    program=$CARGO_TARGET_DIR/$triple/debug/$target
    options=(-max_len=4096 -timeout=10 -rss_limit_mb=2048 "-artifact_prefix=$found/"
        -print_final_stats=1 -verbosity=0)
    printf '%s: ' "$target"
    if ! "$program" "${options[@]}" -max_total_time="$seconds" "$new" "corpus/$target" \
        > "$found/log" 2>&1; then
        tail -n 40 "$found/log" >&2
        echo "fuzz: $target found an input: target/fuzz/found/$target" >&2
        exit 1
    fi
    n_corpus=$(find "corpus/$target" -type f | wc -l)
    sed -n 's/^stat::number_of_executed_units: *//p' "$found/log" |
        xargs -I{} echo "{} inputs, $n_corpus of them kept ones"
    if [ -n "$is_merge" ]; then
        "$program" -merge=1 -max_len=4096 "corpus/$target" "$new" > /dev/null 2>&1
    fi
done
