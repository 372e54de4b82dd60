#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh folder, and runs types and tests from there.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath ..)
target=$(realpath -m "${CARGO_TARGET_DIR:-../target}")

# Torch and the tools, once: 3 GB to download.
tools=$target/py
if [ ! -d "$tools/torch" ]; then
    python3 -m pip install --quiet --target "$tools" -r requirements.txt
fi
# Frameworks that score with this package, once: pip cannot solve what they ask for together.
frameworks=$target/frameworks
if [ ! -d "$frameworks/pylate" ] || [ ! -d "$frameworks-st6" ]; then
    python3 -m pip install --quiet --no-deps --target "$frameworks" \
        -r tests/integrations/frameworks.txt
    python3 -m pip install --quiet --no-deps --target "$frameworks-st6" \
        sentence-transformers==6.2.0
fi

# The Hub's loader, once.
hub_tools=$target/hub-tools
if [ ! -d "$hub_tools/kernels" ]; then
    python3 -m pip install --quiet --target "$hub_tools" -r tests/hub/requirements.txt
fi

cargo fmt --check
cargo clippy --locked --all-targets -- -D warnings
# There are no wheels for these, but the CPU engine, its binding and the tool are to compile.
for other in x86_64-pc-windows-msvc aarch64-apple-darwin; do
    if rustup target add "$other"; then
        cargo check --locked --quiet --target "$other"
    else
        echo "SKIPPED (no standard library for $other): cargo check"
    fi
done

# Profile `dev` builds in a third of the time, for a quick look.
profile=${1:-release}
wheels=$target/wheels
rm -rf "$wheels" "$target/py-wheel"
"$tools/bin/maturin" build --locked --quiet --profile "$profile" --out "$wheels"
wheel=$(echo "$wheels"/maxsim-*.whl)
# The other workspace's.
xtask() { (cd "$root" && cargo xtask "$@"); }
if [ "$profile" = release ]; then
    xtask wheels --check "$wheel"
fi
python3 -m pip install --quiet --no-deps --target "$target/py-wheel" "$wheel"

# From a folder where the sources are not what is imported.
cd tests
# Into an environment with nothing else: it is imported, and the command ranks the sample.
fresh=$target/py-fresh
rm -rf "$fresh"
python3 -m venv "$fresh"
"$fresh/bin/pip" install --quiet "$wheel"
"$fresh/bin/python" -c 'import maxsim; print("maxsim", maxsim.__version__, "without torch")'
sample=$root/cli/examples/debian-packages
for command in "$fresh/bin/maxsim" "$fresh/bin/python -m maxsim"; do
    # shellcheck disable=SC2086 # A command and its arguments.
    $command rank --top-k 1 --queries "$sample/queries.safetensors" \
        --documents "$sample/documents.safetensors" --qrels "$sample/queries.jsonl" |
        grep '^nDCG@10 0.9464'
done

export PYTHONPATH=$target/py-wheel:$tools PYTHONDONTWRITEBYTECODE=1
python3 -m mypy --config-file ../pyproject.toml --cache-dir "$target/mypy" -p maxsim
python3 -m mypy.stubtest --mypy-config-file ../pyproject.toml maxsim._maxsim
export HF_HUB_OFFLINE=1
PYTHONPATH=$PYTHONPATH:$frameworks python3 -m pytest -q -p no:cacheprovider .
PYTHONPATH=$target/py-wheel:$frameworks-st6:$tools:$frameworks python3 -m pytest -q \
    -p no:cacheprovider integrations/test_sentence_transformers.py integrations/test_xtr.py \
    test_examples.py test_record.py \
    -k 'sentence_transformers or reranking or frameworks'
# The same files as a kernel of the Hub, beside the installed package.
if [ "$profile" = release ]; then
    xtask hub --local --out "$target/hub" "$wheel"
    MAXSIM_HUB=$target/hub PYTHONPATH=$target/py-wheel:$hub_tools:$tools python3 -m pytest -q \
        -p no:cacheprovider hub
fi
# The test suites of other packages, on the names that this one has of theirs.
python3 peers/run.py
