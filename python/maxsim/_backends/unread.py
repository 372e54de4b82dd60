"""Lists on a device: lengths, offsets, starts and ids that no call waits for.

Documents stay where they are: the device finds their rows. Queries become padded ones with a mask,
by a copy where they are packed or named by ids; so do such documents, where gradients are wanted.
What would be an error of lists on the host is found by the device, too late for one: the scores of
such items are NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import CANDIDATES, CROSS, OWN, PADDED, PAIRS, UNREAD, Options, Pairing, Result, Side
from .torch import CODES, memory, on, same_integers, some_memory


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
    """Whether a call has lists on a device, and elements on both sides."""
    if q.scales is not None or d.scales is not None:
        return False
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
    rows = _rows_of(side, items)
    matrix = side.data.detach().reshape(-1, side.data.shape[-1])
    if matrix.shape[0] == 0:
        return Side(matrix.new_zeros((*rows.shape, matrix.shape[1])), items.mask), items
    mask = items.mask
    if side.mask is not None:
        mask = mask * (side.mask.reshape(-1)[rows] != 0)
    return Side(matrix[rows], mask), items


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
        return Side(q.data, items.mask), items
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


def _unread(d: Side, items: Items, width: int, named: bool) -> tuple[tuple[Any, ...], Any]:
    """Documents whose rows the device has found, as numbers and what must live as long."""
    n, rows, dim = int(items.invalid.shape[0]), _n_rows(d), int(d.data.shape[-1])
    # Documents of which the matrix is made have so many rows; such that ids name, any number.
    planned = width if named else min(width, -(-rows // max(n, 1)))
    mask = None if d.mask is None else d.mask.contiguous()
    numbers = ((UNREAD, n, width, rows, dim, items.segments.data_ptr(), planned, False),
               (d.data.data_ptr(), dim * d.data.element_size(), CODES[d.data.dtype],
                some_memory(mask), (0, 0), 0, (0, 0)))
    return numbers, (mask, items)


def run(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Enqueues scores; winners are dense, as the device keeps them."""
    from . import cuda

    call, shape = cuda.call_numbers(q.data, options), pairing.shape(q, d)
    found_q, q_items = _queries(call, q, pairing, options)
    d = d._replace(data=d.data.contiguous())
    d_items = numbers = None
    if d.kind != PADDED or d.lengths is not None or pairing.d_ids is not None:
        width = _longest(d, options)
        d_items = _find(call, d, pairing.d_ids, width, False, True)
        numbers = _unread(d, d_items, width, pairing.d_ids is not None)
    options = options._replace(max_q_len=int(found_q.data.shape[1]))
    found = cuda.run(found_q, d, _pairing(pairing), options, unread=(shape, numbers))
    nan, are_columns = float("nan"), pairing.kind == CROSS
    if q_items is not None:
        invalid = q_items.invalid.bool()
        found.scores.masked_fill_(invalid[:, None] if len(shape) == 2 else invalid, nan)
    if d_items is not None:
        invalid = d_items.invalid.bool()
        found.scores.masked_fill_(invalid[None] if are_columns else invalid.view(shape), nan)
    return found


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
