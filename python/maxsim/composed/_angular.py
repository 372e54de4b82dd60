"""Angular distances: one minus the cosine of every query token's nearest document token."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from .. import scoring
from . import _calls, _maxima


def angular(
    queries: Tensor,
    documents: Tensor,
    *,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    q_lengths: Optional[Tensor] = None,
    d_lengths: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
    mean: bool = False,
) -> Tensor:
    """Angular distances of `queries` `[Nq, Lq, d]` to `documents`, f32: **smaller is better**.

    `documents` is `[Nd, Ld, d]` (all against all, result `[Nq, Nd]`) or `[Nq, K, Ld, d]` (each
    query has its own, result `[Nq, K]`). A distance is `Σ_s min_t (1 − cos(Q[q, s], D[d, t]))`,
    over valid tokens, each term at least 0: 0 of the same directions, 2 a token of opposite ones.
    A row of zeros is 1 away from everything. A document without tokens is at `inf`. NaN shows.

    `weights` `[Nq, Lq]` multiply the terms; `mean` divides by the number of the query's valid
    tokens. Masks and lengths are those of `maxsim.maxsim`. Gradients go through the nearest tokens
    and the rows' lengths; rows of zeros have none, nor do documents without tokens. Losses take
    larger scores for better ones: give them the negated distances. `composed.topk(distances, k,
    largest=False)` has the nearest first. f64 is computed in plain torch.

    Raises ValueError for shapes that disagree.
    """
    _calls.check_dense(queries, documents)
    q_mask = _calls.valid(q_mask, q_lengths, queries.shape[:-1], "q")
    d_mask = _calls.valid(d_mask, d_lengths, documents.shape[:-1], "d")
    if weights is not None and weights.shape != queries.shape[:-1]:
        raise ValueError(
            f"weights must be {list(queries.shape[:-1])}, got {list(weights.shape)}"
        )
    queries, documents = _calls.same_type(queries, documents)
    with torch.no_grad():
        scores, winners, cosines = _nearest(queries.detach(), documents.detach(), q_mask, d_mask)
    if torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad):
        units = [_directions(*side) for side in ((queries, q_mask), (documents, d_mask))]
        cosines = _maxima.attach(units[0], units[1], winners, cosines)
    found = winners >= 0
    terms = (1 - cosines).clamp_min(0)
    if weights is not None:
        terms = terms * torch.where(found, weights.to(terms).unsqueeze(1), 0.0)
    sums = torch.where(found, terms, 0.0).sum(-1)
    if mean:
        counts = queries.shape[1] if q_mask is None else q_mask.sum(-1, keepdim=True)
        sums = sums / torch.as_tensor(counts, device=sums.device).clamp_min(1)
    # What a device has refused has no winners, and shows in the plain scores alone.
    sums = sums.masked_fill(scores.isnan() & ~found.any(-1), float("nan"))
    return sums.masked_fill(_without_tokens(documents, d_mask), float("inf"))


def _nearest(
    queries: Tensor, documents: Tensor, q_mask: Optional[Tensor], d_mask: Optional[Tensor]
) -> Tuple[Tensor, Tensor, Tensor]:
    """Scores `[Nq, N]` of cosines, winners and maxima `[Nq, N, Lq]`: natively where that can be."""
    if _calls.is_native(queries, documents):
        score = scoring.maxsim if documents.dim() == 3 else scoring.candidates
        found = score(queries, documents, q_mask=q_mask, d_mask=d_mask, normalize=True,
                      winners=True, token_scores=True)
        return found.scores, found.winners, found.token_scores
    rows = (_maxima.normalized(queries), _maxima.normalized(documents))
    maxima, winners = _maxima.find(*rows, d_mask)
    if q_mask is not None:
        winners = winners.masked_fill(~q_mask.unsqueeze(1), -1)
    return _maxima.total(maxima, q_mask), winners, maxima


def _directions(rows: Tensor, valid: Optional[Tensor]) -> Tensor:
    """Rows divided by their lengths; rows of zeros and masked ones are without a gradient."""
    is_zero = (rows == 0).all(-1, keepdim=True)
    if valid is not None:
        is_zero = is_zero | (valid == 0).unsqueeze(-1)
    return _maxima.normalized(rows.masked_fill(is_zero, 0.0))


def _without_tokens(documents: Tensor, d_mask: Optional[Tensor]) -> Tensor:
    """`[1, Nd]` or `[Nq, K]`: whether a document has no valid token."""
    if d_mask is None:
        shape = documents.shape[:-2]
        found = torch.full(shape, documents.shape[-2] == 0, device=documents.device)
    else:
        found = ~(d_mask != 0).any(-1)
    return found if found.dim() == 2 else found.unsqueeze(0)
