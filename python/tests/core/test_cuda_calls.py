"""Calls on a GPU as programs make them: captured, without waits, from threads, on a second GPU, in
forked children, and where memory runs out."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import maxsim
from cases import case, close, cuda, naive
from test_processes import in_child

pytestmark = cuda


def step(Q, D, **options):
    """Scores and gradients of a loss of them."""
    Q, D = Q.detach().requires_grad_(), D.detach().requires_grad_()
    scores = maxsim.maxsim(Q, D, **options)
    of_q, of_d = torch.autograd.grad(scores.logsumexp(-1).sum(), (Q, D))
    return scores.detach(), of_q, of_d


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_captured_step_is_replayed(is_warm, normalize, dtype):
    # Shapes that no other test has: the first call of each is in the capture.
    shape = {"n": 5, "m": 13 + 2 * normalize + is_warm, "lq": 17, "ld": 65, "dim": 128}
    Q, D = case(dtype, device="cuda", **shape)
    mask = torch.ones(D.shape[:2], dtype=torch.bool, device="cuda")
    if is_warm:
        step(Q, D, d_mask=mask, normalize=normalize)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Autograd itself wants to have run before.
    (torch.ones(1, device="cuda", requires_grad=True) * 2).backward()
    with torch.cuda.graph(graph):
        found = step(Q, D, d_mask=mask, normalize=normalize)
    generator = torch.Generator().manual_seed(7)
    for i in range(3):
        Q.copy_(torch.randn(Q.shape, generator=generator))
        D.copy_(torch.randn(D.shape, generator=generator))
        mask.copy_(torch.rand(mask.shape, generator=generator) > 0.3)
        graph.replay()
        # Other work of the same kind, in memory of its own.
        other = step(D.roll(1, 0), Q.roll(1, 0))
        wanted = step(Q, D, d_mask=mask, normalize=normalize)
        for a, b in zip(found, wanted):
            assert torch.equal(a, b), i
        del other


def test_captured_calls_outlive_what_is_kept_of_them():
    """What a graph reads stays, however many other shapes are scored after its capture."""
    Q, D = case(device="cuda", n=3, m=37, lq=9, ld=33, dim=64)
    lengths = torch.arange(37) % 34
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = maxsim.maxsim(Q, D, d_lengths=lengths)
        captured = step(Q, D)
    wanted, other = maxsim.maxsim(Q, D, d_lengths=lengths), step(Q, D)
    for i in range(150):
        step(*case(device="cuda", n=2, m=3 + i, lq=5, ld=7, dim=64))
        maxsim.maxsim(Q, D, d_lengths=(lengths + i) % 34)
    for _ in range(3):
        graph.replay()
        assert torch.equal(found, wanted)
        assert all(torch.equal(a, b) for a, b in zip(captured, other))


def test_make_graphed_callables():
    Q, D = case(device="cuda", n=4, m=4, lq=8, ld=24, dim=32)
    model = torch.nn.Linear(32, 32, bias=False, device="cuda")
    loss = maxsim.losses.ContrastiveLoss(normalize=True)

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, q, d):
            return loss(self.model(q), self.model(d))

    wanted = Step()(Q, D)
    wanted.backward()
    # A graph of gradients that is kept would tie the weight to the stream that it was made on,
    # which torch then cannot capture.
    wanted = wanted.detach()
    grad, model.weight.grad = model.weight.grad.clone(), None
    graphed = torch.cuda.make_graphed_callables(Step(), (Q, D))
    found = graphed(Q, D)
    found.backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(model.weight.grad, grad)


def test_compiled_for_graphs():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, d: maxsim.maxsim(q * 2, d, normalize=True),
                             fullgraph=True, mode="reduce-overhead")
    for i in range(4):
        Q, D = case(device="cuda", n=3 + i % 2, m=6, lq=8, ld=24, dim=32)
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(Q, D).clone(),
                                   maxsim.maxsim(Q * 2, D, normalize=True))


def test_calls_wait_for_nothing():
    """Behind a kernel that takes a second, calls return long before it ends."""
    Q, D = case(torch.float16, n=8, m=16, lq=32, ld=64, dim=128, device="cuda")
    mask = torch.rand(16, 64, device="cuda") > 0.2
    targets, lengths = torch.arange(8), torch.arange(16) * 4
    teacher = torch.randn(8, 16)
    loss = maxsim.losses.contrastive

    def calls():
        step(Q, D)
        step(Q, D, d_mask=mask, normalize=True)
        found = maxsim.maxsim(Q, D, d_lengths=lengths, winners=True)
        maxsim.topk(Q, D, 5, d_lengths=lengths)
        maxsim.pairs(Q, D[:8], torch.arange(8), torch.arange(8))
        loss(found.scores, targets)
        maxsim.losses.distillation(found.scores, teacher)

    for _ in range(3):
        calls()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        start = time.perf_counter()
        torch.cuda._sleep(4_000_000_000)
        calls()
        took = time.perf_counter() - start
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert took < 0.5, took


def test_threads_with_streams_of_their_own():
    cases = [case(torch.float16, n=n, m=20, lq=32, ld=64, dim=128, device="cuda")
             for n in range(1, 7)]
    wanted = [step(Q, D, normalize=True) for Q, D in cases]
    torch.cuda.synchronize()
    wrong = []

    def work(i):
        # Two threads on each stream.
        with torch.cuda.stream(streams[i // 2]):
            for _ in range(30):
                found = step(*cases[i], normalize=True)
                if not all(torch.equal(a, b) for a, b in zip(found, wanted[i])):
                    wrong.append(i)

    streams = [torch.cuda.Stream() for _ in range(3)]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


def test_a_fork_after_use():
    Q, D = case(device="cuda")
    wanted = maxsim.maxsim(Q, D).cpu()

    def on_the_gpu():
        # As torch: a forked child cannot use the GPU, and is told so.
        try:
            maxsim.maxsim(Q, D)
        except RuntimeError as error:
            assert "CUDA" in str(error)
        else:
            raise AssertionError("no error")

    q, d = Q.cpu(), D.cpu()

    def on_the_cpu():
        torch.testing.assert_close(maxsim.maxsim(q, d), wanted, rtol=1e-5, atol=1e-5)

    assert in_child(on_the_gpu)
    assert in_child(on_the_cpu)
    assert torch.equal(maxsim.maxsim(Q, D).cpu(), wanted)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_second_gpu():
    Q, D = case(torch.float16, n=4, m=9, lq=32, ld=64, dim=128)
    wanted = step(Q.to("cuda:0"), D.to("cuda:0"), normalize=True)
    # Without a change of the current device.
    found = step(Q.to("cuda:1"), D.to("cuda:1"), normalize=True)
    assert torch.cuda.current_device() == 0
    assert all(x.device == torch.device("cuda:1") for x in found)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(found, wanted))
    with pytest.raises(ValueError, match="cuda:0"):
        maxsim.maxsim(Q.to("cuda:0"), D.to("cuda:1"))
    with torch.cuda.device(1):
        assert torch.equal(maxsim.maxsim(Q.cuda(), D.cuda(), normalize=True).cpu(),
                           wanted[0].cpu())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1):
        q, d = Q.cuda(), D.cuda()
        with torch.cuda.graph(graph):
            scores = maxsim.maxsim(q, d, normalize=True)
        graph.replay()
        assert torch.equal(scores.cpu(), wanted[0].cpu())


def test_visible_devices_set_late():
    """After the import and a call on the CPU, which both leave CUDA alone."""
    code = """
import os, torch, maxsim
Q = torch.ones(1, 2, 4)
assert maxsim.maxsim(Q, Q).item() == 8 and not torch.cuda.is_initialized()
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LAST"]
assert torch.cuda.device_count() == 1
assert maxsim.maxsim(Q.cuda(), Q.cuda()).item() == 8
print(torch.cuda.get_device_properties(0).uuid)
"""
    last = torch.cuda.device_count() - 1
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[last] if len(visible) > last and visible[last] else str(last)
    found = subprocess.run([sys.executable, "-c", code], env={**os.environ, "LAST": name},
                           capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert str(torch.cuda.get_device_properties(last).uuid) in found.stdout


def test_out_of_memory_in_the_middle_of_a_step():
    code = """
import torch, maxsim
Q = torch.randn(64, 32, 128, device="cuda", dtype=torch.float16, requires_grad=True)
D = torch.randn(64, 1024, 128, device="cuda", dtype=torch.float16, requires_grad=True)
def step():
    maxsim.maxsim(Q, D, normalize=True).sum().backward()
step()
wanted = Q.grad.clone()
Q.grad = D.grad = None
torch.cuda.synchronize()
torch.cuda.empty_cache()
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(
    (torch.cuda.memory_reserved() + (12 << 20)) / total)
for _ in range(3):
    try:
        step()
    except torch.OutOfMemoryError as error:
        kept = str(error)
    else:
        raise AssertionError("no error")
torch.cuda.set_per_process_memory_fraction(1.0)
Q.grad = D.grad = None
step()
assert torch.equal(Q.grad, wanted)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           timeout=300)
    assert found.returncode == 0, found.stderr


def outside_torch():
    """Bytes of the device's memory that torch's allocator does not have."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def test_a_stream_takes_no_memory_outside_torch():
    Q, D = case(torch.float16, n=64, m=64, lq=32, ld=256, dim=128, device="cuda")
    step(Q, D)
    step(Q, D, normalize=True)
    before = outside_torch()
    streams = [torch.cuda.Stream() for _ in range(8)]
    for stream in streams:
        with torch.cuda.stream(stream):
            for _ in range(5):
                step(Q, D)
                step(Q, D, normalize=True)
    # What the driver takes for a stream itself counts, too.
    assert outside_torch() - before <= len(streams) << 19


def test_a_side_without_gradient_takes_no_memory():
    Q = torch.randn(4, 32, 128, device="cuda", dtype=torch.float16)
    D = torch.randn(512, 512, 128, device="cuda", dtype=torch.float16)
    peaks = {}
    wanted = step(Q, D)[1:]
    for name, needs in (("both", (True, True)), ("queries", (True, False)),
                        ("documents", (False, True))):
        q, d = Q.detach().requires_grad_(needs[0]), D.detach().requires_grad_(needs[1])
        for _ in range(2):
            q.grad = d.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            maxsim.maxsim(q, d).logsumexp(-1).sum().backward()
            peaks[name] = torch.cuda.max_memory_allocated() - before
        for x, need, grad in zip((q, d), needs, wanted):
            assert (x.grad is None) != need
            assert not need or torch.equal(x.grad, grad)
    assert peaks["queries"] < peaks["both"] - D.nbytes // 2
    assert peaks["documents"] <= peaks["both"]


def test_types_and_devices_that_do_not_go_together():
    Q, D = case(device="cuda")
    for other in (D.cpu(), D.int(), D.double(), D.to("meta")):
        with pytest.raises((ValueError, TypeError)):
            maxsim.maxsim(Q, other)
    close(maxsim.maxsim(Q, D.half()), naive(Q.half().double(), D.half().double()), 24)
