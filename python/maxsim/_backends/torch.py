"""Calls on torch tensors: around the dispatcher where nothing traces, else as operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import (
    AFFINE_SCALES, F16_SCALES, FORMATS, NO_SCALES, PADDED, STRIDED, TENSOR_SCALE, Options,
    Pairing, Result, Side, scale_kind,
)
from .._threads import get_num_threads

#: Numbers of the element types that there are.
CODES = {getattr(torch, name): n for name, n in FORMATS.items() if hasattr(torch, name)}
ELEMENTS = (torch.float32, torch.float16, torch.bfloat16)
#: Documents below so many tokens have winners of two bytes on a GPU.
WIDE_FROM = _maxsim.WIDE_FROM


def tokens(x: Tensor, name: str) -> Tensor:
    """A tensor of tokens, of an element type that there is."""
    if x.dtype not in ELEMENTS:
        raise TypeError(f"{name}: expected float32, float16 or bfloat16, found {x.dtype}")
    return x.resolve_neg()  # memory of imaginary parts may hold what their signs are turned of


def mask(x: Any, name: str) -> Any:
    """A mask as bytes."""
    x = _tensor(x)
    if x.dtype not in (torch.bool, torch.uint8):
        x = x != 0
    return x


def indices(x: Any, name: str) -> Any:
    """Offsets, starts, lengths or ids as int32 or int64."""
    x = _tensor(x)
    if x.dtype not in (torch.int32, torch.int64):
        if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool:
            if x.numel():
                raise TypeError(f"{name}: expected integers, found {x.dtype}")
        x = x.to(torch.int64)
    return x


def _tensor(x: Any) -> Any:
    return x if isinstance(x, Tensor) else torch.as_tensor(x)


def as_elements(data: Tensor, like: Tensor) -> Tensor:
    """``data`` in the element type of ``like``."""
    return data.to(like.dtype)


def concatenate(items: Any) -> Tensor:
    """Rows of items, one after the other."""
    return torch.cat(list(items))


def offsets(lengths: list[int], like: Tensor) -> Tensor:
    """Where items of these lengths begin and end."""
    total = [0]
    for length in lengths:
        total.append(total[-1] + length)
    return torch.tensor(total, dtype=torch.int64)


def check_devices(q: Side, d: Side, pairing: Pairing) -> None:
    """Checks that all tensors are where the queries are; lists may be on the CPU."""
    device = q.data.device
    for name, x in (("D", d.data), ("q_mask", q.mask), ("d_mask", d.mask),
                    ("D scales", d.scales), ("Q scales", q.scales)):
        if x is not None and x.device != device:
            raise ValueError(f"{name}: expected a tensor on {device} like Q, found {x.device}")
    if device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"Q: expected a tensor on the CPU or a CUDA device, found {device}")


def address(x: Tensor | None) -> int:
    """Where a tensor's numbers are; 0 of none."""
    return 0 if x is None or x.numel() == 0 else x.data_ptr()


def memory(x: Tensor | None) -> tuple[int, int]:
    """Where a tensor's numbers are, and how many."""
    return (0, 0) if x is None or x.numel() == 0 else (x.data_ptr(), x.numel())


def item_stride(data: Tensor) -> int:
    """Rows from one item to the next, of items whose rows lie one after the other; 0 also where
    all items are one; -1 where rows lie otherwise."""
    n, length, dim = data.shape
    of_item, of_row, of_element = data.stride()
    if (of_element != 1 and dim > 1) or (of_row != dim and length > 1):
        return -1
    if n <= 1:
        return int(length)
    return of_item // dim if of_item >= 0 and of_item % dim == 0 else -1


def describe(side: Side, dense: bool = False) -> tuple[tuple[Any, ...], Any]:
    """A side in host memory as numbers, and what must live as long as these are used.

    ``dense``: rows are those of the tensor, one after the other.
    """
    data, kind = side.data, side.kind
    first, lengths, wide = same_integers(host(side.first), host(side.lengths))
    stride = 0
    beside = side.mask is not None or side.weights is not None
    if kind == PADDED and not dense and not beside and not data.is_contiguous():
        stride = item_stride(data)
        kind = PADDED if stride < 0 else STRIDED
    if kind != STRIDED:
        data = data.contiguous()
    n, dim = side.n_items, data.shape[-1]
    length = data.shape[1] if data.ndim == 3 else 0
    rows = data.shape[0] * length if data.ndim == 3 else data.shape[0]
    if kind == STRIDED:
        rows = 0 if data.numel() == 0 else (n - 1) * stride + length
    items = (kind, n, length, rows, dim, stride if kind == STRIDED else address(first),
             address(lengths), wide)
    mask_rows, scales, mins, weights = (
        None if x is None else x.contiguous()
        for x in (side.mask, side.scales, side.mins, side.weights)
    )
    of_scales = NO_SCALES
    if scales is not None:
        of_scales = scale_kind(str(scales.dtype)[6:], scales.ndim, mins is not None)
    matrix = (address(data), dim * data.element_size(), CODES[data.dtype],
              some_memory(mask_rows), memory(scales), of_scales, memory(mins),
              some_memory(weights))
    return (items, matrix), (data, first, lengths, mask_rows, scales, mins, weights)


def some_memory(x: Tensor | None) -> tuple[int, int] | None:
    """As :func:`memory`; None where there is no tensor."""
    return None if x is None else memory(x)


def same_integers(
    first: Tensor | None, lengths: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Two lists in one type, and whether that has 64 bits."""
    if first is not None and lengths is not None and first.dtype != lengths.dtype:
        first, lengths = first.to(torch.int64), lengths.to(torch.int64)
    wide = any(x is not None and x.dtype == torch.int64 for x in (first, lengths))
    return first, lengths, wide


def on(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. A copy from host memory is one that nothing waits for: from
    page-locked memory, in the order of the stream."""
    if x.device == device:
        return x
    if device.type == "cuda" and x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def host(x: Tensor | None) -> Tensor | None:
    """A list in host memory, without gaps; one on a device is copied, which waits for it."""
    return None if x is None else x.detach().cpu().contiguous()


def pair_numbers(pairing: Pairing) -> tuple[tuple[Any, ...], Any]:
    """A pairing as numbers, and what must live as long as these are used."""
    if pairing.d_ids is None:
        return (pairing.kind, pairing.k, 0, 0, 0, False), None
    q_ids, d_ids = host(pairing.q_ids), host(pairing.d_ids)
    assert d_ids is not None
    if q_ids is not None and q_ids.dtype != d_ids.dtype:
        q_ids, d_ids = q_ids.to(torch.int64), d_ids.to(torch.int64)
    numbers = (pairing.kind, pairing.k, d_ids.numel(), address(q_ids), address(d_ids),
               d_ids.dtype == torch.int64)
    return numbers, (q_ids, d_ids)


def query_len(side: Side) -> int:
    """Tokens of the longest item."""
    if side.kind == PADDED:
        return int(side.data.shape[1])
    lengths = torch.diff(side.first) if side.lengths is None else side.lengths
    return int(lengths.max()) if lengths.numel() else 0


def run(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Scores tensors that have been checked, without gradients."""
    if q.data.device.type == "cuda":
        from . import cuda as _cuda

        return _cuda.run(q, d, pairing, options)
    shape = pairing.shape(q, d)
    width = options.max_q_len
    scores = torch.empty(shape, dtype=torch.float32)
    winners = token_scores = None
    if options.winners:
        winners = torch.empty((*shape, width), dtype=torch.int32)
    if options.token_scores:
        token_scores = torch.empty((*shape, width), dtype=torch.float32)
    q_numbers, q_kept = describe(q)
    d_numbers, d_kept = describe(d)
    pairs, ids_kept = pair_numbers(pairing)
    room = (memory(scores), some_memory(winners), some_memory(token_scores), width)
    _maxsim.score(get_num_threads(), (q_numbers, d_numbers), pairs, options.normalize, room)
    del q_kept, d_kept, ids_kept
    return Result(scores, winners, token_scores)


def run_backward(
    grad: Tensor, winners: Tensor, q: Side, d: Side, pairing: Pairing, options: Options,
    needs: tuple[bool, bool], of_weights: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of tokens, in their types; None of a side that needs none.

    ``of_weights``: room for the gradient of the queries' weights, which comes with theirs.
    """
    if q.data.device.type == "cuda":
        from . import cuda as _cuda

        return _cuda.run_backward(grad, winners, q, d, pairing, options, needs, of_weights)
    grad, winners = grad.float().resolve_neg().contiguous(), winners.contiguous()
    found = [torch.empty(side.data.shape, dtype=torch.float32) if need else None
             for side, need in zip((q, d), needs)]
    q_numbers, q_kept = describe(q, dense=True)
    d_numbers, d_kept = describe(d, dense=True)
    pairs, ids_kept = pair_numbers(pairing)
    width = winners.shape[-1]
    room = (memory(grad), memory(winners), width, *(some_memory(x) for x in found))
    _maxsim.backward(get_num_threads(), (q_numbers, d_numbers), pairs, options.normalize, room,
                     some_memory(of_weights))
    del q_kept, d_kept, ids_kept
    of_q, of_d = (None if x is None else x.to(side.data.dtype) for x, side in zip(found, (q, d)))
    return of_q, of_d


class _Score(torch.autograd.Function):
    """Scores with gradients, around the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, q_data: Tensor, d_data: Tensor, weights: Tensor | None, q: Side, d: Side,
        pairing: Pairing, options: Options,
    ) -> tuple[Tensor | None, ...]:
        q, d = q._replace(data=q_data, weights=weights), d._replace(data=d_data)
        found = run(q, d, pairing, options._replace(winners=True))
        ctx.save_for_backward(q_data, d_data, weights, found.winners)
        # A masked token has won nothing, so gradients do not need masks.
        q, d = (side._replace(data=None, mask=None, weights=None) for side in (q, d))
        ctx.call = q, d, pairing, options
        others = [x for x in (found.winners, found.token_scores) if x is not None]
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * 7
        q_data, d_data, weights, winners = ctx.saved_tensors
        q, d, pairing, options = ctx.call
        q, d = q._replace(data=q_data, weights=weights), d._replace(data=d_data)
        needs_q, needs_d, needs_weights = ctx.needs_input_grad[:3]
        of_weights = torch.zeros_like(weights) if needs_weights else None
        # The gradient of weights comes with that of queries.
        of_q, of_d = run_backward(
            grad, winners, q, d, pairing, options, (needs_q or needs_weights, needs_d), of_weights)
        return of_q if needs_q else None, of_d, of_weights, None, None, None, None


def is_plain(*tensors: Tensor) -> bool:
    """Whether nothing traces or intercepts: no compile, no modes, no transforms, no subclass."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)


def shown(
    found: Result, q: Side, pairing: Pairing, options: Options, d: Side | None = None,
) -> Result:
    """What a user gets of a call's results: winners as int32, where they were asked for."""
    if not options.winners:
        return found._replace(winners=None)
    if q.data.device.type == "cuda":
        from . import cuda as _cuda

        return found._replace(winners=_cuda.dense_winners(found.winners, q, pairing, d))
    return found


def score(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Scores tensors that have been checked, with gradients where these are wanted."""
    check_devices(q, d, pairing)
    sides = [x for x in (q.data, d.data, q.weights) if x is not None]
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in sides)
    if needs_grad and (q.scales is not None or d.scales is not None):
        raise ValueError("Q: compressed tokens have no gradients; detach the queries or give D as"
                         " float32, float16 or bfloat16")
    q, options = with_width(q, d, pairing, options, needs_grad)
    if not is_plain(q.data, d.data) or q.data.device.type == "meta":
        from . import ops as _ops

        return _ops.score(q, d, pairing, options, needs_grad)
    if needs_grad:
        found = Result(*_Score.apply(q.data, d.data, q.weights, q, d, pairing, options))
    else:
        found = run(q, d, pairing, options)
    return shown(found, q, pairing, options, d)


def with_width(
    q: Side, d: Side, pairing: Pairing, options: Options, needs_grad: bool,
) -> tuple[Side, Options]:
    """Queries, and options with the length of the longest, where a call needs that."""
    wants_width = needs_grad or options.winners or options.token_scores
    if q.data.is_cuda:
        from .unread import has_lists, takes

        if options.max_q_len < 0 and q.kind != PADDED and has_lists(q):
            # Nobody has said it: the lists come to the host once, which waits.
            q = q._replace(first=host(q.first), lengths=host(q.lengths))
        wants_width = wants_width or takes(q, d, pairing)
    if q.kind == PADDED:
        # Whatever a caller has said: results have the queries' own axis.
        options = options._replace(max_q_len=q.data.shape[1])
    elif options.max_q_len < 0:
        options = options._replace(max_q_len=query_len(q) if wants_width else 0)
    return q, options


def squeeze(x: Tensor | None, axes: tuple[int, ...]) -> Tensor | None:
    """Without some axes of length 1."""
    return x if x is None or not axes else x.squeeze(axes)


def like(x: Any, source: Any) -> Any:
    """A result in the library of the caller's array."""
    return x


def has_tokens(d: Side) -> Any:
    """Whether each item has a valid token; None where all have."""
    if d.mask is None:
        if d.first is None and d.lengths is None:
            return None if d.data.shape[1] else d.data.new_zeros(d.n_items, dtype=torch.bool)
        lengths = torch.diff(d.first) if d.lengths is None else d.lengths
        return on(lengths, d.data.device) > 0
    valid = d.mask != 0
    if d.first is None:
        if d.lengths is not None:
            places = torch.arange(d.data.shape[1], device=valid.device)
            valid = valid & (places < on(d.lengths, valid.device)[:, None])
        return valid.any(-1)
    before = torch.nn.functional.pad(valid.to(torch.int64).cumsum(0), (1, 0))
    first = on(d.first, valid.device).long()
    if d.lengths is None:
        return torch.diff(before[first]) > 0
    return before[first + on(d.lengths, valid.device).long()] - before[first] > 0


def topk(q: Side, d: Side, k: int, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks documents: scores, ids, how many are NaN, how many empty."""
    check_devices(q, d, Pairing())
    q = q._replace(data=q.data.detach())
    d = d._replace(data=d.data.detach())
    if q.data.device.type == "cuda":
        q, options = with_width(q, d, Pairing(), options, False)
        found = run(q, d, Pairing(), options).scores
        return ranked(found, has_tokens(d), k)
    n = q.n_items
    scores, ids = torch.empty((n, k), dtype=torch.float32), torch.empty((n, k), dtype=torch.int64)
    counts = torch.empty((n, 2), dtype=torch.int64)
    (q_numbers, q_kept), (d_numbers, d_kept) = describe(q), describe(d)
    room = (memory(scores), memory(ids), memory(counts), n, k)
    _maxsim.topk(get_num_threads(), (q_numbers, d_numbers), options.normalize, k, room)
    del q_kept, d_kept
    return scores, ids, counts[:, 0], counts[:, 1]


def screen(d: Side, codes: Any) -> Any:
    """Documents with codes of theirs, in memory of their own."""
    from . import exact as _exact

    return _exact.screen(d, codes)


def search_exact(screen: Any, q: Side, k: int, n_candidates: int, is_exact: bool) -> Any:
    """Ranks documents by way of their codes: a ranking, what is proven, how many were re-scored."""
    from . import exact as _exact

    return _exact.search(screen, q, k, n_candidates, is_exact)


def ranked(scores: Tensor, has: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks scores ``[n, columns]`` where they are, in the order of :class:`Ranking`."""
    is_nan = scores.isnan()
    if has is not None:
        is_nan = is_nan & has
    last = is_nan.to(torch.int8)
    if has is not None:
        last = torch.where(has, last, 2)
    # Those of one kind are then put together, each kind in the order that it has.
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    of_order = last.expand_as(order).gather(-1, order)
    order = order.gather(-1, of_order.sort(dim=-1, stable=True).indices)
    ids = order[:, :k]
    n_empty = (last == 2).expand(scores.shape).sum(-1)
    return scores.gather(-1, ids), ids, is_nan.sum(-1), n_empty


def quantize(tokens: Side, format: int, kind: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes, scales and minima of tokens; those on a GPU are compressed there."""
    data = tokens.data.detach()
    if data.device.type != "cpu":
        from . import codes as _codes

        return _codes.quantize(tokens._replace(data=data), format, kind)
    shape = data.shape
    types = {code: dtype for dtype, code in CODES.items()}
    codes = torch.empty(shape, dtype=types[format])
    of_rows = () if kind == TENSOR_SCALE else shape[:-1]
    wide = kind not in (F16_SCALES, AFFINE_SCALES)
    scales = torch.empty(of_rows, dtype=torch.float32 if wide else torch.float16)
    mins = torch.empty(of_rows, dtype=torch.float16) if kind == AFFINE_SCALES else None
    numbers, kept = describe(tokens._replace(data=data), dense=True)
    room = (memory(codes), memory(scales), memory(mins))
    _maxsim.quantize(get_num_threads(), numbers, format, kind, room)
    del kept
    return codes, scales, mins


def dequantize(codes: Side) -> Any:
    """The float32 tokens that codes stand for."""
    scales = codes.scales[..., None] if codes.scales.ndim else codes.scales
    if codes.data.device.type != "cpu":
        found = codes.data.float() * scales.float()
        return found if codes.mins is None else found + codes.mins[..., None].float()
    tokens = torch.empty(codes.data.shape, dtype=torch.float32)
    numbers, kept = describe(codes, dense=True)
    _maxsim.dequantize(get_num_threads(), numbers, memory(tokens))
    del kept
    return tokens


def row_is_valid(side: Side) -> Any:
    """Whether each row is a valid token of some item, in the shape of the rows; None: all are."""
    valid = None if side.mask is None else side.mask != 0
    if side.first is None and side.lengths is None:
        return valid
    device = side.data.device
    lengths = None if side.lengths is None else on(side.lengths, device)
    if side.first is None:
        assert lengths is not None
        inside = torch.arange(side.data.shape[1], device=device) < lengths[:, None]
    else:
        first = on(side.first, device).long()
        starts, ends = (first[:-1], first[1:]) if lengths is None else (first, first + lengths)
        n = side.data.shape[0]
        delta = torch.zeros(n + 1, dtype=torch.int64, device=device)
        delta.index_add_(0, starts, torch.ones_like(starts))
        delta.index_add_(0, ends.long(), -torch.ones_like(starts))
        inside = delta.cumsum(0)[:n] > 0
    return inside if valid is None else valid & inside


def unit(data: Tensor) -> Tensor:
    """Rows of length 1, in float32."""
    wide = data.detach().float()
    # In float64 no square of theirs is too large or too small.
    lengths: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True, dtype=torch.float64)
    return wide / lengths.clamp_min(1e-6).float()


def half(data: Tensor) -> Tensor:
    """Elements as float16."""
    return data.half()


def score_plaid(index: Any, n: int, q: Side, pairing: Pairing, options: Options) -> Result:
    """Scores residual-compressed documents."""
    from . import plaid as _plaid

    return _plaid.score(index, n, q, pairing, options)


def rank_plaid(index: Any, scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks scores of all residual-compressed documents."""
    from . import plaid as _plaid

    return _plaid.rank(index, scores, k)
