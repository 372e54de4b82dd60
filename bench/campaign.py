#!/usr/bin/env python3
"""Times maxsim beside flash-maxsim and late-interaction-kernels: the whole table, or some cases.

    campaign.py all --out DIR            roofs, every case, the scaling series, the cold start
    campaign.py CASE ... --out DIR       these cases (`list` prints their names); prefixes do
    campaign.py baselines --out DIR      the Flash-MaxSim paper's shapes beside plain PyTorch
    campaign.py compressed --out DIR     compressed documents: roofs and every case, in
                                         compressed.json

Each case runs in a process of its own with empty caches of the peers' compilers, and its rows go
into DIR/forward.json (DIR/compressed.json) as soon as it ends: a campaign that is cut off loses
nothing, and a later one replaces the rows of the cases that it runs. A case that fails is a row
that says why.

Needs PyTorch, flash-maxsim 0.3.0 and late-interaction-kernels 0.4.5 (a peer that is not there is
an error in its rows), and `cargo build --release -p maxsim-bench` or the bundle.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import cases
from record import Record, table

FOLDER = pathlib.Path(__file__).resolve().parent
PACKAGES = ("torch", "triton", "flash-maxsim", "late-interaction-kernels")


def main():
    args = arguments()
    names = chosen(args.cases)
    if args.cases == ["list"] or args.dry_run:
        for name in names or list(cases.BY_NAME):
            case = cases.BY_NAME.get(name)
            print(f"{name:<22} {case.words if case else ''}")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    record = Record(args.out / file_of(names), args.merge)
    record.take(about())
    if "roofs" not in names and not record.data["roofs"]:
        names.insert(0, "roofs")
    campaign = Campaign(args, record)
    rows = campaign.run(names)
    print(
        f"\n{table(rows)}\n{len(campaign.failed)} failed: "
        f"{', '.join(campaign.failed) or 'none'}; {campaign.seconds():.0f} s"
    )
    return 1 if campaign.failed else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases",
        nargs="+",
        metavar="CASE",
        help="`all`, `baselines`, `compressed`, `list`, or names and prefixes of cases",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "out"))
    )
    parser.add_argument(
        "--merge", type=pathlib.Path, help="a record to start from where DIR has none"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measuring time per case (default 3)"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, no warm column")
    parser.add_argument(
        "--no-peers",
        action="store_true",
        help="only maxsim and the limits, while kernels are written",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=240.0,
        help="seconds until a case is given up (default 240)",
    )
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), help="start no case after so many seconds"
    )
    parser.add_argument(
        "--keep-compiled",
        action="store_true",
        help="one compiler cache for all cases, less what was tuned: they compile less",
    )
    parser.add_argument(
        "--precompile",
        type=int,
        default=0,
        metavar="N",
        help="let N processes at a time compile for all cases first, untimed; implies "
        "--keep-compiled",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print what would run")
    parser.add_argument(
        "--device",
        default="cuda",
        choices=["cuda", "cpu"],
        help="cpu: try the scripts; the times mean nothing",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the documents, to try the scripts"
    )
    args = parser.parse_args()
    args.keep_compiled |= args.precompile > 0
    return args


def chosen(words):
    """Names of cases, in the order of the words."""
    everything = ["roofs", *(case.name for case in cases.CASES), cases.SCALING.name, "cold-start"]
    baselines, compressed = (
        [case.name for case in some] for some in (cases.BASELINES, cases.COMPRESSED)
    )
    known = [*everything, *baselines, *compressed]
    groups = {
        "all": everything,
        "baselines": baselines,
        "compressed": ["roofs", *compressed],
        "list": [],
    }
    names = []
    for word in words:
        found = groups.get(word) if word in groups else [name for name in known if name == word]
        found = (
            found if found or word in groups else [name for name in known if name.startswith(word)]
        )
        if not found and word not in groups:
            sys.exit(f"no case {word}; `campaign.py list` prints their names")
        names += [name for name in found if name not in names]
    return names


def file_of(names):
    """The record that the cases are part of: compressed documents have one of their own."""
    compressed = [name for name in names if name in cases.BY_NAME and cases.BY_NAME[name].format]
    others = [name for name in names if name not in compressed and name != "roofs"]
    if compressed and others:
        sys.exit(
            f"{compressed[0]} and {others[0]} have records of their own: "
            "run them one after the other"
        )
    return "compressed.json" if compressed else "forward.json"


def about():
    """Where and with what this campaign runs."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        gpu, driver = answer.splitlines()[0].split(", ")
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        gpu = driver = None
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return {"gpu": gpu, "driver": driver, "date": date, "versions": versions}


class Child:
    """A process that has imported what a case needs, and waits for its turn."""

    def __init__(self, args, name, caches, log, more=()):
        self.name, self.log = name, log
        self.result = caches / "result.json"
        self.caches = caches
        command = [sys.executable, str(FOLDER / "case.py"), name, "--result", str(self.result)]
        command += [
            "--seconds",
            str(args.seconds),
            "--device",
            args.device,
            "--scale",
            str(args.scale),
        ]
        command += ["--quick"] if args.quick else []
        command += ["--no-peers"] if args.no_peers else []
        compiled = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        self.shared = shared = args.compiled if args.keep_compiled else caches
        env = os.environ | {name: str(shared / folder) for name, folder in compiled.items()}
        self.process = subprocess.Popen(
            [*command, *more], stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, text=True
        )

    def finish(self, timeout):
        """Lets it run; what it found, or why not."""
        # What another case tuned for its shape must not be taken for this one's.
        for tuned in self.shared.rglob("*.autotune.json"):
            tuned.unlink()
        try:
            self.process.communicate("go\n", timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"error": f"did not end within {timeout:.0f} s"}
        except OSError as error:
            self.process.wait()
            return {"error": f"ended before its turn: {error}"}
        found = json.loads(self.result.read_text()) if self.result.is_file() else {}
        if self.process.returncode or not found:
            # What there is of a series stays.
            found["error"] = f"exit status {self.process.returncode}: {last_line(self.log)}"
        return found

    def close(self):
        """Ends it, where it still waits, and removes its files."""
        if self.process.poll() is None:
            self.process.communicate()
        self.remove()

    def remove(self):
        """Removes its files."""
        shutil.rmtree(self.caches, ignore_errors=True)


def last_line(log):
    log.flush()
    lines = pathlib.Path(log.name).read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no output"


class Campaign:
    """Runs cases one after the other."""

    def __init__(self, args, record):
        self.args, self.record = args, record
        self.start = time.monotonic()
        self.failed = []
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="maxsim-bench-"))
        args.compiled = self.scratch / "compiled"

    def seconds(self):
        return time.monotonic() - self.start

    def precompile(self, names, log):
        """Fills the compiler cache, several cases at a time: tuning itself stays with each case."""
        waiting = [name for name in names if name in cases.BY_NAME and name != cases.SCALING.name]
        running, deadline = [], time.monotonic() + 2 * self.args.timeout
        while waiting or running:
            while waiting and len(running) < self.args.precompile:
                child = self.child(waiting.pop(0), log, ["--compile-only"])
                child.process.stdin.write("go\n")
                child.process.stdin.close()
                running.append(child)
            time.sleep(0.1)
            if time.monotonic() > deadline:
                waiting.clear()
                for child in running:
                    child.process.kill()
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                child.remove()
        print(f"compiled ({self.seconds():.0f} s)", flush=True)

    def run(self, names):
        rows = []
        with open(self.args.out / "campaign.log", "a") as log:
            if self.args.precompile:
                self.precompile(names, log)
            following = None
            for i, name in enumerate(names):
                if self.seconds() > self.args.deadline:
                    self.failed += [f"{name} (no time left)"]
                    continue
                if name == "cold-start":
                    self.cold_start()
                    continue
                begun = time.monotonic()
                child = following or self.child(name, log)
                ahead = next((other for other in names[i + 1 :] if other != "cold-start"), None)
                following = self.child(ahead, log) if ahead else None
                found = child.finish(self.args.timeout)
                child.close()
                if "error" in found:
                    found = self.again(name, found, log)
                rows += self.record.take(found)
                self.report(name, found, time.monotonic() - begun)
            if following:
                following.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return rows

    def child(self, name, log, more=()):
        return Child(self.args, name, pathlib.Path(tempfile.mkdtemp(dir=self.scratch)), log, more)

    def again(self, name, found, log):
        """Without what may have taken the device away from the rest: our other variants, the
        peers. A peer that tunes for too long is not waited for twice."""
        timed_out = "did not end" in found["error"]
        attempts = (
            [["--no-peers"]]
            if name == cases.SCALING.name
            else [["--variants", "1"], ["--variants", "1", "--no-peers"]]
        )
        for more in attempts[-1:] if timed_out else attempts if name != "roofs" else []:
            self.failed.append(f"{name} ({found['error']})")
            print(f"{name}: {found['error']}; once more with {' '.join(more)}", flush=True)
            points = found.get("scaling", [])
            child = self.child(name, log, more)
            found = child.finish(self.args.timeout)
            child.close()
            done = {point["n_docs"] for point in points}
            points += [point for point in found.get("scaling", []) if point["n_docs"] not in done]
            if points:
                found["scaling"] = points
            if "error" not in found:
                break
        if "error" in found:
            found |= self.failure(name, found["error"])
        return found

    def failure(self, name, error):
        """Rows that say why there is nothing."""
        self.failed.append(f"{name} ({error})")
        case = cases.BY_NAME.get(name)
        if case is None or case.name == cases.SCALING.name or case in cases.BASELINES:
            return {}
        shape = {
            key: getattr(case, key)
            for key in ("n_queries", "n_docs", "query_len", "doc_len", "dim")
        }
        shape["element"] = case.format or case.element
        return {"rows": [{"case": case.words, "name": name, **shape, "ours": {"error": error}}]}

    def report(self, name, found, seconds):
        said = [f"{name} ({seconds:.1f} s)"]
        for row in found.get("rows", []):
            own = row["ours"]
            said.append(f"{own['ms']:.4f} ms" if "ms" in own else f"FAILED {own.get('error')}")
            if "error" in own and not any(entry.startswith(name) for entry in self.failed):
                self.failed.append(f"{name} ({own['error']})")
        for point in found.get("scaling", []):
            said.append(
                " ".join(
                    f"{who} {r.get('ms', r.get('error'))}" for who, r in point["results"].items()
                )
            )
        for key, roof in found.get("roofs", {}).items():
            said.append(f"{key} {roof.get('tflop_per_s', roof.get('error'))} TFLOP/s")
        print("; ".join(said), flush=True)

    def cold_start(self):
        """From the opened device to the first score of a process, by the kind of image."""
        program = FOLDER.parent / "bin" / "maxsim-bench"
        if not program.is_file():
            program = FOLDER.parent / "target" / "release" / "maxsim-bench"
        device = "cuda:0" if self.args.device == "cuda" else "cpu"
        found = {}
        for image in ("cubin", "ptx"):
            # The driver's own cache of what it compiled would hide the compilation.
            env = os.environ | {"MAXSIM_KERNELS": image, "CUDA_CACHE_DISABLE": "1"}
            runs = []
            try:
                for _ in range(5):
                    answer = subprocess.run(
                        [program, "cold-start", device],
                        env=env,
                        capture_output=True,
                        text=True,
                        timeout=60,
                    )
                    if answer.returncode:
                        raise ValueError(" ".join(answer.stderr.split())[:300])
                    runs.append(json.loads(answer.stdout))
                keys = [key for key in runs[0] if key.endswith("_ms")]
                found[image] = {
                    key: round(statistics.median(run[key] for run in runs), 3) for key in keys
                }
                found[image]["n"] = len(runs)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                found[image] = {"error": str(error)[:300]}
                self.failed.append(f"cold-start {image} ({error})")
        self.record.take({"cold_start": found})
        print(f"cold-start: {found}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
