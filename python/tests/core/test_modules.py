"""Losses, modules, and the tool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import maxsim
from cases import case, close, naive

SAMPLE = Path(__file__).parents[3] / "cli/examples/debian-packages"


def test_contrastive_loss():
    Q, D = case(n=4, m=6)
    scores = naive(Q, D)
    wanted = torch.nn.functional.cross_entropy(scores / 0.5, torch.arange(4))
    found = maxsim.losses.contrastive(maxsim.maxsim(Q, D), temperature=0.5)
    close(found, wanted, 24, 10)
    loss = maxsim.losses.ContrastiveLoss(temperature=0.5)
    weight = torch.eye(24, requires_grad=True)
    loss(Q @ weight, D).backward()
    assert weight.grad.abs().sum() > 0 and "0.5" in repr(loss)
    targets = torch.tensor([5, 0, 1, 2])
    close(loss(Q, D, targets), torch.nn.functional.cross_entropy(scores / 0.5, targets), 24, 10)
    with pytest.raises(ValueError, match="documents"):
        maxsim.losses.contrastive(torch.zeros(3, 2))


def test_distillation_loss():
    Q, D = case(n=4, m=4)
    ids = torch.tensor([[0, 1, 2], [1, 3, 0], [2, 0, 1], [3, 2, 1]])
    teacher = torch.randn(4, 3)
    wanted = torch.nn.functional.kl_div(
        torch.log_softmax(naive(Q, D).gather(1, ids), -1), torch.softmax(teacher, -1),
        reduction="batchmean")
    loss = maxsim.losses.DistillationLoss()
    close(loss(Q, D[ids], teacher), wanted, 24, 10)
    with pytest.raises(ValueError, match="teacher"):
        maxsim.losses.distillation(torch.zeros(3, 2), torch.zeros(3, 3))


def test_a_step_lowers_the_loss():
    Q, D = case(n=4, m=4)
    weight = torch.nn.Parameter(torch.eye(24))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    loss = maxsim.losses.ContrastiveLoss(normalize=True)
    values = []
    for _ in range(5):
        optimizer.zero_grad()
        value = loss(Q @ weight, D @ weight)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values == sorted(values, reverse=True)


def test_scorer():
    Q, D = case(n=3, m=3)
    scorer = maxsim.MaxSimScorer(normalize=True)
    assert torch.equal(scorer(Q, D), maxsim.maxsim(Q, D, normalize=True))
    assert scorer(Q, D[:, None]).shape == (3, 1)
    assert scorer.topk(Q, D, 2).ids.shape == (3, 2)
    assert "normalize=True" in repr(scorer) and not list(scorer.parameters())
    # Where there are GPUs the copies score on them.
    close(torch.nn.DataParallel(scorer)(Q, D).cpu(), scorer(Q, D), 24)


@pytest.mark.parametrize("command", [["-m", "maxsim"], ["-c", "import sys, maxsim.__main__ as m;"
                                                        " sys.exit(m.main())"]])
def test_the_tool(command):
    run = lambda *a: subprocess.run([sys.executable, *command, *a], capture_output=True, text=True)
    help = run("--help")
    assert help.returncode == 0 and "rank" in help.stdout
    assert run("nonsense").returncode == 2
    if SAMPLE.exists() and command[0] == "-m":
        found = run("rank", "--top-k", "3", "--queries", str(SAMPLE / "queries.safetensors"),
                    "--documents", str(SAMPLE / "documents.safetensors"), "--qrels",
                    str(SAMPLE / "queries.jsonl"), "--device", "cpu")
        assert found.returncode == 0, found.stderr
        assert "nDCG@10 0.9464" in found.stdout + found.stderr


def test_public_names():
    assert set(maxsim.__all__) <= set(dir(maxsim))
    for name in maxsim.__all__:
        assert getattr(maxsim, name).__doc__
    assert maxsim.__version__.count(".") == 2
    with pytest.raises(AttributeError):
        maxsim.nonsense


def test_distributed_data_parallel(tmp_path):
    Q, D = case(n=4, m=4)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(24, 24, bias=False)
        loss = maxsim.losses.ContrastiveLoss()
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        loss(parallel(Q), parallel(D)).backward()
        found = model.weight.grad.clone()
        model.weight.grad = None
        loss(model(Q), model(D)).backward()
        torch.testing.assert_close(found, model.weight.grad)
    finally:
        torch.distributed.destroy_process_group()
