#!/usr/bin/env bash
# Builds the npm package and tests it as a project that depends on it would: in node, in a browser
# without a window, and its types. Needs node 20 or later with npm.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
export CARGO_INCREMENTAL=0
step() { printf -- '--- %s (%d s)\n' "$1" "$SECONDS"; }

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
maxsim() { (cd "$root" && cargo run --locked --quiet --bin maxsim -- "$@"); }
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

# Matches of a query and a document, as pages.
words() {
    python3 -c 'import json, sys
print(json.dumps({"id": 7, "tokens": [sys.argv[1] % i for i in range(int(sys.argv[2]))]}))' "$@"
}
words '<q%d>' 10 > "$MAXSIM_MADE/query.jsonl"
words 'd&%d' 102 > "$MAXSIM_MADE/document.jsonl"
python3 -c 'import struct, zlib
def chunk(kind, data):
    rest = kind + data
    return struct.pack(">I", len(data)) + rest + struct.pack(">I", zlib.crc32(rest))
rows = zlib.compress((b"\0" + b"\x80" * 300) * 400)
head = struct.pack(">IIBBBBB", 300, 400, 8, 0, 0, 0, 0)
picture = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
open("page.png", "wb").write(b"\x89PNG\r\n\x1a\n" + picture)'
mv page.png "$MAXSIM_MADE"
explain() {
    maxsim explain --queries "$MAXSIM_SAMPLE/queries.safetensors" --query 7 --document 7 \
        --documents "$MAXSIM_SAMPLE/documents.safetensors" \
        --query-texts "$MAXSIM_MADE/query.jsonl" --texts "$MAXSIM_MADE/document.jsonl" "$@"
}
explain --format json --output "$MAXSIM_MADE/explain.json"
explain --format html --output "$MAXSIM_MADE/explain.html"
explain --format html --output "$MAXSIM_MADE/explain-image.html" \
    --image "$MAXSIM_MADE/page.png" --grid 10x10 --first-patch 2

step "the page about the method"
(cd "$root" && cargo xtask page --check)
# What it is to show, without a browser: shapes on each card's own rates.
export MAXSIM_METHOD=$root/docs/guide/method.html
python3 tests/method.py "$MAXSIM_METHOD" > "$MAXSIM_MADE/shapes.json"
cargo run --locked --quiet -p maxsim-method --bin method -- "$MAXSIM_MADE/shapes.json" \
    > "$MAXSIM_MADE/method.json"

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
