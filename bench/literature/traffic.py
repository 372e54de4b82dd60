"""Bytes that the device's memory moves in a call, by the counters of the hardware (table 22 of the
Flash-MaxSim paper)."""

import csv
import io
import os
import pathlib
import subprocess
import sys
import types

import peers
import runner
import torch
from python import packages, world

from . import methods

#: Tokens of a query, documents, tokens of each.
SHAPES = ((32, 1000, 300), (128, 1000, 1024), (1024, 1000, 1024))
METHODS = ("maxsim", "PyTorch, eager", "flash-maxsim", "late-interaction-kernels")
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
TIMEOUT = 120
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def traffic(w):
    """A row for each shape: megabytes of every method's kernels, caches flushed before."""
    if not w.on_gpu:
        return
    for query_len, n_docs, doc_len in SHAPES:
        words = f"memory traffic, one query of {query_len} × {n_docs} × {doc_len}"
        with world.reported(words, None) as found:
            counted = {}
            for method in METHODS:
                try:
                    counted[method] = count(w, method, query_len, n_docs, doc_len)
                except Exception as error:
                    counted[method] = str(error)[:300]
            own = counted.pop("maxsim")
            if not isinstance(own, float):
                raise ValueError(own)
            limit = (query_len + n_docs * doc_len) * 256 / 1e6
            found.append(world.rows.row(words, None, own, "MB", counted, limit))
        yield found


def count(w, method, *shape):
    """Megabytes that a method's kernels read and write."""
    command = ["ncu", "--csv", "--metrics", ",".join(METRICS), "--profile-from-start", "off"]
    command += [sys.executable, "-m", __name__, method, *map(str, shape)]
    command += [str(w.args.peers)] if w.args.peers else []
    folder = pathlib.Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=os.environ | {"PYTHONPATH": path},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if done.returncode or not rows:
        raise RuntimeError(f"ncu: {(done.stderr or done.stdout).strip()[-300:]}")
    values = [row for row in rows if row["Metric Name"] in METRICS]
    number = lambda row: float(row["Metric Value"].replace(",", ""))
    return sum(number(row) * UNITS[row["Metric Unit"]] for row in values) / 1e6


def main(method, query_len, n_docs, doc_len, sources=None):
    """One call of a method between the profiler's start and stop."""
    packages.use(sources)
    w = types.SimpleNamespace(device="cuda", tiny=False, seconds=1, on_gpu=True, small=lambda c: c)
    problem = methods.problem_of(w, 1, int(query_len), int(n_docs), int(doc_len))
    if method == "maxsim":
        call = methods.ours(runner.bench_of(w), problem).call
    elif method.startswith("PyTorch"):
        call = lambda: peers.eager(problem.queries, problem.padded)
    else:
        call = peers.calls(problem)[method]
    if isinstance(call, Exception):
        raise call
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
