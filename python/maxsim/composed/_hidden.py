"""MaxSim of documents that are given as hidden states, and projected while they are scored.

The library scores them some at a time, with its own gradients: on a CUDA device of the rows that
the winners of the scores are, in memory of torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .. import _maxsim
from .._backends.torch import memory, pair_numbers, some_memory
from .._sides import CROSS, OWN, Pairing, Result, Side
from . import _calls, _native, _projection
from ._native import described, room, there, waited
from ._projection import head_of

#: Where rows of hidden states and weights begin, on a CUDA device: at multiples of so many bytes.
ALIGN_BYTES = 16


class Asked(NamedTuple):
    """What a call is of, beside its tensors."""

    pairing: Pairing
    normalize: bool
    consistent: bool
    winners: bool


def _is_aligned(rows: Tensor) -> bool:
    """Whether a CUDA device can project rows, which have no gaps."""
    row_bytes = rows.shape[-1] * rows.element_size()
    return rows.data_ptr() % ALIGN_BYTES == 0 and row_bytes % ALIGN_BYTES == 0


def takes(queries: Tensor, hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> bool:
    """Whether the library may take these."""
    if not _projection.takes(hidden, weight, bias, queries):
        return False
    contiguous = hidden.is_contiguous() and weight.is_contiguous()
    return not hidden.is_cuda or contiguous and _is_aligned(hidden) and _is_aligned(weight)


def _scores(q: Side, d: Side, layer: Any, asked: Asked, with_winners: bool) -> Result:
    """Scores, and winners where they are asked for, without gradients."""
    like, shape = q.data, asked.pairing.shape(q, d)
    found = room(shape, torch.float32, like)
    winners = room((*shape, like.shape[1]), torch.int32, like) if with_winners else None
    (sides, kept), (head, kept_head) = described(q, d), head_of(layer, asked.normalize)
    results = memory(found), some_memory(winners), None, like.shape[1]
    pairs = pair_numbers(asked.pairing)[0]
    waited(_maxsim.score_projected, like, sides, head, pairs, asked.consistent, results)
    del kept, kept_head
    return Result(there(found, like), there(winners, like))


class _Scored(torch.autograd.Function):
    """Scores and winners, with gradients of queries, hidden states, weight and bias."""

    @staticmethod
    def forward(ctx, queries, hidden, weight, bias, q, d, asked):  # type: ignore[no-untyped-def]
        q, d = q._replace(data=queries), d._replace(data=hidden)
        projected = None
        if hidden.is_cuda:
            found, winners, _ = _scores(q, d, (weight, bias), asked, True)
        else:
            shape, width = asked.pairing.shape(q, d), queries.shape[1]
            found = room(shape, torch.float32, queries)
            winners = room((*shape, width), torch.int32, queries) if asked.winners else None
            (sides, kept), (head, kept_head) = described(q, d), head_of((weight, bias),
                                                                        asked.normalize)
            pairs = pair_numbers(asked.pairing)[0]
            projected = waited(_maxsim.Projected, queries, sides, head, pairs)
            projected.read((memory(found), some_memory(winners), None, width))
            del kept, kept_head
        ctx.save_for_backward(queries, hidden, weight, bias, winners)
        ctx.of = q._replace(data=None), d._replace(data=None), asked, projected
        if winners is not None:
            ctx.mark_non_differentiable(winners)
        ctx.set_materialize_grads(False)
        return found, winners

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):  # type: ignore[no-untyped-def]
        if grad is None:
            return (None,) * 7
        *given, winners = ctx.saved_tensors
        q, d, asked, projected = ctx.of
        grad, needs = grad.float().resolve_neg().contiguous(), ctx.needs_input_grad[:4]
        if projected is None:
            found = _gradients_there(grad, winners, given, (q, d), asked, needs)
        else:
            queries, hidden, weight, bias = given
            sides, kept = described(q._replace(data=queries), d._replace(data=hidden))
            head, kept_head = head_of((weight, bias), asked.normalize)
            to: list[Any] = [None if x is None else torch.empty(x.shape) for x in given]
            results = memory(to[0]), (memory(to[1]), memory(to[2]), some_memory(to[3]))
            waited(projected.backward, queries, sides, head, memory(grad), results)
            del kept, kept_head
            found = [x.to(of.dtype) if need else None for x, of, need in zip(to, given, needs)]
        return (*found, None, None, None)


def _gradients_there(
    grad: Tensor, winners: Tensor, given: Any, of: Tuple[Side, Side], asked: Asked,
    needs: Tuple[bool, ...],
) -> list[Any]:
    """Gradients on a CUDA device, in the types of what they are of."""
    queries, hidden, weight, bias = given
    sides, kept = described(of[0]._replace(data=queries), of[1]._replace(data=hidden))
    head, kept_head = head_of((weight, bias), asked.normalize)
    # That of hidden states is large, and often not wanted.
    left_out = (False, not needs[1], False, bias is None)
    to: list[Any] = [None if out else torch.empty(x.shape, dtype=x.dtype, device=x.device)
                     for x, out in zip(given, left_out)]
    winners = winners.contiguous()
    numbers = tuple(None if x is None else x.data_ptr() for x in to)
    waited(_maxsim.projected_gradients, queries, sides, head, pair_numbers(asked.pairing)[0],
           (winners.data_ptr(), grad.data_ptr()), numbers)
    del kept, kept_head
    return [x if need else None for x, need in zip(to, needs)]


def _native_scores(
    queries: Tensor, hidden: Tensor, layer: Tuple[Tensor, Optional[Tensor]],
    masks: Tuple[Optional[Tensor], Optional[Tensor]], asked: Asked,
) -> Any:
    if hidden.dim() == 4:
        masks = masks[0], None if masks[1] is None else masks[1].flatten(0, 1)
        asked = asked._replace(pairing=Pairing(OWN, hidden.shape[1]))
        hidden = hidden.flatten(0, 1)
    given = [None if x is None else x.resolve_neg() for x in (queries, hidden, *layer)]
    q, d = Side(given[0], masks[0]), Side(given[1], masks[1])
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        found, winners = _Scored.apply(*given, q._replace(data=None), d._replace(data=None), asked)
    else:
        found, winners, _ = _scores(q, d, given[2:], asked, asked.winners)
    return (found, winners) if asked.winners else found


def from_hidden(
    queries: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    normalize: bool = True,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    q_lengths: Optional[Tensor] = None,
    d_lengths: Optional[Tensor] = None,
    winners: bool = False,
    consistent: bool = False,
) -> Any:
    """MaxSim of `queries` against documents that are projected on the way.

    `hidden` is `[Nd, Ld, d_model]` or `[Nq, K, Ld, d_model]`; the rest is as in `project`, whose
    rows are rounded to the element type of `queries`. `normalize` is about the documents: queries
    are taken as they are. Masks, lengths and the last two options are those of `maxsim.maxsim`.
    Returns `[Nq, Nd]` or `[Nq, K]` f32, differentiable in queries, hidden, weight and bias; with
    `winners` also their int32 `[Nq, N, Lq]`, -1 for none.

    f16, bf16 and f32, all tensors of one type, are the library's own on the CPU and on CUDA
    devices, where the host waits for scores and for gradients: documents are projected and scored
    some at a time, and their tokens are never there all at once. Gradients on a CUDA device are of
    the rows that some query token chose, which are projected again. f64, other devices, several
    types, rows that do not begin at multiples of 16 bytes on a CUDA device, and what is traced,
    captured or refused by a device is composed of `project` and `maxsim.maxsim`.

    Raises ValueError for shapes or devices that disagree, TypeError for other element types.
    """
    _projection.check(hidden, weight, bias)
    if takes(queries, hidden, weight, bias):
        # A view in the shape of the tokens.
        _calls.check_dense(queries, hidden[..., :1].expand(*hidden.shape[:-1], weight.shape[0]))
        masks = (_calls.valid(q_mask, q_lengths, queries.shape[:-1], "q"),
                 _calls.valid(d_mask, d_lengths, hidden.shape[:-1], "d"))
        asked = Asked(Pairing(CROSS), normalize, consistent, winners)
        with _native.unless_refused():
            return _native_scores(queries, hidden, (weight, bias), masks, asked)
    documents = _projection.project(hidden, weight, bias, normalize=normalize,
                                    dtype=queries.dtype)
    return _calls.dense(
        queries, documents, q_mask=q_mask, d_mask=d_mask, q_lengths=q_lengths,
        d_lengths=d_lengths, winners=winners, consistent=consistent,
    )
