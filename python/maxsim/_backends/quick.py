"""The calls that most calls are, with little around them: padded tensors without gaps, every query
against every document ``[Nd, Ld, dim]``, or against its own ``[Nq, K, Ld, dim]``. Compiled code
reads the tensors. What is not so goes the long way, where all is checked and explained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import CROSS, OWN, Options, Pairing, Side
from .._threads import get_num_threads
from .torch import is_plain, run, run_backward

#: Bits of a call's options, as the compiled half numbers them.
_NORMALIZE, _TF32, _CONSISTENT = 1, 2, 4

#: None where torch does not show its tensors to compiled code (before 2.10): all calls go the long
#: way there.
_quick = _maxsim.Quick(get_num_threads) if hasattr(Tensor, "__dlpack_c_exchange_api__") else None


def bits(normalize: bool, tf32: bool, consistent: bool) -> int:
    """Options of a call as one number."""
    return (_NORMALIZE if normalize else 0) | (_TF32 if tf32 else 0) | (
        _CONSISTENT if consistent else 0)


def as_sides(
    Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None, options: int,
) -> tuple[Side, Side, Pairing, Options]:
    """The same call as it goes the long way."""
    pairing = Pairing(CROSS)
    if D.ndim == 4:
        pairing = Pairing(OWN, D.shape[1])
        D = D.flatten(0, 1)
        d_mask = None if d_mask is None else d_mask.flatten(0, 1)
    how = Options(bool(options & _NORMALIZE), bool(options & _TF32), max_q_len=Q.shape[1],
                  consistent=bool(options & _CONSISTENT))
    return Side(Q, q_mask), Side(D, d_mask), pairing, how


def forward(
    Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None, options: int,
    with_winners: bool,
) -> tuple[Tensor, Tensor | None]:
    """Scores, and winners as the device keeps them, of a call of this kind or with gaps."""
    given = Q, D, q_mask, d_mask
    found = None if _quick is None else _quick.score(given, options, with_winners)
    if found is None:
        q, d, pairing, how = as_sides(*given, options)
        result = run(q, d, pairing, how._replace(winners=with_winners))
        return result.scores, result.winners
    return found


def gradients(
    grad: Tensor, winners: Tensor, Q: Tensor, D: Tensor, options: int, needs_q: bool,
    needs_d: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of tokens that :func:`forward` scored, of the sides that need one.

    Masks are not asked for: a masked document token has won nothing, and of a masked query token
    there is no winner.
    """
    given, needs = (Q, D, None, None), (needs_q, needs_d)
    found = None
    if _quick is not None:
        found = _quick.gradients(given, (grad.resolve_neg().contiguous(), winners), options, needs)
    if found is None:
        q, d, pairing, how = as_sides(*given, options)
        of_q, of_d = run_backward(grad, winners, q, d, pairing, how, needs)
        return of_q, None if of_d is None else of_d.view(D.shape)
    return found


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    Q, D, winners = ctx.saved_tensors
    needs = ctx.needs_input_grad
    of_q, of_d = gradients(grad, winners, Q, D, ctx.options, needs[0], needs[1])
    return of_q, of_d, None, None, None


_backward_once = torch.autograd.function.once_differentiable(_backward)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, D: Tensor, q_mask: Tensor | None, d_mask: Tensor | None,
        options: int,
    ) -> Tensor:
        scores, winners = forward(Q, D, q_mask, d_mask, options, True)
        ctx.save_for_backward(Q, D, winners)
        ctx.options = options
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # Only a graph of gradients needs what says that they have none of their own.
        back = _backward_once if torch.is_grad_enabled() else _backward
        found: tuple[Any, ...] = back(ctx, grad)
        return found


#: ``_Score.apply`` without what that does for transforms of functions, which do not come here.
_apply = super(torch.autograd.Function, _Score).apply


def score(
    Q: Any, D: Any, q_mask: Any, d_mask: Any, normalize: bool, tf32: bool,
    consistent: bool = False,
) -> Tensor | None:
    """Scores ``[Nq, Nd]`` or ``[Nq, K]``; None where the call is not of this kind."""
    options = bits(normalize, tf32, consistent)
    if torch.compiler.is_dynamo_compiling():
        from . import compiled

        return compiled.score(Q, D, q_mask, d_mask, options)
    if _quick is None or not is_plain():
        return None
    given = Q, D, q_mask, d_mask
    if torch.is_grad_enabled() and (Q.requires_grad or getattr(D, "requires_grad", False)):
        if not _quick.takes(given):
            return None
        with_grad: Tensor = _apply(*given, options)
        return with_grad
    found = _quick.score(given, options, False)
    return None if found is None else found[0]
