"""Measures the tables and figures of the Flash-MaxSim paper, and of other peers' pages, again.

    python3 -m bench.literature --out literature.json --peers DIR          every group of rows
    python3 -m bench.literature --rows corpus --out literature.json        one table's

From the repository's root, with the library's interface for benchmarks (`cargo build --release -p
maxsim-bench`, or a bundle's) and PyTorch, on a GPU. DIR has the unpacked source distributions of
peers, and `maxsim-hub`, a checkout of the Hub kernel erikkaum/maxsim, which is compiled; what is
not there is taken as it is installed, or is an error in its rows. Each group runs in a process of
its own and adds its rows to the record as they are measured: a row that fails says why, and a run
that is cut off, or other groups, go on from the file. `traffic` reads the counters of the hardware
by Nsight Compute (`ncu`), of its own processes.

`--device cpu --tiny` tries the scripts: its figures mean nothing.
"""

import sys

from python.program import Program

#: Groups of rows in the record's order: module and function.
GROUPS = {
    "corpus": ("corpus", "corpus"),
    "matched": ("matched", "matched"),
    "steps": ("steps", "steps"),
    "serving": ("shapes", "serving"),
    "ragged": ("shapes", "ragged"),
    "codes": ("codes", "codes"),
    "normalize": ("shapes", "normalize"),
    "long-queries": ("shapes", "long_queries"),
    "dims": ("shapes", "dims"),
    "workloads": ("workloads", "workloads"),
    "traffic": ("traffic", "traffic"),
    "parity": ("parity", "parity"),
}
PROTOCOL = (
    "one process for all methods of a row, in turns, the first another each round; random unit "
    "rows; results compared with float64 of a sample of documents first (gradients with float32), "
    "peers' within 2 %; 512 MB read before each timed call; medians of differences of CUDA events "
    "with the queue kept full; memory: beyond the inputs, ours what the device lost, the others' "
    "the most that PyTorch's allocator held"
)

PROGRAM = Program(__package__, __doc__, GROUPS, "literature.json", protocol=PROTOCOL)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
