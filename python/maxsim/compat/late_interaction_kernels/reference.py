"""References in plain torch, for tests: f64 stays f64, everything else is computed in f32.

They go over documents in chunks or one by one, and take no part in the operator. Differentiable
but for `unpack_residuals_reference`. A document without tokens scores 0; NaN shows.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ...composed import _calls, _maxima
from ._utils import drop_single, lead

NEG_INF = float("-inf")


def maxsim_reference(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = False,
) -> Tensor:
    """MaxSim `[Nq, Nd]` of `[Nq, Lq, d]` and `[Nd, Ld, d]`, without the axes not given."""
    query_is_2d, document_is_2d = Q.dim() == 2, D.dim() == 2
    queries, documents = (side.unsqueeze(0) if side.dim() == 2 else side for side in (Q, D))
    if queries.shape[-1] != documents.shape[-1]:
        raise ValueError(f"Q has dim {queries.shape[-1]}, D {documents.shape[-1]}")
    scores = _maxima.scores(
        queries,
        documents,
        _calls.as_mask(lead(q_mask, 2)),
        _calls.as_mask(lead(d_mask, 2)),
        normalize,
    )
    return drop_single(scores, query_is_2d, document_is_2d)


def _pair(query: Tensor, document: Tensor) -> Tensor:
    """One score, f32."""
    if query.shape[0] == 0 or document.shape[0] == 0:
        return torch.zeros((), dtype=torch.float32, device=query.device)
    return (query.float() @ document.float().T).max(dim=-1).values.sum()


def _pieces(rows: Tensor, offsets: Tensor) -> list[Tensor]:
    ends = [int(end) for end in offsets.tolist()]
    return [rows[start:end] for start, end in zip(ends, ends[1:])]


def maxsim_reference_varlen(
    Q: Tensor, D: Tensor, cu_seqlens_q: Tensor, cu_seqlens_d: Tensor
) -> Tensor:
    """MaxSim `[Nq, Nd]` of packed tokens, pair by pair."""
    queries, documents = _pieces(Q, cu_seqlens_q), _pieces(D, cu_seqlens_d)
    scores = [_pair(query, document) for query in queries for document in documents]
    if not scores:
        return torch.zeros((len(queries), len(documents)), device=Q.device)
    return torch.stack(scores).view(len(queries), len(documents))


def maxsim_reference_scatter(
    Q_packed: Tensor,
    D_packed: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_d: Tensor,
    pair_q_idx: Tensor,
    pair_d_idx: Tensor,
) -> Tensor:
    """MaxSim `[P]` of pairs of packed tokens."""
    queries, documents = _pieces(Q_packed, cu_seqlens_q), _pieces(D_packed, cu_seqlens_d)
    pairs = zip(pair_q_idx.tolist(), pair_d_idx.tolist())
    scores = [_pair(queries[query], documents[document]) for query, document in pairs]
    return torch.stack(scores) if scores else torch.zeros(0, device=Q_packed.device)


def maxsim_padded_reference(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tensor:
    """MaxSim `[B, C]` of padded queries and candidates with lengths, pair by pair."""
    sizes, counts = query_lengths.tolist(), doc_lengths.tolist()
    scores = [
        _pair(queries[item, : sizes[item]], documents[item, place, :length])
        for item, row in enumerate(counts)
        for place, length in enumerate(row)
    ]
    if not scores:
        return torch.zeros(documents.shape[:2], device=queries.device)
    return torch.stack(scores).view(documents.shape[:2])


def plaid_approx_score_reference(
    query_centroid_scores: Tensor, codes: Tensor, doc_lengths: Tensor
) -> Tensor:
    """`[B]`: for each query token the best of a document's centroids, summed."""
    table = query_centroid_scores.float()
    scores = []
    for row, length in zip(codes.long(), doc_lengths.tolist()):
        found = table[row[:length]]
        scores.append(found.amax(dim=0).sum() if length else table.new_zeros(()))
    return torch.stack(scores) if scores else table.new_zeros(0)


def unpack_residuals_reference(residuals: Tensor, nbits: int, d: int) -> Tensor:
    """Bucket ids `[..., d]` int32 of packed residuals; the first bucket has the low bits."""
    places = torch.arange(d, device=residuals.device)
    per_byte = 8 // nbits
    bits = residuals.to(torch.int32).index_select(-1, places // per_byte)
    shifts = (places % per_byte * nbits).to(torch.int32)
    return torch.bitwise_right_shift(bits, shifts) & ((1 << nbits) - 1)


def maxsim_residual_reference(
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
    """MaxSim `[Nq, Nd]` of queries and PLAID tokens that are made in full first."""
    queries = (Q.unsqueeze(0) if Q.dim() == 2 else Q).float()
    buckets = unpack_residuals_reference(residuals, nbits, queries.shape[-1]).long()
    tokens = centroids.float()[codes.long()] + bucket_weights.float()[buckets]
    mask = _calls.from_lengths(doc_lengths.to(codes.device), codes.shape[-1])
    return _maxima.scores(queries, tokens, None, mask, normalize)


def maxsim_from_hidden_reference(
    Q: Tensor,
    H_d: Tensor,
    W: Tensor,
    b: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = True,
) -> Tensor:
    """MaxSim of queries and documents that are projected in f32 first."""
    bias = None if b is None else b.float()
    documents = torch.nn.functional.linear(H_d.float(), W.float(), bias)
    if normalize:
        documents = _maxima.normalized(documents)
    scores = maxsim_reference(Q.unsqueeze(0) if Q.dim() == 2 else Q, documents, d_mask=d_mask)
    return scores.squeeze(0) if Q.dim() == 2 else scores
