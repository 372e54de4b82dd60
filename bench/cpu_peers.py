"""Times the CPU engine beside maxsim-cpu and numpy: same data, same threads, interleaved.

    cargo build --release -p maxsim-bench
    pip install numpy maxsim-cpu==0.1.0
    python bench/cpu_peers.py --output docs/measured/<machine>/peers.json

Scores are compared before anything is timed. Needs about 1.7 GB of memory.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time

DIM = 128
QUERY_LEN = 32
N_DOCUMENTS = 1000
DOCUMENT_LENS = (300, 1024)
# Relative; all three add up in f32, in different orders.
TOLERANCE = 1e-5


class Maxsim:
    """The engine, in a process of its own that times its calls itself."""

    def __init__(self, program, data, document_len, env):
        self.process = subprocess.Popen(
            [program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        ready = self.ask(
            f"device=cpu element=f32 queries=1 query_len={QUERY_LEN} documents={N_DOCUMENTS} "
            f"document_len={document_len} dim={DIM} data={data}"
        )
        if not ready.startswith("ready"):
            raise SystemExit(f"maxsim-bench did not start: {ready!r}")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def scores(self, path):
        self.ask(f"scores {path}")

    def time_ms(self):
        return float(self.ask("run"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed_ms(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def command_line(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def bench(args, document_len, folder):
    import maxsim_cpu
    import numpy

    random = numpy.random.default_rng(document_len)
    tokens = random.standard_normal((QUERY_LEN + N_DOCUMENTS * document_len, DIM), numpy.float32)
    tokens /= numpy.linalg.norm(tokens, axis=1, keepdims=True)
    data = folder / "data.f32"
    tokens.tofile(data)
    query = tokens[:QUERY_LEN].copy()
    documents = tokens[QUERY_LEN:].reshape(N_DOCUMENTS, document_len, DIM).copy()
    del tokens

    def numpy_documents_first():
        products = documents.reshape(-1, DIM) @ query.T
        return products.reshape(N_DOCUMENTS, document_len, QUERY_LEN).max(1).sum(1)

    def numpy_query_first():
        products = query @ documents.reshape(-1, DIM).T
        return products.reshape(QUERY_LEN, N_DOCUMENTS, document_len).max(2).sum(0)

    def peer():
        return maxsim_cpu.maxsim_scores(query, documents)

    maxsim = Maxsim(args.program, data, document_len, os.environ)
    scores = folder / "scores.f32"
    maxsim.scores(scores)
    ours = numpy.fromfile(scores, numpy.float32)
    # numpy has two natural ways to write it: the faster one counts.
    others = {
        "numpy (documents @ query)": numpy_documents_first,
        "numpy (query @ documents)": numpy_query_first,
        "maxsim-cpu": peer,
    }
    differences = {}
    for name, call in others.items():
        theirs = numpy.asarray(call())
        differences[name] = float(numpy.max(numpy.abs(ours - theirs) / numpy.abs(theirs)))
        if not differences[name] <= TOLERANCE:
            raise SystemExit(f"{name}: scores differ by {differences[name]:.2e} relative")

    calls = {"maxsim": maxsim.time_ms}
    calls |= {name: (lambda call=call: timed_ms(call)) for name, call in others.items()}
    times = {name: [] for name in calls}
    for repeat in range(args.warmups + args.repeats):
        for name, time_ms in calls.items():
            elapsed = time_ms()
            if repeat >= args.warmups:
                times[name].append(elapsed)
    maxsim.close()

    results = {}
    print(f"{QUERY_LEN} x ({N_DOCUMENTS} x {document_len}), dim {DIM}, f32, {args.threads} threads")
    ours_ms = statistics.median(times["maxsim"])
    for name, ms in times.items():
        median = statistics.median(ms)
        results[name] = {
            "median_ms": median,
            "min_ms": min(ms),
            "max_ms": max(ms),
            "times_ms": ms,
            "maxsim_is_faster_by": median / ours_ms,
        }
        if name in differences:
            results[name]["largest_relative_difference"] = differences[name]
        print(
            f"  {name:26} {median:8.2f} ms  ({min(ms):.2f} to {max(ms):.2f})"
            f"  {median / ours_ms:5.2f} x"
        )
    shape = {"query_len": QUERY_LEN, "documents": N_DOCUMENTS, "document_len": document_len}
    return {"shape": shape | {"dim": DIM, "element": "f32"}, "results": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="target/release/maxsim-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    # Before numpy and maxsim_cpu are loaded.
    for name in ("RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        runs = [bench(args, length, pathlib.Path(folder)) for length in DOCUMENT_LENS]
    if args.output:
        versions = {name: importlib.metadata.version(name) for name in ("numpy", "maxsim-cpu")}
        record = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "threads": args.threads,
            "load_before": load,
            "python": platform.python_version(),
            "rustc": command_line("rustc", "--version"),
            "commit": command_line("git", "rev-parse", "--short", "HEAD"),
            "versions": versions,
            "runs": runs,
        }
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
