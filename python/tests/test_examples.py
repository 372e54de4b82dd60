"""The examples run, and learn."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    """What an example prints."""
    if not EXAMPLES.is_dir():
        pytest.skip("the examples are not beside the tests")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True,
        env=dict(os.environ, HF_HUB_OFFLINE="1"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def figures(text: str, pattern: str) -> list[float]:
    """The numbers that a pattern finds."""
    return [float(x) for x in re.findall(pattern, text)]


def test_contrastive_training_learns(tmp_path: Path) -> None:
    for needed in ("transformers", "tokenizers"):
        pytest.importorskip(needed)
    out = tmp_path / "out"
    text = run("train_contrastive.py", "--device", "cpu", "--steps", "20", "--batch", "16",
               "--document-length", "64", "--out", str(out))
    before, after = figures(text, r"nDCG@10 (?:before|after) +([\d.]+)")
    assert after > before + 0.1
    with open(out / "loss.csv", encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    picture = ElementTree.parse(out / "training.svg").getroot()
    assert f"{after:.3f}" in "".join(picture.itertext())
    result = json.loads((out / "result.json").read_text())
    assert round(result["ndcg_at_10"]["after"], 4) == after
    assert result["losses"] == pytest.approx(losses, abs=1e-6)


def test_reranking_gives_what_the_framework_gives() -> None:
    framework = pytest.importorskip("sentence_transformers")
    if int(framework.__version__.split(".")[0]) < 6:
        pytest.skip("sentence-transformers 6.0 is not installed")
    text = run("rerank.py", "--repeat", "1")
    one_vector, theirs, ours = figures(text, r"nDCG@10 ([\d.]+)")
    assert ours == theirs > one_vector
    assert figures(text, r"difference of a score ([\d.e+-]+)")[0] < 1e-4


@pytest.mark.parametrize("loss", ["contrastive", "distillation"])
def test_pylate_learns_what_it_learns_alone(tmp_path: Path, loss: str) -> None:
    for needed in ("pylate", "safetensors"):
        pytest.importorskip(needed)
    text = run("train_pylate.py", "--device", "cpu", "--loss", loss, "--steps", "8", "--batch",
               "8", "--hidden", "128", "--layers", "2", "--out", str(tmp_path))
    before, after, alone = figures(text, r"nDCG@10 (?:before|after) ([\d.]+)")
    assert abs(after - alone) < 0.02 and after > before
    assert figures(text, r"difference of a loss ([\d.e+-]+)")[0] < 1e-3
    with open(tmp_path / "losses.csv", encoding="utf-8") as file:
        losses = [float(row["maxsim"]) for row in csv.DictReader(file)]
    assert len(losses) == 8 and sum(losses[-3:]) < sum(losses[:3])


def test_colpali_loss_is_what_it_is_alone() -> None:
    pytest.importorskip("colpali_engine")
    text = run("colpali_loss.py", "--device", "cpu", "--batch", "6", "--tokens", "40", "--dtype",
               "float32", "--repeat", "1")
    ours, theirs = figures(text, r"loss ([\d.]+)\n")
    assert ours == theirs > 0
    assert max(figures(text, r"([\d.]+e[+-]\d+)")) < 1e-5
