"""What query tokens retrieve, by the library: XTR scores with gradients, and rankings."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .. import _maxsim
from .._backends.torch import memory, pair_numbers, run_backward, some_memory
from .._sides import CROSS, OWN, Options, Pairing, Side
from . import _native
from ._native import DIM_MAX, described, room, there, waited

#: Normalisers, as the compiled half numbers them.
NORMALIZERS = {"retrieved": 0, "query": 1, "none": 2, "pylate": 3}


class Asked(NamedTuple):
    """What is asked for, as the compiled half reads it."""

    k: int
    normalizer: int = 0
    #: Whether query tokens retrieve from the documents of their query alone.
    is_paired: bool = False
    normalize: bool = False


def takes(queries: Tensor, documents: Tensor) -> bool:
    """Whether the library may take these."""
    return 1 <= queries.shape[-1] <= DIM_MAX and _native.takes(queries, documents)


def _found(
    q: Side, d: Side, pairing: Pairing, asked: Asked, with_winners: bool
) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
    """Scores, what they were divided by, and the winners that were retrieved."""
    like, shape = q.data, pairing.shape(q, d)
    scores, divisors = (room(shape, torch.float32, like) for _ in range(2))
    winners = room((*shape, like.shape[1]), torch.int32, like) if with_winners else None
    sides, kept = described(q, d)
    results = memory(scores), memory(divisors), some_memory(winners)
    waited(_maxsim.xtr, like, sides, pair_numbers(pairing)[0], asked, results)
    del kept
    found = [there(x, like) for x in (scores, divisors, winners)]
    assert found[0] is not None and found[1] is not None
    return found[0], found[1], found[2]


class _Retrieved(torch.autograd.Function):
    """Scores with the library's gradients: those of the winners that were retrieved."""

    @staticmethod
    def forward(ctx, queries, documents, q, d, pairing, asked):  # type: ignore[no-untyped-def]
        q, d = q._replace(data=queries), d._replace(data=documents)
        scores, divisors, winners = _found(q, d, pairing, asked, True)
        ctx.save_for_backward(queries, documents, divisors, winners)
        ctx.of = pairing, asked
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        queries, documents, divisors, winners = ctx.saved_tensors
        pairing, asked = ctx.of
        options = Options(asked.normalize, winners=True, max_q_len=queries.shape[1])
        # A masked token has won nothing, so gradients do not need masks.
        of_q, of_d = run_backward(grad.float() / divisors, winners, Side(queries), Side(documents),
                                  pairing, options, ctx.needs_input_grad[:2])
        return of_q, of_d, None, None, None, None


def scores(
    queries: Tensor, documents: Tensor, q_mask: Optional[Tensor], d_mask: Optional[Tensor],
    asked: Asked,
) -> Tensor:
    """XTR scores of queries `[Nq, Lq, d]` and documents `[Nd, Ld, d]` or `[Nq, K, Ld, d]`."""
    pairing = Pairing(CROSS)
    if documents.dim() == 4:
        pairing = Pairing(OWN, documents.shape[1])
        documents = documents.flatten(0, 1)
        d_mask = None if d_mask is None else d_mask.flatten(0, 1)
    queries, documents = queries.resolve_neg(), documents.resolve_neg()
    q, d = Side(queries, q_mask), Side(documents, d_mask)
    if torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad):
        found: Tensor = _Retrieved.apply(queries, documents, q._replace(data=None),
                                         d._replace(data=None), pairing, asked)
        return found
    return _found(q, d, pairing, asked, False)[0]


def ranked(
    queries: Tensor, documents: Tensor, q_mask: Optional[Tensor], d_mask: Optional[Tensor],
    n: int, asked: Asked,
) -> Tuple[Any, ...]:
    """Scores and ids of the best `n` documents of every query, how many were NaN and empty."""
    like, n_queries = queries, queries.shape[0]
    best, ids = room((n_queries, n), torch.float32, like), room((n_queries, n), torch.int64, like)
    counts = room((n_queries, 2), torch.int64, like)
    sides, kept = described(Side(queries.detach().resolve_neg(), q_mask),
                            Side(documents.detach().resolve_neg(), d_mask))
    results = memory(best), memory(ids), memory(counts), n_queries, n
    # Which documents have tokens must be known on the host.
    mask = d_mask.cpu().contiguous() if like.is_cuda and d_mask is not None else None
    waited(_maxsim.xtr_search, like, sides, asked, results, some_memory(mask))
    del kept
    best, ids, counts = (x.to(like.device) for x in (best, ids, counts))
    return best, ids, counts[:, 0], counts[:, 1]
