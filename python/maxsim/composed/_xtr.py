"""XTR scores: query tokens count only where they retrieved a token of the document.

Lee et al. 2023, "Rethinking the Role of Token Retrieval in Multi-Vector Retrieval", eq. 4 and 5.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from .._ranking import Ranking
from . import _calls, _maxima, _native, _order, _retrieved
from ._retrieved import NORMALIZERS, Asked

POOLS = ("paired", "all")


@torch.no_grad()
def _thresholds(queries: Tensor, documents: Tensor, d_mask: Optional[Tensor], k: int) -> Tensor:
    """The k-th largest similarity of every query token over all its document tokens, `[Nq, Lq]`.

    -∞ where there are fewer than `k` valid tokens. Documents are gone through in chunks; of each
    only the best `k` similarities of a query token are kept.
    """
    own = documents.dim() == 4
    n_queries, length = queries.shape[:2]
    count, doc_length = documents.shape[-3], documents.shape[-2]
    kind = _maxima.accumulation_type(queries, documents)
    wide = queries.to(kind)
    best = torch.full((n_queries, length, k), float("-inf"), dtype=kind, device=queries.device)
    # A NaN is no threshold: it is left out here and shows through the maxima.
    for start, end in _maxima.spans(count, n_queries * length * max(1, doc_length)):
        part = documents[:, start:end] if own else documents[start:end]
        mask = None
        if d_mask is not None:
            mask = d_mask[:, start:end] if own else d_mask[start:end]
        found = _maxima._similarities(wide, part.to(kind), mask).transpose(1, 2)
        found = found.reshape(n_queries, length, -1)
        found = found.masked_fill(found.isnan(), float("-inf"))
        best = torch.cat([best, found], dim=-1).topk(k, dim=-1, sorted=True).values
    return best[..., -1]


def _of_all(documents: Tensor, d_mask: Optional[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
    """Each query's own documents as those of all."""
    return documents.flatten(0, 1), None if d_mask is None else d_mask.flatten(0, 1)


@torch.no_grad()
def _find(
    queries: Tensor, documents: Tensor, d_mask: Optional[Tensor], of_all: bool
) -> Tuple[Tensor, Tensor]:
    """Maxima and winners. With `of_all` they are those of queries with all documents, of which each
    query's own are taken: so similarities have the bits that thresholds of all are of."""
    if not of_all:
        return _maxima.find(queries, documents, d_mask)
    (n, k), own = documents.shape[:2], torch.arange(len(queries), device=queries.device)
    found = _maxima.find(queries, *_of_all(documents, d_mask))
    maxima, winners = (x.view(n, n, k, x.shape[-1])[own, own] for x in found)
    return maxima, winners


@torch.no_grad()
def _lost(
    queries: Tensor,
    documents: Tensor,
    d_mask: Optional[Tensor],
    maxima: Tensor,
    bound: Tensor,
    of_all: bool,
) -> Tensor:
    """Maxima below 0 of documents with a token that was not retrieved, or is masked."""
    # The least similarity is the largest one of the negated query.
    least = -_find(-queries, documents, d_mask, of_all)[0]
    is_whole = least >= bound
    if d_mask is not None:
        all_valid = d_mask.all(-1) if d_mask.dim() == 3 else d_mask.all(-1).unsqueeze(0)
        is_whole = is_whole & all_valid.unsqueeze(-1)
    return (maxima < 0) & ~is_whole


def _composed(
    queries: Tensor,
    documents: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    k: int,
    normalizer: str,
    pool: str,
) -> Tensor:
    """The scores of torch, with its gradients."""
    given = queries.detach(), documents.detach(), d_mask
    of_all = pool == "all" and documents.dim() == 4
    found, winners = _find(*given, of_all)
    maxima = _maxima.attach(queries, documents, winners, found)
    pooled = _of_all(*given[1:]) if of_all else given[1:]
    bound = _thresholds(given[0], *pooled, k).unsqueeze(1)
    # NaN compares false to everything: a token whose maximum is NaN is kept, so that it shows.
    kept = (winners >= 0) & ~(found < bound)
    if q_mask is not None:
        kept = kept & q_mask.unsqueeze(1)
    if normalizer == "pylate":
        kept = kept & ~_lost(*given, found, bound, of_all)
    sums = torch.where(kept, maxima, torch.zeros_like(maxima)).sum(-1)
    if normalizer == "retrieved":
        sums = sums / kept.sum(-1).clamp_min(1)
    elif normalizer == "pylate":
        sums = sums / (kept & (found > 0)).sum(-1).clamp_min(1e-3)
    elif normalizer == "query":
        if q_mask is None:
            return sums / max(1, queries.shape[1])
        sums = sums / q_mask.sum(-1, keepdim=True).clamp_min(1)
    return sums


def _checked(
    queries: Tensor,
    documents: Tensor,
    k: int,
    masks: Tuple[Optional[Tensor], Optional[Tensor]],
    lengths: Tuple[Optional[Tensor], Optional[Tensor]],
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """Checks tokens and `k`; what of both sides is valid."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    _calls.check_dense(queries, documents)
    q_mask = _calls.valid(masks[0], lengths[0], queries.shape[:-1], "q")
    return q_mask, _calls.valid(masks[1], lengths[1], documents.shape[:-1], "d")


def xtr(
    queries: Tensor,
    documents: Tensor,
    *,
    k: int = 256,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    q_lengths: Optional[Tensor] = None,
    d_lengths: Optional[Tensor] = None,
    normalize: bool = False,
    normalizer: str = "retrieved",
    pool: str = "paired",
) -> Tensor:
    """XTR training scores of `queries` `[Nq, Lq, d]` against `documents`, f32.

    `documents` is `[Nd, Ld, d]` (all against all, result `[Nq, Nd]`) or `[Nq, K, Ld, d]` (each
    query has its own, result `[Nq, K]`). For a query token `s`, `τ_s` is the `k`-th largest of
    its similarities to all valid tokens of the documents that its query meets, or with `pool`
    `"all"` of all documents of the call (equals at `τ_s` count as retrieved; where there are fewer
    than `k` tokens all are). The score is `Σ_s [max_t S ≥ τ_s] max_t S / Z`; it is 0 where nothing
    of a document was retrieved.

    `normalizer` names `Z`: `"retrieved"`, the number of query tokens that retrieved a token of
    the document; `"query"`, the number of valid query tokens; `"none"`, 1. `"pylate"` are the
    scores of PyLate 1.6 and PrimeQA, where what is not retrieved, or masked, is 0 before the
    maximum: a maximum below 0 is lost unless every token of the document was retrieved, and `Z` is
    the number of maxima above 0, at least 1e-3. Gradients go through the selected maxima; `τ` and
    `Z` are constants. Masks and lengths are those of `maxsim.maxsim`.

    Nothing of queries × tokens × documents × tokens is held. f16, bf16 and f32 on the CPU and on
    CUDA devices are the library's own; there the host waits for the scores. f64, other devices,
    sides of two types, and what is traced, captured or refused by a device is composed of torch.

    Raises ValueError for a `k` below 1, an unknown normaliser or pool, or shapes that disagree.
    """
    if normalizer not in NORMALIZERS:
        raise ValueError(f"normalizer must be one of {tuple(NORMALIZERS)}, got {normalizer!r}")
    if pool not in POOLS:
        raise ValueError(f"pool must be one of {POOLS}, got {pool!r}")
    q_mask, d_mask = _checked(queries, documents, k, (q_mask, d_mask), (q_lengths, d_lengths))
    if _retrieved.takes(queries, documents):
        asked = Asked(k, NORMALIZERS[normalizer], pool == "paired", normalize)
        with _native.unless_refused():
            return _retrieved.scores(queries, documents, q_mask, d_mask, asked)
    if normalize:
        queries, documents = _maxima.normalized(queries), _maxima.normalized(documents)
    return _composed(queries, documents, q_mask, d_mask, k, normalizer, pool)


def _composed_search(
    queries: Tensor,
    documents: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    n: int,
    k: int,
) -> Ranking:
    """The ranking of torch."""
    maxima, winners = _maxima.find(queries, documents, d_mask)
    bound = _thresholds(queries, documents, d_mask, k).unsqueeze(1)
    retrieved = (winners >= 0) & ~(maxima < bound)
    imputed = torch.where(retrieved, maxima, bound)
    if q_mask is not None:
        retrieved = retrieved & q_mask.unsqueeze(1)
        imputed = imputed.masked_fill(~q_mask.unsqueeze(1), 0.0)
    is_ranked, sums = retrieved.any(-1), imputed.sum(-1)
    best, ids = _order.topk(sums, n, empty=~is_ranked)
    has_none = ~is_ranked.gather(-1, ids)
    if d_mask is not None:
        n_empty = (~d_mask.any(-1)).sum()
    else:
        n_empty = torch.tensor(0 if documents.shape[1] else documents.shape[0])
    return Ranking(
        best.float().masked_fill(has_none, float("-inf")),
        ids.masked_fill(has_none, -1),
        (sums.isnan() & is_ranked).sum(-1),
        n_empty.to(ids.device).expand(queries.shape[0]),
    )


@torch.no_grad()
def xtr_search(
    queries: Tensor,
    documents: Tensor,
    n: int = 10,
    *,
    k: int = 256,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    q_lengths: Optional[Tensor] = None,
    d_lengths: Optional[Tensor] = None,
    normalize: bool = False,
) -> Ranking:
    """The best `n` of `documents` `[Nd, Ld, d]` for each of `queries` `[Nq, Lq, d]` by XTR's
    retrieval score, among those of which a token was retrieved.

    Each query token `s` retrieves the `k` document tokens that are most similar to it, exactly,
    and those that tie with the last, of similarity `τ_s`. A document's score is
    `Σ_s (max_t S where s retrieved a token of it, else τ_s)`: what was not retrieved is imputed.
    Masks and lengths are those of `maxsim.maxsim`.

    Returns a `maxsim.Ranking` of `min(n, Nd)` places a query: scores f32 and ids int64 `[Nq, n]`,
    best first, equal scores by lower id, NaN last. Where fewer documents were retrieved, places
    behind them have the id -1 and a score of -∞. There are no gradients. The library ranks f16,
    bf16 and f32 on the CPU and on CUDA devices, and waits; the rest is composed of torch.

    Raises ValueError for an `n` below 0, a `k` below 1, or shapes that disagree.
    """
    if n < 0:
        raise ValueError(f"n must not be negative, got {n}")
    if documents.dim() != 3:
        raise ValueError(f"documents must be [Nd, Ld, d], got {list(documents.shape)}")
    q_mask, d_mask = _checked(queries, documents, k, (q_mask, d_mask), (q_lengths, d_lengths))
    n = min(n, documents.shape[0])
    if _retrieved.takes(queries, documents):
        asked = Asked(k, normalize=normalize)
        with _native.unless_refused():
            return Ranking(*_retrieved.ranked(queries, documents, q_mask, d_mask, n, asked))
    if normalize:
        queries, documents = _maxima.normalized(queries), _maxima.normalized(documents)
    return _composed_search(queries, documents, q_mask, d_mask, n, k)
