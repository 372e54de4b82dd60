"""Scores of some tokens of a query, chosen for each document."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ...composed import _maxima
from ._shapes import need, need_single, score


def flash_maxsim_sparse(
    Q: Tensor, D: Tensor, indices: Tensor, doc_lengths: Optional[Tensor] = None
) -> Tensor:
    """Scores `[B]` of `Q` `[Lq, d]` and `D` `[B, Ld, d]`, over query tokens `indices` `[B, K]`."""
    need_single(Q, D)
    need(
        indices.dim() == 2 and indices.shape[0] == D.shape[0],
        f"indices must be [B={D.shape[0]}, K], got {tuple(indices.shape)}",
    )
    chosen = Q[indices.long()]
    lengths = None if doc_lengths is None else doc_lengths.unsqueeze(-1)
    return score(chosen, D.unsqueeze(1), lengths).squeeze(-1)


def maxsim_sparse_naive(Q: Tensor, D: Tensor, indices: Tensor) -> Tensor:
    """The same of full documents, in plain torch and f32."""
    chosen = Q[indices.long()].float()
    return _maxima.scores(chosen, D.float().unsqueeze(1)).squeeze(-1)


__all__ = ["flash_maxsim_sparse", "maxsim_sparse_naive"]
