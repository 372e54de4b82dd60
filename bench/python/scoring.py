"""The calls of this package and of its peers on a problem's tensors."""

import maxsim
import peers
import torch

from . import packages


def ours(problem, masked=False, lists="cpu", **options):
    """A call of this package on a problem of the forward campaign.

    `lists`: where offsets are; Rust's are on the host.
    """
    case, queries = problem.case, problem.queries
    if case.kind == "candidates":
        documents = problem.padded
        return lambda: maxsim.candidates(queries, documents, **options)
    if case.kind == "ragged":
        offsets, packed = problem.offsets.to(lists), problem.documents
        return lambda: maxsim.packed(queries, packed, None, offsets, **options)
    documents = problem.padded
    if masked:
        options["d_mask"] = problem.mask.view(documents.shape[:-1])
    return lambda: maxsim.maxsim(queries, documents, **options)


def others(problem):
    """The peers' calls, {name: call or why there is none}; their packages are their own."""
    for name in ("flash_maxsim", "late_interaction_kernels"):
        try:
            packages.original(name)
        except ImportError as error:
            return {name: error}
    return peers.calls(problem)


def leaves(problem):
    """Queries and documents of a problem as leaves of a graph, documents in its shape."""
    documents = problem.documents if problem.case.kind == "ragged" else problem.padded
    return (
        problem.queries.detach().clone().requires_grad_(),
        documents.detach().clone().requires_grad_(),
    )


def score(problem, lists="cpu"):
    """The function of queries and documents that scores a problem; `lists` as in :func:`ours`."""
    if problem.case.kind == "candidates":
        return maxsim.candidates
    if problem.case.kind == "ragged":
        offsets, query_len = problem.offsets.to(lists), problem.case.query_len
        return lambda q, d: maxsim.packed(q, d, None, offsets, max_q_len=query_len)
    return maxsim.maxsim


class Step:
    """Scores and `scores.backward(g)`; gradients are left in the leaves."""

    def __init__(self, score, q, d, g):
        self.score, self.q, self.d, self.g = score, q, d, g

    def __call__(self):
        self.q.grad = self.d.grad = None
        self.score(self.q, self.d).backward(self.g)


def reference_gradients(q, d, g):
    """Gradients in float32 by plain PyTorch, of small problems `[n, len, dim]`."""
    q, d = (x.detach().float().requires_grad_() for x in (q, d))
    if d.ndim == 4:
        scores = torch.einsum("ash,abth->abst", q, d).amax(3).sum(2)
    else:
        scores = torch.einsum("ash,bth->abst", q, d).amax(3).sum(2)
    scores.backward(g.float())
    return q.grad, d.grad


def peers_steps(problem, g):
    """The peers' steps, {name: step or why there is none}, and their leaves' gradients."""
    q, d = leaves(problem)
    shared = problem.case.kind != "candidates"
    makers = {
        "flash-maxsim": lambda flash: lambda q, d: flash.flash_maxsim_batched_train(
            q, d, shared_docs=shared
        ),
        "late-interaction-kernels": lambda lik: lambda q, d: lik.maxsim(q, d),
    }
    found = {}
    for name, make in makers.items():
        try:
            found[name] = Step(make(packages.original(name.replace("-", "_"))), q, d, g)
        except ImportError as error:
            found[name] = error
    return found
