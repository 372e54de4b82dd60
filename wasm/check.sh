#!/usr/bin/env bash
# Builds the npm package and tests it as a project that depends on it would: in node, in a browser
# without a window, and its types. Needs node 20 or later with npm.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
export CARGO_INCREMENTAL=0
step() { printf -- '--- %s (%d s)\n' "$1" "$SECONDS"; }

registry='"registry+https://github.com/rust-lang/crates.io-index"'
if grep -n '^source = ' Cargo.lock | grep -vF "$registry"; then
    echo "wasm/Cargo.lock names a source other than crates.io" >&2
    exit 1
fi
if grep -n '"resolved"' package-lock.json; then
    echo "wasm/package-lock.json names a registry" >&2
    exit 1
fi

step "lints"
cargo fmt --all --check
cargo clippy --locked --quiet --workspace -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --no-deps -p maxsim-wasm

step "the package"
./build.sh
# What a page would have in it, as base64.
inlined=$(base64 -w 0 "$target/wasm/npm/engine_bg.wasm" | wc -c)
echo "engine: $inlined bytes as base64"
[ "$inlined" -le 1000000 ] || { echo "the engine has no room in a page" >&2; exit 1; }

step "what the tool makes of the sample"
export MAXSIM_SAMPLE=$root/cli/examples/debian-packages MAXSIM_MADE=$target/wasm/made
rm -rf "$MAXSIM_MADE"
mkdir -p "$MAXSIM_MADE"
maxsim() { (cd "$root" && cargo run --locked --quiet -p maxsim-cli -- "$@"); }
rank() {
    maxsim rank --device cpu --top-k 10 --format json --winners \
        --texts "$MAXSIM_SAMPLE/documents.jsonl" "$@"
}
for side in queries documents; do
    maxsim quantize --format int8 --input "$MAXSIM_SAMPLE/$side.safetensors" \
        --output "$MAXSIM_MADE/$side.int8.safetensors"
done
rank --queries "$MAXSIM_SAMPLE/queries.safetensors" \
    --documents "$MAXSIM_SAMPLE/documents.safetensors" --output "$MAXSIM_MADE/ranking.json"
rank --queries "$MAXSIM_MADE/queries.int8.safetensors" \
    --documents "$MAXSIM_MADE/documents.int8.safetensors" --output "$MAXSIM_MADE/int8.json"

step "a project that depends on it"
project=$target/wasm/project
mkdir -p "$project"
cp .npmrc package.json package-lock.json "$project"
rm -rf "$project/tests" "$project/examples"
cp -r tests examples "$project"
cd "$project"
npm ci --ignore-scripts --no-audit --no-fund
packed=$(cd "$target/wasm" && npm pack --silent ./npm)
mkdir node_modules/maxsim-wasm
tar xzf "$target/wasm/$packed" -C node_modules/maxsim-wasm --strip-components 1
# The browser, where there is none.
CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
if [ -z "$CHROMIUM" ]; then
    apt-get update -qq
    apt-get install -qq --no-install-recommends chromium > /dev/null
    CHROMIUM=$(command -v chromium)
fi
export CHROMIUM

step "types"
node_modules/.bin/tsc -p tests/tsconfig.json

step "tests"
node --test --test-reporter spec tests/
step "done"
