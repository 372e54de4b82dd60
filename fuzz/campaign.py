#!/usr/bin/env python3
"""Gives targets that `check.sh` built their corpora, and lets each look for more.

    campaign.py [--seconds 20] [TARGET ..]
    campaign.py --inputs 10000000 --record FILE [TARGET ..]

The first is the check: the kept inputs, and new ones for some seconds, of as many targets at once
as there are cores. The second goes on until a target has had so many inputs in all runs together,
adds up inputs, seconds and findings in the record (after every two minutes, so that a run may be
ended at any time and gone on with later), and keeps the inputs that reach something new (files
below target/fuzz/new, such as `seeds.py` writes, among them): the corpus becomes few small files
that reach all of it. A finding ends the run with its input in target/fuzz/found/TARGET.
"""

import argparse
import concurrent.futures
import hashlib
import heapq
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

import record

HERE = pathlib.Path(__file__).resolve().parent
TARGET_DIR = HERE.parent / "target/fuzz"
TRIPLE = "x86_64-unknown-linux-gnu"

#: Bytes of the longest input: index folders are several files.
LEN_MAX = {"index": 8192}

#: Most bytes and files that a corpus may have: the tree holds 2 MB of all at most.
BYTES_MAX, FILES_MAX = 300_000, 1000

#: What a file of an archive takes besides its bytes.
FILE_BYTES = 120

#: Most inputs are errors, and a backtrace takes longer than a reader. Threads of a pool would wait
#: for each other most of the time.
ENVIRONMENT = {**os.environ, "RUST_LIB_BACKTRACE": "0", "RAYON_NUM_THREADS": "1"}

#: Seconds between two records.
SLICE = 120


def targets():
    return sorted(path.stem for path in (HERE / "targets").glob("*.rs"))


class Target:
    """One target, and where its inputs are."""

    def __init__(self, name, profile):
        self.name = name
        self.program = TARGET_DIR / TRIPLE / profile / name
        self.archive = HERE / "corpus" / f"{name}.zip"
        self.corpus = TARGET_DIR / "corpus" / name
        self.new = TARGET_DIR / "new" / name
        self.found = TARGET_DIR / "found" / name
        for folder in (self.corpus, self.new, self.found):
            folder.mkdir(parents=True, exist_ok=True)
        self.unpack()

    def unpack(self):
        """Lays out the corpus, which the tree has as one file."""
        shutil.rmtree(self.corpus)
        self.corpus.mkdir()
        if self.archive.exists():
            with zipfile.ZipFile(self.archive) as archive:
                archive.extractall(self.corpus)

    def options(self):
        return [
            f"-max_len={LEN_MAX.get(self.name, 4096)}", "-timeout=10", "-rss_limit_mb=2048",
            f"-artifact_prefix={self.found}/", "-print_final_stats=1",
        ]  # fmt: skip

    def run(self, *options):
        """Runs the target; returns inputs, code reached and whether there was no finding."""
        log = self.found / "log"
        with open(log, "w", encoding="utf-8") as file:
            done = subprocess.run(
                [self.program, *self.options(), *options, self.new, self.corpus],
                stdout=file, stderr=subprocess.STDOUT, env=ENVIRONMENT, check=False,
            )  # fmt: skip
        text = log.read_text(encoding="utf-8", errors="replace")
        n_inputs = re.findall(r"^stat::number_of_executed_units: *(\d+)", text, re.MULTILINE)
        reached = re.findall(r"\bcov: (\d+)", text)
        # A finding is counted, too, but in a line of its own.
        n_inputs = n_inputs or re.findall(r"^#(\d+)", text, re.MULTILINE)
        if done.returncode != 0:
            sys.stderr.write("".join(text.splitlines(keepends=True)[-40:]))
            place = self.found.relative_to(HERE.parent)
            print(f"fuzz: {self.name} found an input: {place}", file=sys.stderr)
        return int((n_inputs or ["0"])[-1]), int((reached or ["0"])[-1]), done.returncode == 0

    def merge(self):
        """Makes the corpus those of its inputs and the new ones that reach all edges, and as many
        numbers of times as there is room for."""
        with tempfile.TemporaryDirectory(dir=TARGET_DIR) as folder:
            control, unused = pathlib.Path(folder) / "control", pathlib.Path(folder) / "unused"
            unused.mkdir()
            subprocess.run(
                [self.program, "-merge=1", f"-merge_control_file={control}", *self.options(),
                 unused, self.corpus, self.new],
                capture_output=True, env=ENVIRONMENT, check=True,
            )  # fmt: skip
            chosen = choose(reached_by(control.read_text(encoding="utf-8")))
            inputs = [path.read_bytes() for path in chosen]
        self.archive.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(self.archive, "w") as archive:
            for name, raw in sorted((hashlib.sha1(raw).hexdigest()[:12], raw) for raw in inputs):
                archive.writestr(zipfile.ZipInfo(name), raw, zipfile.ZIP_DEFLATED, 9)
        self.unpack()

    def kept(self):
        n_files = len(list(self.corpus.iterdir()))
        return {"corpus_files": n_files, "corpus_bytes": self.archive.stat().st_size}


def reached_by(control):
    """What a merge's notes say of each file: how often it reaches which edge, as numbers of which
    eight are an edge's."""
    lines = control.splitlines()
    files = [pathlib.Path(line) for line in lines[2 : 2 + int(lines[0])]]
    reached = {}
    for line in lines[2 + len(files) :]:
        kind, number, *features = line.split()
        if kind == "FT":
            reached[files[int(number)]] = {int(feature) for feature in features}
    return reached


def choose(reached):
    """Files that reach all edges, and then as much as there is room for: each time the one with
    most that is new for its size."""
    sizes = {path: path.stat().st_size for path in reached}
    chosen = []
    for unit in (8, 1):
        left = {path: {f // unit for f in found} for path, found in reached.items()}
        for path in chosen:
            new = left.pop(path)
            for found in left.values():
                found -= new
        # What a file adds only ever becomes less: look again at the one that seemed best.
        heap = [(-len(found) / (FILE_BYTES + sizes[path]), path) for path, found in left.items()]
        heapq.heapify(heap)
        covered = set()
        while heap:
            _, path = heapq.heappop(heap)
            new = left[path] - covered
            worth = -len(new) / (FILE_BYTES + sizes[path])
            if heap and worth > heap[0][0]:
                heapq.heappush(heap, (worth, path))
            elif new:
                room = BYTES_MAX - sum(FILE_BYTES + sizes[path] for path in chosen)
                if FILE_BYTES + sizes[path] <= room and len(chosen) < FILES_MAX:
                    chosen.append(path)
                    covered |= new
    return chosen


def check(target, seconds):
    start = time.monotonic()
    n_inputs, reached, is_good = target.run(f"-max_total_time={seconds}")
    took, n_kept = time.monotonic() - start, len(list(target.corpus.iterdir()))
    print(f"{target.name}: {n_inputs} inputs in {took:.0f} s, {n_kept} of them kept ones; "
          f"{reached} edges reached", flush=True)  # fmt: skip
    return is_good


def campaign(target, n_inputs, path):
    """Runs until there have been so many inputs; whether there was no finding."""
    while (left := n_inputs - record.read(path, target.name)["inputs"]) > 0:
        start = time.monotonic()
        limits = f"-max_total_time={SLICE}", f"-runs={left}", "-reload=0"
        done, reached, is_good = target.run(*limits)
        with record.changed(path, target.name) as entry:
            entry["inputs"] += done
            entry["seconds"] = round(entry["seconds"] + time.monotonic() - start)
            entry["found"] += not is_good
            entry["edges"] = max(reached, entry.get("edges", 0))
        print(entry, flush=True)
        if not is_good:
            return False
    target.merge()
    with record.changed(path, target.name) as entry:
        entry |= target.kept()
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=20, help="how long each target looks")
    parser.add_argument("--inputs", type=int, help="inputs of each target in all runs")
    parser.add_argument("--record", help="the file that runs are added up in")
    parser.add_argument("target", nargs="*", help="all by default")
    args = parser.parse_args()
    if (args.inputs is None) != (args.record is None):
        parser.error("--inputs and --record go together")
    names = args.target or targets()
    if args.inputs is None:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            checked = pool.map(lambda name: check(Target(name, "debug"), args.seconds), names)
            sys.exit(not all(list(checked)))
    done = [campaign(Target(name, "campaign"), args.inputs, args.record) for name in names]
    sys.exit(not all(done))


if __name__ == "__main__":
    main()
