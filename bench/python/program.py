"""A program of groups of rows: each group runs in a process of its own and adds its rows to one
record, so that a group that dies, or a run that is cut off, costs no other. No PyTorch here."""

import argparse
import datetime
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

from . import packages, rows


class Program:
    """`python3 -m PACKAGE`, by the text and the groups of the package's `__main__`.

    `doc`: what it does in a line, and how to call it; `groups`: {name: (module, function)} in the
    record's order, each function giving rows of a case at a time; `file`: the record's name;
    `of_cpu`: groups that mean something on a CPU alone; `add_options`: adds options of its own to
    a parser; `protocol`: how its rows are measured, in words.
    """

    def __init__(
        self, package, doc, groups, file, of_cpu=(), add_options=None, protocol=rows.PROTOCOL
    ):
        self.package, self.doc, self.groups, self.file = package, doc, groups, file
        self.of_cpu, self.add_options, self.protocol = of_cpu, add_options, protocol

    def record(self, args, earlier=()):
        """The record that rows are added to."""
        return rows.Record(args.out, self.groups, earlier, self.protocol)

    def arguments(self, words=None):
        """The command line."""
        lines = self.doc.splitlines()
        parser = argparse.ArgumentParser(
            prog=f"python3 -m {self.package}",
            description=lines[0],
            epilog="\n".join(lines[2:]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add = parser.add_argument
        all_of = f"groups of rows: {', '.join(self.groups)}; all of the device by default"
        add("--rows", nargs="+", choices=self.groups, metavar="GROUP", help=all_of)
        out = pathlib.Path(os.environ.get("OUT", "out"), self.file)
        add("--out", type=pathlib.Path, default=out)
        add("--merge", nargs="+", type=pathlib.Path, default=[], help="records to start from")
        add("--peers", type=pathlib.Path, help="folder of unpacked source distributions")
        add("--seconds", type=float, default=2.0, help="measuring time per row (default 2)")
        add("--timeout", type=float, default=540.0, help="seconds until a group is given up")
        add("--deadline", type=float, default=float("inf"),
            help="start no group after so many seconds")  # fmt: skip
        add("--device", choices=["cuda", "cpu"], default="cuda",
            help="cpu: the CPU's rows alone mean something")  # fmt: skip
        add("--note", help="what readers of the record should know")
        add("--tiny", action="store_true", help="the smallest shapes, to try the scripts")
        add("--in-process", action="store_true", help="in this process, without a limit of time")
        if self.add_options is not None:
            self.add_options(add)
        args = parser.parse_args(words)
        if args.rows is None:
            # A record is of one machine: a CPU's rows are in one of their own.
            on_cpu = args.device == "cpu" and bool(self.of_cpu)
            args.rows = [name for name in self.groups if (name in self.of_cpu) == on_cpu]
        return args

    def run_group(self, args, name, record):
        """Measures a group in this process."""
        from . import world

        args.device = "cpu" if name in self.of_cpu else args.device
        w = world.World(args)
        module, function = self.groups[name]
        module = importlib.import_module(f"{self.package}.{module}")
        n_missed = 0
        for found in getattr(module, function)(w):
            record.about(about(w))
            record.take(name, w.card, found)
            for row in found:
                n_missed += row["met"] is False
                print(rows.line(row), flush=True)
        return n_missed

    def child(self, args, name, words):
        """Measures a group in a process of its own, by the words of this one's command line; why
        it did not end well, or None."""
        # Of an option that is there twice, the last counts.
        words = [sys.executable, "-m", self.package, *words, "--in-process", "--rows", name]
        # The package is found from where it lies, from whatever folder this was started.
        folder = pathlib.Path(sys.modules[self.package].__file__).resolve().parent
        path = [str(folder.parents[self.package.count(".")])]
        path += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        try:
            done = subprocess.run(words, env=env, timeout=args.timeout)
        except subprocess.TimeoutExpired:
            return f"did not end in {args.timeout:.0f} s"
        return None if done.returncode in (0, 1) else f"ended with {done.returncode}"

    def main(self, words=None):
        """Measures, and says what is missed."""
        words = sys.argv[1:] if words is None else words
        args = self.arguments(words)
        if args.in_process:
            record = self.record(args)
            missed = sum(self.run_group(args, name, record) for name in args.rows)
            return 1 if missed else 0
        record = self.record(args, args.merge)
        record.about({"note": args.note} if args.note else {})
        record.save()
        start, ended_badly = time.monotonic(), {}
        for name in args.rows:
            seconds = time.monotonic() - start
            if seconds > args.deadline:
                ended_badly[name] = "no time left"
                continue
            why = self.child(args, name, words)
            if why:
                ended_badly[name] = why
            print(f"-- {name}: {time.monotonic() - start - seconds:.0f} s {why or ''}", flush=True)
        return self.ended(args, ended_badly)

    def ended(self, args, ended_badly):
        """Notes which groups ended badly, and says what is missed."""
        record = self.record(args)
        earlier = record.data.pop("ended_badly", {})
        all_of = {name: why for name, why in earlier.items() if name not in args.rows}
        all_of |= ended_badly
        record.about({"ended_badly": all_of} if all_of else {})
        record.save()
        found = json.loads(args.out.read_text())["rows"]
        found = [row for row in found if row.get("group") in args.rows]
        print("\n".join(rows.line(row) for row in found if row["met"] is False))
        n_met = sum(row["met"] is True for row in found)
        print(f"{n_met} of {len([r for r in found if r['goal']])} goals met; {ended_badly or ''}")
        return 1 if ended_badly or any(row["met"] is False for row in found) else 0


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
