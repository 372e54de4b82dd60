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

import argparse
import datetime
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

from . import FOLDER, packages, rows

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


def arguments(words=None):
    """The command line."""
    lines = __doc__.splitlines()
    parser = argparse.ArgumentParser(
        prog="python3 -m bench.python",
        description=lines[0],
        epilog="\n".join(lines[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", nargs="+", choices=GROUPS, metavar="GROUP",
        help=f"groups of rows: {', '.join(GROUPS)}; all of the device by default")  # fmt: skip
    add("--cases", nargs="+", default=[], help="of forward and training: names or their starts")
    add("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "out"), FILE))
    add("--merge", nargs="+", type=pathlib.Path, default=[], help="records to start from")
    add("--peers", type=pathlib.Path, help="folder of unpacked source distributions")
    add("--seconds", type=float, default=2.0, help="measuring time per row (default 2)")
    add("--timeout", type=float, default=540.0, help="seconds until a group is given up")
    add("--deadline", type=float, default=float("inf"), help="start no group after so many seconds")
    add("--device", choices=["cuda", "cpu"], default="cuda",
        help="cpu: the CPU's rows alone mean something")  # fmt: skip
    add("--note", help="what readers of the record should know")
    add("--tiny", action="store_true", help="the smallest shapes, to try the scripts")
    add("--in-process", action="store_true", help="in this process, without a limit of time")
    args = parser.parse_args(words)
    if args.rows is None:
        # A record is of one machine: a CPU's rows are in one of their own.
        args.rows = [name for name in GROUPS if (name == "cpu") == (args.device == "cpu")]
    return args


FILE = "python.json"


def run_group(args, name, record):
    """Measures a group in this process."""
    from . import world

    args.device = "cpu" if name == "cpu" else args.device
    w = world.World(args)
    module, function = GROUPS[name]
    module = importlib.import_module(f".{module}", __package__)
    n_missed = 0
    for found in getattr(module, function)(w):
        record.about(about(w))
        record.take(name, w.card, found)
        for row in found:
            n_missed += row["met"] is False
            print(rows.line(row), flush=True)
    return n_missed


def about(w):
    """What is true of the record as a whole."""
    found = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")}
    found["python"] = sys.version.split()[0]
    found["versions"] = packages.versions()
    found["card"] = w.card
    if w.on_gpu:
        found["driver"] = driver()
        if w.known_limits is not None:
            found["limits"] = rows.rounded(w.known_limits.about())
    else:
        found["cpu"] = cpu_name()
    return found


def driver():
    """Version of the GPU's driver, where it can be asked for."""
    question = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split()[0] if answer.stdout.split() else None


def cpu_name():
    """The processor's name, where the system says it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None


def child(args, name):
    """Measures a group in a process of its own; why it did not end well, or None."""
    words = [sys.executable, "-m", __package__, "--in-process", "--rows", name]
    words += ["--out", str(args.out), "--device", args.device, "--seconds", str(args.seconds)]
    words += ["--peers", str(args.peers)] if args.peers else []
    words += ["--tiny"] if args.tiny else []
    words += ["--cases", *args.cases] if args.cases else []
    # The package is found from where it lies, from whatever folder this was started.
    path = [str(FOLDER.parents[len(__package__.split(".")) - 1])]
    path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    try:
        done = subprocess.run(words, env=env, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return f"did not end in {args.timeout:.0f} s"
    return None if done.returncode in (0, 1) else f"ended with {done.returncode}"


def main(words=None):
    """Measures, and says what is missed."""
    args = arguments(words)
    if args.in_process:
        record = rows.Record(args.out, GROUPS)
        missed = sum(run_group(args, name, record) for name in args.rows)
        return 1 if missed else 0
    record = rows.Record(args.out, GROUPS, args.merge)
    record.about({"note": args.note} if args.note else {})
    record.save()
    start, ended_badly = time.monotonic(), {}
    for name in args.rows:
        seconds = time.monotonic() - start
        if seconds > args.deadline:
            ended_badly[name] = "no time left"
            continue
        why = child(args, name)
        if why:
            ended_badly[name] = why
        print(f"-- {name}: {time.monotonic() - start - seconds:.0f} s {why or ''}", flush=True)
    record = rows.Record(args.out, GROUPS)
    earlier = record.data.pop("ended_badly", {})
    all_of = {name: why for name, why in earlier.items() if name not in args.rows} | ended_badly
    record.about({"ended_badly": all_of} if all_of else {})
    record.save()
    found = json.loads(args.out.read_text())["rows"]
    found = [row for row in found if row.get("group") in args.rows]
    print("\n".join(rows.line(row) for row in found if row["met"] is False))
    n_met = sum(row["met"] is True for row in found)
    print(f"{n_met} of {len([r for r in found if r['goal']])} goals met; {ended_badly or ''}")
    return 1 if ended_badly or any(row["met"] is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
