"""The operators of torch: opcheck, compilers, autocast, modes."""

from __future__ import annotations

import shutil

import pytest
import torch

import maxsim
from cases import DEVICES, case
from maxsim._backends import ops as _ops

has_compiler = shutil.which("g++") or shutil.which("clang++")


def arguments(Q, D, *, mask=None, width=None, winners=True, normalize=False):
    width = Q.shape[1] if width is None else width
    return (Q, None, None, None, None, None, D, mask, None, None, None, None, None, None, 0, 0,
            width, -1, normalize, False, False, winners, True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_opcheck(device, needs_grad):
    Q, D = case(device=device)
    score = getattr(torch.ops, _ops.NAMESPACE).score.default
    mask = torch.rand(5, 11, device=device) > 0.3
    for options in ({}, {"mask": mask}, {"normalize": True}):
        args = arguments(Q.clone().requires_grad_(needs_grad),
                         D.clone().requires_grad_(needs_grad), **options)
        torch.library.opcheck(score, args)
    if not needs_grad:
        torch.library.opcheck(score, arguments(Q, D, winners=False))
        winners = score(*arguments(Q, D))[1]
        backward = getattr(torch.ops, _ops.NAMESPACE).score_backward.default
        args = arguments(Q, D)[:-2]
        torch.library.opcheck(backward, (torch.randn(3, 5, device=device), winners, *args, True,
                                         False))


def step(function, Q, D):
    Q, D = Q.detach().clone().requires_grad_(), D.detach().clone().requires_grad_()
    found = function(Q, D)
    found.logsumexp(-1).sum().backward()
    return found.detach(), Q.grad, D.grad


BACKENDS = ["eager", "aot_eager"]
if has_compiler:
    BACKENDS.append("inductor")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device, backend, dynamic):
    torch._dynamo.reset()
    ids = torch.tensor([[0, 1], [1, 1], [2, 0]], device=device)

    def cross(q, d):
        return maxsim.maxsim(q * 2, d, normalize=True)

    def chosen(q, d):
        return maxsim.candidates(q, d, ids)

    for function in (cross, chosen):
        compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
        for shape in ({}, {"lq": 4, "ld": 6}):
            Q, D = case(device=device, **shape)
            for a, b in zip(step(compiled, Q, D), step(function, Q, D)):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_compile_of_masks_and_packed_items():
    torch._dynamo.reset()
    Q, D = case()
    mask = torch.rand(5, 11) > 0.3
    compiled = torch.compile(
        lambda q, d, m: maxsim.maxsim(q, d, d_mask=m, winners=True), fullgraph=True,
        backend="aot_eager")
    found, wanted = compiled(Q, D, mask), maxsim.maxsim(Q, D, d_mask=mask, winners=True)
    assert torch.equal(found.scores, wanted.scores) and torch.equal(found.winners, wanted.winners)
    offsets = torch.tensor([0, 7, 9, 21])
    compiled = torch.compile(
        lambda q, d, o: maxsim.packed(q, d, o, o, max_q_len=12), fullgraph=True,
        backend="aot_eager")
    rows = Q.reshape(-1, 24)
    found = step(lambda q, d: compiled(q, d, offsets), rows, rows)
    wanted = step(lambda q, d: maxsim.packed(q, d, offsets, offsets), rows, rows)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_takes_what_comes(device):
    Q, D = case(device=device)
    weight = torch.randn(24, 24, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = maxsim.maxsim(Q @ weight, D)
        wanted = maxsim.maxsim((Q @ weight).bfloat16(), D.bfloat16())
    assert found.dtype == torch.float32 and torch.equal(found, wanted)
    found.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_modes_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        Q, D = torch.empty(3, 7, 24), torch.empty(5, 11, 24)
        found = maxsim.maxsim(Q, D, winners=True)
        assert found.scores.shape == (3, 5) and found.winners.shape == (3, 5, 7)
    Q, D = (torch.empty(*shape, device="meta") for shape in ((3, 7, 24), (5, 11, 24)))
    meta = maxsim.maxsim(Q, D)
    assert meta.shape == (3, 5) and meta.device.type == "meta"


def test_both_paths_give_the_same():
    Q, D = case()
    eager = step(maxsim.maxsim, Q, D)

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        dispatched = step(maxsim.maxsim, Q, D)
    assert all(torch.equal(a, b) for a, b in zip(eager, dispatched))
    with Mode():
        found = maxsim.maxsim(Q.requires_grad_(), D, winners=True, token_scores=True)
    assert found.scores.requires_grad
    assert not found.winners.requires_grad and not found.token_scores.requires_grad


def test_the_quick_way_gives_the_same():
    from maxsim._backends import quick

    for dtype in (torch.float32, torch.bfloat16):
        Q, D = case(dtype)
        q_mask, d_mask = torch.rand(3, 7) > 0.3, torch.rand(5, 11) > 0.3
        for masks in ((None, None), (q_mask, d_mask), (q_mask.byte(), None)):
            how = dict(zip(("q_mask", "d_mask"), masks), normalize=True)
            assert quick.score(Q, D, *masks, True, False) is not None
            found = step(lambda q, d: maxsim.maxsim(q, d, **how), Q, D)
            long = step(lambda q, d: maxsim.maxsim(q, d, winners=True, **how).scores, Q, D)
            assert all(torch.equal(a, b) for a, b in zip(found, long))
    for other in (D.transpose(1, 2), D[:, :0], D.float(), D[..., :8], D[0], D.to("meta"),
                  torch.nn.Parameter(D)):
        assert quick.score(Q, other, None, None, False, False) is None
    for mask in (q_mask.T, q_mask.int(), q_mask[:2], q_mask.to("meta")):
        assert quick.score(Q, D, mask, None, False, False) is None


def test_checkpoint_and_parameters():
    from torch.utils.checkpoint import checkpoint

    Q, D = case()
    weight = torch.nn.Parameter(torch.eye(24))
    checkpoint(lambda q: maxsim.maxsim(q @ weight, D), Q, use_reentrant=False).sum().backward()
    first = weight.grad.clone()
    weight.grad = None
    maxsim.maxsim(Q @ weight, D).sum().backward()
    assert torch.equal(first, weight.grad)
    assert maxsim.maxsim(torch.nn.Parameter(Q), D).requires_grad
