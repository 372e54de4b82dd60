"""The record of all runs together, which each run adds to."""

import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def commit():
    command = ["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def read(path, target):
    """What a target has come to; nothing before its first run."""
    with changed(path, target, write=False) as entry:
        return entry


@contextlib.contextmanager
def changed(path, target, write=True):
    """A target's entry, which is written back when the block ends; runs take turns."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        record = {"date": "", "commit": "", "targets": []}
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
        entries = {entry["target"]: entry for entry in record["targets"]}
        empty = {"target": target, "inputs": 0, "seconds": 0, "found": 0}
        entry = entries.setdefault(target, empty)
        yield entry
        if write:
            now = datetime.datetime.now(datetime.timezone.utc)
            record["date"], record["commit"] = now.strftime("%Y-%m-%d"), commit()
            record["targets"] = [entries[name] for name in sorted(entries)]
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, path)
    finally:
        os.close(folder)
