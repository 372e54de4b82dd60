"""Packed tokens: one query against packed documents, and packed pairs."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from ...composed import _calls
from ._shapes import empty_is_lowest, need, offsets_of, score_runs


def flash_maxsim_packed(
    Q: Tensor,
    D_packed: Tensor,
    cu_seqlens_d: Tensor,
    max_seqlen_d: Optional[int] = None,
    query_chunk_size: Optional[int] = 128,
) -> Tensor:
    """Scores `[B]` of `Q` `[Lq, d]` and documents `[T, d]` with offsets `[B + 1]`."""
    del max_seqlen_d, query_chunk_size
    return score_runs(Q, D_packed, cu_seqlens_d[:-1], cu_seqlens_d[1:] - cu_seqlens_d[:-1])


def pack_docs(d_embs: List[Tensor]) -> Tuple[Tensor, Tensor, int]:
    """A list of `[Ld_i, d]` as `(rows [T, d], int32 offsets [B + 1], longest)`."""
    return offsets_of(d_embs)


def flash_maxsim_varlen(
    Q_packed: Tensor,
    D_packed: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_d: Tensor,
    max_seqlen_q: int,
    max_seqlen_d: int,
) -> Tensor:
    """Scores `[N]` of packed pairs: query `n` against document `n`."""
    need(
        Q_packed.dim() == 2 and D_packed.dim() == 2 and Q_packed.shape[1] == D_packed.shape[1],
        f"both must be [T, d] with one d, got {tuple(Q_packed.shape)}, {tuple(D_packed.shape)}",
    )
    need(
        cu_seqlens_q.shape[0] == cu_seqlens_d.shape[0],
        f"there are {cu_seqlens_q.shape[0] - 1} queries, {cu_seqlens_d.shape[0] - 1} documents",
    )
    ids = torch.arange(cu_seqlens_q.shape[0] - 1, device=Q_packed.device, dtype=torch.int32)
    scores: Tensor = _calls.packed(
        Q_packed,
        D_packed,
        cu_seqlens_q,
        cu_seqlens_d,
        query_ids=ids,
        document_ids=ids,
        max_q_len=max_seqlen_q,
        max_d_len=max_seqlen_d,
    )
    lengths = cu_seqlens_d[1:] - cu_seqlens_d[:-1]
    has_queries = cu_seqlens_q[1:] > cu_seqlens_q[:-1]
    lengths = torch.where(has_queries, lengths, torch.ones_like(lengths))
    return empty_is_lowest(scores, lengths, None, 1)


def pack_pairs(
    q_embs: List[Tensor], d_embs: List[Tensor]
) -> Tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """Two lists as `(Q, D, offsets of Q, offsets of D, longest query, longest document)`."""
    queries, q_offsets, q_longest = offsets_of(q_embs)
    documents, d_offsets, d_longest = offsets_of(d_embs)
    return queries, documents, q_offsets, d_offsets, q_longest, d_longest


__all__ = ["flash_maxsim_packed", "flash_maxsim_varlen", "pack_docs", "pack_pairs"]
