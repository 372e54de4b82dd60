"""Weights of query tokens, and means."""

import math

import numpy as np
import pytest
import torch

import maxsim
from maxsim import Quantized
from places import PLACES, tensors_at

@pytest.fixture(autouse=True, params=PLACES)
def place(request):
    """Under a mode of torch weights are composed; without, they are the library's."""
    torch.manual_seed(9)
    with tensors_at(request.param):
        yield request.param


def formula(q, d, weights, q_valid, d_valid, mean=False, normalize=False):
    """The formula in torch, `[Nq, N]`; `d` is `[Nd, Ld, dim]` or `[Nq, K, Ld, dim]`."""
    if normalize:
        q, d = (torch.nn.functional.normalize(x, dim=-1) for x in (q, d))
    own = d.dim() == 4
    products = torch.einsum("qsk,qntk->qnst" if own else "qsk,ntk->qnst", q, d)
    valid = d_valid.unsqueeze(-2) if own else d_valid[None, :, None]
    best = products.masked_fill(~valid, -math.inf).max(-1).values
    kept = q_valid[:, None] & d_valid.any(-1, keepdim=True)
    best = torch.where(kept, best, 0.0)  # before the weight: 0 times -∞ is NaN in its gradient
    scores = torch.where(kept, best * weights[:, None], 0.0).sum(-1)
    return scores / q_valid.sum(-1, keepdim=True).clamp_min(1) if mean else scores


def case(own=False):
    q = torch.randn(3, 5, 8, requires_grad=True)
    d = torch.randn((3, 4, 6, 8) if own else (4, 6, 8), requires_grad=True)
    weights = torch.randn(3, 5, requires_grad=True)
    q_valid, d_valid = torch.rand(3, 5) > 0.3, torch.rand(d.shape[:-1]) > 0.4
    d_valid[..., 1, :] = False
    q_valid[2] = False
    return q, d, weights, q_valid, d_valid


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_scores_and_gradients(own, mean, normalize):
    q, d, weights, q_valid, d_valid = case(own)
    call = maxsim.candidates if own else maxsim.maxsim
    options = dict(q_mask=q_valid, d_mask=d_valid, mean=mean, normalize=normalize)
    found = call(q, d, weights=weights, **options)
    want = formula(q, d, weights, q_valid, d_valid, mean, normalize)
    torch.testing.assert_close(found, want)
    factor = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad((found * factor).sum(), (q, d, weights)),
                    torch.autograd.grad((want * factor).sum(), (q, d, weights))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    ones = torch.ones(3, 5)
    torch.testing.assert_close(call(q, d, **options),
                               formula(q, d, ones, q_valid, d_valid, mean, normalize))
    result = call(q, d, weights=weights, winners=True, **options)
    plain = call(q, d, winners=True, **{**options, "mean": False})
    assert result.token_scores is None and torch.equal(result.winners, plain.winners)


def test_pairs_and_ids():
    q, d, weights, q_valid, d_valid = case()
    want = formula(q, d, weights, q_valid, d_valid, mean=True)
    q_ids, d_ids = torch.tensor([2, 0, 1, 0]), torch.tensor([3, 3, 1, 0])
    options = dict(q_mask=q_valid, d_mask=d_valid, weights=weights, mean=True)
    found = maxsim.pairs(q, d, q_ids, d_ids, **options)
    torch.testing.assert_close(found, want[q_ids, d_ids])
    one = maxsim.pairs(q, d[:3], **{**options, "d_mask": d_valid[:3]})
    torch.testing.assert_close(one, want.diagonal())
    ids = torch.tensor([[0, 3], [1, 1], [2, 0]])
    chosen = maxsim.candidates(q, d, ids, **options)
    torch.testing.assert_close(chosen, want.gather(1, ids))
    wanted = torch.autograd.grad(want[q_ids, d_ids].sum() + want.gather(1, ids).sum(),
                                 (q, d, weights))
    grads = torch.autograd.grad(found.sum() + chosen.sum(), (q, d, weights))
    for a, b in zip(grads, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_nan_of_a_weight_shows_where_its_token_is_valid():
    q, d, weights, q_valid, d_valid = case()
    weights = weights.detach().clone()
    q_valid[0, 0], q_valid[1, 1] = False, True
    weights[0, 0] = weights[1, 1] = math.nan
    scores = maxsim.maxsim(q, d, q_mask=q_valid, d_mask=d_valid, weights=weights)
    assert scores.isnan().tolist() == [[False] * 4, [True, False, True, True], [False] * 4]


def test_packed_queries_have_means():
    rows, d = torch.randn(9, 8), torch.randn(4, 6, 8)
    items = [rows[:4], rows[4:5], rows[5:]]
    found = maxsim.maxsim(items, d, mean=True)
    want = torch.stack([maxsim.maxsim(x, d) / len(x) for x in items])
    torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match="padded queries"):
        maxsim.maxsim(items, d, weights=torch.ones(3, 4))


def test_packed_codes_with_masks_have_means():
    offsets, mask = torch.tensor([0, 4, 5, 9]), torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 0]).bool()
    queries = maxsim.quantize(torch.randn(9, 8), "int8", offsets=offsets, mask=mask)
    documents = maxsim.quantize(torch.randn(4, 6, 8), "int8")
    sums = maxsim.maxsim(queries, documents)
    want = sums / torch.tensor([[3.0], [1.0], [3.0]])
    torch.testing.assert_close(maxsim.maxsim(queries, documents, mean=True), want)
    assert (want[1] == 0).all()


def test_documents_in_a_list_have_gradients():
    q = torch.randn(2, 3, 8, requires_grad=True)
    items = [torch.randn(n, 8, requires_grad=True) for n in (4, 1, 6)]
    weights = torch.randn(2, 3)
    found = maxsim.maxsim(q, items, weights=weights)
    want = torch.stack([((q @ x.T).max(-1).values * weights).sum(-1) for x in items], 1)
    torch.testing.assert_close(found, want)
    for a, b in zip(torch.autograd.grad(found.sum(), (q, *items)),
                    torch.autograd.grad(want.sum(), (q, *items))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_one_query_codes_and_numpy():
    q, d = torch.randn(5, 8), torch.randn(4, 6, 8)
    weights = torch.randn(5)
    want = formula(q[None], d, weights[None], torch.ones(1, 5, dtype=torch.bool),
                   torch.ones(4, 6, dtype=torch.bool))[0]
    torch.testing.assert_close(maxsim.maxsim(q, d, weights=weights), want)
    codes = maxsim.quantize(d, "int8")
    assert isinstance(codes, Quantized)
    found = maxsim.maxsim(maxsim.quantize(q[None], "int8"), codes, weights=weights[None])[0]
    torch.testing.assert_close(found, want, rtol=0, atol=0.2)
    arrays = [x.cpu().numpy() for x in (q, d, weights)]
    found = maxsim.maxsim(arrays[0], arrays[1], weights=arrays[2], mean=True)
    np.testing.assert_allclose(found, want.cpu().numpy() / 5, rtol=1e-5, atol=1e-5)
    lengths = np.array([3])
    found = maxsim.maxsim(arrays[0][None], arrays[1], q_lengths=lengths, mean=True)
    short = maxsim.maxsim(arrays[0][:3], arrays[1]) / 3
    np.testing.assert_allclose(found[0], short, rtol=1e-5)


@pytest.mark.parametrize("weights", [torch.ones(3, 4), torch.ones(5), torch.ones(3, 5, 1)])
def test_shapes_are_checked(weights):
    with pytest.raises(ValueError, match="weights"):
        maxsim.maxsim(torch.randn(3, 5, 8), torch.randn(4, 6, 8), weights=weights)


def test_weights_compile():
    q, d, weights, q_valid, d_valid = case()

    def run(q, d, weights):
        return maxsim.maxsim(q, d, q_mask=q_valid, d_mask=d_valid, weights=weights, mean=True)

    eager = run(q, d, weights)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(q, d, weights)
    torch.testing.assert_close(compiled, eager)
    for a, b in zip(torch.autograd.grad(compiled.sum(), (q, d, weights)),
                    torch.autograd.grad(eager.sum(), (q, d, weights))):
        torch.testing.assert_close(a, b)
