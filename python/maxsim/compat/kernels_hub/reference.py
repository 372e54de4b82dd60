"""References in plain torch and f32, pair by pair; differentiable but for those of winners."""

from __future__ import annotations

from typing import List, Tuple

import torch
from torch import Tensor

from ...composed import _maxima


def maxsim_reference(q: Tensor, d: Tensor) -> Tensor:
    """The f32 score of a query `[Lq, dim]` and a document `[Ld, dim]`."""
    return maxsim_reference_with_argmax(q, d)[0]


def maxsim_reference_with_argmax(q: Tensor, d: Tensor) -> Tuple[Tensor, Tensor]:
    """The score and int32 winners `[Lq]`, the first of equals."""
    best = torch.max(q.float() @ d.float().T, dim=1)
    return best.values.sum(), best.indices.to(torch.int32)


def _items(rows: Tensor, offsets: Tensor) -> List[Tensor]:
    ends = [int(end) for end in offsets.tolist()]
    return [rows[start:end] for start, end in zip(ends, ends[1:])]


def _stack(found: List[Tuple[Tensor, Tensor]], width: int, like: Tensor) -> Tuple[Tensor, Tensor]:
    """Scores `[P]` and winners `[P, width]`, 0 beyond a query's length."""
    winners = torch.zeros((len(found), width), dtype=torch.int32, device=like.device)
    for row, (_, places) in zip(winners, found):
        row[: places.shape[0]] = places
    scores = [score for score, _ in found]
    return torch.stack(scores) if scores else like.new_zeros(0, dtype=torch.float32), winners


def score_pairs_packed_with_argmax_reference(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
    max_q_len: int,
) -> Tuple[Tensor, Tensor]:
    """Scores `[P]` and winners `[P, max_q_len]` of pairs of packed tokens."""
    left, right = _items(queries, query_offsets), _items(documents, document_offsets)
    pairs = zip(pair_query_ids.tolist(), pair_document_ids.tolist())
    found = [maxsim_reference_with_argmax(left[q], right[d]) for q, d in pairs]
    return _stack(found, max_q_len, queries)


def score_pairs_packed_reference(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
) -> Tensor:
    """Scores `[P]` of pairs of packed tokens."""
    longest = int((query_offsets[1:] - query_offsets[:-1]).max())
    lists = (queries, query_offsets, documents, document_offsets)
    ids = (pair_query_ids, pair_document_ids)
    return score_pairs_packed_with_argmax_reference(*lists, *ids, longest)[0]


def score_candidates_padded_with_argmax_reference(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tuple[Tensor, Tensor]:
    """Scores `[B, C]` and winners `[B, C, Lq]` of padded candidates."""
    batch, count = doc_lengths.shape
    sizes, lengths = query_lengths.tolist(), doc_lengths.tolist()
    found = [
        maxsim_reference_with_argmax(
            queries[item, : sizes[item]], documents[item, place, : lengths[item][place]]
        )
        for item in range(batch)
        for place in range(count)
    ]
    scores, winners = _stack(found, queries.shape[1], queries)
    return scores.view(batch, count), winners.view(batch, count, -1)


def score_candidates_padded_reference(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tensor:
    """Scores `[B, C]` of padded candidates."""
    lists = (query_lengths, doc_lengths)
    return score_candidates_padded_with_argmax_reference(queries, documents, *lists)[0]


def score_contrastive_with_argmax_reference(
    queries: Tensor, documents: Tensor, document_offsets: Tensor
) -> Tuple[Tensor, Tensor]:
    """Scores `[Nq, Nb]` and winners `[Nq, Nb, Lq]` of all against all."""
    right = _items(documents, document_offsets)
    found = [maxsim_reference_with_argmax(query, d) for query in queries for d in right]
    scores, winners = _stack(found, queries.shape[1], queries)
    shape = (queries.shape[0], len(right))
    return scores.view(shape), winners.view(*shape, -1)


def score_contrastive_reference(
    queries: Tensor, documents: Tensor, document_offsets: Tensor
) -> Tensor:
    """Scores `[Nq, Nb]` of all against all."""
    return score_contrastive_with_argmax_reference(queries, documents, document_offsets)[0]


def score_pairs_packed_backward_reference(
    dscore: Tensor,
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
    argmax: Tensor,
) -> Tuple[Tensor, Tensor]:
    """f32 gradients of both sides from winners `[P, width]`."""
    d_queries = torch.zeros(queries.shape, dtype=torch.float32, device=queries.device)
    d_documents = torch.zeros(documents.shape, dtype=torch.float32, device=queries.device)
    starts, ends = query_offsets.tolist(), document_offsets.tolist()
    pairs = zip(pair_query_ids.tolist(), pair_document_ids.tolist())
    for pair, (query, document) in enumerate(pairs):
        rows = slice(starts[query], starts[query + 1])
        places = argmax[pair, : rows.stop - rows.start].long() + ends[document]
        d_queries[rows] += dscore[pair] * documents[places].float()
        d_documents.index_add_(0, places, dscore[pair] * queries[rows].float())
    return d_queries, d_documents


def score_candidates_padded_backward_reference(
    dscore: Tensor,
    queries: Tensor,
    documents: Tensor,
    query_lengths: Tensor,
    doc_lengths: Tensor,
    argmax: Tensor,
) -> Tuple[Tensor, Tensor]:
    """f32 gradients of both sides from winners `[B, C, Lq]`."""
    del doc_lengths
    places = torch.arange(queries.shape[1], device=queries.device)
    outside = places >= query_lengths.view(-1, 1, 1)
    winners = argmax.masked_fill(outside, -1)
    factor = dscore.float().unsqueeze(-1).expand(winners.shape)
    d_queries = _maxima.query_gradient(factor, documents, winners)
    return d_queries, _maxima.document_gradient(factor, queries, documents, winners)


def score_contrastive_backward_reference(
    dscore: Tensor,
    queries: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    argmax: Tensor,
) -> Tuple[Tensor, Tensor]:
    """f32 gradients of both sides from winners `[Nq, Nb, Lq]`."""
    places = argmax.long() + document_offsets[:-1].long().view(1, -1, 1)
    rows = documents.unsqueeze(0)
    factor = dscore.float().unsqueeze(-1).expand(places.shape)
    # Each document's winners are rows of the packed matrix, which is one document here.
    spread = places.reshape(queries.shape[0], 1, -1)
    repeated = queries.repeat(1, argmax.shape[1], 1)
    flat = factor.reshape(queries.shape[0], 1, -1)
    d_documents = _maxima.document_gradient(flat, repeated, rows, spread).squeeze(0)
    of_queries = _maxima.query_gradient(flat, rows, spread)
    d_queries = of_queries.view(queries.shape[0], argmax.shape[1], *queries.shape[1:]).sum(1)
    return d_queries, d_documents
