"""Angular distances."""

import math

import pytest
import torch

import maxsim
from places import PLACES, tensors_at


@pytest.fixture(autouse=True, params=PLACES)
def place(request):
    torch.manual_seed(11)
    with tensors_at(request.param):
        yield request.param


def formula(q, d, q_valid, d_valid, weights=None, mean=False):
    """The formula in torch, `[Nq, N]`; `d` is `[Nd, Ld, dim]` or `[Nq, K, Ld, dim]`."""
    own = d.dim() == 4
    q, d = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6) for x in (q, d))
    cosines = torch.einsum("qsk,qntk->qnst" if own else "qsk,ntk->qnst", q, d)
    valid = d_valid.unsqueeze(-2) if own else d_valid[None, :, None]
    nearest = (1 - cosines).masked_fill(~valid, math.inf).min(-1).values
    kept = q_valid[:, None] & d_valid.any(-1, keepdim=True)
    terms = torch.where(kept, nearest, 0.0)
    if weights is not None:
        terms = terms * weights[:, None]
    found = terms.sum(-1)
    if mean:
        found = found / q_valid.sum(-1, keepdim=True).clamp_min(1)
    return found.masked_fill(~d_valid.any(-1), math.inf)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_and_gradients(dtype, mean, own):
    q = torch.randn(3, 5, 8, dtype=dtype, requires_grad=True)
    d = torch.randn((3, 4, 6, 8) if own else (4, 6, 8), dtype=dtype, requires_grad=True)
    weights = torch.randn(3, 5, dtype=dtype, requires_grad=True)
    q_valid, d_valid = torch.rand(3, 5) > 0.3, torch.rand(d.shape[:-1]) > 0.4
    d_valid[..., 1, :] = False
    q_valid[2] = False
    for given in (None, weights):
        found = maxsim.angular(q, d, q_mask=q_valid, d_mask=d_valid, weights=given, mean=mean)
        want = formula(q, d, q_valid, d_valid, given, mean)
        torch.testing.assert_close(found, want)
        assert (found[..., 1] == math.inf).all()
        factor, sides = torch.randn_like(want), (q, d) if given is None else (q, d, weights)
        finite = want.isfinite()
        for a, b in zip(torch.autograd.grad((found * factor)[finite].sum(), sides),
                        torch.autograd.grad((want * factor)[finite].sum(), sides)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_side_alone_has_the_gradients_that_it_has_beside_the_other(dtype):
    q, d = torch.randn(2, 3, 8, dtype=dtype) * 4, torch.randn(5, 6, 8, dtype=dtype) * 7
    valid = torch.rand(5, 6) > 0.4
    d[~valid] = math.nan
    valid[1] = True
    d[1] = torch.randn(6, 8, dtype=dtype) * 0.1

    def gradients(*needs):
        sides = [x.clone().requires_grad_(need) for x, need in zip((q, d), needs)]
        found = maxsim.angular(*sides, d_mask=valid)
        found[found.isfinite()].sum().backward()
        return [side.grad for side in sides]

    both = gradients(True, True)
    assert all(of.isfinite().all() for of in both)
    assert not both[1][~valid].any()
    torch.testing.assert_close(gradients(True, False)[0], both[0], rtol=0, atol=0)
    torch.testing.assert_close(gradients(False, True)[1], both[1], rtol=0, atol=0)


def test_lengths_lie_within_their_sides():
    q, d = torch.randn(2, 3, 4), torch.randn(5, 6, 4)
    for lengths in ([7, 1, 1, 1, 1], [-1, 1, 1, 1, 1]):
        with pytest.raises(ValueError, match="lengths"):
            maxsim.angular(q, d, d_lengths=torch.tensor(lengths, device="cpu"))
    with pytest.raises(TypeError):
        maxsim.angular(q, d, d_lengths=torch.full((5,), 2.7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_and_rows_themselves(dtype):
    q = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]], dtype=dtype, requires_grad=True)
    d = torch.tensor([[[0.0, 5.0]], [[3.0, 0.0]], [[0.0, 0.0]]], dtype=dtype, requires_grad=True)
    found = maxsim.angular(q, d)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([[2.0, 1.0, 2.0]]))
    found.sum().backward()
    assert not q.grad[0, 1].any() and not d.grad[2].any()
    assert q.grad.isfinite().all() and q.grad[0, 0, 1] < 0
    rows = torch.randn(20, 1, 48).to(dtype)
    own = maxsim.angular(rows, rows).diagonal()
    assert (own >= 0).all() and (own < 1e-5).all()


def test_nan_lengths_and_what_is_refused():
    q, d = torch.randn(2, 3, 4), torch.randn(5, 6, 4)
    lengths = torch.tensor([6, 0, 3, 1, 2])
    valid = torch.arange(6) < lengths[:, None]
    want = formula(q, d, torch.ones(2, 3, dtype=torch.bool), valid)
    torch.testing.assert_close(maxsim.angular(q, d, d_lengths=lengths), want)
    d[2, 1, 0] = math.nan
    found = maxsim.angular(q, d, d_lengths=lengths)
    assert found[:, 2].isnan().all() and not found[:, [0, 3, 4]].isnan().any()
    best = maxsim.composed.topk(found, 5, empty=lengths == 0, largest=False)[1]
    assert (best[:, 3] == 2).all() and (best[:, 4] == 1).all()
    with pytest.raises(ValueError, match="weights"):
        maxsim.angular(q, d, weights=torch.ones(3))
    with pytest.raises(ValueError):
        maxsim.angular(q, torch.randn(5, 6, 8))
