"""XTR scores: query tokens count only where they retrieved a token of the document.

Lee et al. 2023, "Rethinking the Role of Token Retrieval in Multi-Vector Retrieval", eq. 5.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from . import _calls, _maxima

NORMALIZERS = ("retrieved", "query", "none", "pylate")


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


@torch.no_grad()
def _lost(
    queries: Tensor, documents: Tensor, d_mask: Optional[Tensor], maxima: Tensor, bound: Tensor
) -> Tensor:
    """Maxima below 0 of documents with a token that was not retrieved, or is masked."""
    # The least similarity is the largest one of the negated query.
    least = -_maxima.find(-queries, documents, d_mask)[0]
    is_whole = least >= bound
    if d_mask is not None:
        all_valid = d_mask.all(-1) if d_mask.dim() == 3 else d_mask.all(-1).unsqueeze(0)
        is_whole = is_whole & all_valid.unsqueeze(-1)
    return (maxima < 0) & ~is_whole


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
) -> Tensor:
    """XTR training scores of `queries` `[Nq, Lq, d]` against `documents`, f32.

    `documents` is `[Nd, Ld, d]` (all against all, result `[Nq, Nd]`) or `[Nq, K, Ld, d]` (each
    query has its own, result `[Nq, K]`). For a query token `s`, `τ_s` is the `k`-th largest of
    its similarities to all valid document tokens that it meets in this call (equals at `τ_s`
    count as retrieved; where there are fewer than `k` tokens all are). The score is
    `Σ_s [max_t S ≥ τ_s] max_t S / Z`; it is 0 where nothing of a document was retrieved.

    `normalizer` names `Z`: `"retrieved"`, the number of query tokens that retrieved a token of
    the document; `"query"`, the number of valid query tokens; `"none"`, 1. `"pylate"` are the
    scores of PyLate 1.6 and PrimeQA, where what is not retrieved, or masked, is 0 before the
    maximum: a maximum below 0 is lost unless every token of the document was retrieved, and `Z` is
    the number of maxima above 0, at least 1e-3. Gradients go through the selected maxima; `τ` and
    `Z` are constants. Nothing of queries × tokens × documents × tokens is held. Masks and lengths
    are those of `maxsim.maxsim`.

    Raises ValueError for a `k` below 1, an unknown normaliser, or shapes that disagree.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if normalizer not in NORMALIZERS:
        raise ValueError(f"normalizer must be one of {NORMALIZERS}, got {normalizer!r}")
    _calls.check_dense(queries, documents)
    q_mask = _calls.valid(q_mask, q_lengths, queries.shape[:-1], "q")
    d_mask = _calls.valid(d_mask, d_lengths, documents.shape[:-1], "d")
    if normalize:
        queries, documents = _maxima.normalized(queries), _maxima.normalized(documents)
    maxima, winners = _maxima.token_maxima(queries, documents, d_mask)
    bound = _thresholds(queries.detach(), documents.detach(), d_mask, k).unsqueeze(1)
    # NaN compares false to everything: a token whose maximum is NaN is kept, so that it shows.
    kept = (winners >= 0) & ~(maxima.detach() < bound)
    if q_mask is not None:
        kept = kept & q_mask.unsqueeze(1)
    if normalizer == "pylate":
        kept = kept & ~_lost(queries.detach(), documents.detach(), d_mask, maxima.detach(), bound)
    sums = torch.where(kept, maxima, torch.zeros_like(maxima)).sum(-1)
    if normalizer == "retrieved":
        sums = sums / kept.sum(-1).clamp_min(1)
    elif normalizer == "pylate":
        sums = sums / (kept & (maxima.detach() > 0)).sum(-1).clamp_min(1e-3)
    elif normalizer == "query":
        if q_mask is None:
            return sums / max(1, queries.shape[1])
        sums = sums / q_mask.sum(-1, keepdim=True).clamp_min(1)
    return sums
