"""Reranking: documents packed, anywhere in a larger tensor, or padded per query."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ._shapes import need, score, score_runs


def flash_maxsim_rerank(
    Q: Tensor, D_packed: Tensor, cu_seqlens_d: Tensor, max_seqlen_d: int
) -> Tensor:
    """Scores `[B]` of `Q` `[Lq, d]` and documents `[T, d]` with offsets `[B + 1]`."""
    del max_seqlen_d
    return score_runs(Q, D_packed, cu_seqlens_d[:-1], cu_seqlens_d[1:] - cu_seqlens_d[:-1])


def flash_maxsim_rerank_direct(
    Q: Tensor,
    batch_tensor: Tensor,
    doc_offsets: Tensor,
    doc_lengths: Tensor,
    max_seqlen_d: int,
) -> Tensor:
    """Scores `[B]` of documents that start at rows `doc_offsets` of `batch_tensor` `[T, d]`.

    Nothing is copied.
    """
    del max_seqlen_d
    return score_runs(Q, batch_tensor, doc_offsets, doc_lengths)


def flash_maxsim_rerank_padded(
    queries: Tensor,
    documents: Tensor,
    query_lengths: Optional[Tensor] = None,
    doc_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Scores `[B, C]` of `[B, Lq, D]` against each query's own `[B, C, Ld, D]`, with lengths."""
    need(queries.dim() == 3, f"queries must be [B, Lq, D], got {tuple(queries.shape)}")
    need(documents.dim() == 4, f"documents must be [B, C, Ld, D], got {tuple(documents.shape)}")
    need(
        queries.shape[0] == documents.shape[0] and queries.shape[2] == documents.shape[3],
        f"B and D must agree, got {tuple(queries.shape)} and {tuple(documents.shape)}",
    )
    return score(queries, documents, doc_lengths, query_lengths)


__all__ = ["flash_maxsim_rerank", "flash_maxsim_rerank_direct", "flash_maxsim_rerank_padded"]
