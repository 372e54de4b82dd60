"""colpali-engine with maxsim against colpali-engine's own torch code."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
import torch
from comparing import DEVICE, Calls, gradients, near, randn, traces

pytest.importorskip("colpali_engine", reason="colpali-engine is not installed")

from colpali_engine import loss as losses  # noqa: E402
from colpali_engine.loss import late_interaction_losses  # noqa: E402
from colpali_engine.utils import maxsim as scoring  # noqa: E402
from colpali_engine.utils.processing_utils import BaseVisualRetrieverProcessor  # noqa: E402

from maxsim.integrations import colpali as integration  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BACKEND = "COLPALI_SCORES_BACKEND"


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(BACKEND, raising=False)
    with integration.enable():
        yield
    assert traces("colpali_engine") == []


def tensors(dtype: Any = torch.float32) -> list[torch.Tensor]:
    """Queries, documents and negatives, padded with rows of zeros as its models pad them."""
    found = [randn(4, 6, 16), randn(4, 9, 16), randn(4, 3, 7, 16)]
    found = [torch.nn.functional.normalize(x, dim=-1) for x in found]
    found[0][1, 4:] = 0
    found[1][2, 5:] = 0
    found[2][0, 1, 3:] = 0
    return [x.to(dtype) for x in found]


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores(calls: Calls, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    q, d, negatives = tensors(dtype)
    found = [scoring.maxsim_inbatch(q, d[:3]), scoring.maxsim_kd(q, negatives)]
    assert calls.take() == ["maxsim", "candidates"]
    near(found[0], scoring._torch_maxsim(q, d[:3]))
    near(found[1], scoring._torch_maxsim_kd(q, negatives))
    monkeypatch.setenv(BACKEND, "torch")
    scoring.maxsim_inbatch(q, d)
    scoring.maxsim_kd(q, negatives)
    assert calls.take() == []


def test_padding_wins_over_negative_similarities() -> None:
    q = torch.ones(1, 2, 4, device=DEVICE)
    d = torch.cat([-torch.ones(1, 3, 4, device=DEVICE), torch.zeros(1, 1, 4, device=DEVICE)], 1)
    assert scoring.maxsim_inbatch(q, d).tolist() == [[0.0]]
    assert scoring.maxsim_inbatch(q, d[:, :3]).tolist() == [[-8.0]]


def test_what_is_not_ours_is_theirs(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    q, d, negatives = tensors()
    monkeypatch.setenv(BACKEND, "tensorrt")
    with pytest.raises(ValueError, match=BACKEND):
        scoring.maxsim_inbatch(q, d)
    monkeypatch.setenv(BACKEND, "lik")
    from colpali_engine.utils._lik_backend import LIKUnsupportedError

    for wrong in (scoring.maxsim_inbatch, scoring.maxsim_kd):
        with pytest.raises(LIKUnsupportedError):
            wrong(q, negatives)
    monkeypatch.delenv(BACKEND)
    for wrong in ((q.half(), d), (q, d[..., :8]), (q, negatives), (q, d[:, :0])):
        messages = []
        for function in (scoring.maxsim_inbatch, scoring._torch_maxsim):
            with pytest.raises((RuntimeError, IndexError)) as error:
                function(*wrong)
            messages.append(str(error.value))
        assert messages[0] == messages[1]
    assert scoring.maxsim_inbatch(q.double(), d.double()).dtype == torch.float64
    integration.disable()
    scoring.maxsim_inbatch(q, d)
    assert calls.take() == []
    integration.enable()


def test_autocast() -> None:
    q, d, negatives = tensors()
    with torch.autocast(DEVICE, torch.bfloat16):
        near(scoring.maxsim_inbatch(q, d), scoring._torch_maxsim(q, d))
        near(scoring.maxsim_kd(q, negatives), scoring._torch_maxsim_kd(q, negatives))


LOSSES = {
    "ColbertLoss": ["maxsim"],
    "ColbertNegativeCELoss": ["candidates", "maxsim"],
    "ColbertPairwiseCELoss": ["maxsim"],
    "ColbertPairwiseNegativeCELoss": ["candidates", "maxsim"],
    "ColbertSigmoidLoss": ["maxsim"],
}


@pytest.mark.parametrize("options", [
    {}, {"normalize_scores": False, "temperature": 0.1}, {"pos_aware_negative_filtering": True},
    {"use_smooth_max": True},
])
@pytest.mark.parametrize("name", LOSSES)
def test_losses(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    loss = getattr(late_interaction_losses, name)(**options)
    q, d, negatives = tensors()
    arguments = [q, d, *([negatives] if "Negative" in name else [])]
    # As the models do: rows of padding are made zero, so that they have no gradient. Torch shares
    # it among all that win together, here the first has it.
    valid = [(x != 0).any(-1, keepdim=True) for x in arguments]

    def masked(*tensors: Any) -> Any:
        return loss(*(x * v for x, v in zip(tensors, valid)))

    found = gradients(masked, *arguments)
    assert calls.take() == ([] if options.get("use_smooth_max") else LOSSES[name])
    monkeypatch.setenv(BACKEND, "torch")
    wanted = gradients(masked, *arguments)
    assert calls.take() == []
    for x, y in zip(found, wanted):
        near(x, y)
    assert hasattr(losses, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lists_of_embeddings(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    queries = [randn(n, 16).to(dtype) for n in (3, 6, 2)]
    pages = [randn(n, 16).to(dtype) for n in (9, 4, 7, 5, 1)]
    score = BaseVisualRetrieverProcessor.score_multi_vector
    found = score(queries, pages, batch_size=2, device=DEVICE)
    assert calls.take() == ["maxsim"] * 6
    monkeypatch.setenv(BACKEND, "torch")
    wanted = score(queries, pages, batch_size=2, device=DEVICE)
    near(found, wanted, dtype)


def test_compiled() -> None:
    q, d, _ = tensors()

    def loss(q: Any, d: Any) -> Any:
        return scoring.maxsim_inbatch(q, d).logsumexp(-1).sum()

    found = gradients(torch.compile(loss, backend="aot_eager", fullgraph=True), q, d)
    for x, y in zip(found, gradients(loss, q, d)):
        near(x, y)
