#!/bin/sh
# Builds and runs this crate the way a dependent would, without and with the feature `cuda`:
# in a folder of its own, so that neither the workspace nor its .cargo/config.toml helps.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
crate=$(mktemp -d)
trap 'rm -rf "$crate"' EXIT

# The workspace's lock file: the same versions, and nothing new to download.
cp -r "$here/Cargo.toml" "$here/src" "$root/Cargo.lock" "$root/rust-toolchain.toml" "$crate"
sed -i "s#\.\./\.\./host#$root/host#" "$crate/Cargo.toml"
export CARGO_TARGET_DIR="$root/target/outside"
# The workspace always has `cuda` on: only here is the library compiled without it.
export RUSTFLAGS="-D warnings"

cd "$crate"
expect() {
    printf '%s\n' "$1"
    printf '%s\n' "$1" | grep -q "$2" || { echo "outside: expected '$2'" >&2; exit 1; }
}
unset CUDA_LIBRARY_PATH
expect "$(cargo run --quiet)" 'without the feature\|feature `cuda`'
export CUDA_LIBRARY_PATH="$root/host/cuda-stub"
expect "$(cargo run --quiet --features cuda)" 'no NVIDIA driver\|no CUDA device\|is there'
echo "outside: built and ran without and with the feature cuda"
