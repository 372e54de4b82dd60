"""References in plain torch: one query `[Lq, d]`, scores `[B]` f32.

Products are of the inputs' type, maxima and sums f32. Each goes over documents in chunks. A
document without tokens gives -∞.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ...composed import _maxima


def _rows(
    Q: Tensor,
    D: Tensor,
    lengths: Optional[Tensor] = None,
    step: Optional[int] = None,
) -> Tensor:
    """Scores in chunks of `step` documents, or of as many as a chunk may hold."""
    per_item = max(1, Q.shape[0] * D.shape[1])
    spans = _maxima.spans(D.shape[0], 1 if step else per_item, step or 0)
    parts = []
    for start, end in spans:
        products = torch.einsum("qd,bld->bql", Q, D[start:end])
        if lengths is not None:
            places = torch.arange(D.shape[1], device=D.device)
            outside = places >= lengths[start:end].unsqueeze(-1)
            products = products.masked_fill(outside.unsqueeze(1), float("-inf"))
        parts.append(products.float().max(dim=2).values.sum(dim=1))
    return torch.cat(parts) if parts else Q.new_zeros(0, dtype=torch.float32)


def maxsim_naive(Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None) -> Tensor:
    """Scores of `D` `[B, Ld, d]` with lengths `[B]`."""
    return _rows(Q, D, doc_lengths)


def maxsim_naive_fp32(Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None) -> Tensor:
    """The same as `maxsim_naive`."""
    return _rows(Q, D, doc_lengths)


def maxsim_at_operator(Q: Tensor, D: Tensor) -> Tensor:
    """`maxsim_naive` of full documents."""
    return _rows(Q, D)


def maxsim_bmm(Q: Tensor, D: Tensor) -> Tensor:
    """`maxsim_naive` of full documents."""
    return _rows(Q, D)


def maxsim_chunked(
    Q: Tensor, D: Tensor, chunk_size: int = 1000, fp32_reduce: bool = False
) -> Tensor:
    """`maxsim_naive` of full documents, `chunk_size` at once; always reduced in f32."""
    del fp32_reduce
    return _rows(Q, D, None, max(1, chunk_size))


def maxsim_naive_batched(
    Q: Tensor, D: Tensor, doc_lengths: Optional[Tensor] = None, shared_docs: bool = True
) -> Tensor:
    """Scores `[Nq, B]` of `[Nq, Lq, d]`, query by query."""
    rows = [
        maxsim_naive(query, D if shared_docs else D[item], doc_lengths)
        for item, query in enumerate(Q)
    ]
    return torch.stack(rows)


def maxsim_naive_int8(Q: Tensor, D_int8: Tensor, d_scales: Tensor) -> Tensor:
    """Scores of symmetric INT8 documents that are widened to f16 first."""
    scales = d_scales.unsqueeze(-1) if d_scales.dim() == 2 else d_scales
    parts = [
        _rows(Q, (D_int8[start:end].float() * scales[start:end].float()).half())
        for start, end in _maxima.spans(D_int8.shape[0], D_int8.shape[1] * D_int8.shape[2])
    ]
    return torch.cat(parts) if parts else Q.new_zeros(0, dtype=torch.float32)


__all__ = [
    "maxsim_at_operator",
    "maxsim_bmm",
    "maxsim_chunked",
    "maxsim_naive",
    "maxsim_naive_batched",
    "maxsim_naive_fp32",
    "maxsim_naive_int8",
]
