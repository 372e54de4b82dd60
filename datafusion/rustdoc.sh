#!/usr/bin/env bash
# In rustdoc's place: where it is to run examples, writes the crate's pages first, and fails where
# it warns.
set -euo pipefail
all=("$@")
arguments=()
is_test=
while [ $# -gt 0 ]; do
    case $1 in
        --test) is_test=1 ;;
        # Options of the run, with their values.
        --test-*=*) ;;
        --test-*) shift ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
if [ -n "$is_test" ]; then
    rustdoc "${arguments[@]}" -D warnings --out-dir "$CARGO_TARGET_DIR/doc"
fi
exec rustdoc "${all[@]}"
