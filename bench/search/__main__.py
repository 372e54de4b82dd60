"""Measures every row of the record of search.

    python3 -m bench.search --out search.json --peers DIR          every group of rows
    python3 -m bench.search --rows queries query --out search.json --peers DIR

From the repository's root, with the library's interface for benchmarks (`cargo build --release -p
maxsim-bench`, or a bundle's) and PyTorch. DIR has the unpacked source distributions
flash_maxsim-0.3.0 and late_interaction_kernels-0.4.5; what is not there is taken as it is
installed, as fast-plaid is. Each group runs in a process of its own and adds its rows to the record
as they are measured: a row that fails says why, and a run that is cut off, or other groups, go on
from the file.

`--device cpu --tiny` tries the scripts: its figures mean nothing.
"""

import sys

from python.program import Program

#: Groups of rows in the record's order: module and function.
GROUPS = {
    "queries": ("resident", "queries"),
    "query": ("resident", "query"),
    "selection": ("resident", "selection"),
    "proven": ("proven", "proven"),
    "recall": ("proven", "recall"),
    "pinned": ("streamed", "pinned"),
    "compressed": ("streamed", "compressed_pages"),
    "cached": ("streamed", "cached"),
    "devices": ("devices", "devices"),
    "campaign": ("campaign", "campaign"),
}
PROTOCOL = (
    "one process for all methods of a row, in turns, the first another each round; results "
    "compared with float64 of a sample and with torch.topk first, peers' within 2 %; on a GPU 512 "
    "MB read before each timed call; medians, with quartiles beside; ms of rows of all scores and "
    "of the selection are differences of CUDA events with the queue kept full; whole_ms, the ms of "
    "rows by way of codes and of several GPUs, and all s are host times from queries in host "
    "memory until ids and scores are there; searches of documents in host memory in turns with "
    "copies of 4 GiB from page-locked memory, whose rate is the link's"
)


def add_options(add):
    """Adds the options that are this program's alone."""
    add("--campaign", help="folder of an H100's forward.json and compressed.json, not committed")
    add("--folder", help="where files are made, on a disk; the system's for such files by default")


PROGRAM = Program(
    __package__, __doc__, GROUPS, "search.json", add_options=add_options, protocol=PROTOCOL
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
