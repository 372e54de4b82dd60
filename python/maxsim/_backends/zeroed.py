"""Scores where a masked document token has similarity 0, as where masks multiply similarities: it
wins over tokens whose similarities are negative. Documents are not copied for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import quick
from .._sides import OWN, Options, Pairing, Result, Side
from .torch import check_devices, is_plain, run, run_backward

#: Bytes that are read and written for each query token of a pair.
_TOKEN_BYTES = 24


def takes(Q: Tensor, D: Tensor, mask: Tensor) -> bool:
    """Whether a call is one of these, and cheaper than a copy of the documents: of few pairs."""
    if mask.dtype != torch.bool or not is_plain(Q, D) or Q.device.type not in ("cpu", "cuda"):
        return False
    n_pairs = D.shape[0] * (D.shape[1] if D.ndim == 4 else Q.shape[0])
    return n_pairs * Q.shape[1] * _TOKEN_BYTES <= D.numel() * D.element_size()


def score(Q: Tensor, D: Tensor, mask: Tensor, tf32: bool = False) -> Tensor:
    """Scores every query against documents ``[Nd, Ld, dim]``, ``[Nq, Nd]``; or against its own
    ``[Nq, K, Ld, dim]``, ``[Nq, K]``. False in ``mask`` is masked."""
    q, d, pairing, options = quick.as_sides(Q, D, None, mask, quick.bits(False, tf32, False))
    check_devices(q, d, pairing)
    if torch.is_grad_enabled() and (Q.requires_grad or D.requires_grad):
        scores: Tensor = _Score.apply(q.data, d.data, q, d, pairing, options)
        return scores
    return _run(q, d, pairing, options, False).scores  # type: ignore[no-any-return]


def _run(q: Side, d: Side, pairing: Pairing, options: Options, winners: bool) -> Result:
    """Scores, and winners as they are kept."""
    found = run(q, d, pairing, options._replace(winners=winners, token_scores=True))
    has_masked = d.mask.logical_not().any(-1)
    if pairing.kind == OWN:
        has_masked = has_masked.view(found.scores.shape)
    # A masked token wins.
    zero = (found.token_scores < 0).logical_and_(has_masked[..., None])
    scores = torch.where(zero.any(-1), found.token_scores.clamp_min(0).sum(-1), found.scores)
    return Result(scores, found.winners.masked_fill_(zero, -1) if winners else None)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q_data: Tensor, d_data: Tensor, q: Side, d: Side, pairing: Pairing,
        options: Options,
    ) -> Tensor:
        q, d = q._replace(data=q_data), d._replace(data=d_data)
        found = _run(q, d, pairing, options, True)
        ctx.save_for_backward(q_data, d_data, found.winners)
        # A masked token has won nothing, so gradients do not need the mask.
        ctx.call = q._replace(data=None), d._replace(data=None, mask=None), pairing, options
        return found.scores  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q_data, d_data, winners = ctx.saved_tensors
        q, d, pairing, options = ctx.call
        q, d = q._replace(data=q_data), d._replace(data=d_data)
        needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        return (*run_backward(grad, winners, q, d, pairing, options, needs), None, None, None, None)
