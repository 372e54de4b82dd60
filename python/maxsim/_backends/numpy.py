"""Calls on numpy arrays, and on those of other libraries through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _maxsim
from .._sides import AFFINE_SCALES, F16_SCALES, FORMATS, NO_SCALES, PADDED, TENSOR_SCALE
from .._sides import Options, Pairing, Result, Side, scale_kind
from .._threads import get_num_threads

SCORES = np.float32

#: Types of elements, by name: numpy knows bfloat16 where ml_dtypes is imported.
ELEMENTS = ("float32", "float16", "bfloat16")


def array(x: Any, name: str) -> Any:
    """A numpy array over the memory of ``x``, where that can be."""
    if isinstance(x, np.ndarray):
        return _native(x)
    if hasattr(x, "__dlpack_device__"):
        device = int(x.__dlpack_device__()[0])
        if device not in (1, 3):  # neither the CPU nor pinned memory
            raise RuntimeError(
                f"{name}: arrays of this device are scored as torch tensors; install torch"
            )
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError):
            pass  # bfloat16, which numpy's DLPack does not know
    return _native(np.asarray(x))


def _native(x: Any) -> Any:
    """The same numbers in this machine's order of bytes: the compiled half knows no other."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def tokens(x: Any, name: str) -> Any:
    """An array of tokens, of an element type that there is."""
    found = array(x, name)
    if found.dtype.name not in ELEMENTS:
        raise TypeError(
            f"{name}: expected float32, float16 or bfloat16, found {found.dtype.name}"
        )
    return found


def mask(x: Any, name: str) -> Any:
    """A mask as bytes."""
    found = array(x, name)
    if found.dtype.itemsize != 1:
        found = found != 0
    return np.ascontiguousarray(found)


def indices(x: Any, name: str) -> Any:
    """Offsets, starts, lengths or ids as int32 or int64."""
    found = array(x, name)
    if found.dtype.kind not in "iu" and found.size:
        raise TypeError(f"{name}: expected integers, found {found.dtype.name}")
    if found.dtype.name not in ("int32", "int64"):
        found = found.astype(np.int64)
    return np.ascontiguousarray(found)


def as_elements(data: Any, like: Any) -> Any:
    """``data`` in the element type of ``like``."""
    return data.astype(like.dtype)


def concatenate(items: Any) -> Any:
    """Rows of items, one after the other."""
    return np.concatenate(items)


def offsets(lengths: list[int], like: Any) -> Any:
    """Where items of these lengths begin and end."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def address(x: Any) -> int:
    """Where an array's numbers are; 0 of none."""
    return 0 if x is None or x.size == 0 else int(x.__array_interface__["data"][0])


def memory(x: Any) -> tuple[int, int]:
    """Where an array's numbers are, and how many."""
    return (0, 0) if x is None else (address(x), int(x.size))


def some_memory(x: Any) -> tuple[int, int] | None:
    """As :func:`memory`; None where there is no array."""
    return None if x is None else memory(x)


def _plain(x: Any) -> Any:
    x = np.ascontiguousarray(_native(x))
    return x if x.flags.aligned else x.copy()


def describe(side: Side) -> tuple[tuple[Any, ...], Any]:
    """A side as numbers, and what must live as long as these are used."""
    data = _plain(side.data)
    wide = [x.dtype.itemsize == 8 for x in (side.first, side.lengths) if x is not None]
    first, lengths = side.first, side.lengths
    if len(set(wide)) > 1:
        first, lengths, wide = first.astype(np.int64), lengths.astype(np.int64), [True]
    dim = data.shape[-1]
    rows = data.shape[0] if data.ndim == 2 else data.shape[0] * data.shape[1]
    kind = NO_SCALES
    scales, mins = side.scales, side.mins
    if scales is not None:
        # Before a number becomes an array of one.
        kind = scale_kind(scales.dtype.name, scales.ndim, mins is not None)
        scales = _plain(scales)
        mins = None if mins is None else _plain(mins)
    weights = None if side.weights is None else _plain(side.weights)
    # Codes of one byte with a scale and no minimum: FP8 where numpy has no name for it.
    is_fp8 = data.dtype == np.uint8 and kind not in (NO_SCALES, AFFINE_SCALES)
    element = "float8_e4m3fn" if is_fp8 else data.dtype.name
    items = (side.kind, side.n_items, data.shape[1] if side.kind == PADDED else 0, rows, dim,
             address(first), address(lengths), bool(wide and wide[0]))
    matrix = (address(data), dim * data.dtype.itemsize, FORMATS[element],
              some_memory(side.mask), memory(scales), kind, memory(mins),
              some_memory(weights))
    numbers = (items, matrix)
    return numbers, (data, first, lengths, side.mask, scales, mins, weights)


def pair_numbers(pairing: Pairing) -> tuple[tuple[Any, ...], Any]:
    """A pairing as numbers, and what must live as long as these are used."""
    q_ids, d_ids = pairing.q_ids, pairing.d_ids
    if q_ids is not None and q_ids.dtype != d_ids.dtype:
        q_ids, d_ids = q_ids.astype(np.int64), d_ids.astype(np.int64)
    n = 0 if d_ids is None else d_ids.size
    wide = d_ids is not None and d_ids.dtype.itemsize == 8
    return (pairing.kind, pairing.k, n, address(q_ids), address(d_ids), wide), (q_ids, d_ids)


def query_len(side: Side) -> int:
    """Tokens of the longest item."""
    if side.kind == PADDED:
        return int(side.data.shape[1])
    lengths = np.diff(side.first) if side.lengths is None else side.lengths
    return int(lengths.max(initial=0))


def score(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Scores arrays that have been checked."""
    shape = pairing.shape(q, d)
    width = 0
    if options.winners or options.token_scores:
        is_said = q.kind != PADDED and options.max_q_len >= 0
        width = options.max_q_len if is_said else query_len(q)
    scores = np.empty(shape, SCORES)
    winners = np.empty((*shape, width), np.int32) if options.winners else None
    token_scores = np.empty((*shape, width), np.float32) if options.token_scores else None
    (q_numbers, q_kept), (d_numbers, d_kept) = describe(q), describe(d)
    pairs, ids_kept = pair_numbers(pairing)
    room = (memory(scores), some_memory(winners), some_memory(token_scores), width)
    _maxsim.score(get_num_threads(), (q_numbers, d_numbers), pairs, options.normalize, room)
    del q_kept, d_kept, ids_kept
    return Result(scores, winners, token_scores)


def squeeze(x: Any, axes: tuple[int, ...]) -> Any:
    """Without some axes of length 1."""
    return x.squeeze(axes) if axes else x


def like(x: Any, source: Any) -> Any:
    """A result in the library of the caller's array."""
    if x is None or isinstance(source, np.ndarray) or not hasattr(source, "__array_namespace__"):
        return x
    namespace = source.__array_namespace__()
    return namespace.from_dlpack(x) if hasattr(namespace, "from_dlpack") else namespace.asarray(x)


def topk(q: Side, d: Side, k: int, options: Options) -> tuple[Any, Any, Any, Any]:
    """Ranks documents: scores, ids, how many are NaN, how many empty."""
    n = q.n_items
    scores, ids = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
    counts = np.empty((n, 2), np.int64)
    (q_numbers, q_kept), (d_numbers, d_kept) = describe(q), describe(d)
    room = (memory(scores), memory(ids), memory(counts), n, k)
    _maxsim.topk(get_num_threads(), (q_numbers, d_numbers), options.normalize, k, room)
    del q_kept, d_kept
    return scores, ids, counts[:, 0], counts[:, 1]


def screen(d: Side, codes: Any) -> Any:
    """Documents with codes of theirs, in memory of their own."""
    (numbers, kept), (of_codes, codes_kept) = describe(d), describe(codes.as_side(None, None, None))
    found = _maxsim.Screen(get_num_threads(), None, numbers, of_codes)
    del kept, codes_kept
    return found


def search_exact(
    screen: Any, q: Side, k: int, n_candidates: int, is_exact: bool,
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Ranks documents by way of their codes: a ranking, what is proven, how many were re-scored."""
    n = q.n_items
    scores, ids = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
    counts, proven = np.empty((n, 2), np.int64), np.empty((n, k), np.bool_)
    n_rescored = np.empty(n, np.int64)
    numbers, kept = describe(q)
    screen.search(get_num_threads(), numbers, n_candidates, is_exact,
                  (memory(scores), memory(ids), memory(counts), n, k), memory(proven),
                  memory(n_rescored))
    del kept
    return scores, ids, counts[:, 0], counts[:, 1], proven, n_rescored


def quantize(tokens: Side, format: int, kind: int) -> tuple[Any, Any, Any]:
    """Codes, scales and minima of tokens."""
    shape = tokens.data.shape
    codes = np.empty(shape, np.int8 if format == FORMATS["int8"] else np.uint8)
    of_rows = () if kind == TENSOR_SCALE else shape[:-1]
    scales = np.empty(of_rows, np.float16 if kind in (F16_SCALES, AFFINE_SCALES) else np.float32)
    mins = np.empty(of_rows, np.float16) if kind == AFFINE_SCALES else None
    numbers, kept = describe(tokens)
    room = (memory(codes), memory(scales), memory(mins))
    _maxsim.quantize(get_num_threads(), numbers, format, kind, room)
    del kept
    if format == FORMATS["float8_e4m3fn"]:
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            return codes, scales, mins
        codes = codes.view(ml_dtypes.float8_e4m3fn)
    return codes, scales, mins


def dequantize(codes: Side) -> Any:
    """The float32 tokens that codes stand for."""
    found = np.empty(codes.data.shape, np.float32)
    numbers, kept = describe(codes)
    _maxsim.dequantize(get_num_threads(), numbers, memory(found))
    del kept
    return found


def unit(data: Any) -> Any:
    """Rows of length 1, in float32."""
    wide = data.astype(np.float32)
    # In float64 no square of theirs is too large or too small.
    squares = np.einsum("...k,...k->...", wide, wide, dtype=np.float64)[..., None]
    return wide / np.sqrt(np.maximum(squares, 1e-12)).astype(np.float32)


def half(data: Any) -> Any:
    """Elements as float16."""
    return data.astype(np.float16)


def score_plaid(index: Any, n: int, q: Side, pairing: Pairing, options: Options) -> Result:
    """Scores residual-compressed documents."""
    shape = (q.n_items, n) if pairing.d_ids is None else pairing.shape(q, q)
    width = query_len(q) if options.winners or options.token_scores else 0
    scores = np.empty(shape, SCORES)
    winners = np.empty((*shape, width), np.int32) if options.winners else None
    token_scores = np.empty((*shape, width), np.float32) if options.token_scores else None
    (numbers, kept), (pairs, ids) = describe(q), pair_numbers(pairing)
    room = (memory(scores), some_memory(winners), some_memory(token_scores), width)
    index.score(get_num_threads(), numbers, pairs, room)
    del kept, ids
    return Result(scores, winners, token_scores)


def rank_plaid(index: Any, scores: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """Ranks scores of all documents."""
    n, columns = scores.shape
    has = np.empty(columns, np.uint8)
    index.has_tokens(memory(has))
    best, ids = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
    counts = np.empty((n, 2), np.int64)
    room = (memory(best), memory(ids), memory(counts), n, k)
    _maxsim.rank(get_num_threads(), memory(scores), memory(has), columns, k, room)
    return best, ids, counts[:, 0], counts[:, 1]
