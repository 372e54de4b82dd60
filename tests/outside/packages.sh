#!/bin/sh
# Packages the crates that users depend on, checks what the packages hold and weigh, and builds the
# tool from them: with the packages in place of the workspace's folders, and no workspace around.
#
# `cargo package` would build them, too, but it unpacks a version once, and then builds the same
# sources whatever the package holds.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
limit=8000000 # bytes; the registry takes 10 MB
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cd "$root"
rm -f target/package/*.crate
cargo package --quiet --locked --allow-dirty --no-verify -p maxsim-kernels -p maxsim -p maxsim-cli

for crate in maxsim-kernels maxsim maxsim-cli; do
    package=$(echo target/package/"$crate"-[0-9]*.crate)
    size=$(wc -c <"$package")
    echo "packages: $package has $size bytes"
    [ "$size" -le "$limit" ] || { echo "packages: more than $limit bytes" >&2; exit 1; }
    mkdir "$folder/$crate"
    tar -xzf "$package" -C "$folder/$crate" --strip-components=1
    # Copies, since links in a checkout are not files everywhere.
    for file in LICENSE-APACHE LICENSE-MIT; do
        cmp "$folder/$crate/$file" "$file"
    done
    grep -q '^# maxsim' "$folder/$crate/README.md"
done

cd "$folder/maxsim-cli"
cp "$root/rust-toolchain.toml" .
export CARGO_TARGET_DIR="$root/target/outside"
# Nothing here is debugged.
export CARGO_PROFILE_DEV_DEBUG=false
# A published crate has no [patch.crates-io] that keeps a build script from looking for CUDA.
export DOCS_RS=1
cargo build --quiet --config "patch.crates-io.maxsim.path='$folder/maxsim'" \
    --config "patch.crates-io.maxsim-kernels.path='$folder/maxsim-kernels'"
"$CARGO_TARGET_DIR/debug/maxsim" info | grep -m1 'CUDA\|cuda'
echo "packages: built the tool from them"
