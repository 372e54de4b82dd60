"""The calls that most calls are, with little around them: padded tensors without gaps, every query
against every document ``[Nd, Ld, dim]``, or against its own ``[Nq, K, Ld, dim]``. What is not so
goes the long way, where all is checked and explained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import OWN
from .._threads import get_num_threads
from .torch import CODES, ELEMENTS, WIDE_FROM, is_plain

_ELEMENT_CODES = {dtype: CODES[dtype] for dtype in ELEMENTS}
_MASKS = (torch.bool, torch.uint8)
_CROSS = (0, 0, 0, 0, 0, False)
_NONE = (0, 0)


def _fits(x: Any, mask: Any) -> bool:
    """Whether tokens and their mask lie without gaps, where and as they must."""
    if type(x) is not Tensor or not x.is_contiguous() or not x.numel():
        return False
    if mask is None:
        return True
    return (type(mask) is Tensor and mask.dtype in _MASKS and mask.shape == x.shape[:-1]
            and mask.is_contiguous() and _together(mask, x))


def _together(x: Tensor, y: Tensor) -> bool:
    """Whether both are in host memory, or on one GPU. (``device`` takes longer to ask.)"""
    return (x.is_cpu and y.is_cpu
            or x.is_cuda and y.is_cuda and x.get_device() == y.get_device())


def _side(x: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
    """A side as numbers."""
    *items, length, dim = x.shape
    n = items[0] if len(items) == 1 else items[0] * items[1]
    return ((0, n, length, n * length, dim, 0, 0, False),
            (x.data_ptr(), dim * x.element_size(), _ELEMENT_CODES[x.dtype],
             None if mask is None else (mask.data_ptr(), n * length), _NONE, 0, _NONE))


def _pairs(D: Tensor) -> tuple[Any, ...]:
    """The pairing as numbers: of all documents, or of each query's own."""
    return _CROSS if D.ndim == 3 else (OWN, D.shape[1], 0, 0, 0, False)


def forward(
    Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None, normalize: bool,
    tf32: bool, consistent: bool, with_winners: bool,
) -> tuple[Tensor, Tensor | None]:
    """Scores, and winners as the device keeps them."""
    n, m, pairs = Q.shape[0], D.shape[D.ndim - 3], _pairs(D)
    scores = torch.empty((n, m), dtype=torch.float32, device=Q.device)
    winners = of_winners = None
    if with_winners:
        narrow = Q.is_cuda and D.shape[-2] < WIDE_FROM
        winners = torch.empty((n, m, Q.shape[1]), device=Q.device,
                              dtype=torch.int16 if narrow else torch.int32)
        of_winners = winners.data_ptr(), winners.numel()
    sides = (_side(Q, q_mask), _side(D, d_mask))
    of_scores = scores.data_ptr(), n * m
    if not Q.is_cuda:
        room = (of_scores, of_winners, None, Q.shape[1] if with_winners else 0)
        _maxsim.score(get_num_threads(), sides, pairs, normalize, room)
        return scores, winners
    index = Q.get_device()
    call = (index, torch._C._cuda_getCurrentRawStream(index), normalize, tf32, consistent, None)
    if winners is not None and of_winners is not None:
        of_winners = of_winners[0], of_winners[1] * winners.element_size()
    results = (of_scores, of_winners, None)
    try:
        _maxsim.cuda_score(call, sides, pairs, results)
    except (_maxsim.WorkspaceError, _maxsim.DeviceMemoryError) as error:
        from .cuda import again

        again(error, _maxsim.cuda_score, call, sides, pairs, results)
    return scores, winners


def gradients(
    grad: Tensor, winners: Tensor, Q: Tensor, D: Tensor, q_mask: Tensor | None,
    d_mask: Tensor | None, normalize: bool, tf32: bool, needs_q: bool, needs_d: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of tokens that a call of this kind scored, of the sides that need one."""
    sides, pairs = (_side(Q, q_mask), _side(D, d_mask)), _pairs(D)
    of_scores, at, n = (grad.data_ptr(), grad.numel()), winners.data_ptr(), winners.numel()
    if not Q.is_cuda:
        of_q = torch.empty(Q.shape, dtype=torch.float32) if needs_q else None
        of_d = torch.empty(D.shape, dtype=torch.float32) if needs_d else None
        room = (of_scores, (at, n), Q.shape[1],
                None if of_q is None else (of_q.data_ptr(), of_q.numel()),
                None if of_d is None else (of_d.data_ptr(), of_d.numel()))
        _maxsim.backward(get_num_threads(), sides, pairs, normalize, room)
        return (None if of_q is None else of_q.to(Q.dtype),
                None if of_d is None else of_d.to(D.dtype))
    of_q = torch.empty_like(Q) if needs_q else None
    of_d = torch.empty_like(D) if needs_d else None
    index = Q.get_device()
    call = (index, torch._C._cuda_getCurrentRawStream(index), normalize, tf32, False, None)
    memory = (of_scores, (at, n * winners.element_size()),
              None if of_q is None else (of_q.data_ptr(), of_q.numel()),
              None if of_d is None else (of_d.data_ptr(), of_d.numel()))
    try:
        _maxsim.cuda_backward(call, sides, pairs, memory)
    except (_maxsim.WorkspaceError, _maxsim.DeviceMemoryError) as error:
        from .cuda import again

        again(error, _maxsim.cuda_backward, call, sides, pairs, memory)
    return of_q, of_d


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None,
        normalize: bool, tf32: bool,
    ) -> Tensor:
        scores, winners = forward(Q, D, q_mask, d_mask, normalize, tf32, False, True)
        ctx.save_for_backward(Q, D, q_mask, d_mask, winners)
        ctx.options = normalize, tf32
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        Q, D, q_mask, d_mask, winners = ctx.saved_tensors
        normalize, tf32 = ctx.options
        needs_q, needs_d = ctx.needs_input_grad[:2]
        of_q, of_d = gradients(grad.contiguous(), winners, Q, D, q_mask, d_mask, normalize, tf32,
                               needs_q, needs_d)
        return of_q, of_d, None, None, None, None


def takes(Q: Any, D: Any, q_mask: Any, d_mask: Any) -> bool:
    """Whether a call of all queries and all documents, or of each query's own, is of this kind."""
    if not (_fits(Q, q_mask) and _fits(D, d_mask) and Q.ndim == 3):
        return False
    is_cross = D.ndim == 3
    return (Q.dtype is D.dtype and Q.dtype in _ELEMENT_CODES and Q.shape[2] == D.shape[-1]
            and (is_cross or D.ndim == 4 and D.shape[0] == Q.shape[0]) and _together(Q, D))


def score(
    Q: Any, D: Any, q_mask: Any, d_mask: Any, normalize: bool, tf32: bool,
    consistent: bool = False,
) -> Tensor | None:
    """Scores ``[Nq, Nd]`` or ``[Nq, K]``; None where the call is not of this kind."""
    if not (is_plain() and takes(Q, D, q_mask, d_mask)):
        return None
    if torch.is_grad_enabled() and (Q.requires_grad or D.requires_grad):
        found: Tensor = _Score.apply(Q, D, q_mask, d_mask, normalize, tf32)
        return found
    return forward(Q, D, q_mask, d_mask, normalize, tf32, consistent, False)[0]
