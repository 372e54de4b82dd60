"""PLAID (ColBERTv2) documents: centroid ids with packed residuals.

Residual bytes are read as the original reads them: the first bucket of a byte has its low bits.
ColBERT's own indexes have the other order (`maxsim.plaid` names both).
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from ..._sides import Options, Pairing, Side
from ...composed import _calls, _maxima
from ._utils import assert_max_seqlen_covers
from .reference import maxsim_residual_reference, plaid_approx_score_reference


def plaid_approx_score(query_centroid_scores: Tensor, codes: Tensor, doc_lengths: Tensor) -> Tensor:
    """Approximate scores `[B]` f32: for each query token the best of a document's centroids.

    `query_centroid_scores` is `[n_centroids, Lq]`, `codes` `[B, max_Ld]`, `doc_lengths` `[B]`. A
    code that is out of range counts as centroid 0; a document without tokens scores 0. Raises
    ValueError for ranks and shapes that disagree.
    """
    if query_centroid_scores.dim() != 2:
        raise ValueError("query_centroid_scores must be [n_centroids, Lq]")
    if codes.dim() != 2:
        raise ValueError("codes must be [B, max_Ld]")
    if doc_lengths.dim() != 1 or doc_lengths.shape[0] != codes.shape[0]:
        raise ValueError("doc_lengths must be [B], one for each row of codes")
    table = query_centroid_scores.float()
    centroids, length = table.shape
    scores = table.new_zeros(codes.shape[0])
    if codes.shape[1] == 0 or centroids == 0:
        return scores
    for start, end in _maxima.spans(codes.shape[0], codes.shape[1] * max(1, length)):
        part = _in_range(codes[start:end], centroids)
        mask = _calls.from_lengths(doc_lengths[start:end].to(codes.device), codes.shape[1])
        found = table[part].masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(dim=1)
        scores[start:end] = found.masked_fill(~mask.any(-1, keepdim=True), 0.0).sum(-1)
    return scores


def _in_range(codes: Tensor, count: int) -> Tensor:
    wide = codes.long()
    return torch.where((wide >= 0) & (wide < count), wide, 0)


class _Tokens:
    """What makes tokens of codes and residuals, a run of rows at a time."""

    def __init__(self, centroids: Tensor, weights: Tensor, nbits: int, dim: int) -> None:
        self.centroids = centroids.float()
        self.dim = dim
        slots = torch.arange(8 // nbits, device=weights.device) * nbits
        values = torch.arange(256, device=weights.device).unsqueeze(-1)
        buckets = (values >> slots) & ((1 << nbits) - 1)
        # A byte's whole run of residuals is one row of this table.
        self.table = weights.float()[buckets.clamp_max(weights.numel() - 1)]

    def make(self, codes: Tensor, residuals: Tensor) -> Tensor:
        """f32 tokens `[..., d]`."""
        added = self.table[residuals.long()].flatten(-2)[..., : self.dim]
        return self.centroids[_in_range(codes, self.centroids.shape[0])] + added


def _check_packing(nbits: int, dim: int, packed: int, name: str) -> None:
    if nbits not in (2, 4, 8):
        raise ValueError(f"nbits must be 2, 4, or 8, got {nbits}")
    expected = (dim * nbits + 7) // 8
    if packed != expected:
        raise ValueError(f"{name} has {packed} bytes a token, dim {dim} at {nbits} bits {expected}")


def _element_type(queries: Tensor) -> torch.dtype:
    """What tokens are rounded to: the queries' own type."""
    return queries.dtype if queries.is_floating_point() else torch.float32


class _Residual(torch.autograd.Function):
    """Scores of chunks of documents; only winners are kept for the backward pass."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, queries, tokens, codes, residuals, lengths, normalize
    ):
        kind = _element_type(queries)
        scores, winners = [], []
        for start, end in _maxima.spans(codes.shape[0], codes.shape[1] * tokens.dim):
            made = tokens.make(codes[start:end], residuals[start:end]).to(kind)
            found = _calls.dense(
                queries, made, d_lengths=lengths[start:end], normalize=normalize, winners=True
            )
            scores.append(found[0])
            winners.append(found[1])
        ctx.tokens, ctx.normalize = tokens, normalize
        ctx.save_for_backward(queries, codes, residuals, torch.cat(winners, dim=1))
        return torch.cat(scores, dim=1)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, codes, residuals, winners = ctx.saved_tensors
        kind = _element_type(queries)
        total = torch.zeros(queries.shape, dtype=torch.float32, device=queries.device)
        for start, end in _maxima.spans(codes.shape[0], codes.shape[1] * ctx.tokens.dim):
            made = ctx.tokens.make(codes[start:end], residuals[start:end]).to(kind)
            if ctx.normalize:
                made = _maxima.normalized(made)
            chosen = winners[:, start:end]
            factor = gradient[:, start:end].float().unsqueeze(-1).expand(chosen.shape)
            total += _maxima.query_gradient(factor, made, chosen)
        if ctx.normalize:
            with torch.enable_grad():
                rows = queries.detach().requires_grad_(True)
                (total,) = torch.autograd.grad(_maxima.normalized(rows), rows, total)
        return total.to(queries.dtype), None, None, None, None, None


def _has_kernels(queries: Tensor, codes: Tensor, residuals: Tensor) -> bool:
    """Whether a GPU scores the documents as they are compressed."""
    from ..._backends.torch import is_plain

    kinds = (torch.float16, torch.bfloat16)
    if not (is_plain(queries, codes, residuals) and queries.is_cuda):
        return False
    return (queries.dtype in kinds and queries.numel() > 0
            and codes.device == residuals.device == queries.device)


def _compressed(
    queries: Tensor, items: Side, codes: Tensor, residuals: Tensor, centroids: Tensor,
    weights: Tensor, nbits: int, normalize: bool,
) -> Tensor:
    """Scores by the kernels that decode documents; nothing is waited for but lists on the GPU."""
    from ..._backends import plaid as _plaid
    from ..._backends.residuals import Residuals

    index = Residuals(
        items, _in_range(codes, centroids.shape[0]), residuals, centroids, weights, nbits, True,
        normalize,
    )
    if normalize:
        queries = _maxima.normalized(queries.float()).to(queries.dtype)
    found: Tensor = _plaid.score(
        index, items.n_items, Side(queries), Pairing(), Options()
    ).scores
    return found


def maxsim_residual(
    Q: Tensor,
    codes: Tensor,
    residuals: Tensor,
    doc_lengths: Tensor,
    centroids: Tensor,
    bucket_weights: Tensor,
    nbits: int,
    *,
    normalize: bool = True,
) -> Tensor:
    """MaxSim `[Nq, Nd]` f32 of queries and padded PLAID documents, differentiable in `Q`.

    `codes` `[Nd, max_Ld]`, `residuals` `[Nd, max_Ld, ceil(d * nbits / 8)]` u8, `doc_lengths`
    `[Nd]`, `centroids` `[n, d]`, `bucket_weights` `[2^nbits]`, `nbits` 2, 4 or 8. `normalize`
    divides tokens of both sides by their length. `[Nd]` where `Q` is `[Lq, d]`. A GPU scores
    documents of f16 and bf16 queries as they are compressed; else tokens are made for a chunk of
    documents at a time.

    Raises ValueError for ranks and sizes that disagree, and, where `Q` requires a gradient, for a
    zero-length document.
    """
    queries = Q.unsqueeze(0) if Q.dim() == 2 else Q
    if nbits not in (2, 4, 8):
        raise ValueError(f"nbits must be 2, 4, or 8, got {nbits}")
    if codes.dim() != 2:
        raise ValueError("codes must be [Nd, max_Ld]")
    if residuals.dim() != 3 or residuals.shape[:2] != codes.shape:
        raise ValueError("residuals must be [Nd, max_Ld, packed_dim]")
    if doc_lengths.shape != codes.shape[:1]:
        raise ValueError(f"doc_lengths must be [{codes.shape[0]}], got {tuple(doc_lengths.shape)}")
    _check_packing(nbits, queries.shape[-1], residuals.shape[-1], "residuals")
    if torch.is_grad_enabled() and Q.requires_grad and bool((doc_lengths < 1).any()):
        raise ValueError(
            "maxsim_residual takes no zero-length document where Q requires a gradient"
        )
    if codes.numel() == 0:
        scores = queries.new_zeros((queries.shape[0], codes.shape[0]), dtype=torch.float32)
    elif _has_kernels(queries, codes, residuals):
        mask = _calls.from_lengths(doc_lengths.to(codes.device), codes.shape[1])
        items = Side(codes.unsqueeze(-1).to(torch.uint8), mask)
        scores = _compressed(
            queries, items, codes, residuals, centroids, bucket_weights, nbits, normalize
        )
    else:
        tokens = _Tokens(centroids, bucket_weights, nbits, queries.shape[-1])
        scores = _Residual.apply(
            queries, tokens, codes, residuals, doc_lengths.to(codes.device), normalize
        )
    return scores.squeeze(0) if Q.dim() == 2 else scores


def _runs(offsets: List[int], per_token: int) -> List[Tuple[int, int]]:
    """Runs of documents of about the tokens that a chunk may hold."""
    budget = max(1, _maxima.CHUNK_ELEMENTS // max(1, per_token))
    runs, start = [], 0
    for end in range(1, len(offsets)):
        if end > start + 1 and offsets[end] - offsets[start] > budget:
            runs.append((start, end - 1))
            start = end - 1
    if len(offsets) > 1:
        runs.append((start, len(offsets) - 1))
    return runs


@torch.no_grad()
def maxsim_residual_varlen(
    Q: Tensor,
    codes_flat: Tensor,
    residuals_flat: Tensor,
    cu_seqlens_d: Tensor,
    centroids: Tensor,
    bucket_weights: Tensor,
    nbits: int,
    *,
    max_seqlen_d: Optional[int] = None,
    normalize: bool = True,
) -> Tensor:
    """`maxsim_residual` of packed documents, without gradients.

    `codes_flat` `[tokens]`, `residuals_flat` `[tokens, packed]`, `cu_seqlens_d` `[Nd + 1]`; a
    `max_seqlen_d` below the longest document fails an assertion on the device.
    """
    if nbits not in (2, 4, 8):
        raise ValueError(f"nbits must be 2, 4, or 8, got {nbits}")
    if codes_flat.dim() != 1:
        raise ValueError("codes_flat must be 1-D [tokens]")
    if residuals_flat.dim() != 2:
        raise ValueError("residuals_flat must be 2-D [tokens, packed_dim]")
    if cu_seqlens_d.dim() != 1:
        raise ValueError("cu_seqlens_d must be 1-D [Nd + 1]")
    queries = Q.unsqueeze(0) if Q.dim() == 2 else Q
    count, length, dim = queries.shape
    _check_packing(nbits, dim, residuals_flat.shape[-1], "residuals_flat")
    if max_seqlen_d is not None:
        assert_max_seqlen_covers(cu_seqlens_d, int(max_seqlen_d), "max_seqlen_d")
    if _has_kernels(queries, codes_flat, residuals_flat):
        items = Side(codes_flat.unsqueeze(-1).to(torch.uint8), None, cu_seqlens_d)
        scores = _compressed(
            queries, items, codes_flat, residuals_flat, centroids, bucket_weights, nbits, normalize
        )
        return scores.squeeze(0) if Q.dim() == 2 else scores
    offsets = [int(end) for end in cu_seqlens_d.tolist()]
    tokens = _Tokens(centroids, bucket_weights, nbits, dim)
    rows = queries.reshape(-1, dim)
    starts = torch.arange(count + 1, device=Q.device) * length
    parts = [queries.new_zeros((count, 0), dtype=torch.float32)]
    for first, last in _runs(offsets, dim):
        begin, end = offsets[first], offsets[last]
        made = tokens.make(codes_flat[begin:end], residuals_flat[begin:end])
        made = made.to(_element_type(queries))
        ends = cu_seqlens_d[first : last + 1].long() - begin
        parts.append(_calls.packed(rows, made, starts, ends, normalize=normalize))
    scores = torch.cat(parts, dim=1)
    return scores.squeeze(0) if Q.dim() == 2 else scores


__all__ = [
    "maxsim_residual",
    "maxsim_residual_reference",
    "maxsim_residual_varlen",
    "plaid_approx_score",
    "plaid_approx_score_reference",
]
