"""Measures every row of the record of the CPU engine.

    python3 -m bench.cpu --out docs/measured/<machine>/cpu.json --old OLD/libmaxsim_bench.so
    python3 -m bench.cpu --rows f32 codes --out cpu.json --old OLD/libmaxsim_bench.so

From the repository's root, with the library's interface for benchmarks and the tool (`cargo build
--release -p maxsim-bench -p maxsim-cli`) and `pip install numpy torch numkong==7.8.6
maxsim-cpu==0.1.0`. OLD/libmaxsim_bench.so is that of commit c7af311, beside which rows are timed:

    git worktree add ../before c7af311
    (cd ../before && cargo build --release -p maxsim-bench)
    --old ../before/target/release/libmaxsim_bench.so

Each method runs in a process of its own, and makes its calls in turn with the others. At one thread
all are kept on one core, and times are of the process's CPUs, so that what else the machine does
counts little; at several they are the clock's. MAXSIM_CPU forces our instruction set. Takes half an
hour and 6 GB of memory. `--tiny` tries the scripts: its figures mean nothing.
"""

import os
import pathlib
import sys

from python.program import Program

#: Groups of rows in the record's order: module and function.
GROUPS = {
    "f32": ("scores", "f32"),
    "codes": ("formats", "codes"),
    "coarse": ("formats", "coarse"),
    "bf16": ("formats", "bf16"),
    "plaid": ("formats", "plaid"),
    "start": ("calls", "start"),
    "threads": ("calls", "threads"),
    "shapes": ("scores", "shapes"),
    "cubes": ("scores", "cubes"),
    "no slower": ("scores", "no_slower"),
}
PROTOCOL = (
    "a process for each method, in turns, the first another each round, medians of 9 turns or as "
    "many more as it takes until the quartiles are within 4 %; random data of length 1; results "
    "compared with float64 first; one thread: all on one core, CPU time of the process; several: "
    "time on the clock; limits measured in the same turns: a loop of independent multiply-adds, "
    "and a read of the documents"
)


class CpuProgram(Program):
    """The program of a record of a CPU, whatever device others measure by default."""

    def arguments(self, words=None):
        words = sys.argv[1:] if words is None else words
        return super().arguments(["--device", "cpu", *words])

    def run_group(self, args, name, record):
        record.about({"load": os.getloadavg()[0], "cores": os.cpu_count()})
        return super().run_group(args, name, record)


def add_options(add):
    """Adds the options that are this program's alone."""
    add("--library", type=pathlib.Path, help="libmaxsim_bench.so, a release build's by default")
    add("--old", type=pathlib.Path, help="libmaxsim_bench.so of commit c7af311")
    add("--tool", type=pathlib.Path, help="the tool, a release build's by default")
    add("--data", type=pathlib.Path, help="folder of a real set of queries and documents")


PROGRAM = CpuProgram(
    __package__, __doc__, GROUPS, "cpu.json", tuple(GROUPS), add_options, PROTOCOL
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
