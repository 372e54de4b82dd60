#!/bin/sh
# Builds and runs this crate the way a dependent would, without and with the feature `cuda`:
# in a folder of its own, so that neither the workspace nor its .cargo/config.toml helps.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
crate=$(mktemp -d)
trap 'rm -rf "$crate"' EXIT

# The workspace's lock file: the same versions, and nothing new to download but what the workspace
# replaces.
cp -r "$here/Cargo.toml" "$here/src" "$root/Cargo.lock" "$root/rust-toolchain.toml" "$crate"
sed -i "s#\.\./\.\./host#$root/host#" "$crate/Cargo.toml"
export CARGO_TARGET_DIR="$root/target/outside"
# Nothing here is debugged.
export CARGO_PROFILE_DEV_DEBUG=false
# The workspace always has `cuda` on: only here is the library compiled without it.
export RUSTFLAGS="-D warnings"

cd "$crate"
expect() {
    printf '%s\n' "$1"
    printf '%s\n' "$1" | grep -q "$2" || { echo "outside: expected '$2'" >&2; exit 1; }
}
# No CUDA to be found, nor looked for: what docs/guide/tour.md says.
export CUDA_LIBRARY_PATH="$crate/none"
mkdir .cargo
printf '[env]\nDOCS_RS = "1"\n' >.cargo/config.toml
expect "$(cargo run --quiet)" 'without the feature\|feature `cuda`'
expect "$(cargo run --quiet --features cuda)" 'no NVIDIA driver\|no CUDA device\|is there'
echo "outside: built and ran without and with the feature cuda"

# The tool as `cargo install --git` finds it: the files without .cargo, which is read in no other
# folder than the checkout.
unset RUSTFLAGS
rm -r .cargo
mkdir "$crate/checkout"
git -C "$root" ls-files -z ':!.cargo' ':!docs' |
    (cd "$root" && xargs -0 sh -c 'for f; do [ ! -f "$f" ] || printf "%s\0" "$f"; done' sh) |
    tar -C "$root" --null --files-from=- -cf - | tar -C "$crate/checkout" -xf -
# Not optimised, as what packages.sh builds: it says what there is, and ends.
export CARGO_PROFILE_DEV_OPT_LEVEL=0
cargo install --quiet --locked --debug --root "$crate/installed" \
    --config profile.dev.package.maxsim.opt-level=0 --path "$crate/checkout/cli"
expect "$("$crate/installed/bin/maxsim" info | grep -m1 CUDA)" \
    'no CUDA device: no NVIDIA driver\|no CUDA device$\|cuda:0'
echo "outside: installed the tool"
