"""The functions of the Hub kernel `erikkaum/maxsim`, version 2, under their names.

Three layouts (packed pairs, padded candidates, all against all), each with a plain function
without gradients, one that also gives winners, and one for training; then references. Empty
items, lengths and ids out of range are errors, for which lists are read by the host. Unlike
there, NaN in a query shows as NaN, any length and dim is taken, and CPU tensors are scored too.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ...composed import _calls
from . import _checks
from .reference import (
    maxsim_reference,
    maxsim_reference_with_argmax,
    score_candidates_padded_reference,
    score_candidates_padded_with_argmax_reference,
    score_contrastive_backward_reference,
    score_contrastive_reference,
    score_contrastive_with_argmax_reference,
    score_pairs_packed_backward_reference,
    score_pairs_packed_reference,
    score_pairs_packed_with_argmax_reference,
)

__all__ = [
    "maxsim_reference",
    "maxsim_reference_with_argmax",
    "score_candidates_padded",
    "score_candidates_padded_reference",
    "score_candidates_padded_train",
    "score_candidates_padded_with_argmax",
    "score_candidates_padded_with_argmax_reference",
    "score_contrastive",
    "score_contrastive_backward_reference",
    "score_contrastive_reference",
    "score_contrastive_train",
    "score_contrastive_with_argmax",
    "score_contrastive_with_argmax_reference",
    "score_pairs_packed",
    "score_pairs_packed_backward_reference",
    "score_pairs_packed_reference",
    "score_pairs_packed_train",
    "score_pairs_packed_with_argmax",
    "score_pairs_packed_with_argmax_reference",
]


def _filled(result: Tuple[Tensor, Tensor]) -> Tuple[Tensor, Tensor]:
    """Scores and winners, which are 0 where a query has no token."""
    return result[0], result[1].clamp_min(0)


def score_pairs_packed_train(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
    *,
    max_q_len: Optional[int] = None,
) -> Tensor:
    """Scores `[P]` f32 of packed tokens `[T, dim]`, differentiable.

    Offsets are `[n + 1]`, ids `[P]`, all int32 or int64; a `max_q_len` must not be below the
    longest query. Raises ValueError for ranks, dims and `max_q_len`, TypeError for element types,
    RuntimeError for offsets that do not rise from 0 to the number of tokens, ids out of range and
    devices that differ.
    """
    ids = (pair_query_ids, pair_document_ids)
    offsets = (query_offsets, document_offsets)
    longest = _checks.packed(queries, documents, offsets, ids, max_q_len)
    scores: Tensor = _calls.packed(
        queries, documents, *offsets, query_ids=ids[0], document_ids=ids[1], max_q_len=longest
    )
    return scores


@torch.no_grad()
def score_pairs_packed(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
    *,
    max_q_len: Optional[int] = None,
) -> Tensor:
    """`score_pairs_packed_train` without gradients."""
    return score_pairs_packed_train(
        queries,
        query_offsets,
        documents,
        document_offsets,
        pair_query_ids,
        pair_document_ids,
        max_q_len=max_q_len,
    )


@torch.no_grad()
def score_pairs_packed_with_argmax(
    queries: Tensor,
    query_offsets: Tensor,
    documents: Tensor,
    document_offsets: Tensor,
    pair_query_ids: Tensor,
    pair_document_ids: Tensor,
    *,
    max_q_len: Optional[int] = None,
) -> Tuple[Tensor, Tensor]:
    """`score_pairs_packed` and int32 winners `[P, max_q_len]`, 0 beyond a query's length."""
    ids = (pair_query_ids, pair_document_ids)
    offsets = (query_offsets, document_offsets)
    longest = _checks.packed(queries, documents, offsets, ids, max_q_len)
    result = _calls.packed(
        queries,
        documents,
        *offsets,
        query_ids=ids[0],
        document_ids=ids[1],
        max_q_len=longest,
        winners=True,
    )
    return _filled(result)


def score_candidates_padded_train(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tensor:
    """Scores `[B, C]` f32 of `[B, Lq, dim]` and each query's own `[B, C, Ld, dim]`.

    Lengths `[B]` and `[B, C]` are int32 or int64. Differentiable. Raises ValueError for ranks,
    shapes and lengths outside 1 to the padded length, TypeError for element types, RuntimeError
    for devices that differ.
    """
    _checks.padded(queries, documents, query_lengths, doc_lengths)
    scores: Tensor = _calls.dense(
        queries, documents, q_lengths=query_lengths, d_lengths=doc_lengths
    )
    return scores


@torch.no_grad()
def score_candidates_padded(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tensor:
    """`score_candidates_padded_train` without gradients."""
    return score_candidates_padded_train(queries, documents, query_lengths, doc_lengths)


@torch.no_grad()
def score_candidates_padded_with_argmax(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> Tuple[Tensor, Tensor]:
    """`score_candidates_padded` and int32 winners `[B, C, Lq]`, 0 beyond a query's length."""
    _checks.padded(queries, documents, query_lengths, doc_lengths)
    return _filled(
        _calls.dense(
            queries, documents, q_lengths=query_lengths, d_lengths=doc_lengths, winners=True
        )
    )


def _contrastive(
    queries: Tensor, documents: Tensor, document_offsets: Tensor, winners: bool
) -> Tuple[Tensor, Tensor]:
    _checks.contrastive(queries, documents, document_offsets)
    count, length, dim = queries.shape
    starts = torch.arange(count + 1, device=queries.device, dtype=torch.int32) * length
    result = _calls.packed(
        queries.reshape(-1, dim),
        documents,
        starts,
        document_offsets.to(torch.int32),
        max_q_len=length,
        winners=winners,
    )
    return result if winners else (result, starts)


def score_contrastive_train(
    queries: Tensor, documents: Tensor, document_offsets: Tensor
) -> Tensor:
    """Scores `[Nq, Nb]` f32 of `[Nq, Lq, dim]` and packed `[T, dim]`, differentiable.

    `document_offsets` is `[Nb + 1]`, int32 or int64. Raises ValueError for ranks, dims and
    offsets that do not rise strictly from 0 to the number of tokens, TypeError for element types,
    RuntimeError for devices that differ.
    """
    return _contrastive(queries, documents, document_offsets, winners=False)[0]


@torch.no_grad()
def score_contrastive(queries: Tensor, documents: Tensor, document_offsets: Tensor) -> Tensor:
    """`score_contrastive_train` without gradients."""
    return _contrastive(queries, documents, document_offsets, winners=False)[0]


@torch.no_grad()
def score_contrastive_with_argmax(
    queries: Tensor, documents: Tensor, document_offsets: Tensor
) -> Tuple[Tensor, Tensor]:
    """`score_contrastive` and int32 winners `[Nq, Nb, Lq]`."""
    return _filled(_contrastive(queries, documents, document_offsets, winners=True))
