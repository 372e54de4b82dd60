"""Lists of (query, document) pairs of packed tokens."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ...composed import _calls
from .varlen import check_bounds, check_packed


def score_pairs_packed(
    Q_packed: Tensor,
    D_packed: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_d: Tensor,
    pair_q_idx: Tensor,
    pair_d_idx: Tensor,
    *,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_d: Optional[int] = None,
) -> Tensor:
    """Scores `[P]` f32 of query `pair_q_idx[p]` against document `pair_d_idx[p]`, differentiable.

    Tokens, offsets and bounds are those of `maxsim_varlen`; ids are int32 or int64 `[P]`. Raises
    ValueError for ranks, dims or lists that disagree.
    """
    check_packed(Q_packed, D_packed)
    if pair_q_idx.dim() != 1 or pair_q_idx.shape != pair_d_idx.shape:
        raise ValueError(
            "pair_q_idx and pair_d_idx must be 1-D and of one length, got "
            f"{tuple(pair_q_idx.shape)} and {tuple(pair_d_idx.shape)}"
        )
    check_bounds(cu_seqlens_q, cu_seqlens_d, max_seqlen_q, max_seqlen_d)
    scores: Tensor = _calls.packed(
        Q_packed,
        D_packed,
        cu_seqlens_q,
        cu_seqlens_d,
        query_ids=pair_q_idx,
        document_ids=pair_d_idx,
        max_q_len=max_seqlen_q,
        max_d_len=max_seqlen_d,
        consistent=True,
    )
    return scores


__all__ = ["score_pairs_packed"]
