#!/bin/sh
# Packages the crates that users depend on, and builds each from its package, in place of the
# workspace's folders; checks what the packages hold and weigh.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
limit=8000000 # bytes; the registry takes 10 MB

# A published crate has no [patch.crates-io]: a build script looks for CUDA, unless this is set.
export DOCS_RS=1
cargo package --quiet --locked --allow-dirty -p maxsim-kernels -p maxsim -p maxsim-cli

for crate in maxsim-kernels maxsim maxsim-cli; do
    set -- target/package/"$crate"-[0-9]*.crate
    [ $# = 1 ] || { echo "packages: several of $crate; remove target/package" >&2; exit 1; }
    size=$(wc -c <"$1")
    echo "packages: $1 has $size bytes"
    [ "$size" -le "$limit" ] || { echo "packages: $1 is above $limit bytes" >&2; exit 1; }
    folder=$(basename "$1" .crate)
    tar -xOzf "$1" "$folder/README.md" | grep -q '^# maxsim'
    # Copies, since links in a checkout are not files everywhere.
    for file in LICENSE-APACHE LICENSE-MIT; do
        tar -xOzf "$1" "$folder/$file" | cmp - "$file"
    done
done
