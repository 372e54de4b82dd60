#!/bin/sh
# Builds the library for 64-bit ARM and for WebAssembly, and runs the suites of the CPU engine
# there: the edge cases, and 8 random cases each. Installs Debian's packages that are missing:
# emulators, and what programs of these targets are linked with.
set -eu
cd "$(dirname "$0")/../.."

missing=""
for package in qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross wasi-libc; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
command -v node >/dev/null || missing="$missing nodejs"
if [ -n "$missing" ]; then
    apt-get update -qq
    # shellcheck disable=SC2086 # One word per package.
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $missing >/dev/null
fi

MAXSIM_SUITE=small cargo xtask targets "$@"
