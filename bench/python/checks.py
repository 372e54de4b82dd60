"""What has no figure to compare: tests on a GPU, and the examples with what they say.

    python3 -m bench.python.checks --out checks.json --peers DIR --data DIR

From the repository's root, with the package `maxsim`, pytest and the frameworks installed. Each
check is a program with a time limit; the file says how each ended and its last lines. A check that
needs what is not there (two GPUs, a framework) is left out, and the file says so.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from . import FOLDER, packages

ROOT = FOLDER.parents[1]
TESTS, EXAMPLES = ROOT / "python" / "tests", ROOT / "python" / "examples"
LINES = 14
#: No check is begun where less is left.
SECONDS_LEFT = 20


@dataclasses.dataclass
class Check:
    """A program, and what its output must show."""

    name: str
    words: list
    """The program's arguments, after the interpreter."""
    seconds: float
    env: dict = dataclasses.field(default_factory=dict)
    path: tuple = ()
    """Folders before those of PYTHONPATH."""
    n_gpus: int = 1
    shows: object = None
    """A function of the output that says what is wrong with it, or None."""


def tests(name, files, seconds, **more):
    """A check that runs test files."""
    words = ["-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    words += [str(TESTS / file) for file in files]
    return Check(name, words, seconds, **more)


def learns(text):
    """Whether held-out nDCG@10 goes from below 0.2 to above 0.6."""
    found = [float(x) for x in re.findall(r"nDCG@10 (?:before|after) +([\d.]+)", text)]
    if len(found) == 2 and found[0] < 0.2 and found[1] > 0.6:
        return None
    return f"nDCG@10 {found}, not from below 0.2 to above 0.6"


def checks(args, staged):
    """All checks; `staged`: a folder with what the examples import of frameworks."""
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    texts = ["--data", str(args.data)] if args.data else []
    out = tempfile.mkdtemp(prefix="maxsim-checks-") if args.keep is None else str(args.keep)
    older = (str(args.older),) if args.older else ()
    core = ["scores", "gradients", "operators", "modules"]
    core = [*(f"core/test_{name}.py" for name in core), "core/rankings"]
    example = lambda name, *words: [str(EXAMPLES / name), *words]
    return [
        tests("tests, core", ["core"], 420),
        tests("tests, core, expandable segments", core, 300, env=expandable),
        tests(
            "tests, integrations on the GPU",
            [f"integrations/test_{name}.py" for name in ("sentence_transformers", "pylate")],
            240,
            env={"MAXSIM_TEST_DEVICE": args.device},
            path=(str(staged),),
        ),
        tests("tests, two GPUs", ["core/test_ranks.py"], 240, n_gpus=2),
        Check(
            "example, train_contrastive",
            example("train_contrastive.py", *texts, "--out", f"{out}/train_contrastive"),
            590,
            shows=learns,
        ),
        *(
            Check(
                f"example, train_pylate, {loss}",
                example("train_pylate.py", "--loss", loss, "--out", f"{out}/train_pylate_{loss}"),
                400,
                path=(*older, str(staged)),
            )
            for loss in ("contrastive", "distillation")
        ),
        Check(
            "example, colpali_loss, B = 128",
            [str(EXAMPLES / "colpali_loss.py"), "--batch", "128", "--device", args.device],
            200,
            path=(str(staged),),
        ),
        Check(
            "example, rerank",
            example("rerank.py", "--device", args.device, "--candidates", "100", "--repeat", "5"),
            200,
        ),
    ]


def stage(peers, folder):
    """Writes what the examples import of frameworks whose other parts are not installed."""
    if peers is None:
        return
    name = packages.SOURCES["colpali_engine"]
    source, target = peers / name / "colpali_engine", folder / "colpali_engine"
    for part in ("loss", "utils"):
        target.mkdir(exist_ok=True)
        shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pyc*"))
    for part in ("", "utils"):
        (target / part / "__init__.py").write_text("")
    described(folder, "colpali_engine", name)
    name = packages.SOURCES["pylate"]
    shutil.copytree(peers / name / "pylate", folder / "pylate")
    described(folder, "pylate", name)
    found = subprocess.run([sys.executable, "-c", "import datasets"], capture_output=True)
    if found.returncode:
        kinds = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict", "Value")
        (folder / "datasets.py").write_text("".join(f"class {kind}: ...\n" for kind in kinds))


def described(folder, package, source):
    """Writes the name and version by which an installed package is known."""
    version = source.rpartition("-")[2]
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    name = package.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(check, seconds):
    """How a check ended, or that it did not in so many seconds."""
    path = [*check.path, str(EXAMPLES), os.environ.get("PYTHONPATH", "")]
    env = os.environ | check.env
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), "HF_HUB_OFFLINE": "1"}
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *check.words],
            env=env,
            cwd=TESTS,
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        text, ended = done.stdout, f"ended with {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode(errors="replace")
        ended = f"did not end in {seconds:.0f} s"
    why = ended or (check.shows(text) if check.shows else None)
    return {
        "check": check.name,
        "result": "failed" if why else "ok",
        **({"why": why} if why else {}),
        "seconds": round(time.monotonic() - start, 1),
        "said": [line[:300] for line in text.strip().splitlines()[-LINES:]],
    }


def gpus():
    """The names of the GPUs."""
    code = "import torch.cuda as c\nfor i in range(c.device_count()): print(c.get_device_name(i))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.splitlines()


def main():
    """Runs the checks, and says which failed."""
    lines = __doc__.splitlines()
    parser = argparse.ArgumentParser(description=lines[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("checks.json"))
    parser.add_argument("--only", nargs="+", default=[], help="checks by parts of their names")
    parser.add_argument("--peers", type=pathlib.Path, help="folder of source distributions")
    parser.add_argument("--older", type=pathlib.Path, help="folder of sentence-transformers 5.3")
    parser.add_argument("--data", type=pathlib.Path, help="texts that a model is trained on")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for what the examples write")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="in seconds")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    for name in ("peers", "older", "data", "keep"):
        if getattr(args, name) is not None:
            setattr(args, name, getattr(args, name).resolve())
    args.out = args.out.resolve()
    cards, found, start = gpus(), [], time.monotonic()
    if args.out.is_file():
        found = json.loads(args.out.read_text())["checks"]
    with tempfile.TemporaryDirectory() as staged:
        stage(args.peers, pathlib.Path(staged))
        for check in checks(args, staged):
            if args.only and not any(word in check.name for word in args.only):
                continue
            left = args.deadline - (time.monotonic() - start)
            if args.device == "cuda" and len(cards) < check.n_gpus:
                result = {"check": check.name, "result": "left out", "why": f"{len(cards)} GPUs"}
            elif left < SECONDS_LEFT:
                result = {"check": check.name, "result": "left out", "why": "no time left"}
            else:
                result = run(check, min(check.seconds, left))
            known = any(other["check"] == check.name for other in found)
            if result["result"] != "left out" or not known:
                found = [other for other in found if other["check"] != check.name] + [result]
            text = json.dumps({"card": cards[:1], "n_gpus": len(cards), "checks": found}, indent=1)
            args.out.write_text(text + "\n")
            print(result["result"], check.name, result.get("why", ""), flush=True)
            print("\n".join(f"    {line}" for line in result.get("said", [])), flush=True)
    return 1 if any(result["result"] == "failed" for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
