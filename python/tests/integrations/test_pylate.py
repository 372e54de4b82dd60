"""PyLate with maxsim against PyLate's own torch code."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import pytest
import torch
from comparing import DEVICE, Calls, gradients, near, on_cpu, rand, randn, traces

pytest.importorskip("pylate", reason="PyLate is not installed")

import pylate.evaluation  # noqa: E402
import pylate.losses  # noqa: E402
import pylate.rank  # noqa: E402
from pylate.scores import colbert  # noqa: E402

from maxsim.integrations import pylate as integration  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MASKS = [torch.bool, torch.float32, torch.int64]
NAMES = ["colbert_scores", "colbert_kd_scores", "colbert_scores_pairwise"]


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PYLATE_SCORES_BACKEND", raising=False)
    with integration.enable():
        yield
    assert traces("pylate") == []


def tensors(dtype: Any = torch.float32, candidates: bool = False) -> list[torch.Tensor]:
    """Queries, documents and their masks, with holes and an item without a token."""
    shape = (4, 3, 9, 16) if candidates else (5, 9, 16)
    q, d = randn(4, 6, 16).to(dtype), randn(shape).to(dtype)
    q_mask, d_mask = rand(4, 6) > 0.2, rand(shape[:-1]) > 0.4
    d_mask[-1] = False
    return [q, d, q_mask, d_mask]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("name", NAMES[:2])
def test_scores(calls: Calls, name: str, mask: Any, dtype: Any) -> None:
    q, d, q_mask, d_mask = tensors(dtype, name == NAMES[1])
    masks = [] if mask is None else [q_mask.to(mask), d_mask.to(mask)]
    function = getattr(colbert, name)
    found = function(q, d, *masks)
    assert calls.take() == ["candidates" if name == NAMES[1] else "maxsim"]
    wanted = function(q, d, *masks, backend="torch")
    assert calls.take() == []
    near(found, wanted, dtype)


def test_masked_tokens_win_over_negative_similarities() -> None:
    q, d = torch.ones(1, 2, 4, device=DEVICE), -torch.ones(1, 3, 4, device=DEVICE)
    mask = torch.tensor([[1.0, 0.0, 1.0]], device=DEVICE)
    assert colbert.colbert_scores(q, d, None, mask).tolist() == [[0.0]]
    assert colbert.colbert_scores(q, d, None, mask, backend="torch").tolist() == [[0.0]]
    integration.enable(masked="skip")
    assert colbert.colbert_scores(q, d, None, mask).tolist() == [[-8.0]]
    integration.enable()
    assert colbert.colbert_scores(q, d, None, mask).tolist() == [[0.0]]
    with pytest.raises(ValueError, match='"zero" or "skip"'):
        integration.enable(masked="drop")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("candidates", [False, True])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True), (False, False)])
def test_masked_tokens_of_few_pairs(
    calls: Calls, candidates: bool, dtype: Any, needs: Any,
) -> None:
    """Documents are not copied; many of their tokens' similarities are negative, some all of them,
    and some documents have no masked token."""
    shape = (2, 3, 64, 16) if candidates else (3, 64, 16)
    q, d, mask = randn(2, 5, 16).to(dtype), randn(*shape), rand(*shape[:-1]) > 0.5
    d[0] = -d[0].abs()
    q[:, :3] = q[:, :3].abs()
    mask.flatten(0, -2)[1], mask.flatten(0, -2)[2, 3:] = True, False
    d = d.to(dtype)
    if candidates:
        mask[1, 2] = False
    function = colbert.colbert_kd_scores if candidates else colbert.colbert_scores
    weights = randn(2, 3)

    def loss(backend: str) -> Any:
        return lambda q, d: (function(q, d, None, mask, backend=backend).float() * weights).sum()

    if not any(needs):
        with torch.no_grad():
            near(function(q, d, None, mask), function(q, d, None, mask, backend="torch"), dtype)
        assert calls.zeroed == 1
        return

    def both(backend: str, *tensors: Any) -> list:
        leaves = [x.detach().clone().requires_grad_(need) for x, need in zip(tensors, needs)]
        loss(backend)(*leaves).backward()
        return [x.grad for x in leaves]

    found = both("auto", q, d)
    assert calls.zeroed == 1 and calls.take() == ["candidates" if candidates else "maxsim"]
    for x, y in zip(found, both("torch", q.float(), d.float())):
        assert (x is None) == (y is None)
        if x is not None:
            near(x, y.to(dtype))
    assert calls.zeroed == 1


def test_masked_tokens_whose_documents_are_copied(calls: Calls) -> None:
    q, d, mask = randn(40, 6, 16), randn(5, 9, 16), rand(5, 9) > 0.4
    for mask in (mask, mask[:, :1].expand(5, 9), mask.float()):
        near(colbert.colbert_scores(q, d, None, mask),
             colbert.colbert_scores(q, d, None, mask, backend="torch"))
    near(colbert.colbert_scores(q[:1], d, None, mask.long()),
         colbert.colbert_scores(q[:1], d, None, mask.long(), backend="torch"))
    assert calls.zeroed == 0


def test_scores_are_the_same_bits_with_padding() -> None:
    """Documents with masked tokens that win nothing score as without these."""
    q, d = randn(2, 5, 16).abs(), randn(3, 64, 16).abs()
    mask = torch.arange(64, device=d.device).expand(3, 64) < 40
    assert torch.equal(colbert.colbert_scores(q, d, None, mask),
                       colbert.colbert_scores(q, d[:, :40]))


def test_weights_in_masks() -> None:
    q, d, q_mask, d_mask = tensors()
    q_mask, d_mask = randn(q_mask.shape), randn(d_mask.shape)
    near(colbert.colbert_scores(q, d, q_mask, d_mask),
         colbert.colbert_scores(q, d, q_mask, d_mask, backend="torch"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str, dtype: Any) -> None:
    q, d, q_mask, d_mask = tensors(dtype, name == NAMES[1])
    masks = [q_mask, d_mask]
    if name == NAMES[2]:
        d, masks = d[:4], []
    weights = randn(4, d.shape[1 if name == NAMES[1] else 0])
    weights = weights[:, 0] if name == NAMES[2] else weights

    def loss(backend: str) -> Any:
        function = getattr(colbert, name)
        return lambda q, d: (function(q, d, *masks, backend=backend).float() * weights).sum()

    found = gradients(loss("auto"), q, d)
    # Torch's code in two bytes rounds similarities, which gives other winners now and then.
    wanted = gradients(loss("torch"), q.float(), d.float())
    for x, y in zip(found[1:], wanted[1:]):
        near(x, y.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairwise(calls: Calls, dtype: Any) -> None:
    q, d = randn(4, 6, 16).to(dtype), randn(4, 9, 16).to(dtype)
    found = colbert.colbert_scores_pairwise(q, d)
    assert calls.take() == ["pairs"]
    near(found, colbert.colbert_scores_pairwise(q, d, backend="torch"))
    lists = [[randn(n, 16).to(dtype) for n in lengths] for lengths in ((3, 1, 5), (7, 2, 4))]
    found = colbert.colbert_scores_pairwise(*lists)
    assert calls.take() == ["packed"]
    near(found, colbert.colbert_scores_pairwise(*lists, backend="torch"))


@on_cpu
def test_arrays_and_lists(calls: Calls) -> None:
    q, d, q_mask, d_mask = tensors()
    wanted = colbert.colbert_scores(q, d, q_mask, d_mask, backend="torch")
    near(colbert.colbert_scores(q.numpy(), list(d), q_mask.numpy(), list(d_mask)), wanted)
    near(colbert.colbert_scores(q.tolist(), d.numpy(), q_mask, d_mask), wanted)
    arrays = [[np.random.randn(n, 16).astype(np.float32) for n in (3, 5)] for _ in range(2)]
    near(colbert.colbert_scores_pairwise(*arrays),
         colbert.colbert_scores_pairwise(*arrays, backend="torch"))
    assert calls.take() == ["maxsim", "maxsim", "packed"]


@pytest.mark.parametrize("masked", [False, True])
def test_groups_are_one_call(calls: Calls, masked: bool) -> None:
    q, d, q_mask, d_mask = tensors(candidates=True)
    masks = [q_mask, d_mask] if masked else []
    found = colbert.ColBERTScores()(q[:2], d, *(m[:len(q[:2])] if m is q_mask else m
                                                for m in masks))
    assert calls.take() == ["maxsim"]
    masks = [q_mask[:2], d_mask] if masked else []
    near(found, colbert.ColBERTScores()(q[:2], d, *masks, backend="torch"))
    assert found.shape == (2, 12) and calls.take() == []


def test_what_is_not_ours_is_theirs(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    q, d, q_mask, d_mask = tensors()
    with pytest.raises(ValueError, match="backend must be one of"):
        colbert.colbert_scores(q, d, backend="nope")
    if not q.is_cuda:
        with pytest.raises(RuntimeError, match="requires CUDA"):
            colbert.colbert_scores(q, d, backend="flash")
    for wrong in ((q.double(), d), (q, d[..., :8]), (q, d[0, 0]), (q, d[:, :0])):
        errors = []
        for backend in ("auto", "torch"):
            with pytest.raises((RuntimeError, IndexError, ValueError)) as error:
                colbert.colbert_scores(*wrong, backend=backend)
            errors.append((error.type, str(error.value)))
        assert errors[0] == errors[1]
    assert colbert.colbert_scores(q.double(), d.double()).dtype == torch.float64
    near(colbert.colbert_scores(q, d, None, d_mask[:1]),
         colbert.colbert_scores(q, d, None, d_mask[:1], backend="torch"))
    monkeypatch.setenv("PYLATE_SCORES_BACKEND", "torch")
    colbert.colbert_scores(q, d)
    integration.disable()
    monkeypatch.delenv("PYLATE_SCORES_BACKEND")
    colbert.colbert_scores(q, d)
    assert calls.take() == []
    integration.enable()


def test_autocast() -> None:
    q, d, q_mask, d_mask = tensors()
    with torch.autocast(DEVICE, torch.bfloat16):
        for masks in ([], [q_mask, d_mask], [q_mask.float(), d_mask]):
            near(colbert.colbert_scores(q, d, *masks),
                 colbert.colbert_scores(q, d, *masks, backend="torch"), torch.bfloat16)


def test_gradients_under_autocast_leave_embeddings_as_they_are() -> None:
    q, d, q_mask, d_mask = tensors()
    q, d = q.bfloat16().float(), d.bfloat16().float()
    before = [q.clone(), d.clone()]

    def loss(q: Any, d: Any) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = colbert.colbert_scores(q, d, q_mask, d_mask.float())
        return scores.float().logsumexp(-1).sum()

    found = gradients(loss, q, d)
    assert torch.equal(q, before[0]) and torch.equal(d, before[1])
    integration.disable()
    wanted = gradients(loss, q, d)
    integration.enable()
    for x, y in zip(found, wanted):
        near(x, y, torch.bfloat16)


def test_transforms_are_theirs(calls: Calls) -> None:
    q, d, *_ = tensors()
    found = torch.func.grad(lambda q: colbert.colbert_scores(q, d).sum())(q)
    wanted = torch.func.grad(lambda q: colbert.colbert_scores(q, d, backend="torch").sum())(q)
    torch.testing.assert_close(found, wanted)
    assert calls.take() == []


class Model(torch.nn.Module):
    """As much of a ColBERT model as the losses use."""

    skiplist = [3, 4]
    do_query_expansion = False

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 16, device=DEVICE)

    def forward(self, features: dict) -> dict:
        return {"token_embeddings": self.embedding(features["input_ids"])}


def features(n: int, length: int) -> dict:
    ids = torch.randint(0, 30, (n, length), device=DEVICE)
    mask = torch.arange(length, device=DEVICE) < torch.randint(2, length + 1, (n, 1), device=DEVICE)
    return {"input_ids": ids, "attention_mask": mask.long()}


def loss_of(name: str, model: Model, batch: list, backend: str) -> tuple[Any, Any]:
    """A loss by its class, and the gradient of the model."""
    options = {"mini_batch_size": 3} if name == "CachedContrastive" else {}
    arguments = [torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(DEVICE)]
    loss = getattr(pylate.losses, name)(model, **options)
    model.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYLATE_SCORES_BACKEND", backend)
        value = loss(batch, *arguments)
        value.backward()
    return value.detach(), model.embedding.weight.grad.clone()


@pytest.mark.parametrize("expansion", [False, True])
@pytest.mark.parametrize("name", ["Contrastive", "CachedContrastive", "Distillation"])
def test_losses(calls: Calls, name: str, expansion: bool) -> None:
    model = Model()
    model.do_query_expansion = expansion
    batch = [features(6, 5), features(6, 8), features(6, 8)]
    if name == "Distillation":
        batch = [features(6, 5), features(24, 8)]
    found = loss_of(name, model, batch, "auto")
    wants = {"Contrastive": ["maxsim"], "CachedContrastive": ["maxsim"] * 2,
             "Distillation": ["candidates"]}
    assert calls.take() == wants[name]
    wanted = loss_of(name, model, batch, "torch")
    assert calls.take() == []
    near(found[0], wanted[0])
    near(found[1], wanted[1])


def test_reranking(calls: Calls) -> None:
    q, d, *_ = tensors()
    ids = [["a", "b", "c"], ["d", "e"]]
    arguments = (ids, list(q[:2]), [list(d[:3]), list(d[3:])])
    found = pylate.rank.rerank(*arguments)
    assert calls.take() == ["maxsim"] * 2
    integration.disable()
    wanted = pylate.rank.rerank(*arguments)
    assert calls.take() == []
    integration.enable()
    for mine, theirs in zip(found, wanted):
        assert [x["id"] for x in mine] == [x["id"] for x in theirs]
        assert np.allclose([x["score"] for x in mine], [x["score"] for x in theirs])


def test_evaluators_and_defaults_are_ours() -> None:
    from pylate.evaluation import colbert_distillation, colbert_triplet
    from pylate.scores import SimilarityFunction, similarity_functions

    assert colbert_triplet.colbert_scores_pairwise is colbert.colbert_scores_pairwise
    assert colbert_distillation.colbert_kd_scores is colbert.colbert_kd_scores
    assert similarity_functions.colbert_scores is colbert.colbert_scores
    assert SimilarityFunction.to_similarity_fn("MaxSim") is colbert.colbert_scores
    assert colbert.colbert_kd_scores in pylate.losses.Distillation.__init__.__defaults__
    assert len(traces("pylate")) > 8


def test_compiled(calls: Calls) -> None:
    q, d, q_mask, d_mask = tensors()

    def loss(q: Any, d: Any) -> Any:
        return colbert.colbert_scores(q, d, q_mask, d_mask).logsumexp(-1).sum()

    found = gradients(torch.compile(loss, backend="aot_eager", fullgraph=True), q, d)
    for x, y in zip(found, gradients(loss, q, d)):
        near(x, y)
