"""Scores of late interaction: every query token's best document token, summed.

``scores[q, d] = sum over s of max over t of <Q[q, s], D[d, t]>``, over valid tokens. A document
without valid tokens scores 0, NaN shows, and ties go to the lowest document token.
"""

from __future__ import annotations

from typing import Any

from . import _lazy
from ._sides import CANDIDATES, CROSS, OWN, PAIRS, Options, Pairing, Result, Side, check, check_call
from ._lazy import is_tensor


def library(*arrays: Any) -> Any:
    """The module that handles arrays of the library that these are of."""
    for x in arrays:
        if isinstance(x, (list, tuple)) and x:
            x = x[0]
        x = getattr(x, "arrays", x)
        if is_tensor(x):
            from ._backends import torch as of_torch

            return of_torch
        if hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) not in (1, 3):
            from ._backends import foreign

            return foreign
    from ._backends import numpy as of_numpy

    return of_numpy


def side(
    lib: Any, x: Any, name: str, mask: Any = None, lengths: Any = None, offsets: Any = None,
    starts: Any = None,
) -> Side:
    """One side of a call, from what a user gives."""
    lower = name.lower()
    if lengths is not None:
        lengths = lib.indices(lengths, f"{lower}_lengths")
    if mask is not None:
        mask = lib.mask(mask, f"{lower}_mask")
    first = offsets if starts is None else starts
    if first is not None:
        argument = f"{lower}_offsets" if starts is None else f"{lower}_starts"
        first = lib.indices(first, argument)
    if hasattr(x, "as_side"):
        return x.as_side(mask, first, lengths)  # type: ignore[no-any-return]
    if isinstance(x, (list, tuple)):
        check(mask is None and lengths is None and first is None, name,
              "one array where there are masks, lengths or offsets", "a list")
        check(len(x) > 0, name, "one item or more", "an empty list")
        items = [lib.tokens(item, f"{name}[{i}]") for i, item in enumerate(x)]
        for i, item in enumerate(items):
            check(item.ndim == 2, f"{name}[{i}]", "[len, dim]", f"shape {tuple(item.shape)}")
        first = lib.offsets([int(item.shape[0]) for item in items], items[0])
        return Side(lib.concatenate(items), None, first)
    return Side(lib.tokens(x, name), mask, first, lengths)


#: Wider element types are rounded to narrower ones, where sides have two.
_NARROWER = {"float32": 0, "float16": 1, "bfloat16": 2}


def agree(lib: Any, q: Side, d: Side) -> tuple[Side, Side]:
    """Sides of one element type: the narrower, of two. Codes stay."""
    if q.data.dtype == d.data.dtype or q.scales is not None:
        return q, d
    if d.scales is not None:
        return q, d
    ranks = [_NARROWER[str(x.data.dtype).split(".")[-1]] for x in (q, d)]
    if ranks[0] < ranks[1]:
        return q._replace(data=lib.as_elements(q.data, d.data)), d
    return q, d._replace(data=lib.as_elements(d.data, q.data))


def call(
    lib: Any, q: Side, d: Side, pairing: Pairing, options: Options, axes: tuple[int, ...] = (),
    source: Any = None, weights: Any = None, mean: bool = False,
) -> Any:
    """Checks and runs a call; the result is without ``axes``, in the library of ``source``."""
    check_call(q, d, pairing)
    q, d = agree(lib, q, d)
    if weights is None and not mean:
        found = lib.score(q, d, pairing, options)
    else:
        from . import _weighted

        if weights is not None:
            weights = lib.tokens(weights, "weights")
            weights = weights[None] if weights.ndim == 1 else weights
        found = _weighted.score(lib, q, d, pairing, options, weights, mean)
    found = Result(*(None if x is None else lib.like(lib.squeeze(x, axes), source) for x in found))
    return found if options.winners or options.token_scores else found.scores


def _items(x: Any, lib: Any, name: str, *per_token: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Tokens with an axis of items, and whether that had to be added."""
    if isinstance(x, (list, tuple)) or hasattr(x, "as_side"):
        return x, False, per_token
    x = lib.tokens(x, name)
    if x.ndim != 2:
        return x, False, per_token
    added = tuple(None if p is None else lib.mask(p, name)[None] for p in per_token)
    return x[None], True, added


def _quickly(Q: Any, D: Any, ndim: int, *options: Any) -> Any:
    """Scores of a plain call on torch tensors; None of any other, or where documents have other
    axes."""
    if not is_tensor(Q) or getattr(D, "ndim", 0) != ndim:
        return None
    return _lazy.quick.score(Q, D, *options)


def maxsim(
    Q: Any, D: Any, *, q_mask: Any = None, d_mask: Any = None, q_lengths: Any = None,
    d_lengths: Any = None, normalize: bool = False, weights: Any = None, mean: bool = False,
    winners: bool = False, token_scores: bool = False, tf32: bool = False,
    consistent: bool = False,
) -> Any:
    """Scores every query against every document.

    Args:
        Q: queries ``[Nq, Lq, dim]``, one query ``[Lq, dim]``, a list of ``[len, dim]``, or
            :class:`Quantized` tokens. float32, float16 or bfloat16; torch tensors (with
            gradients), numpy arrays, or anything with DLPack.
        D: documents ``[Nd, Ld, dim]``, likewise, or a :class:`Corpus`.
        q_mask, d_mask: non-zero = valid, any pattern; ``[Nq, Lq]``, ``[Nd, Ld]``.
        q_lengths, d_lengths: valid tokens from the front of each item; ``[Nq]``, ``[Nd]``.
        normalize: divide every row by its length, as cosine similarities do.
        weights: factors of the queries' tokens, ``[Nq, Lq]`` or ``[Lq]`` of one query, of any
            sign; a token's winner does not depend on them. With gradients.
        mean: divide by the number of the query's valid tokens; a query of none scores 0.
        winners: also the index of each query token's winner.
        token_scores: also each query token's best similarity (without gradients).
        tf32: let float32 products be TF32 where a GPU is faster for it.
        consistent: scores have the same bits with winners, or gradients, and without. On a GPU
            some short calls are then not the fastest.

    Returns:
        float32 scores ``[Nq, Nd]``, without the axis of a side of two axes; or, where winners or
        token scores are asked for, a :class:`Result` with these in ``[Nq, Nd, Lq]``.

    Raises:
        ValueError: shapes, lengths, devices that do not go together.
        TypeError: element types that there are no scores of.
        torch.OutOfMemoryError, MemoryError: no room.
        RuntimeError: what else the device says.
    """
    if q_lengths is None and d_lengths is None and weights is None \
            and not (mean or winners or token_scores):
        found = _quickly(Q, D, 3, q_mask, d_mask, normalize, tf32, consistent)
        if found is not None:
            return found
    lib = library(Q, D)
    q_data, q_added, (q_mask,) = _items(Q, lib, "Q", q_mask)
    d_data, d_added, (d_mask,) = _items(D, lib, "D", d_mask)
    q = side(lib, q_data, "Q", q_mask, q_lengths)
    d = side(lib, d_data, "D", d_mask, d_lengths)
    options = Options(normalize, tf32, winners, token_scores, consistent=consistent)
    axes = (0,) * q_added + (1,) * d_added
    return call(lib, q, d, Pairing(CROSS), options, axes, Q, weights, mean)


def pairs(
    Q: Any, D: Any, q_ids: Any = None, d_ids: Any = None, *, q_mask: Any = None,
    d_mask: Any = None, q_lengths: Any = None, d_lengths: Any = None, normalize: bool = False,
    weights: Any = None, mean: bool = False, winners: bool = False, token_scores: bool = False,
    tf32: bool = False,
    consistent: bool = False,
) -> Any:
    """Scores pairs: query ``i`` with document ``i``, or ``q_ids[p]`` with ``d_ids[p]``.

    Args:
        Q: queries ``[B, Lq, dim]``.
        D: documents ``[B, Ld, dim]``; any number of either where there are ids.
        q_ids, d_ids: both or neither; integers ``[P]``.

    The rest is that of :func:`maxsim`.

    Returns:
        Scores ``[B]`` or ``[P]``; winners and token scores ``[P, Lq]``.

    Raises:
        ValueError: as :func:`maxsim`, and ids that are no items.
    """
    check((q_ids is None) == (d_ids is None), "q_ids and d_ids", "both or neither", "one")
    lib = library(Q, D)
    q = side(lib, Q, "Q", q_mask, q_lengths)
    d = side(lib, D, "D", d_mask, d_lengths)
    options = Options(normalize, tf32, winners, token_scores, consistent=consistent)
    if q_ids is not None:
        q_ids, d_ids = lib.indices(q_ids, "q_ids"), lib.indices(d_ids, "d_ids")
        pairing = Pairing(PAIRS, 0, q_ids, d_ids)
        return call(lib, q, d, pairing, options, (), Q, weights, mean)
    return call(lib, q, d, Pairing(OWN, 1), options, (1,), Q, weights, mean)


def candidates(
    Q: Any, D: Any, ids: Any = None, *, q_mask: Any = None, d_mask: Any = None,
    q_lengths: Any = None, d_lengths: Any = None, normalize: bool = False, weights: Any = None,
    mean: bool = False, winners: bool = False, token_scores: bool = False, tf32: bool = False,
    consistent: bool = False,
) -> Any:
    """Scores every query against its own candidates.

    Args:
        Q: queries ``[Nq, Lq, dim]``.
        D: each query's own documents ``[Nq, K, Ld, dim]``; or shared ones ``[Nd, Ld, dim]``, of
            which ``ids`` names each query's.
        ids: integers ``[Nq, K]``.
        d_mask, d_lengths: ``[Nq, K, Ld]`` and ``[Nq, K]``, or those of shared documents.

    The rest is that of :func:`maxsim`.

    Returns:
        Scores ``[Nq, K]``; winners and token scores ``[Nq, K, Lq]``.

    Raises:
        ValueError: as :func:`maxsim`, and ids that are no documents.
    """
    if ids is None and q_lengths is None and d_lengths is None and weights is None \
            and not (mean or winners or token_scores):
        found = _quickly(Q, D, 4, q_mask, d_mask, normalize, tf32, consistent)
        if found is not None:
            return found
    lib = library(Q, D)
    q = side(lib, Q, "Q", q_mask, q_lengths)
    options = Options(normalize, tf32, winners, token_scores, consistent=consistent)
    if ids is not None:
        ids = lib.indices(ids, "ids")
        check(ids.ndim == 2, "ids", "[Nq, K]", f"shape {tuple(ids.shape)}")
        d = side(lib, D, "D", d_mask, d_lengths)
        pairing = Pairing(CANDIDATES, int(ids.shape[1]), None, ids)
        return call(lib, q, d, pairing, options, (), Q, weights, mean)
    D = lib.tokens(D, "D")
    check(D.ndim == 4, "D", "[Nq, K, Ld, dim]", f"shape {tuple(D.shape)}")
    n, k, length, dim = D.shape
    check(n == q.n_items, "D", f"candidates of {q.n_items} queries", f"of {n}")
    if d_mask is not None:
        d_mask = lib.mask(d_mask, "d_mask")
        check(tuple(d_mask.shape) == (n, k, length), "d_mask", f"shape {(n, k, length)}",
              tuple(d_mask.shape))
        d_mask = d_mask.reshape(n * k, length)
    if d_lengths is not None:
        d_lengths = lib.indices(d_lengths, "d_lengths")
        check(tuple(d_lengths.shape) == (n, k), "d_lengths", f"shape {(n, k)}",
              tuple(d_lengths.shape))
        d_lengths = d_lengths.reshape(n * k)
    d = side(lib, D.reshape(n * k, length, dim), "D", d_mask, d_lengths)
    return call(lib, q, d, Pairing(OWN, k), options, (), Q, weights, mean)


def _listed(
    lib: Any, q: Side, d: Side, q_ids: Any, d_ids: Any, options: Options, source: Any,
) -> Any:
    check((q_ids is None) == (d_ids is None), "q_ids and d_ids", "both or neither", "one")
    if q_ids is None:
        return call(lib, q, d, Pairing(CROSS), options, (), source)
    q_ids, d_ids = lib.indices(q_ids, "q_ids"), lib.indices(d_ids, "d_ids")
    return call(lib, q, d, Pairing(PAIRS, 0, q_ids, d_ids), options, (), source)


def packed(
    Q: Any, D: Any, q_offsets: Any, d_offsets: Any, q_ids: Any = None, d_ids: Any = None, *,
    q_mask: Any = None, d_mask: Any = None, max_q_len: int | None = None,
    max_d_len: int | None = None, normalize: bool = False, winners: bool = False,
    token_scores: bool = False, tf32: bool = False, consistent: bool = False,
) -> Any:
    """Scores packed items: rows one after the other, with offsets ("cu_seqlens").

    Args:
        Q: rows ``[rows, dim]``; or ``[Nq, Lq, dim]`` with ``q_offsets`` None.
        D: rows ``[rows, dim]``; or ``[Nd, Ld, dim]`` with ``d_offsets`` None.
        q_offsets, d_offsets: integers ``[N + 1]``: item ``i`` is rows ``offsets[i]`` to
            ``offsets[i + 1]``.
        q_ids, d_ids: pairs to score, ``[P]``; without, every query with every document.
        q_mask, d_mask: one entry per row.
        max_q_len: tokens of the longest query or more: the last axis of winners. Known, it need
            not be looked up: of offsets on a GPU that waits, and ``torch.compile`` cannot do it.
        max_d_len: tokens of the longest document or more; with offsets on a GPU and gradients,
            as ``max_q_len``.

    The rest is that of :func:`maxsim`.

    Returns:
        Scores ``[Nq, Nd]``, or ``[P]`` of pairs; winners and token scores have one more axis.

    Raises:
        ValueError: as :func:`maxsim`; offsets that fall or lie outside, ids that are no items.
    """
    lib = library(Q, D)
    q = side(lib, Q, "Q", q_mask, None, q_offsets)
    d = side(lib, D, "D", d_mask, None, d_offsets)
    options = Options(normalize, tf32, winners, token_scores,
                      -1 if max_q_len is None else max_q_len,
                      -1 if max_d_len is None else max_d_len, consistent)
    return _listed(lib, q, d, q_ids, d_ids, options, Q)


def scattered(
    Q: Any, D: Any, q_starts: Any, q_lengths: Any, d_starts: Any, d_lengths: Any,
    q_ids: Any = None, d_ids: Any = None, *, q_mask: Any = None, d_mask: Any = None,
    max_q_len: int | None = None, max_d_len: int | None = None, normalize: bool = False,
    winners: bool = False, token_scores: bool = False, tf32: bool = False,
    consistent: bool = False,
) -> Any:
    """Scores items anywhere in larger matrices, without a copy.

    Args:
        Q: rows ``[rows, dim]``; or ``[Nq, Lq, dim]`` with ``q_starts`` None.
        D: rows ``[rows, dim]``; or ``[Nd, Ld, dim]`` with ``d_starts`` None.
        q_starts, q_lengths, d_starts, d_lengths: integers ``[N]``: item ``i`` is ``lengths[i]``
            rows from ``starts[i]``. Items may overlap.

    The rest is that of :func:`packed`.
    """
    lib = library(Q, D)
    q = side(lib, Q, "Q", q_mask, q_lengths, None, q_starts)
    d = side(lib, D, "D", d_mask, d_lengths, None, d_starts)
    options = Options(normalize, tf32, winners, token_scores,
                      -1 if max_q_len is None else max_q_len,
                      -1 if max_d_len is None else max_d_len, consistent)
    return _listed(lib, q, d, q_ids, d_ids, options, Q)
