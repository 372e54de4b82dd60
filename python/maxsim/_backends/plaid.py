"""Scores of residual-compressed documents for torch's queries, with gradients of these."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from . import torch as _torch
from . import unread as _unread
from .. import _maxsim
from .._sides import NO_SCALES, Options, Pairing, Result, Side
from .._threads import get_num_threads
from .torch import describe, memory, pair_numbers, query_len, shown, some_memory


def _run(index: Any, n: int, q: Side, pairing: Pairing, options: Options) -> Result:
    shape = (q.n_items, n) if pairing.d_ids is None else pairing.shape(q, q)
    if q.data.device.type == "cuda":
        from . import cuda as _cuda

        # A side that stands for the documents' number and length alone.
        stand_in = Side(torch.empty((n, index.max_len(), 0)))
        if _unread.takes(q, stand_in, pairing):
            return _unread.run_residuals(q, stand_in, pairing, options, _documents(index, q))
        return _cuda.run(q, stand_in, pairing, options, _scoring(index, q))
    width = options.max_q_len
    scores = torch.empty(shape, dtype=torch.float32)
    winners = torch.empty((*shape, width), dtype=torch.int32) if options.winners else None
    tokens = torch.empty((*shape, width), dtype=torch.float32) if options.token_scores else None
    (numbers, kept), (pairs, ids) = describe(q), pair_numbers(pairing)
    room = (memory(scores), some_memory(winners), some_memory(tokens), width)
    index.score(get_num_threads(), numbers, pairs, room)
    del kept, ids
    return Result(scores, winners, tokens)


def _scoring(index: Any, q: Side, layout: Any = None) -> Any:
    """What enqueues scores of an index, wherever it is, on the queries' GPU; or of items of its
    rows that the device has found, as numbers."""
    if isinstance(index, _maxsim.Plaid):
        items = _some_items(layout)
        return lambda call, queries, pairs, results: _maxsim.cuda_score_plaid(
            call, queries, index, items, pairs, results)
    numbers = index.numbers(index.tables(q.data.dtype), layout)
    return lambda call, queries, pairs, results: _maxsim.cuda_score_residuals(
        call, queries, numbers, pairs, results)


def _some_items(layout: Any) -> Any:
    """A side of a layout alone."""
    return None if layout is None else (layout, (0, 0, 0, None, (0, 0), NO_SCALES, (0, 0), None))


#: Where the documents of an index in host memory are, on GPUs that these were copied to.
_listed: WeakKeyDictionary[_maxsim.Plaid, dict[torch.device, Side]] = WeakKeyDictionary()


def _items(index: _maxsim.Plaid, device: torch.device) -> Side:
    """The rows of each document of an index in host memory, in lists on a GPU."""
    kept = _listed.setdefault(index, {})
    if device not in kept:
        rows, n, *_ = index.sizes()
        segments = torch.empty((n, 2), dtype=torch.int32)
        index.segments(memory(segments))
        first, lengths = (x.contiguous() for x in segments.T)
        side = Side(torch.empty((rows, 0), device=device), None, first, lengths)
        kept[device] = _unread.listed(side)
    return kept[device]


def _documents(index: Any, q: Side) -> _unread.Documents:
    """An index as candidates are found in it."""
    def items() -> Side:
        is_on_host = isinstance(index, _maxsim.Plaid)
        return _items(index, q.data.device) if is_on_host else index.listed()

    return _unread.Documents(items, index.sizes()[2], index.max_len(),
                             lambda layout: _scoring(index, q, layout))


def _gradient_on_gpu(
    index: Any, grad: Tensor, winners: Tensor, q: Side, pairing: Pairing,
) -> Tensor:
    """Enqueues the queries' gradient; it is float32."""
    if not _unread.takes(q, Side(None), pairing):
        return _gradient_of(index, grad, winners, q, pairing)
    options = Options(max_q_len=int(winners.shape[-1]))
    return _unread.run_residuals_backward(
        q, pairing, options, _documents(index, q),
        lambda q, pairing, layout: _gradient_of(index, grad, winners, q, pairing, layout))


def _gradient_of(
    index: Any, grad: Tensor, winners: Tensor, q: Side, pairing: Pairing, layout: Any = None,
) -> Tensor:
    """Enqueues the queries' gradient; it is float32."""
    from . import cuda as _cuda

    found = torch.zeros(q.data.shape, dtype=torch.float32, device=q.data.device)
    if grad.numel() == 0 or found.numel() == 0:
        return found
    numbers, kept = _cuda.describe(q, dense=True)
    pairs, ids = pair_numbers(pairing)
    room = (memory(grad), _cuda.bytes_of(winners.contiguous()), memory(found))
    call = _cuda.call_numbers(q.data, Options())
    if isinstance(index, _maxsim.Plaid):
        items = _some_items(layout)
        _cuda.enqueue(_maxsim.cuda_backward_plaid, call, numbers, index, items, pairs, room)
    else:
        documents = index.numbers(index.tables(q.data.dtype), layout)
        _cuda.enqueue(_maxsim.cuda_backward_residuals, call, numbers, documents, pairs, room)
    del kept, ids
    return found


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, data: Tensor, index: Any, n: int, q: Side, pairing: Pairing, options: Options,
    ) -> tuple[Tensor | None, ...]:
        found = _run(index, n, q._replace(data=data), pairing, options._replace(winners=True))
        ctx.save_for_backward(data, found.winners)
        ctx.call = index, q._replace(data=None), pairing
        ctx.mark_non_differentiable(*(x for x in found[1:] if x is not None))
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 6
        data, winners = ctx.saved_tensors
        index, q, pairing = ctx.call
        grad = grad.float().resolve_neg().contiguous()
        if data.device.type != "cpu":
            on_gpu = _gradient_on_gpu(index, grad, winners, q._replace(data=data), pairing)
            return (on_gpu.to(data.dtype), None, None, None, None, None)
        found = torch.empty(data.shape, dtype=torch.float32)
        numbers, kept = describe(q._replace(data=data), dense=True)
        pairs, ids = pair_numbers(pairing)
        room = (memory(grad), memory(winners), winners.shape[-1], memory(found), None)
        index.backward(get_num_threads(), numbers, pairs, room)
        del kept, ids
        return (found.to(data.dtype), None, None, None, None, None)


def score(index: Any, n: int, q: Side, pairing: Pairing, options: Options) -> Result:
    """Scores residual-compressed documents, with gradients of queries where these are wanted."""
    needs_grad = torch.is_grad_enabled() and q.data.requires_grad
    wants = needs_grad or options.winners or options.token_scores
    wants = wants or q.data.is_cuda and _unread.takes(q, Side(None), pairing)
    options = options._replace(max_q_len=query_len(q) if wants else 0)
    if needs_grad:
        found = Result(*_Score.apply(
            q.data, index, n, q, pairing, options))
    else:
        found = _run(index, n, q, pairing, options)
    return shown(found, q, pairing, options, Side(None))


def rank(index: Any, scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks scores of all documents."""
    if not isinstance(index, _maxsim.Plaid):
        return _torch.ranked(scores.detach(), _torch.has_tokens(index.items), k)
    has = torch.empty(scores.shape[1], dtype=torch.uint8)
    index.has_tokens(memory(has))
    return _torch.ranked(scores.detach(), _torch.on(has, scores.device).bool(), k)
