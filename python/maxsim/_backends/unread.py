"""Lists on a device: lengths, offsets, starts and ids that no call waits for.

Documents stay where they are: the device finds their rows. Queries become padded ones with a mask,
by a copy where they are packed or named by ids; so do such documents, where gradients are wanted.
What would be an error of lists on the host is found by the device, too late for one: the scores of
such items are NaN.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import CANDIDATES, CROSS, OWN, PADDED, PAIRS, UNREAD, Options, Pairing, Result, Side
from .torch import memory, on, same_integers, some_memory


class Items(NamedTuple):
    """What the device has found of items."""

    #: First row and length of each, int32 ``[n, 2]``; None where it was not asked for.
    segments: Any
    #: 1 where an item is not within its matrix, longer than it may be, or no item: ``[n]``.
    invalid: Any
    #: 1 where an item has a row and the side's mask does not say otherwise: ``[n, width]``.
    mask: Any


def has_lists(side: Side) -> bool:
    """Whether a side has a list on a device."""
    return _any_on_device(side.first, side.lengths)


def takes(q: Side, d: Side, pairing: Pairing) -> bool:
    """Whether a call has lists on a device."""
    return has_lists(q) or has_lists(d) or _any_on_device(pairing.q_ids, pairing.d_ids)


def _any_on_device(*lists: Any) -> bool:
    return any(x is not None and x.is_cuda for x in lists)


def _list(x: Tensor | None, device: Any) -> Any:
    return None if x is None else on(x.detach(), device).contiguous()


def _find(
    call: tuple[Any, ...], side: Side, ids: Tensor | None, width: int, with_mask: bool,
    with_segments: bool,
) -> Items:
    """Finds the rows of items, of at most ``width`` each, in the order of the stream."""
    from .cuda import enqueue

    device = side.data.device
    first, lengths, ids = (_list(x, device) for x in (side.first, side.lengths, ids))
    first, lengths, wide = same_integers(first, lengths)
    stride = int(side.data.shape[1]) if side.kind == PADDED else 0
    items = (side.kind, side.n_items, width, _n_rows(side), stride,
             some_memory(first), some_memory(lengths), wide)
    n = side.n_items if ids is None else int(ids.numel())
    invalid = torch.empty(n, dtype=torch.uint8, device=device)
    segments = torch.empty((n, 2), dtype=torch.int32, device=device) if with_segments else None
    mask = torch.empty((n, width), dtype=torch.uint8, device=device) if with_mask else None
    # A mask of rows that are copied is copied with them.
    of_rows = side.mask if with_mask and not with_segments else None
    of_rows = None if of_rows is None else of_rows.contiguous()
    others = (some_memory(x) for x in (segments, mask, of_rows))
    of_ids = None if ids is None else (memory(ids), ids.dtype == torch.int64)
    enqueue(_maxsim.cuda_write_segments, call, items, of_ids, (memory(invalid), *others))
    return Items(segments, invalid, mask)


def _n_rows(side: Side) -> int:
    shape = side.data.shape
    return int(shape[0] * shape[1]) if side.kind == PADDED else int(shape[0])


def _rows_of(side: Side, items: Items) -> Tensor:
    """The rows that padded copies are of; where an item has none, any."""
    steps = torch.arange(items.mask.shape[1], device=items.mask.device)
    rows: Tensor = items.segments[:, :1].long() + steps
    return rows.clamp_max_(max(_n_rows(side) - 1, 0))


def _copies(call: Any, side: Side, ids: Tensor | None, width: int) -> tuple[Side, Items]:
    """Items as padded copies with a mask."""
    items = _find(call, side, ids, width, True, True)
    rows, n, dim = _rows_of(side, items), _n_rows(side), int(side.data.shape[-1])

    def copied(x: Tensor | None) -> Tensor | None:
        """What each row has; what all have together, as it is."""
        if x is None or x.ndim == 0:
            return x
        x = x.detach().reshape(n)
        return x[rows] if n else x.new_zeros(rows.shape)

    matrix = side.data.detach().reshape(n, dim)
    if side.scales is not None:
        # Codes are copied as bytes: there are types that no rows can be taken of.
        matrix = matrix.view(torch.uint8)
    matrix = matrix[rows] if n else matrix.new_zeros((*rows.shape, dim))
    mask, of_rows = items.mask, copied(side.mask)
    if of_rows is not None:
        mask = mask * (of_rows != 0)
    scales, mins = copied(side.scales), copied(side.mins)
    return Side(matrix.view(side.data.dtype), mask, None, None, scales, mins), items


def _added(gradient: Tensor, side: Side, items: Items) -> Tensor:
    """Gradients of copies as that of what they are copies of, the same every time."""
    found = torch.zeros(side.data.shape, dtype=torch.float32, device=side.data.device)
    if found.numel():
        matrix, rows = found.view(-1, found.shape[-1]), _rows_of(side, items).view(-1)
        matrix.index_put_((rows,), gradient.float().view(-1, found.shape[-1]), accumulate=True)
    return found.to(side.data.dtype)


def _queries(call: Any, q: Side, pairing: Pairing, options: Options) -> tuple[Side, Any]:
    """Queries as padded ones, and what was found of them."""
    if pairing.kind != PAIRS and q.kind == PADDED:
        if q.lengths is None:
            return q, None
        items = _find(call, q, None, int(q.data.shape[1]), True, False)
        return q._replace(mask=items.mask, lengths=None), items
    width = int(q.data.shape[1]) if q.kind == PADDED else options.max_q_len
    return _copies(call, q, pairing.q_ids, width)


def _pairing(pairing: Pairing) -> Pairing:
    """The pairing of items that ids have named."""
    if pairing.kind == CANDIDATES:
        return Pairing(OWN, pairing.k)
    return Pairing(OWN, 1) if pairing.kind == PAIRS else pairing


def _longest(d: Side, options: Options) -> int:
    """Rows that no document has more of."""
    rows = _n_rows(d)
    if d.kind == PADDED:
        return min(int(d.data.shape[1]), rows)
    return rows if options.max_d_len < 0 else min(options.max_d_len, rows)


def _layout(items: Items, width: int, rows: int, dim: int, named: bool) -> tuple[Any, ...]:
    """Documents whose rows the device has found, in a matrix of so many, as numbers."""
    n = int(items.invalid.shape[0])
    # Documents of which the matrix is made have so many rows; such that ids name, any number.
    planned = width if named else min(width, -(-rows // max(n, 1)))
    return (UNREAD, n, width, rows, dim, items.segments.data_ptr(), planned, False)


def _unread(d: Side, items: Items, width: int, named: bool) -> tuple[tuple[Any, ...], Any]:
    """Documents whose rows the device has found, as numbers and what must live as long."""
    from .cuda import describe

    layout = _layout(items, width, _n_rows(d), int(d.data.shape[-1]), named)
    # The rows are those of the tensor, whatever the items are.
    (_, matrix), kept = describe(d._replace(first=None, lengths=None), dense=True)
    return (layout, matrix), (kept, items)


def run(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Enqueues scores; winners are dense, as the device keeps them."""
    from . import cuda

    call, shape = cuda.call_numbers(q.data, options), pairing.shape(q, d)
    found_q, q_items = _queries(call, q, pairing, options)
    d_items = numbers = None
    if d.kind != PADDED or d.lengths is not None or pairing.d_ids is not None:
        width = _longest(d, options)
        d_items = _find(call, d, pairing.d_ids, width, False, True)
        numbers = _unread(d, d_items, width, pairing.d_ids is not None)
    options = options._replace(max_q_len=int(found_q.data.shape[1]))
    found = cuda.run(found_q, d, _pairing(pairing), options, unread=(shape, numbers))
    _show_invalid(found.scores, q_items, d_items, pairing)
    return found


def _show_invalid(scores: Tensor, q_items: Any, d_items: Any, pairing: Pairing) -> None:
    """Makes NaN of the scores of items that the host would have refused."""
    nan, are_columns = float("nan"), pairing.kind == CROSS
    if q_items is not None:
        invalid = q_items.invalid.bool()
        scores.masked_fill_(invalid[:, None] if scores.ndim == 2 else invalid, nan)
    if d_items is not None:
        invalid = d_items.invalid.bool()
        scores.masked_fill_(invalid[None] if are_columns else invalid.view(scores.shape), nan)


def listed(side: Side) -> Side:
    """Items with their lists on the device of their rows. What is not there yet is copied, which
    waits, and may then be used on any stream."""
    device = side.data.device
    first, lengths = (None if x is None else x.to(device) for x in (side.first, side.lengths))
    return side._replace(first=first, lengths=lengths)


class Documents(NamedTuple):
    """Residual-compressed documents that ids on a device may name."""

    #: Gives the rows' layout, with lists on the device, over a tensor of any width.
    items: Callable[[], Side]
    dim: int
    #: Tokens of the longest.
    longest: int
    #: What scores them, or such of them that are given as numbers, in place of :func:`cuda.run`.
    scoring: Callable[[Any], Any]


def _candidates(
    call: Any, documents: Documents, pairing: Pairing,
) -> tuple[Items | None, Any]:
    """The documents that ids name: what was found of them, and their layout as numbers."""
    if pairing.d_ids is None:
        return None, None
    items = documents.items()
    for x in (items.first, items.lengths):
        if x is not None and x.is_cuda:
            x.record_stream(torch.cuda.current_stream(x.device))
    rows, dim = _n_rows(items), documents.dim
    width = min(documents.longest, rows)
    found = _find(call, items, pairing.d_ids, width, False, True)
    return found, _layout(found, width, rows, dim, True)


def run_residuals(
    q: Side, d: Side, pairing: Pairing, options: Options, documents: Documents,
) -> Result:
    """Enqueues scores of residual-compressed documents, as :func:`run`; ``d`` says how many of
    what length there are."""
    from . import cuda

    call = cuda.call_numbers(q.data, options)
    found_q, q_items = _queries(call, q, pairing, options)
    d_items, layout = _candidates(call, documents, pairing)
    options = options._replace(max_q_len=int(found_q.data.shape[1]))
    found = cuda.run(found_q, d, _pairing(pairing), options, documents.scoring(layout),
                     unread=(pairing.shape(q, d), None))
    _show_invalid(found.scores, q_items, d_items, pairing)
    return found


def run_residuals_backward(
    q: Side, pairing: Pairing, options: Options, documents: Documents,
    enqueue: Callable[[Side, Pairing, Any], Tensor],
) -> Tensor:
    """Enqueues the queries' gradient: by ``enqueue``, of padded queries and of documents as
    numbers, where the device has found these."""
    from . import cuda

    call, found_q, q_items = cuda.call_numbers(q.data, options), Side(q.data), None
    if q.kind != PADDED:
        found_q, q_items = _queries(call, q, pairing, options)
    d_items, layout = _candidates(call, documents, pairing)
    found = enqueue(found_q, _pairing(pairing), layout)
    del d_items
    return found if q_items is None else _added(found, q, q_items)


def run_backward(
    grad: Tensor, winners: Tensor, q: Side, d: Side, pairing: Pairing, options: Options,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Enqueues gradients of tokens. A winner is within its item, so that padded items need no
    lengths here."""
    from . import cuda

    call, q_items, d_items = cuda.call_numbers(q.data, options), None, None
    found_q, found_d = Side(q.data), Side(d.data)
    if q.kind != PADDED or pairing.q_ids is not None:
        found_q, q_items = _queries(call, q, pairing, options)
    if d.kind != PADDED or pairing.d_ids is not None:
        width = _longest(d, options)
        if d.kind != PADDED and options.max_d_len < 0:
            # Copies need the length of the longest, which nobody has said: this waits.
            rows = _find(call, d, pairing.d_ids, width, False, True).segments[:, 1]
            width = int(rows.max()) if rows.numel() else 0
        found_d, d_items = _copies(call, d, pairing.d_ids, width)
    of_q, of_d = cuda.run_backward(
        grad.reshape(_pairing(pairing).shape(found_q, found_d)),
        winners.reshape(*_pairing(pairing).shape(found_q, found_d), winners.shape[-1]),
        found_q, found_d, _pairing(pairing), options, needs)
    if of_q is not None and q_items is not None:
        of_q = _added(of_q, q, q_items)
    if of_d is not None and d_items is not None:
        of_d = _added(of_d, d, d_items)
    return of_q, of_d
