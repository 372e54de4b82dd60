"""Runs other packages' own test suites, unchanged, against this one.

    python python/tests/peers/run.py                  # fetches what is not in target/peers
    python python/tests/peers/run.py --mode gpu --sources DIR --out peers.json

The source distributions of exactly the versions of suites.json are fetched with pip into
`target/peers` and kept there; with `--sources` they are taken from a folder and nothing is
fetched (the Hub kernel's, a folder `erikkaum-maxsim` with its `tests`, always). What they test is
the package `maxsim` of this interpreter under the names of `alias/`. In mode `cpu` the device
"cuda" is the CPU (`alias/cpu_mode.py`).

Every test must pass but those that excluded.json lists by name with the reason. A listed test that
passes, or that there is not, is a failure too. `--out` writes counts and names as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import signatures

HERE = Path(__file__).resolve().parent
KEPT = HERE.parents[2] / "target" / "peers"


def archive_of(suite: Dict[str, Any], sources: Optional[Path]) -> Optional[Path]:
    """The suite's sources: an archive or a folder. None where the Hub kernel's are not given."""
    for folder in [sources] if sources else [KEPT]:
        for name in (suite["archive"], suite["archive"] + ".tar.gz"):
            if (folder / name).exists():
                return folder / name
    if "/" in suite["suite"]:
        return None
    if sources:
        raise SystemExit(f"{sources} has no {suite['archive']}.tar.gz")
    KEPT.mkdir(parents=True, exist_ok=True)
    package = f"{suite['suite']}=={suite['version']}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary=:all:", "--dest", str(KEPT), package]
    subprocess.run(command, check=True)
    return KEPT / (suite["archive"] + ".tar.gz")


def unpack(archive: Path, wanted: List[str], into: Path) -> None:
    """The files below these folders or of these names.

    Of PyLate and colpali-engine that is the part that scores, without the files that import the
    rest and all that it needs. What a suite tests with this package must not be there at all.
    """

    def is_wanted(name: str) -> bool:
        return any(name == part or (part[-1] == "/" and name.startswith(part)) for part in wanted)

    if archive.is_dir():
        for path in archive.rglob("*.py"):
            name = path.relative_to(archive).as_posix()
            if is_wanted(name):
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, into / name)
        return
    with tarfile.open(archive) as file:
        members = []
        for member in file.getmembers():
            member.name = member.name.partition("/")[2]
            if member.isfile() and is_wanted(member.name):
                members.append(member)
        file.extractall(into, members=members, filter="data")


def environment(suite: Dict[str, Any], folder: Path, mode: str) -> Dict[str, str]:
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", MAXSIM_PEERS_MODE=mode)
    paths = [str(HERE / "alias")]
    if suite["suite"] == "erikkaum/maxsim":
        # Its conftest looks for a built variant by this name, and builds one where there is none.
        env["MAXSIM_PEERS_MODE"] = ""
        import torch

        version = "".join(torch.__version__.split(".")[:2])
        cuda = "".join((torch.version.cuda or "0.0").split(".")[:2])
        variant = folder / "build" / f"torch{version}-cxx11-cu{cuda}-{platform.machine()}-linux"
        shutil.copytree(HERE / "hub", variant)
        paths.insert(0, str(variant))
    if env.get("PYTHONPATH"):
        paths.append(env["PYTHONPATH"])
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env["MAXSIM_PEERS_REPORT"] = str(folder / "report.json")
    return env


def run_tests(
    suite: Dict[str, Any], folder: Path, env: Dict[str, str], listed: Dict[str, str], run_all: bool
) -> Dict[str, Any]:
    """Outcomes of the pytest part by name; listed tests are left out unless `run_all`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "peers_report", "-W", "ignore", "-o", "addopts="]
    if not run_all:
        for name in listed:
            command += ["--deselect", name]
    done = subprocess.run(
        command + suite["tests"], cwd=folder, env=env, capture_output=True, text=True
    )
    report = folder / "report.json"
    if not report.exists():
        raise SystemExit(f"{suite['suite']}: pytest stopped\n{done.stdout}\n{done.stderr}")
    outcomes: Dict[str, Any] = json.loads(report.read_text())
    return outcomes


def run_script(name: str, want: Dict[str, Any], folder: Path, env: Dict[str, str]) -> str:
    """What is wrong with a script's printed verdicts; empty where all are good."""
    done = subprocess.run(
        [sys.executable, name], cwd=folder, env=env, capture_output=True, text=True
    )
    text = done.stdout + done.stderr
    good, bad = len(re.findall(want["good"], text)), re.search(want["bad"], text)
    if done.returncode or bad or good != want["count"]:
        return f"exit {done.returncode}, {good} of {want['count']} good verdicts\n{text[-800:]}"
    return ""


def compare_signatures(package: Dict[str, Any], archive: Path) -> List[str]:
    """How the package's public functions differ from ours; none where there are no sources."""
    with tempfile.TemporaryDirectory() as work:
        unpack(archive, [package["folder"] + "/"], Path(work))
        return signatures.compare(
            Path(work) / package["folder"], package["ours"], package["internal"]
        )


def run_suite(
    suite: Dict[str, Any], archive: Path, mode: str, run_all: bool
) -> Dict[str, Any]:
    """Runs a suite and compares it with the list."""
    groups = [
        group
        for group in json.loads((HERE / "excluded.json").read_text())
        if group["suite"] == suite["suite"] and group["where"] in ("everywhere", mode)
    ]
    listed = {name: group["reason"] for group in groups for name in group["tests"]}
    began = time.perf_counter()
    failures: List[Dict[str, str]] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        unpack(archive, suite["unpack"], folder)
        env = environment(suite, folder, mode)
        outcomes = run_tests(suite, folder, env, listed, run_all)
        scripts = [n for n, want in suite["scripts"].items() if mode == "gpu" or want["cpu"]]
        for name in scripts:
            wrong = run_script(name, suite["scripts"][name], folder, env)
            outcomes[name] = ["failed", wrong, 0.0] if wrong else ["passed", "", 0.0]
    if "package" in suite:
        for wrong in compare_signatures(suite["package"], archive):
            failures.append({"test": wrong, "outcome": "another signature"})
    passed = [name for name, (outcome, _, _) in outcomes.items() if outcome == "passed"]
    for name, (outcome, text, _) in outcomes.items():
        if outcome not in ("passed", "deselected") and name not in listed:
            failures.append({"test": name, "outcome": outcome, "text": text})
    for name in listed:
        if name not in outcomes and not any(test.startswith(name + "::") for test in outcomes):
            failures.append({"test": name, "outcome": "listed, but there is no such test"})
        elif name in passed:
            failures.append({"test": name, "outcome": "listed, but passes"})
    return {
        "suite": suite["suite"],
        "version": suite["version"],
        "mode": mode,
        "passed": len(passed),
        "scripts": len(scripts),
        "failed": len(failures),
        "excluded": len(listed),
        "seconds": round(time.perf_counter() - began, 1),
        "failures": failures,
        "reasons": [{key: group[key] for key in ("reason", "tests")} for group in groups],
    }


def machine(mode: str) -> str:
    import torch

    return torch.cuda.get_device_name() if mode == "gpu" else f"CPU, {platform.machine()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--sources", type=Path, help="a folder with the source distributions")
    parser.add_argument("--suite", action="append", help="only this suite")
    parser.add_argument("--all", action="store_true", help="run the listed tests too")
    parser.add_argument("--out", type=Path, help="write the counts here")
    options = parser.parse_args()
    results = []
    for suite in json.loads((HERE / "suites.json").read_text()):
        if options.suite and suite["suite"] not in options.suite:
            continue
        archive = archive_of(suite, options.sources)
        if archive is None:
            print(f"{suite['suite']}: no sources given, left out")
            continue
        result = run_suite(suite, archive, options.mode, options.all)
        results.append(result)
        print(
            "{suite} {version}: {passed} passed, {failed} failed, {excluded} listed, "
            "{seconds} s".format(**result),
            flush=True,
        )
        for failure in result["failures"]:
            print(f"  {failure['test']}: {failure['outcome']}\n{failure.get('text', '')}")
    if options.out:
        import torch

        record = {"card": machine(options.mode), "torch": torch.__version__, "suites": results}
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if any(result["failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
