"""Reranking of padded batches: each query against its own candidates, with lengths."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Iterator, Tuple

import torch
from torch import Tensor

from ...composed import _calls


@dataclass(frozen=True)
class PackedBatch:
    """A padded batch without its padding, and the pairs to score. Unpacks in this order."""

    #: Query tokens `[tokens, d]`.
    Q_packed: Tensor
    #: int32 offsets `[B + 1]` of the queries.
    cu_seqlens_q: Tensor
    #: Document tokens `[tokens, d]`.
    D_packed: Tensor
    #: int32 offsets `[B * C + 1]` of the documents, row-major.
    cu_seqlens_d: Tensor
    #: int32 `[B * C]`: the query of each pair.
    pair_q_idx: Tensor
    #: int32 `[B * C]`: the document of each pair.
    pair_d_idx: Tensor
    #: The longest query.
    max_seqlen_q: int
    #: The longest document.
    max_seqlen_d: int

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, field.name) for field in fields(self)])


def _check(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tuple[int, int]:
    if queries.dim() != 3:
        raise ValueError(f"queries must be [B, Lq, d], got {tuple(queries.shape)}")
    if documents.dim() != 4:
        raise ValueError(f"documents must be [B, C, Ld, d], got {tuple(documents.shape)}")
    batch, count = documents.shape[:2]
    if queries.shape[0] != batch:
        raise ValueError(
            f"batch size mismatch: {queries.shape[0]} queries, documents of {batch}"
        )
    if queries.shape[-1] != documents.shape[-1]:
        raise ValueError(
            f"embedding dim mismatch: {queries.shape[-1]} and {documents.shape[-1]}"
        )
    if query_lengths.shape != (batch,):
        raise ValueError(f"query_lengths must be [B={batch}], got {tuple(query_lengths.shape)}")
    if doc_lengths.shape != (batch, count):
        raise ValueError(
            f"doc_lengths must be [B={batch}, C={count}], got {tuple(doc_lengths.shape)}"
        )
    return batch, count


def _check_values(lengths: Tensor, size: int, name: str, validate: bool) -> None:
    """No length above the padded size: on the device, or with `validate` by the host."""
    if validate and bool((lengths <= 0).any()):
        raise ValueError(f"{name} must all be > 0")
    if validate and bool((lengths > size).any()):
        raise ValueError(f"{name} exceeds the padded length {size}")
    if lengths.numel():
        torch._assert_async((lengths <= size).all(), f"{name} exceeds the padded length {size}")


def _pack(rows: Tensor, lengths: Tensor) -> Tuple[Tensor, Tensor]:
    """Rows `[n, size, d]` without padding, and their int32 offsets."""
    kept = _calls.from_lengths(lengths, rows.shape[1])
    offsets = torch.zeros(rows.shape[0] + 1, dtype=torch.int32, device=rows.device)
    offsets[1:] = lengths.cumsum(0)
    return rows.reshape(-1, rows.shape[-1])[kept.reshape(-1)], offsets


def pack_padded(
    queries: Tensor,
    documents: Tensor,
    query_lengths: Tensor,
    doc_lengths: Tensor,
    *,
    validate: bool = False,
) -> PackedBatch:
    """A padded batch as packed tokens and pairs.

    `queries` `[B, Lq, d]`, `documents` `[B, C, Ld, d]`, lengths `[B]` and `[B, C]`. A length above
    its padded size fails an assertion on the device; `validate` reads the lengths and raises
    ValueError for those that are 0, negative or too large. Raises ValueError for shapes that
    disagree.
    """
    batch, count = _check(queries, documents, query_lengths, doc_lengths)
    device = queries.device
    q_sizes = query_lengths.to(device=device, dtype=torch.int32)
    d_sizes = doc_lengths.to(device=device, dtype=torch.int32).reshape(-1)
    _check_values(q_sizes, queries.shape[1], "query_lengths", validate)
    _check_values(d_sizes, documents.shape[2], "doc_lengths", validate)
    q_rows, q_offsets = _pack(queries, q_sizes)
    d_rows, d_offsets = _pack(documents.reshape(batch * count, *documents.shape[2:]), d_sizes)
    pairs = torch.arange(batch * count, dtype=torch.int32, device=device)
    longest = [0, 0]
    if q_sizes.numel() and d_sizes.numel():
        longest = torch.stack([q_sizes.max(), d_sizes.max()]).tolist()
    return PackedBatch(
        Q_packed=q_rows,
        cu_seqlens_q=q_offsets,
        D_packed=d_rows,
        cu_seqlens_d=d_offsets,
        pair_q_idx=torch.div(pairs, max(1, count), rounding_mode="floor"),
        pair_d_idx=pairs,
        max_seqlen_q=int(longest[0]),
        max_seqlen_d=int(longest[1]),
    )


def maxsim_padded(
    queries: Tensor,
    documents: Tensor,
    query_lengths: Tensor,
    doc_lengths: Tensor,
    *,
    validate: bool = False,
) -> Tensor:
    """Scores `[B, C]` f32 of each query against its own candidates, differentiable.

    Arguments and errors are those of `pack_padded`; nothing is packed here.
    """
    _check(queries, documents, query_lengths, doc_lengths)
    q_sizes, d_sizes = query_lengths.to(queries.device), doc_lengths.to(queries.device)
    _check_values(q_sizes, queries.shape[1], "query_lengths", validate)
    _check_values(d_sizes, documents.shape[2], "doc_lengths", validate)
    scores: Tensor = _calls.dense(
        queries, documents, q_lengths=q_sizes, d_lengths=d_sizes, consistent=True
    )
    return scores


__all__ = ["PackedBatch", "maxsim_padded", "pack_padded"]
