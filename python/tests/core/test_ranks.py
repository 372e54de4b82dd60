"""Processes that learn together, and a second GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import maxsim
from cases import case, cuda

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device or none")

#: One step of a rank on its own queries and documents, and its gradient.
STEP = """
import sys
import torch
import maxsim

rank, n, device, store, out = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
kind = "nccl" if device == "cuda" else "gloo"
if device == "cuda":
    device = f"cuda:{rank}"
    torch.cuda.set_device(device)
torch.distributed.init_process_group(kind, init_method=f"file://{store}", rank=rank, world_size=n)
torch.manual_seed(1)
model = torch.nn.Linear(24, 24, bias=False).to(device)
Q, D = torch.randn(n, 4, 6, 24), torch.randn(n, 4, 11, 24)
parallel = torch.nn.parallel.DistributedDataParallel(model)
loss = maxsim.losses.ContrastiveLoss()
loss(parallel(Q[rank].to(device)), parallel(D[rank].to(device))).backward()
found, model.weight.grad = model.weight.grad.clone(), None
for q, d in zip(Q, D):
    (loss(model(q.to(device)), model(d.to(device))) / n).backward()
torch.testing.assert_close(found, model.weight.grad)
open(f"{out}/{rank}", "w").write("the mean of all ranks")
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=two_gpus)])
def test_two_processes_share_a_step(tmp_path, device):
    store = str(tmp_path / "store")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STEP, str(rank), "2", device, store, str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in enumerate(said):
        assert (tmp_path / str(rank)).is_file(), text


@two_gpus
def test_a_second_gpu_computes_what_the_first_does():
    found = []
    for device in ("cuda:0", "cuda:1"):
        Q, D = (x.to(device).requires_grad_() for x in case(n=3, m=5))
        scores = maxsim.maxsim(Q, D)
        assert scores.device == torch.device(device)
        scores.logsumexp(1).sum().backward()
        best = maxsim.maxsim(Q, D, winners=True)
        assert best.winners.device == torch.device(device)
        found.append([x.cpu() for x in (scores.detach(), best.winners, Q.grad, D.grad)])
    for first, second in zip(*found):
        assert torch.equal(first, second)


@two_gpus
def test_a_gpu_that_is_not_the_current_one():
    Q, D = (x.to("cuda:1") for x in case(n=3, m=5))
    with torch.cuda.device(0):
        found = maxsim.maxsim(Q, D)
    stream = torch.cuda.Stream(device="cuda:1")
    stream.wait_stream(torch.cuda.current_stream("cuda:1"))
    with torch.cuda.stream(stream):
        other = maxsim.maxsim(Q, D)
    stream.synchronize()
    assert torch.equal(found, other)


@two_gpus
def test_sides_on_two_gpus_are_refused():
    Q, D = case(n=3, m=5)
    with pytest.raises(ValueError, match="cuda:0"):
        maxsim.maxsim(Q.to("cuda:0"), D.to("cuda:1"))


@cuda
def test_expandable_segments():
    code = (
        "import torch, maxsim\n"
        "big = [torch.empty(7_000_001, device='cuda') for _ in range(9)]\n"
        "del big[::2]\n"
        "Q, D = (torch.randn(n, 32, 128, device='cuda', dtype=torch.float16).requires_grad_()\n"
        "        for n in (64, 30_000))\n"
        "scores = maxsim.maxsim(Q, D)\n"
        "scores.sum().backward()\n"
        "part = (Q[:4].detach().double() @ D[-50:].detach().double().flatten(0, 1).T)\n"
        "wanted = part.unflatten(-1, (50, 32)).amax(-1).sum(1)\n"
        "torch.testing.assert_close(scores[:4, -50:].double(), wanted, rtol=1e-5, atol=1e-4)\n"
        "print('right')\n"
    )
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | env, text=True,
                          capture_output=True, timeout=300)
    assert "right" in done.stdout, done.stderr
