"""Calls on CUDA tensors: on torch's current stream, in torch's memory."""

from __future__ import annotations

from threading import Lock, Thread
from typing import Any, Callable

import torch
from torch import Tensor

from . import unread as _unread
from .. import _maxsim
from .._sides import CROSS, NO_SCALES, PADDED, STRIDED
from .._sides import Options, Pairing, Result, Side, scale_kind
from .codes import scale_words
from .torch import CODES, WIDE_FROM, address, host, memory, on, pair_numbers, same_integers
from .torch import some_memory

#: What the compiled half raises where a call needs memory.
NEEDS = (_maxsim.WorkspaceError, _maxsim.DeviceMemoryError)

#: The memory that calls on a stream work in, by device and stream.
_workspaces: dict[tuple[int, int], Tensor] = {}
_workspaces_lock = Lock()

#: Sizes of kept workspaces are multiples of this, as those of torch's allocator.
_STEP = 2 << 20


def enqueue(function: Callable[..., Any], call: tuple[Any, ...], *arguments: Any) -> Any:
    """Enqueues a call of the compiled half."""
    try:
        return function(call, *arguments)
    except NEEDS as error:
        return again(error, function, call, *arguments)


def again(
    error: Exception, function: Callable[..., Any], call: tuple[Any, ...], *arguments: Any,
) -> Any:
    """Enqueues a call that needs memory: to work in, from torch's allocator; or for lists, once
    more without what torch keeps free."""
    is_emptied, of_call = False, None
    # Other threads may give the stream less meanwhile than this needs, but not again and again.
    for _ in range(8):
        if isinstance(error, _maxsim.WorkspaceError):
            n_bytes, is_kept = error.args
            if is_kept:
                _keep_workspace(call[0], call[1], n_bytes)
            else:
                # A call that is captured has memory of its graph, which torch does not use for
                # anything that the graph does later; others, in the order of the stream.
                of_call = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{call[0]}")
                call = (*call[:-1], (of_call.data_ptr(), n_bytes))
        elif is_emptied or torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError(str(error)) from None
        else:
            torch.cuda.empty_cache()
            is_emptied = True
        try:
            return function(call, *arguments)
        except NEEDS as other:
            error = other
    raise error


def _keep_workspace(index: int, stream: int, n_bytes: int) -> None:
    """Gives a stream at least so much memory to work in, for good."""
    with _workspaces_lock:
        found = _workspaces.get((index, stream))
        if found is not None and found.numel() >= n_bytes:
            return
        room = _allocate(index, -(-n_bytes // _STEP) * _STEP)
        _maxsim.cuda_set_workspace(index, stream, room.data_ptr(), room.numel())
        _workspaces[index, stream] = room


def _allocate(index: int, n_bytes: int) -> Tensor:
    """Memory for the current stream of a device, outside the pools of this thread: those are for
    the graph that it captures next, say, and nothing that stays may be in them."""
    stream = torch.cuda.current_stream(index)
    found: list[Tensor] = []
    errors: list[Exception] = []

    def allocate() -> None:
        try:
            with torch.cuda.stream(stream):
                found.append(torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{index}"))
        except Exception as error:
            errors.append(error)

    thread = Thread(target=allocate)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def call_numbers(data: Tensor, options: Options) -> tuple[Any, ...]:
    """Where a call runs, and what of it, as numbers."""
    index = data.device.index
    stream = torch._C._cuda_getCurrentRawStream(index)
    return index, stream, options.normalize, options.tf32, options.consistent, None


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
        beside = (side.mask, side.scales, side.weights)
        strided = (of_row > 0 and kind == PADDED and not dense
                   and all(x is None for x in beside) and of_item >= 0 and of_item % of_row == 0
                   and data.numel() > 0)
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
    first, lengths, wide = same_integers(host(side.first), host(side.lengths))
    items = (kind, n, length, rows, dim, stride if kind == STRIDED else address(first),
             address(lengths), wide)
    mask, weights = (None if x is None else x.contiguous() for x in (side.mask, side.weights))
    of_scales, words = NO_SCALES, None
    if side.scales is not None:
        scales, mins = side.scales, side.mins
        of_scales = scale_kind(str(scales.dtype)[6:], scales.ndim, mins is not None)
        words = scale_words(scales, mins, rows)
    matrix = (address(data), of_row * data.element_size(), CODES[data.dtype],
              some_memory(mask), memory(words), of_scales, (0, 0), some_memory(weights))
    return (items, matrix), (data, first, lengths, mask, words, weights)


def bytes_of(winners: Tensor) -> tuple[int, int]:
    """Winners as the compiled half is given them: their address and bytes."""
    at, n = memory(winners)
    return at, n * winners.element_size()


def winner_type_of(device: str, longest: Any) -> torch.dtype:
    """Type of the winners that a kind of device keeps of documents up to a length."""
    return torch.int16 if device == "cuda" and longest < WIDE_FROM else torch.int32


def winner_type(d: Side) -> torch.dtype:
    """Type of the winners that are kept of documents."""
    return torch.int32 if d.data is None else winner_type_of("cuda", _at_most(d))


def _at_most(d: Side) -> int:
    """Tokens that no document has more of, as far as shapes say."""
    return int(d.data.shape[1] if d.data.ndim == 3 else d.data.shape[0])


def _widened(winners: Tensor, longest: int) -> Tensor:
    """Winners of two unsigned bytes as int32, of documents up to a length; all ones are none."""
    wide = winners.to(torch.int32)
    # Of shorter documents, the winners' highest bit is set of none alone, as in a signed -1.
    return wide if longest <= 1 << 15 else torch.where(wide < -1, wide + 65536, wide)


def _spread(flat: Tensor, shape: tuple[int, ...], fill: float, q: Side, pairing: Pairing,
            width: int) -> Tensor:
    """Entries of pairs, one after the other, as rows of ``width``."""
    if q.kind == PADDED and q.lengths is None:
        return flat.view(*shape, width)
    if q.kind == PADDED or q.lengths is not None:
        lengths = q.lengths
    else:
        lengths = torch.diff(q.first)
    lengths = on(lengths, flat.device)
    if pairing.q_ids is not None:
        lengths = lengths[on(pairing.q_ids, flat.device).long()]
    elif pairing.kind == CROSS or len(shape) == 2:
        lengths = lengths[:, None].expand(shape)
    valid = torch.arange(width, device=flat.device) < lengths[..., None]
    rows = torch.full((*shape, width), fill, dtype=flat.dtype, device=flat.device)
    return rows.masked_scatter(valid, flat.flatten())


def dense_winners(
    winners: Tensor, q: Side, pairing: Pairing, d: Side | None = None,
) -> Tensor:
    """The winners that are kept, as a user has them: int32 ``[..., Lq]``, -1 for none."""
    wide = winners
    if winners.dtype == torch.int16:
        longest = WIDE_FROM if d is None or d.data is None else _at_most(d)
        wide = _widened(winners, longest)
    if d is not None and _unread.takes(q, d, pairing):
        return wide
    shape = tuple(winners.shape[:-1])
    return _spread(wide, shape, -1, q, pairing, int(winners.shape[-1]))


def run(
    q: Side, d: Side, pairing: Pairing, options: Options, documents: Any = None,
    unread: Any = None,
) -> Result:
    """Enqueues scores; winners are as they are kept (see :func:`dense_winners`).

    ``documents``: what scores residual-compressed ones in place of ``d``, which says how many of
    what length there are. ``unread``: the shape of the scores, and ``d`` as numbers where the
    device has found its items.
    """
    if documents is None and unread is None and _unread.takes(q, d, pairing):
        return _unread.run(q, d, pairing, options)
    shape, d_described = (pairing.shape(q, d), None) if unread is None else unread
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
    results = (memory(scores), None if winners is None else bytes_of(winners),
               some_memory(token_scores))
    call = call_numbers(q.data, options)
    if documents is not None:
        n_bytes = enqueue(documents, call, q_numbers, pairs, results)
    else:
        d_numbers, kept_d = d_described or describe(d)
        n_bytes = enqueue(_maxsim.cuda_score, call, (q_numbers, d_numbers), pairs, results)
        del kept_d
    del kept, ids
    if winners is not None and winners.dtype == torch.int32 and n_bytes == 2:
        # Documents are shorter than their matrix could have been.
        narrow = winners.view(-1).view(torch.int16)[:winners.numel()]
        winners = _widened(narrow, WIDE_FROM).view(winners.shape)
    if token_scores is not None:
        token_scores = _spread(token_scores, shape, 0.0, q, pairing, width)
    return Result(scores, winners, token_scores)


def run_backward(
    grad: Tensor, winners: Tensor, q: Side, d: Side, pairing: Pairing, options: Options,
    needs: tuple[bool, bool], of_weights: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Enqueues gradients of tokens, in their types; None of a side that needs none.

    ``of_weights``: room for the gradient of the queries' weights, which comes with theirs.
    """
    if _unread.takes(q, d, pairing):
        return _unread.run_backward(grad, winners, q, d, pairing, options, needs)
    grad, winners = grad.float().resolve_neg().contiguous(), winners.contiguous()
    new = torch.empty if grad.numel() else torch.zeros
    of_q, of_d = (new(side.data.shape, dtype=side.data.dtype, device=side.data.device)
                  if need else None for side, need in zip((q, d), needs))
    if grad.numel() and any(x is not None and x.numel() for x in (of_q, of_d)):
        q_numbers, kept_q = describe(q, dense=True)
        d_numbers, kept_d = describe(d, dense=True)
        pairs, ids = pair_numbers(pairing)
        if winners.dtype == torch.int32 and _longest(d) < WIDE_FROM:
            winners = winners.to(torch.int16)  # as the library has them
        room = (memory(grad), bytes_of(winners), some_memory(of_q), some_memory(of_d))
        call = call_numbers(q.data, options)
        enqueue(_maxsim.cuda_backward, call, (q_numbers, d_numbers), pairs, room,
                some_memory(of_weights))
        del kept_q, kept_d, ids
    return of_q, of_d


def _longest(d: Side) -> int:
    """Tokens of the longest document."""
    if d.first is None:
        return int(d.data.shape[1])
    lengths = torch.diff(d.first) if d.lengths is None else d.lengths
    return int(lengths.max()) if lengths.numel() else 0

