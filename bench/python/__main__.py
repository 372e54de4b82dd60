"""Measures every row of the Python package's record.

    python3 -m bench.python --out python.json --peers DIR          every group of rows
    python3 -m bench.python --rows whole enqueue --out python.json --peers DIR
    python3 -m bench.python --device cpu --out python.json --peers DIR          a CPU's rows

From the repository's root, with the package `maxsim` installed. DIR has the unpacked source
distributions flash_maxsim-0.3.0, late_interaction_kernels-0.4.5, pylate-1.6.0 and
colpali_engine-0.3.18; what is not there is taken as it is installed. Each group runs in a process
of its own and adds its rows to the record as they are measured: a row that fails says why, and a
run that is cut off, or other groups, go on from the file. `forward` and `training` time the
library's own calls beside, where `cargo build --release -p maxsim-bench` made its interface.
"""

import sys

from .program import Program

#: Groups of rows in the record's order: module and function.
GROUPS = {
    "whole": ("calls", "whole"),
    "enqueue": ("calls", "enqueue"),
    "compile": ("calls", "compiled"),
    "waits": ("waits", "waits"),
    "forward": ("device", "forward"),
    "training": ("device", "train"),
    "pylate": ("frameworks", "pylate"),
    "colpali": ("frameworks", "colpali"),
    "sentence-transformers": ("frameworks", "sentence_transformers"),
    "cpu": ("cpu", "cpu"),
    "memory": ("memory", "memory"),
}


def add_options(add):
    """Adds the options that are this program's alone."""
    add("--cases", nargs="+", default=[], help="of forward and training: names or their starts")


PROGRAM = Program(
    __package__, __doc__, GROUPS, "python.json", of_cpu=("cpu",), add_options=add_options
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
