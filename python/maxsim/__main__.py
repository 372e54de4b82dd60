"""The command ``maxsim``: the same tool as the one in Rust."""

from __future__ import annotations

import sys

from . import _maxsim


def main() -> int:
    """Runs the command with the arguments of the process; gives its exit code."""
    sys.stdout.flush()
    return _maxsim.run(["maxsim", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
