"""The compatible names inside `torch.compile(fullgraph=True)`."""

import pytest
import torch

from maxsim.compat import flash_maxsim as fm
from maxsim.compat import late_interaction_kernels as lik
from maxsim.composed import from_hidden, xtr

LENGTHS = torch.tensor([7, 3, 0])
CASES = {
    "masks": lambda q, d: lik.maxsim(q, d, d_mask=torch.arange(7) < LENGTHS[:, None]),
    "own documents": lambda q, d: lik.maxsim(q, torch.stack([d, -d])),
    "scorer": lambda q, d: lik.MaxSimScorer()(q, d),
    "lengths": lambda q, d: fm.flash_maxsim_batched_train(q, d, True, LENGTHS).clamp_min(-9),
    "f64": lambda q, d: lik.maxsim(q.double(), d.double(), normalize=True),
    "hidden": lambda q, d: from_hidden(q, d, torch.eye(16)),
    "xtr": lambda q, d: xtr(q, d, k=3),
    "retrieve": lambda q, d: lik.retrieve(q, d, 2)[0],
}


@pytest.mark.parametrize("name", CASES)
def test_fullgraph(name):
    torch.manual_seed(1)
    torch._dynamo.reset()
    q = torch.randn(2, 5, 16, requires_grad=True)
    d = torch.randn(3, 7, 16, requires_grad=True)
    eager = CASES[name](q, d)
    compiled = torch.compile(CASES[name], backend="aot_eager", fullgraph=True)(q, d)
    torch.testing.assert_close(compiled, eager)
    if eager.requires_grad:
        for a, b in zip(torch.autograd.grad(compiled.sum(), (q, d)),
                        torch.autograd.grad(eager.sum(), (q, d))):
            torch.testing.assert_close(a, b)
