"""Gradients, against autograd of the formula in float64 and finite differences."""

from __future__ import annotations

import pytest
import torch

import maxsim
from cases import DEVICES, DTYPES, case, naive, valid


def grads(score, Q, D, weights):
    Q, D = Q.detach().clone().requires_grad_(), D.detach().clone().requires_grad_()
    (score(Q, D) * weights).sum().backward()
    return Q.grad, D.grad


def same(found, wanted, dtype):
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for a, b in zip(found, wanted):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double().cpu(), b.cpu(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_both_sides(device, dtype, normalize):
    Q, D = case(dtype, device=device)
    weights = torch.randn(3, 5, device=device)
    found = grads(lambda q, d: maxsim.maxsim(q, d, normalize=normalize), Q, D, weights)
    wanted = grads(lambda q, d: naive(q, d, normalize=normalize), Q.double(), D.double(),
                   weights.double())
    same(found, wanted, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_masks_and_lengths(device):
    Q, D = case(device=device)
    q_mask, lengths = torch.rand(3, 7) > 0.4, torch.tensor([3, 0, 11, 1, 5])
    weights = torch.randn(3, 5, device=device)
    found = grads(lambda q, d: maxsim.maxsim(q, d, q_mask=q_mask.to(device), d_lengths=lengths),
                  Q, D, weights)
    d_valid = valid(lengths, 11)
    wanted = grads(lambda q, d: naive(q, d, q_mask.to(device), d_valid.to(device)),
                   Q.double(), D.double(), weights.double())
    same(found, wanted, torch.float32)
    assert (found[0][~q_mask.to(device)] == 0).all() and (found[1][~d_valid.to(device)] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_one_side_alone(device):
    Q, D = case(device=device)
    both = grads(maxsim.maxsim, Q, D, torch.ones(3, 5, device=device))
    for side in (0, 1):
        tensors = [Q.clone(), D.clone()]
        tensors[side].requires_grad_()
        maxsim.maxsim(*tensors).sum().backward()
        assert torch.equal(tensors[side].grad, both[side]) and tensors[1 - side].grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_other_pairings(device):
    Q, D = case(n=4, m=4, device=device)
    ids = torch.tensor([[0, 1], [2, 2], [3, 0], [1, 3]], device=device)
    weights = torch.randn(4, 2, device=device)
    same(grads(lambda q, d: maxsim.candidates(q, d, ids), Q, D, weights),
         grads(lambda q, d: naive(q, d).gather(1, ids), Q.double(), D.double(), weights.double()),
         torch.float32)
    same(grads(lambda q, d: maxsim.candidates(q, d[ids]), Q, D, weights),
         grads(lambda q, d: naive(q, d).gather(1, ids), Q.double(), D.double(), weights.double()),
         torch.float32)
    weights = torch.randn(4, device=device)
    same(grads(maxsim.pairs, Q, D, weights),
         grads(lambda q, d: naive(q, d).diagonal(), Q.double(), D.double(), weights.double()),
         torch.float32)
    a, b = torch.tensor([3, 0, 0, 2]), torch.tensor([1, 2, 1, 2])
    same(grads(lambda q, d: maxsim.pairs(q, d, a, b), Q, D, weights),
         grads(lambda q, d: naive(q, d)[a, b], Q.double(), D.double(), weights.double()),
         torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_packed(device):
    Q, D = case(device=device)
    lengths = [[7, 2, 4], [3, 0, 11, 1, 5]]
    offsets = [torch.tensor([0, *torch.tensor(x).cumsum(0).tolist()]) for x in lengths]
    masks = [valid(x, n).to(device) for x, n in zip(lengths, (7, 11))]
    weights = torch.randn(3, 5, device=device)
    found = grads(lambda q, d: maxsim.packed(q[masks[0]], d[masks[1]], *offsets), Q, D, weights)
    wanted = grads(lambda q, d: naive(q, d, *masks), Q.double(), D.double(), weights.double())
    same(found, wanted, torch.float32)
    a, b = torch.tensor([2, 0, 1]), torch.tensor([0, 3, 2])
    weights = torch.randn(3, device=device)
    found = grads(lambda q, d: maxsim.packed(q[masks[0]], d[masks[1]], *offsets, a, b), Q, D,
                  weights)
    wanted = grads(lambda q, d: naive(q, d, *masks)[a, b], Q.double(), D.double(),
                   weights.double())
    same(found, wanted, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_views_and_expanded_tensors(device):
    base = torch.randn(6, 9, 40, device=device)
    Q = case(dim=16, device=device)[0]
    for view in (lambda x: x[:, :, :16], lambda x: x[:, :5, 8:24], lambda x: x[::2, ::2, :16],
                 lambda x: x[:1, :, :16].expand(4, 9, 16),
                 lambda x: x[:, :, :16].contiguous()[:, 1:6],
                 lambda x: x[:1, :, :16].contiguous().expand(4, 9, 16)):
        n = view(base).shape[0]
        weights = torch.randn(3, n, device=device)
        same(grads(lambda q, x: maxsim.maxsim(q, view(x)), Q, base, weights),
             grads(lambda q, x: naive(q, view(x)), Q.double(), base.double(), weights.double()),
             torch.float32)
        same(grads(lambda q, x: maxsim.maxsim(view(x), q), Q, base, weights.T),
             grads(lambda q, x: naive(view(x), q), Q.double(), base.double(), weights.T.double()),
             torch.float32)


def test_finite_differences():
    Q, D = case(n=2, m=2, lq=3, ld=4, dim=5)
    Q.requires_grad_()
    weights = torch.randn(2, 2)
    (maxsim.maxsim(Q, D) * weights).sum().backward()
    with torch.no_grad():
        step = 2.0**-6
        for i in range(Q.numel()):
            moved = []
            for sign in (1, -1):
                other = Q.clone()
                other.view(-1)[i] += sign * step
                moved.append((maxsim.maxsim(other, D) * weights).sum().item())
            slope = (moved[0] - moved[1]) / (2 * step)
            assert abs(slope - Q.grad.view(-1)[i].item()) < 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_and_accumulated(device):
    Q, D = case(n=9, m=40, lq=33, ld=70, dim=128, device=device)
    weights = torch.randn(9, 40, device=device)
    first = grads(maxsim.maxsim, Q, D, weights)
    for _ in range(2):
        again = grads(maxsim.maxsim, Q, D, weights)
        assert all(torch.equal(a, b) for a, b in zip(first, again))
    Q, D = Q.requires_grad_(), D.requires_grad_()
    for _ in range(2):
        (maxsim.maxsim(Q, D) * weights).sum().backward()
    assert torch.equal(Q.grad, 2 * first[0])


def test_no_graph_without_need():
    Q, D = case()
    Q.requires_grad_()
    with torch.no_grad():
        assert maxsim.maxsim(Q, D).grad_fn is None
    with torch.inference_mode():
        assert not maxsim.maxsim(Q, D).requires_grad
    found = maxsim.maxsim(Q, D, winners=True, token_scores=True)
    assert found.scores.requires_grad
    assert not found.winners.requires_grad and not found.token_scores.requires_grad


def test_second_derivatives_are_refused():
    Q, D = case()
    Q.requires_grad_()
    grad = torch.autograd.grad(maxsim.maxsim(Q, D).sum(), Q, create_graph=True)[0]
    with pytest.raises(RuntimeError):
        grad.sum().backward()


def test_nothing_has_gradients_of_nothing():
    Q, D = case()
    Q, D = Q[:, :0].clone().requires_grad_(), D.clone().requires_grad_()
    maxsim.maxsim(Q, D).sum().backward()
    assert Q.grad.shape == (3, 0, 24) and (D.grad == 0).all()
    Q, D = case()
    Q, D = Q.clone().requires_grad_(), D[:0].clone().requires_grad_()
    maxsim.maxsim(Q, D).sum().backward()
    assert (Q.grad == 0).all() and D.grad.shape == (0, 11, 24)


def test_mixed_types_give_each_its_own():
    Q, D = case()
    Q, D = Q.requires_grad_(), D.half().requires_grad_()
    maxsim.maxsim(Q, D).sum().backward()
    assert Q.grad.dtype == torch.float32 and D.grad.dtype == torch.float16
