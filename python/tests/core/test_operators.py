"""The operators of torch: opcheck, compilers, autocast, modes."""

from __future__ import annotations

import shutil
import sys

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


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_of_padded_calls(device):
    from maxsim._backends import compiled  # registers them

    ops = getattr(torch.ops, compiled.NAMESPACE)
    Q, D = case(device=device)
    own = torch.randn(3, 2, 11, 24, device=device)
    mask = torch.rand(5, 11, device=device) > 0.3
    for args in ((Q, D, None, None, 0), (Q, D, None, mask, 1), (Q, own, None, None, 0)):
        torch.library.opcheck(ops.padded_scores.default, args)
        torch.library.opcheck(ops.padded_scores_and_winners.default, args)
        scores, winners = ops.padded_scores_and_winners(*args)
        for needs in ((True, True), (False, True), (True, False)):
            grads = (torch.randn_like(scores), winners)
            torch.library.opcheck(
                ops.padded_gradients.default, (*grads, *args[:2], args[4], *needs))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_calls_have_operators_of_few_arguments(device):
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def collect(graph, _):
        graphs.append({str(node.target) for node in graph.graph.nodes
                       if node.op == "call_function" and "padded" in str(node.target)})
        return graph.forward

    collecting = aot_autograd(fw_compiler=collect, bw_compiler=collect)
    Q, D = case(device=device)
    own = torch.randn(3, 2, 11, 24, device=device)
    mask = torch.rand(5, 11, device=device) > 0.3

    def name(which):
        return {f"{_ops.NAMESPACE}.padded_{which}.default"}

    for function, documents in ((lambda q, d: maxsim.maxsim(q, d, d_mask=mask, normalize=True), D),
                                (lambda q, d: maxsim.candidates(q, d), own)):
        for needs in ((False, False), (True, True), (True, False), (False, True)):
            torch._dynamo.reset()
            graphs.clear()
            compiled = torch.compile(function, backend=collecting, fullgraph=True)
            given = [[x.clone().requires_grad_(need) for x, need in zip((Q, documents), needs)]
                     for _ in range(2)]
            found, wanted = compiled(*given[0]), function(*given[1])
            assert torch.equal(found, wanted)
            if not any(needs):
                assert graphs == [name("scores")]
                continue
            for scores in (found, wanted):
                scores.logsumexp(-1).sum().backward()
            assert graphs == [name("scores_and_winners"), name("gradients")]
            for a, b in zip(*given):
                assert (a.grad is None) == (b.grad is None)
                assert a.grad is None or torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_imports_do_not_compile_again():
    torch._dynamo.reset()
    Q, D = case()
    ids = torch.tensor([[0, 1], [1, 1], [2, 0]])
    with torch._dynamo.config.patch(error_on_recompile=True):
        for function in (maxsim.maxsim, lambda q, d: maxsim.maxsim(q, d, winners=True).scores,
                         lambda q, d: maxsim.maxsim(q, d, mean=True),
                         lambda q, d: maxsim.candidates(q, d, ids)):
            compiled = torch.compile(function, fullgraph=True, backend="eager")
            compiled(Q, D)
            sys.modules[f"{__name__}.other.{len(sys.modules)}"] = sys
            compiled(Q, D)


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


@pytest.mark.parametrize("device", DEVICES)
def test_the_quick_way_gives_the_same(device):
    from maxsim._backends import quick

    for dtype in (torch.float32, torch.bfloat16):
        Q, D = case(dtype, device=device)
        q_mask, d_mask = (torch.rand(*x.shape[:2], device=device) > 0.3 for x in (Q, D))
        for masks in ((None, None), (q_mask, d_mask), (q_mask.byte(), None)):
            how = dict(zip(("q_mask", "d_mask"), masks), normalize=True)
            assert quick.score(Q, D, *masks, True, False) is not None
            found = step(lambda q, d: maxsim.maxsim(q, d, **how), Q, D)
            long = step(lambda q, d: maxsim.maxsim(q, d, winners=True, **how).scores, Q, D)
            assert all(torch.equal(a, b) for a, b in zip(found, long))


def test_what_the_quick_way_leaves():
    from maxsim._backends import quick

    class Other(torch.Tensor):
        pass

    Q, D = case()
    for other in (D.transpose(1, 2), D[:, :0], D.half(), D.double(), D[..., :8], D[0],
                  D.to("meta"), D[:, ::2], D.to_sparse(), D.to(torch.complex64), D[None, None],
                  D.as_subclass(Other), D.expand(2, *D.shape), D.numpy(), None):
        assert quick.score(Q, other, None, None, False, False) is None
    mask = torch.rand(3, 7) > 0.3
    for other in (mask.T, mask.int(), mask[:2], mask.to("meta"), mask.float(), "mask"):
        assert quick.score(Q, D, other, None, False, False) is None
    wanted = maxsim.maxsim(Q, D)
    for same in (torch.nn.Parameter(D), torch.cat((D, D))[5:], D.as_strided(D.shape, D.stride())):
        found = quick.score(Q, same, None, None, False, False)
        assert found is not None and torch.equal(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_whose_signs_torch_turns_when_it_reads(device):
    Q, D = case(device=device)
    wanted = maxsim.maxsim(Q, -D)
    turned = torch._neg_view(D)
    assert turned.is_neg() and torch.equal(maxsim.maxsim(Q, turned), wanted)
    assert torch.equal(maxsim.maxsim(Q, turned, winners=True).scores, wanted)
    assert torch.equal(maxsim.maxsim(torch._neg_view(-Q), turned), wanted)
    imaginary = torch.complex(D, D).conj().imag
    assert imaginary.is_neg() and torch.equal(maxsim.maxsim(Q, imaginary), wanted)
    for x in (turned, imaginary):
        leaf = x.detach().requires_grad_()
        maxsim.maxsim(Q, leaf).logsumexp(-1).sum().backward()
        found = (-D).requires_grad_()
        maxsim.maxsim(Q, found).logsumexp(-1).sum().backward()
        assert torch.equal(leaf.grad, found.grad)
    grads = []
    for grad in (torch._neg_view(torch.ones_like(wanted)), -torch.ones_like(wanted)):
        leaf = D.clone().requires_grad_()
        maxsim.maxsim(Q, leaf).backward(grad)
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_gradients_have_none_of_their_own():
    Q, D = (x.requires_grad_() for x in case())
    grad, = torch.autograd.grad(maxsim.maxsim(Q, D).square().sum(), Q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


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
