"""What the modules of this namespace share: checks, and lengths with their empty documents."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ...composed import _calls


class ShapeError(ValueError, AssertionError):
    """Shapes that disagree. The original asserts, so this is an AssertionError too."""


def need(condition: bool, message: str) -> None:
    """Raise ShapeError unless `condition` holds."""
    if not condition:
        raise ShapeError(message)


def need_single(Q: Tensor, D: Tensor) -> None:
    """One query `[Lq, d]` and documents `[B, Ld, d]`."""
    need(
        Q.dim() == 2 and D.dim() == 3 and Q.shape[1] == D.shape[2],
        f"Q must be [Lq, d] and D [B, Ld, d], got {tuple(Q.shape)} and {tuple(D.shape)}",
    )


def empty_is_lowest(
    scores: Tensor, doc_lengths: Optional[Tensor], query_lengths: Optional[Tensor], size: int
) -> Tensor:
    """Scores with -∞ where a query with tokens meets a document without any.

    `doc_lengths` has a shape that broadcasts to the scores'; without it all documents have `size`
    tokens. `query_lengths` is `[Nq]`.
    """
    if doc_lengths is None and size > 0:
        return scores
    if doc_lengths is None:
        empty = torch.ones_like(scores, dtype=torch.bool)
    else:
        empty = (doc_lengths <= 0).expand(scores.shape)
    if query_lengths is not None:
        empty = empty & (query_lengths > 0).unsqueeze(-1)
    return scores.masked_fill(empty, float("-inf"))


def score(
    Q: Tensor,
    D: Tensor,
    doc_lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Scores of `[Nq, Lq, d]` and `[B, Ld, d]` or `[Nq, B, Ld, d]`, lengths as the caller has them.

    An empty document gives -∞. `doc_lengths` is `[B]`, or for a query's own documents anything
    with their number of entries.
    """
    own = D.dim() == 4
    if doc_lengths is not None:
        doc_lengths = doc_lengths.to(D.device).reshape(D.shape[:-2])
    if query_lengths is not None:
        query_lengths = query_lengths.to(Q.device)
    scores: Tensor = _calls.dense(Q, D, q_lengths=query_lengths, d_lengths=doc_lengths)
    if Q.shape[1] == 0:
        return scores
    lengths = doc_lengths if doc_lengths is None or own else doc_lengths.unsqueeze(0)
    return empty_is_lowest(scores, lengths, query_lengths, D.shape[-2])


def score_single(Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None) -> Tensor:
    """Scores `[B]` of one query `[Lq, d]`."""
    need_single(Q, D)
    return score(Q.unsqueeze(0), D, doc_lengths).squeeze(0)


def score_runs(Q: Tensor, rows: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Scores `[B]` of one query and documents that lie anywhere in `rows` `[T, d]`."""
    need(Q.dim() == 2, f"Q must be [Lq, d], got {tuple(Q.shape)}")
    need(rows.dim() == 2, f"document rows must be [T, d], got {tuple(rows.shape)}")
    need(Q.shape[1] == rows.shape[1], f"dims differ: {Q.shape[1]} and {rows.shape[1]}")
    if starts.shape[0] == 0:
        return torch.zeros(0, dtype=torch.float32, device=Q.device)
    scores: Tensor = _calls.scattered(Q.unsqueeze(0), rows, starts, lengths).squeeze(0)
    return scores if Q.shape[0] == 0 else empty_is_lowest(scores, lengths, None, 1)


def offsets_of(items: Any) -> Tuple[Tensor, Tensor, int]:
    """A list of `[L_i, d]` tensors as rows, int32 offsets and the longest length."""
    sizes = [int(item.shape[0]) for item in items]
    lengths = torch.tensor(sizes, dtype=torch.int32, device=items[0].device)
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int32, device=items[0].device)
    offsets[1:] = lengths.cumsum(0)
    return torch.cat(list(items), dim=0), offsets, max(sizes)
