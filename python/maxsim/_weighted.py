"""Weights of query tokens, and means over them.

``scores[q, d] = sum over s of weights[q, s] * max over t of <Q[q, s], D[d, t]>``. A winner does
not depend on its weight. A mean is divided by the number of the query's valid tokens.

The library multiplies by weights and has their gradient. What it does not take is composed of the
scores of every token: what is traced or intercepted, lists and ids that a GPU alone knows, and
gradients of weights beside compressed tokens.
"""

from __future__ import annotations

from typing import Any

from ._sides import CROSS, OWN, PADDED, PAIRS, Options, Pairing, Result, Side, check
from ._lazy import is_tensor


def _module(x: Any) -> Any:
    """torch or numpy, by what ``x`` is an array of."""
    if is_tensor(x):
        import torch

        return torch
    import numpy

    return numpy


def _of_pairs(of_queries: Any, pairing: Pairing) -> Any:
    """What belongs to queries, for each score; with the axis of documents where there is one."""
    if pairing.kind != PAIRS:
        return of_queries[:, None]
    ids = pairing.q_ids
    return of_queries[ids if _module(of_queries).__name__ == "numpy" else ids.long()]


def _counts(q: Side) -> Any:
    """The number of valid tokens of each query, as float32."""
    xp = _module(q.data)
    put = {"device": q.data.device} if xp.__name__ == "torch" else {}

    def floats(x: Any) -> Any:
        return x.float() if xp.__name__ == "torch" else x.astype("float32")

    if q.kind == PADDED:
        n, length = int(q.data.shape[0]), int(q.data.shape[1])
        valid = xp.ones((n, length), dtype=bool if xp.__name__ == "numpy" else xp.bool, **put)
        if q.mask is not None:
            valid = valid & (q.mask.reshape(n, length) != 0)
        if q.lengths is not None:
            lengths = _beside(q.lengths, q.data)
            valid = valid & (xp.arange(length, **put) < lengths[:, None])
        return floats(valid.sum(-1))
    first = _beside(q.first, q.data)
    start, end = (first[:-1], first[1:]) if q.lengths is None else (first, None)
    if end is None:
        end = start + _beside(q.lengths, q.data)
    if q.mask is None:
        return floats(end - start)
    before = xp.zeros(int(q.data.shape[0]) + 1, dtype=xp.int64, **put)
    before[1:] = (q.mask != 0).cumsum(0)
    return floats(before[end] - before[start])


def _beside(x: Any, data: Any) -> Any:
    """A list where some rows are; a copy to there is not waited for."""
    if _module(data).__name__ != "torch":
        return x
    from ._backends.torch import on

    return on(x, data.device)


def _dense(side: Side) -> Any:
    """Rows of torch as ``[n, len, dim]``; what is beyond an item's length is any row."""
    if side.kind == PADDED:
        return side.data
    from .composed import _calls

    check(side.lengths is None, "weights", "padded or packed documents", "scattered ones")
    return _calls.padded(side.data, _beside(side.first, side.data))[0]


def _attached(q: Side, d: Side, pairing: Pairing, found: Result, normalize: bool) -> Any:
    """Token scores of torch with gradients to both sides, through the winners."""
    from .composed import _maxima

    queries, documents = q.data, _dense(d)
    if normalize:
        queries, documents = _maxima.normalized(queries), _maxima.normalized(documents)
    maxima, winners = found.token_scores, found.winners
    if pairing.kind == CROSS:
        return _maxima.attach(queries, documents, winners, maxima)
    if pairing.kind == OWN:
        own = documents.reshape(queries.shape[0], pairing.k, *documents.shape[1:])
        shape = (*own.shape[:2], queries.shape[1])
        attached = _maxima.attach(queries, own, winners.reshape(shape), maxima.reshape(shape))
        return attached.reshape(maxima.shape)
    own = documents[_beside(pairing.d_ids, documents).long()]
    if pairing.kind == PAIRS:
        queries = queries[_beside(pairing.q_ids, queries).long()]
        attached = _maxima.attach(queries, own[:, None], winners[:, None], maxima[:, None])
        return attached[:, 0]
    return _maxima.attach(queries, own, winners, maxima)


def _is_native(q: Side, d: Side, pairing: Pairing, weights: Any) -> bool:
    """Whether the library takes weights of this call."""
    if not is_tensor(q.data):
        return True
    from ._backends.torch import is_plain
    from ._backends.unread import takes

    if not is_plain(q.data, d.data, weights) or q.data.device.type == "meta":
        return False
    if weights.requires_grad and (q.scales is not None or d.scales is not None):
        return False
    return not (q.data.is_cuda and takes(q, d, pairing))


def _composed(
    lib: Any, q: Side, d: Side, pairing: Pairing, options: Options, weights: Any,
) -> Result:
    """Scores of torch with weights, of the scores of every token."""
    import torch

    needs = torch.is_grad_enabled() and (q.data.requires_grad or d.data.requires_grad)
    check(not needs or (q.scales is None and d.scales is None), "Q",
          "detached queries, since compressed tokens have no gradients", "queries that need one")
    apart = [side._replace(data=side.data.detach()) for side in (q, d)]
    found: Result = lib.score(*apart, pairing, options._replace(winners=True, token_scores=True))
    maxima = found.token_scores
    if needs:
        maxima = _attached(q, d, pairing, found, options.normalize)
    products = maxima * _of_pairs(weights, pairing)
    scores = torch.where(found.winners >= 0, products, torch.zeros_like(products)).sum(-1)
    if scores.is_cuda:
        # What a device has refused has no winners, and shows in the plain scores alone.
        is_refused = found.scores.isnan() & (found.winners < 0).all(-1)
        scores = scores.masked_fill(is_refused, float("nan"))
    return Result(
        scores,
        found.winners if options.winners else None,
        found.token_scores if options.token_scores else None,
    )


def score(
    lib: Any, q: Side, d: Side, pairing: Pairing, options: Options, weights: Any, mean: bool,
) -> Result:
    """Scores sides that have been checked, with weights, as a mean, or both."""
    if weights is not None:
        check(q.kind == PADDED, "weights", "padded queries [Nq, Lq, dim]", "packed ones")
        want = tuple(q.data.shape[:-1])
        check(tuple(weights.shape) == want, "weights", f"shape {want}", tuple(weights.shape))
        is_torch = is_tensor(q.data)
        weights = _beside(weights, q.data).float() if is_torch else weights.astype("float32")
    if weights is None:
        found: Result = lib.score(q, d, pairing, options)
    elif _is_native(q, d, pairing, weights):
        found = lib.score(q._replace(weights=weights), d, pairing, options)
    else:
        found = _composed(lib, q, d, pairing, options, weights)
    if mean:
        found = found._replace(scores=found.scores / _at_least_one(_counts(q), pairing))
    return found


def _at_least_one(counts: Any, pairing: Pairing) -> Any:
    """Counts for each score; a query without tokens scores 0 whatever that is divided by."""
    return _of_pairs(counts.clip(1), pairing)
