"""Calls on CUDA tensors: on torch's current stream, in torch's memory."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import CROSS, NO_SCALES, PADDED, STRIDED, TENSOR_SCALE
from .._sides import Options, Pairing, Result, Side, scale_kind
from .torch import CODES, WIDE_FROM, address, host, pair_numbers

R = TypeVar("R")


def with_memory(call: Callable[[], R]) -> R:
    """Runs a call; where the device has no room, once more without what torch keeps free."""
    try:
        return call()
    except _maxsim.DeviceMemoryError:
        torch.cuda.empty_cache()
        try:
            return call()
        except _maxsim.DeviceMemoryError as error:
            raise torch.OutOfMemoryError(str(error)) from None


def call_numbers(data: Tensor, options: Options) -> tuple[int, int, bool, bool]:
    """Where a call runs, and what of it, as numbers."""
    index = data.device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    return index, stream, options.normalize, options.tf32


def _rows(data: Tensor) -> tuple[int, int]:
    """Distances of rows and of items, in elements; -1 where rows have no distance."""
    n, length, dim = data.shape
    of_item, of_row, of_element = data.stride()
    if (of_element != 1 and dim > 1) or (length > 1 and of_row < dim):
        return -1, -1
    if length <= 1:
        of_row = dim
    return of_row, of_item if n > 1 else length * of_row


def describe(side: Side, dense: bool = False) -> tuple[tuple[Any, ...], Any]:
    """A side as numbers, and what must live as long as these are used.

    ``dense``: rows are those of the tensor, one after the other (at some distance).
    """
    data, kind, stride = side.data, side.kind, 0
    if data.ndim == 3:
        n, length, dim = data.shape
        of_row, of_item = _rows(data)
        regular = of_row > 0 and of_item == length * of_row
        strided = (of_row > 0 and kind == PADDED and not dense and side.mask is None
                   and of_item >= 0 and of_item % of_row == 0 and data.numel() > 0)
        if strided and not regular:
            kind, stride = STRIDED, of_item // of_row
        elif not regular:
            data, of_row = data.contiguous(), dim
        rows = (n - 1) * stride + length if kind == STRIDED else n * length
        rows = rows if data.numel() else 0
    else:
        rows, dim = data.shape
        n, length, of_row = side.n_items, 0, data.stride(0)
        if (data.stride(1) != 1 and dim > 1) or (of_row < dim and rows > 1):
            data, of_row = data.contiguous(), dim
        of_row = max(of_row, dim)
    first, lengths = host(side.first), host(side.lengths)
    if first is not None and lengths is not None and first.dtype != lengths.dtype:
        first, lengths = first.to(torch.int64), lengths.to(torch.int64)
    wide = any(x is not None and x.dtype == torch.int64 for x in (first, lengths))
    items = (kind, n, length, rows, dim, stride if kind == STRIDED else address(first),
             address(lengths), wide)
    mask = None if side.mask is None else side.mask.contiguous()
    scales = None if side.scales is None else side.scales.contiguous()
    mins = None if side.mins is None else side.mins.contiguous()
    of_scales = NO_SCALES
    if scales is not None:
        of_scales = scale_kind(str(scales.dtype)[6:], scales.ndim, mins is not None)
        if of_scales == TENSOR_SCALE:
            scales = scales.float().cpu()
    matrix = (address(data), of_row * data.element_size(), CODES[data.dtype], address(mask),
              address(scales), of_scales, address(mins))
    return (items, matrix), (data, first, lengths, mask, scales, mins)


def winner_type(d: Side) -> torch.dtype:
    """Type of the winners that are kept: two bytes where no document can be too long for it."""
    if d.data is None:
        return torch.int32
    longest = d.data.shape[1] if d.data.ndim == 3 else d.data.shape[0]
    return torch.int16 if longest < WIDE_FROM else torch.int32


def _widened(winners: Tensor) -> Tensor:
    """Winners of two unsigned bytes as int32; all ones are none."""
    wide = winners.to(torch.int32)
    return torch.where(wide < -1, wide + 65536, wide)


def _spread(flat: Tensor, shape: tuple[int, ...], fill: float, q: Side, pairing: Pairing,
            width: int) -> Tensor:
    """Entries of pairs, one after the other, as rows of ``width``."""
    if q.kind == PADDED and q.lengths is None:
        return flat.view(*shape, width)
    if q.kind == PADDED or q.lengths is not None:
        lengths = q.lengths
    else:
        lengths = torch.diff(q.first)
    lengths = lengths.to(flat.device)
    if pairing.q_ids is not None:
        lengths = lengths[pairing.q_ids.to(flat.device).long()]
    elif pairing.kind == CROSS or len(shape) == 2:
        lengths = lengths[:, None].expand(shape)
    valid = torch.arange(width, device=flat.device) < lengths[..., None]
    rows = torch.full((*shape, width), fill, dtype=flat.dtype, device=flat.device)
    return rows.masked_scatter(valid, flat.flatten())


def dense_winners(winners: Tensor, q: Side, pairing: Pairing) -> Tensor:
    """The winners that are kept, as a user has them: int32 ``[..., Lq]``, -1 for none."""
    wide = _widened(winners) if winners.dtype == torch.int16 else winners
    shape = tuple(winners.shape[:-1])
    return _spread(wide, shape, -1, q, pairing, int(winners.shape[-1]))


def run(q: Side, d: Side, pairing: Pairing, options: Options, documents: Any = None) -> Result:
    """Enqueues scores; winners are as they are kept (see :func:`dense_winners`).

    ``documents``: residual-compressed ones in place of ``d``.
    """
    shape = pairing.shape(q, d)
    width = max(options.max_q_len, 0)
    device = q.data.device
    scores = torch.empty(shape, dtype=torch.float32, device=device)
    winners = token_scores = None
    if options.winners:
        winners = torch.empty((*shape, width), dtype=winner_type(d), device=device)
    if options.token_scores:
        token_scores = torch.zeros((*shape, width), dtype=torch.float32, device=device)
    q_numbers, kept = describe(q)
    pairs, ids = pair_numbers(pairing)
    results = (address(scores), address(winners), address(token_scores), scores.numel())
    call = call_numbers(q.data, options)
    if documents is not None:
        n_bytes = with_memory(
            lambda: _maxsim.cuda_score_plaid(call, q_numbers, documents, pairs, results))
    else:
        d_numbers, kept_d = describe(d)
        n_bytes = with_memory(
            lambda: _maxsim.cuda_score(call, (q_numbers, d_numbers), pairs, results))
        del kept_d
    del kept, ids
    if winners is not None and winners.dtype == torch.int32 and n_bytes == 2:
        # Documents are shorter than their matrix could have been.
        narrow = winners.view(-1).view(torch.int16)[:winners.numel()]
        winners = _widened(narrow).view(winners.shape)
    if token_scores is not None:
        token_scores = _spread(token_scores, shape, 0.0, q, pairing, width)
    return Result(scores, winners, token_scores)


def run_backward(
    grad: Tensor, winners: Tensor, q: Side, d: Side, pairing: Pairing, options: Options,
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Enqueues gradients of tokens, in their types; None of a side that needs none."""
    grad, winners = grad.float().contiguous(), winners.contiguous()
    found = [torch.zeros(side.data.shape, dtype=side.data.dtype, device=side.data.device)
             if grad.numel() == 0 else torch.empty(side.data.shape, dtype=side.data.dtype,
                                                   device=side.data.device)
             for side in (q, d)]
    if grad.numel() and any(x.numel() for x in found):
        q_numbers, kept_q = describe(q, dense=True)
        d_numbers, kept_d = describe(d, dense=True)
        pairs, ids = pair_numbers(pairing)
        if winners.dtype == torch.int32 and _longest(d) < WIDE_FROM:
            winners = winners.to(torch.int16)  # as the library has them
        memory = (address(grad), address(winners), address(found[0]), address(found[1]),
                  grad.numel())
        call = call_numbers(q.data, options)
        with_memory(lambda: _maxsim.cuda_backward(call, (q_numbers, d_numbers), pairs, memory))
        del kept_q, kept_d, ids
    of_q, of_d = (x if need else None for x, need in zip(found, needs))
    return of_q, of_d


def _longest(d: Side) -> int:
    """Tokens of the longest document."""
    if d.first is None:
        return int(d.data.shape[1])
    lengths = torch.diff(d.first) if d.lengths is None else d.lengths
    return int(lengths.max()) if lengths.numel() else 0

