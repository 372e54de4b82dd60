"""The program that measures the record of search runs, in the smallest shapes, with stand-ins for
the peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libmaxsim_bench.so"

FLASH = """
import torch

def scores(q, d):
    return torch.einsum("ash,bth->abst", q.float(), d.float()).amax(3).sum(2)

def flash_maxsim(q, d):
    return scores(q[None], d)[0]

def flash_maxsim_batched(q, d, shared_docs=True):
    return scores(q, d)

def quantize_int8(d):
    return d, d, d

def flash_maxsim_topk(q, d, k, D_int8, scales, mins):
    found = torch.topk(flash_maxsim(q, d), k)
    # Half of them.
    return found.values, torch.where(torch.arange(k) < k // 2, found.indices, -1)
"""
#: Scores that are wrong, and a search that is right.
LIK = """
import torch
from flash_maxsim import scores

def maxsim(q, d):
    return scores(q, d) * 1.5

def retrieve(q, d, top_k, normalize=True):
    return torch.topk(scores(q, d), top_k, dim=1)
"""


def library() -> Path:
    """The library's interface, of whatever build is there."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [target / kind / LIBRARY for kind in ("release", "debug")]
    found = [path for path in found if path.is_file()]
    if not found or not (ROOT / "bench" / "search").is_dir():
        pytest.skip(f"{LIBRARY} is not built: cargo build -p maxsim-bench")
    return max(found, key=lambda path: path.stat().st_mtime)


def measured(tmp_path: Path, *groups: str) -> dict[str, dict[str, Any]]:
    """Rows of groups by their cases."""
    for folder, text in (("flash_maxsim-0.3.0/flash_maxsim", FLASH),
                         ("late_interaction_kernels-0.4.5/late_interaction_kernels", LIK)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text(text)
    out = tmp_path / "search.json"
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "bench.search", "--in-process", "--tiny", "--device", "cpu",
         "--seconds", "0.02", "--peers", str(tmp_path), "--out", str(out), "--rows", *groups],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path), OMP_NUM_THREADS="1",
                 MAXSIM_BENCH_LIBRARY=str(library()), PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    return {row["case"]: row for row in json.loads(out.read_text())["rows"]}


def test_resident(tmp_path: Path) -> None:
    rows = measured(tmp_path, "queries", "query", "selection")
    assert len(rows) == 1 + 1 + 7
    for case, row in rows.items():
        assert row["ours"] is not None, (case, row.get("why"))
        if "top-k itself" in case:
            assert row["peer"] == "torch.topk"
            continue
        assert row["x_scores"] > 0 and row["x_flash"] > 0 and row["x_retrieve"] > 0
        assert "off by" in row["peers"]["late-interaction-kernels + torch.topk"]
        assert row["whole_ms"].keys() >= {"maxsim", "flash-maxsim + torch.topk"}
    found = rows["1 query of 32 × 20 000 × 300, top 100"]
    assert found["not_proven"] == 0 and 100 <= found["n_rescored"] <= 400


def test_by_way_of_codes(tmp_path: Path) -> None:
    rows = measured(tmp_path, "proven", "recall")
    assert len(rows) == 2
    proven, recall = rows.values()
    assert proven["not_proven"] == 0 and proven["x_f16_scan"] > 0, proven.get("why")
    found = recall["recall"]
    assert found["maxsim"] == found["maxsim, f16 scan"] == 1
    assert found["flash-maxsim two-stage top-k"] == 0.5
    assert "fast-plaid" in found or "fast_plaid" in recall["peers"]["fast-plaid"]


def test_streamed(tmp_path: Path) -> None:
    rows = list(measured(tmp_path, "pinned", "compressed", "cached").values())
    assert len(rows) == 4
    pinned, many, compressed, cached = rows
    for row in rows:
        assert row["ours"] is not None, (row["case"], row.get("why"))
        assert row["documents_per_s"] == pytest.approx(60 / row["ours"], rel=1e-3)
    for row in (pinned, cached):
        assert row["peer"] == "flash-maxsim, loop over pageable memory"
        assert row["of_limit"] == pytest.approx(row["limit"] / row["ours"], rel=1e-3)
    assert cached["seconds_of_reads"]["page cache"] > 0
    assert many["x_one_query_pages"] > 1 and many["of_resident"] > 0
    assert compressed["x_f16_int8"] > 0 and compressed["x_f16_plaid"] > 0
    assert compressed["recall_of_f16"] >= 0.8


def test_several_devices(tmp_path: Path) -> None:
    (row,) = measured(tmp_path, "devices").values()
    assert row["x_one_of_2"] > 0 and row["x_one_of_4"] > 0, row.get("why")
    assert row["same_ranking"] and row["devices"] == 4 and row["streamed_x_one"] > 0


def test_similarities_are_spread_as_the_real_sets(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if not (ROOT / "bench" / "search").is_dir():
        pytest.skip("the benchmarks are not beside the tests")
    code = "from search.spread import *; import json\n" \
        "drawn = Spread('cpu', 128, 1000); documents = drawn.documents(1000, 100)\n" \
        "queries = drawn.queries(documents, 40, 12)\n" \
        "again = Spread('cpu', 128, 1000).documents(1000, 100)\n" \
        "assert torch.equal(documents, again)\n" \
        "print(json.dumps([REAL, drawn.statistics(documents, queries)]))"
    path = [str(ROOT / "bench"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    real, found = json.loads(done.stdout)
    for name, wanted in real.items():
        assert found[name] == pytest.approx(wanted, rel=0.25), (name, found[name], wanted)
