#!/usr/bin/env bash
# Builds the npm package: `build.sh [FOLDER]`, target/wasm/npm by default.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
folder=$(realpath -m "${1:-$target/wasm/npm}")

(cd "$root" && cargo xtask cross wasm32-unknown-unknown build --locked --quiet --release \
    --manifest-path wasm/Cargo.toml -p maxsim-wasm -p maxsim-method --lib)
rm -rf "$folder"
cargo run --locked --quiet -p package -- npm \
    "$target/cross/wasm32-unknown-unknown/release/maxsim_wasm.wasm" npm "$folder"
cp "$root"/LICENSE-* "$folder"
