"""vLLM's scores of pairs, on a package made here that has vLLM's function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch
from comparing import Calls, near, randn, traces

from maxsim.integrations import _exchange
from maxsim.integrations import vllm as integration

LATE_INTERACTION = '''
import torch

def compute_maxsim_score_batched(q_embs, d_embs, max_batch_size=64,
                                 max_score_matrix_elements=64_000_000):
    if len(q_embs) != len(d_embs):
        raise ValueError("q_embs and d_embs must have the same length")
    scores = []
    for q, d in zip(q_embs, d_embs):
        similarities = torch.nn.functional.pad(q.float() @ d.float().T, (0, 1),
                                               value=float("-inf"))
        scores.append(similarities.amax(-1).sum())
    return scores
'''
RUNNER = "from vllm.v1.pool.late_interaction import compute_maxsim_score_batched as run\n"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "vllm" / "v1" / "pool"
    folder.mkdir(parents=True)
    (folder / "late_interaction.py").write_text(LATE_INTERACTION)
    (folder / "runner.py").write_text(RUNNER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_exchange, "version_of", lambda name: "0.18.1")
    import vllm.v1.pool.runner as runner

    yield runner
    integration.disable()
    assert traces("vllm") == []
    for name in [n for n in sys.modules if n.split(".")[0] == "vllm"]:
        del sys.modules[name]


def both(runner: Any, *args: Any) -> None:
    wanted = runner.run(*args)
    with integration.enable():
        found = runner.run(*args)
    assert type(found) is list and len(found) == len(wanted)
    for x, y in zip(found, wanted):
        near(x, y)


def items(lengths: Any, dtype: Any = torch.float32) -> list[torch.Tensor]:
    return [randn(n, 16).to(dtype) for n in lengths]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scores(calls: Calls, package: Any, dtype: Any) -> None:
    query = items([5], dtype)[0]
    both(package, [query, query, items([3], dtype)[0]], items([9, 1, 4], dtype))
    assert calls.take() == ["scattered"]


def test_parts_of_one_matrix_are_not_copied(calls: Calls, package: Any) -> None:
    memory = randn(60, 16)[3:]
    parts = list(memory.split([7, 1, 12, 37]))
    both(package, items([4, 4, 2, 3]), parts[::-1])
    rows, starts = integration._rows(parts[::-1])
    assert rows.data_ptr() == memory.data_ptr() and starts == [20, 8, 7, 0]
    rows, starts = integration._rows([memory[:5, ::2], memory[5:6, ::2]])
    assert rows.is_contiguous() and starts == [0, 5]


def test_mixed_types_and_empty_items(package: Any) -> None:
    both(package, [items([3], torch.bfloat16)[0], items([2])[0]], items([4, 5], torch.float16))
    both(package, items([3, 0, 2]), items([0, 4, 5]))
    both(package, items([3, 2]), items([0, 0]))
    both(package, items([0]), items([0]))
    both(package, [], [])


def test_what_is_not_ours_is_theirs(calls: Calls, package: Any) -> None:
    both(package, [x.double() for x in items([2])], [x.double() for x in items([3])])
    both(package, [x.requires_grad_() for x in items([2])], items([3]))
    with integration.enable(), pytest.raises(ValueError, match="same length"):
        package.run(items([2]), [])
    assert calls.take() == []


def test_the_plug_in_asks_the_environment(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAXSIM_VLLM", raising=False)
    integration.register()
    assert not integration._integration.enabled
    monkeypatch.setenv("MAXSIM_VLLM", "1")
    integration.register()
    assert integration._integration.enabled


def test_vllm_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from maxsim.integrations import vllm; vllm.enable()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if "vllm is not installed" not in done.stderr:
        pytest.skip("vLLM is installed")
