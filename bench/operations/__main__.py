"""Measures every row of the record of operations.

    python3 -m bench.operations --out operations.json --peers DIR          every group of rows
    python3 -m bench.operations --rows weights --out operations.json       one operation's

From the repository's root, with the library's interface for benchmarks (`cargo build --release -p
maxsim-bench`, or a bundle's) and PyTorch. DIR has the unpacked source distributions of peers; what
is not there is taken as it is installed. Each group, one per operation, runs in a process of its
own and adds its rows to the record as they are measured: a row that fails says why, and a run that
is cut off, or other groups, go on from the file.

`--device cpu --tiny` tries the scripts: its figures mean nothing.
"""

import sys

from python.program import Program

#: Groups of rows in the record's order: module and function.
GROUPS = {
    "weights": ("weights", "weights"),
    "xtr": ("xtr", "xtr"),
    "chamfer": ("chamfer", "chamfer"),
    "projection": ("projection", "projection"),
    "angular": ("angular", "angular"),
}
PROTOCOL = (
    "one process for all methods of a row, in turns, the first another each round; results "
    "compared with float64 or float32 references first, peers' within 2 %; on a GPU 512 MB read "
    "before each timed call; medians of differences of CUDA events with the queue kept full, with "
    "quartiles beside"
)

PROGRAM = Program(__package__, __doc__, GROUPS, "operations.json", protocol=PROTOCOL)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
