"""sentence-transformers with maxsim against sentence-transformers' own torch code."""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import pytest
import torch
from comparing import DEVICE, Calls, gradients, near, rand, randn, traces

framework = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed")

import maxsim  # noqa: E402
from maxsim.integrations import sentence_transformers as integration  # noqa: E402

if int(framework.__version__.split(".")[0]) < 6:
    pytest.skip("sentence-transformers 6.0 is not installed", allow_module_level=True)

from sentence_transformers import util  # noqa: E402
from sentence_transformers.multi_vector_encoder import losses, scoring  # noqa: E402
from sentence_transformers.util.similarity import SimilarityFunction  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MASKS = [torch.bool, torch.float32, torch.int64]


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    with integration.enable():
        yield
    assert traces("sentence_transformers") == []


def both(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """What a function gives with maxsim, and without."""
    found = function(*args, **kwargs)
    integration.disable()
    wanted = function(*args, **kwargs)
    integration.enable()
    return found, wanted


def tensors(dtype: Any = torch.float32, axes: int = 3) -> list[torch.Tensor]:
    """Queries, documents and their masks, with holes and an item without a token."""
    shape = (4, 9, 16) if axes == 3 else (4, 3, 9, 16)
    q, d = randn(4, 6, 16).to(dtype), randn(shape).to(dtype)
    q_mask, d_mask = rand(4, 6) > 0.2, rand(shape[:-1]) > 0.4
    d_mask[-1] = False
    return [q, d, q_mask, d_mask]


NAMES = {"maxsim": "maxsim", "mean_maxsim": "maxsim", "maxsim_pairwise": "pairs",
         "mean_maxsim_pairwise": "pairs"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("name", NAMES)
def test_scores(calls: Calls, name: str, mask: Any, dtype: Any) -> None:
    q, d, q_mask, d_mask = tensors(dtype)
    masks = {} if mask is None else {"a_mask": q_mask.to(mask), "b_mask": d_mask.to(mask)}
    function = getattr(util.similarity, name)
    found, wanted = both(function, q, d, **masks)
    assert calls.take() == [NAMES[name]]
    near(found, wanted, dtype)
    assert found.dtype == torch.float32
    if mask is not None:
        assert (found[..., -1] < -1e7).all()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_rows_that_are_no_padding(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integration, "_ROWS_AT_ONCE", 5)
    padded = randn(6, 9, 16).to(dtype)
    padded[:, :, 0] = 0
    padded[1, 4:] = 0
    padded[2, 3], padded[3] = -0.0, 0
    padded[4, 5, 7:], padded[5, 8, 0] = torch.nan, torch.nan
    for x in (padded, padded[:0], padded[:, :, :0], padded[:, ::2], padded[0], padded[0, 0]):
        found, wanted = both(lambda x=x: util.similarity._zero_row_mask(x))
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    assert util.similarity._zero_row_mask(padded).sum() == 54 - 5 - 1 - 9


def test_weights_of_query_tokens() -> None:
    q, d, q_mask, d_mask = tensors()
    near(*both(util.maxsim, q, d, rand(q_mask.shape), d_mask))


@pytest.mark.parametrize("name", NAMES)
def test_lists_arrays_and_chunks(calls: Calls, name: str) -> None:
    function = getattr(util.similarity, name)
    lists = [[randn(n, 16) for n in lengths] for lengths in ((3, 1, 5), (7, 2, 4))]
    near(*both(function, *lists))
    near(*both(function, *lists, chunk_elements=150))
    near(*both(function, *([x.cpu().numpy() for x in side] for side in lists)))
    near(*both(function, torch.randn(2, 3, 16, device="cpu").numpy(), np.ones((2, 4, 16), np.int8)))
    near(*both(function, randn(3, 16), randn(5, 16)))
    assert len(calls.take()) > 5
    near(*both(function, [randn(2, 16)], [randn(0, 16)]))
    near(*both(function, [], [] if "pairwise" in name else [randn(2, 16)]))
    assert calls.take() == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["maxsim", "maxsim_pairwise"])
def test_gradients(name: str, dtype: Any) -> None:
    q, d, q_mask, d_mask = tensors(dtype)
    weights = randn(4, 4) if name == "maxsim" else randn(4)
    weights[..., -1] = 0

    def loss(q: Any, d: Any) -> Any:
        return (getattr(util, name)(q, d, q_mask, d_mask) * weights).sum()

    found = gradients(loss, q, d)
    integration.disable()
    # Torch's code in two bytes rounds similarities, which gives other winners now and then.
    wanted = gradients(loss, q.float(), d.float())
    integration.enable()
    for x, y in zip(found[1:], wanted[1:]):
        near(x, y.to(dtype))


SCORES = ["colbert_scores", "mean_colbert_scores", "colbert_kd_scores", "mean_colbert_kd_scores",
          "colbert_scores_pairwise", "mean_colbert_scores_pairwise"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_colbert_scores(calls: Calls, name: str, masked: bool) -> None:
    q, d, q_mask, d_mask = tensors(axes=3 if "pairwise" in name else 4)
    masks = {"queries_mask": q_mask, "documents_mask": d_mask} if masked else {}
    near(*both(getattr(scoring, name), q, d, **masks))
    assert calls.take() == (["pairs"] if "pairwise" in name else
                            ["pairs"] * 3 if "kd" in name else ["maxsim"] * 3)


def test_what_was_imported_before_is_ours(calls: Calls) -> None:
    from sentence_transformers.multi_vector_encoder import maxsim as imported

    q, d, *_ = tensors()
    imported(q, d)
    SimilarityFunction.to_similarity_fn("maxsim")(q, d)
    assert calls.take() == ["maxsim"] * 2


def test_what_is_not_ours_is_theirs(calls: Calls) -> None:
    q, d, q_mask, d_mask = tensors()
    found, wanted = both(util.maxsim, q.double(), d.double(), q_mask, d_mask)
    torch.testing.assert_close(found, wanted)
    for wrong in ((q.half(), d), (q, d[..., :8])):
        messages = []
        for _ in range(2):
            with pytest.raises(RuntimeError) as error:
                util.maxsim(*wrong)
            messages.append(str(error.value))
            integration.disable()
        integration.enable()
        assert messages[0] == messages[1]
    near(*both(scoring.xtr_scores, q, d[:, None]))
    assert calls.take() == []


def test_autocast() -> None:
    q, d, q_mask, d_mask = tensors()
    with torch.autocast(DEVICE, torch.bfloat16):
        near(*both(util.maxsim, q, d, q_mask, d_mask), torch.bfloat16)


class Model(torch.nn.Module):
    """As much of a MultiVectorEncoder as the losses use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 16, device=DEVICE)

    def forward(self, features: dict, task: Any = None) -> dict:
        tokens = torch.nn.functional.normalize(self.embedding(features["input_ids"]), dim=-1)
        return {"token_embeddings": tokens, "attention_mask": features["attention_mask"]}


def features(n: int, length: int) -> dict:
    mask = torch.arange(length, device=DEVICE) < torch.randint(2, length + 1, (n, 1), device=DEVICE)
    ids = torch.randint(0, 30, (n, length), device=DEVICE)
    return {"input_ids": ids, "attention_mask": mask.long()}


LOSSES = {
    "MultiVectorMultipleNegativesRankingLoss": ({}, ["maxsim"] * 2),
    "CachedMultiVectorMultipleNegativesRankingLoss": ({"mini_batch_size": 3}, ["maxsim"] * 4),
    "MultiVectorDistillKLDivLoss": ({}, ["pairs"] * 2),
    "MultiVectorMarginMSELoss": ({}, ["pairs"] * 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(calls: Calls, name: str) -> None:
    options, wants = LOSSES[name]
    model = Model()
    batch = [features(6, 5), features(6, 8), features(6, 7)]
    labels = randn(6, 2)
    loss = getattr(losses, name)(model, **options)

    def run() -> tuple[Any, Any]:
        model.zero_grad()
        value = loss(batch, labels)
        value.backward()
        return value.detach(), model.embedding.weight.grad.clone()

    found, wanted = both(run)
    assert calls.take() == wants
    for x, y in zip(found, wanted):
        near(x, y)


def test_compiled() -> None:
    q, d, q_mask, d_mask = tensors()

    def loss(q: Any, d: Any) -> Any:
        return util.maxsim(q, d, q_mask, d_mask)[:, :3].logsumexp(-1).sum()

    found = gradients(torch.compile(loss, backend="aot_eager", fullgraph=True), q, d)
    for x, y in zip(found, gradients(loss, q, d)):
        near(x, y)


@pytest.mark.skipif(DEVICE == "cpu", reason="TF32 is of GPUs")
def test_products_are_as_exact_as_torch_is_asked_for() -> None:
    q, d, q_mask, d_mask = tensors()
    before = torch.get_float32_matmul_precision()
    try:
        for precision, tf32 in (("high", True), ("highest", False)):
            torch.set_float32_matmul_precision(precision)
            found = util.maxsim(q, d, q_mask, d_mask)
            wanted = maxsim.maxsim(q, d, q_mask=q_mask, d_mask=d_mask, tf32=tf32)
            assert torch.equal(found[:, :-1], wanted[:, :-1])
    finally:
        torch.set_float32_matmul_precision(before)
