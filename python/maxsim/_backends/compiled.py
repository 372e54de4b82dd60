"""Plain padded calls inside ``torch.compile``: operators of few arguments, and the function of
autograd that compilers trace. What a compiled function spends on an operator in Python grows with
its arguments, and an operator with a formula of autograd is entered twice."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from . import quick
from .cuda import winner_type_of
from .ops import NAMESPACE
from .torch import ELEMENTS

_TOKENS = "Tensor Q, Tensor D, Tensor? q_mask, Tensor? d_mask, int options"

_library: Any = cast(Any, torch.library).Library(NAMESPACE, "FRAGMENT")
for _schema in (
    f"padded_scores({_TOKENS}) -> Tensor",
    f"padded_scores_and_winners({_TOKENS}) -> (Tensor, Tensor)",
    "padded_gradients(Tensor grad, Tensor winners, Tensor Q, Tensor D, int options, bool needs_q,"
    " bool needs_d) -> Tensor[]",
):
    _library.define(_schema, tags=torch.Tag.pt2_compliant_tag)


def _scores(
    Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None, options: int,
) -> Tensor:
    return quick.forward(Q, D, q_mask, d_mask, options, False)[0]


def _scores_and_winners(
    Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None, options: int,
) -> tuple[Tensor, Tensor]:
    scores, winners = quick.forward(Q, D, q_mask, d_mask, options, True)
    assert winners is not None
    return scores, winners


def _gradients(*args: Any) -> list[Tensor]:
    return [x for x in quick.gradients(*args) if x is not None]


def _scores_fake(Q: Tensor, D: Tensor, *_: Any) -> Tensor:
    return Q.new_empty((Q.shape[0], D.shape[D.ndim - 3]), dtype=torch.float32)


def _scores_and_winners_fake(Q: Tensor, D: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    scores = _scores_fake(Q, D)
    winners = Q.new_empty((*scores.shape, Q.shape[1]),
                          dtype=winner_type_of(Q.device.type, D.shape[-2]))
    return scores, winners


def _gradients_fake(grad: Tensor, winners: Tensor, *args: Any) -> list[Tensor]:
    sides = (x for x, need in zip(args[:2], args[-2:]) if need)
    return [x.new_empty(x.shape) for x in sides]


for _name, _real, _fake in (
    ("padded_scores", _scores, _scores_fake),
    ("padded_scores_and_winners", _scores_and_winners, _scores_and_winners_fake),
    ("padded_gradients", _gradients, _gradients_fake),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _real, _key)
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)

_ops: Any = getattr(torch.ops, NAMESPACE)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None,
        options: int, needs_q: bool, needs_d: bool,
    ) -> Tensor:
        scores, winners = _ops.padded_scores_and_winners(Q, D, q_mask, d_mask, options)
        ctx.save_for_backward(Q, D, winners)
        ctx.rest = options, needs_q, needs_d
        return cast(Tensor, scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        Q, D, winners = ctx.saved_tensors
        options, needs_q, needs_d = ctx.rest
        found = _ops.padded_gradients(grad, winners, Q, D, options, needs_q, needs_d)
        return (found[0] if needs_q else None, found[-1] if needs_d else None,
                None, None, None, None, None)


_MASKS = (torch.bool, torch.uint8)


def _fits(x: Any, mask: Any) -> bool:
    """Whether tokens and their mask lie without gaps, where and as they must."""
    if type(x) not in (Tensor, torch.nn.Parameter) or not x.is_contiguous() or not x.numel():
        return False
    if mask is None:
        return True
    return (type(mask) is Tensor and mask.dtype in _MASKS and mask.shape == x.shape[:-1]
            and mask.is_contiguous() and mask.device == x.device)


def score(Q: Any, D: Any, q_mask: Any, d_mask: Any, options: int) -> Tensor | None:
    """Scores of a plain padded call; None where a call is not of this kind."""
    if not (_fits(Q, q_mask) and _fits(D, d_mask) and Q.ndim == 3 and D.ndim in (3, 4)):
        return None
    if not (Q.dtype == D.dtype and Q.dtype in ELEMENTS and Q.device == D.device
            and Q.device.type in ("cpu", "cuda") and Q.shape[2] == D.shape[-1]
            and (D.ndim == 3 or D.shape[0] == Q.shape[0])):
        return None
    if torch.is_grad_enabled() and (Q.requires_grad or D.requires_grad):
        if Q is D or q_mask is not None and q_mask is d_mask:
            return None  # compilers do not trace a function of the same tensor twice
        with_grad: Tensor = _Score.apply(
            Q, D, q_mask, d_mask, options, Q.requires_grad, D.requires_grad)
        return with_grad
    return cast(Tensor, _ops.padded_scores(Q, D, q_mask, d_mask, options))
