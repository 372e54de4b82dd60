"""The programs that measure the package's record run, in the smallest shapes, with stand-ins for
the peers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

FLASH = """
import torch

def scores(q, d):
    words = "ash,bth->abst" if d.ndim == 3 else "ash,abth->abst"
    return torch.einsum(words, q.float(), d.float()).amax(3).sum(2)

def flash_maxsim(q, d):
    return scores(q[None], d)[0]

def flash_maxsim_batched(q, d, shared_docs=True):
    return scores(q, d)

def flash_maxsim_batched_train(q, d, shared_docs=True):
    return scores(q, d)
"""
#: One that is wrong: it must not be compared with.
LIK = """
from flash_maxsim import scores

def maxsim(q, d):
    return scores(q, d) * 1.5 - d.float().sum()
"""


def measured(tmp_path: Path, *groups: str) -> dict[str, dict[str, Any]]:
    """Rows of groups by their cases."""
    if not (ROOT / "bench" / "python").is_dir():
        pytest.skip("the benchmarks are not beside the tests")
    for folder, text in (("flash_maxsim-0.3.0/flash_maxsim", FLASH),
                         ("late_interaction_kernels-0.4.5/late_interaction_kernels", LIK)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(text)
    out = tmp_path / "python.json"
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "bench.python", "--in-process", "--tiny", "--device", "cpu",
         "--seconds", "0.02", "--peers", str(tmp_path), "--out", str(out), "--rows", *groups],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="1",
                 HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    return {row["case"]: row for row in json.loads(out.read_text())["rows"]}


def test_calls(tmp_path: Path) -> None:
    rows = measured(tmp_path, "whole", "enqueue", "compile", "waits", "memory")
    assert len(rows) == 3 + 4 + 2 + 8 + 5
    for case, row in rows.items():
        if "per stream" in case:
            assert row["why"] == "ValueError: no GPU"
            continue
        assert row["ours"] is not None, (case, row.get("why"))
        if case.startswith(("whole", "enqueue", "the same")):
            assert row["peer"] == "flash-maxsim" and row["x_best_peer"] > 0
            assert "off" in row["peers"]["late-interaction-kernels"], case
        if case.startswith("the same"):
            assert row["graph_breaks"] == 0


def test_device_times(tmp_path: Path) -> None:
    rows = measured(tmp_path, "forward", "training")
    assert len(rows) == 42 + 10
    for case, row in rows.items():
        assert row["ours"] is not None, (case, row.get("why"))


def test_frameworks(tmp_path: Path) -> None:
    framework = pytest.importorskip("sentence_transformers")
    if int(framework.__version__.split(".")[0]) < 6:
        pytest.skip("sentence-transformers 6.0 is not installed")
    for package in ("pylate", "colpali_engine", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    rows = measured(tmp_path, "pylate", "colpali", "sentence-transformers", "cpu")
    assert len(rows) == 5 + 3 + 2 + 2
    for case, row in rows.items():
        assert row["ours"] is not None, (case, row.get("why"))
        assert row["peer"] in ("torch", "its einsum")
