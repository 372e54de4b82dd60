"""Training scores that keep documents as INT8 codes between the passes."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ...composed import _calls, _maxima
from ._shapes import empty_is_lowest
from .flash_maxsim_batched_train import check_batch
from .flash_maxsim_quant import _symmetric


class _Int8Batch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, Q, D, doc_lengths, query_lengths):  # type: ignore[no-untyped-def]
        scores, winners = _calls.dense(
            Q, D, q_lengths=query_lengths, d_lengths=doc_lengths, winners=True
        )
        codes, scales = _symmetric(D)
        ctx.save_for_backward(Q, codes, scales, winners)
        ctx.kind = D.dtype
        return scores

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        Q, codes, scales, winners = ctx.saved_tensors
        own = codes.dim() == 4
        factor = gradient.float().unsqueeze(-1).expand(winners.shape)
        d_queries = d_documents = None
        if ctx.needs_input_grad[0]:
            d_queries = torch.zeros(Q.shape, dtype=torch.float32, device=Q.device)
            count, size = codes.shape[-3], codes[..., 0, :, :].numel()
            for start, end in _maxima.spans(count, size):
                part = slice(start, end)
                rows = (codes[:, part] if own else codes[part]).float()
                rows *= (scales[:, part] if own else scales[part]).float()
                d_queries += _maxima.query_gradient(factor[:, part], rows, winners[:, part])
            d_queries = d_queries.to(Q.dtype)
        if ctx.needs_input_grad[1]:
            # No document value is read here, so nothing is lost by the codes.
            d_documents = _maxima.document_gradient(factor, Q, codes, winners).to(ctx.kind)
        return d_queries, d_documents, None, None


def flash_maxsim_int8_batched_train(
    Q: Tensor,
    D: Tensor,
    shared_docs: bool = True,
    doc_lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Tensor:
    """`flash_maxsim_batched_train`, whose saved documents are codes of half the size.

    Scores and the documents' gradient are those of full precision; the queries' gradient is made
    of the codes.
    """
    check_batch(Q, D, shared_docs)
    if doc_lengths is not None:
        doc_lengths = doc_lengths.to(D.device).reshape(D.shape[:-2])
    scores: Tensor = _Int8Batch.apply(Q, D, doc_lengths, query_lengths)
    if Q.shape[1] == 0:
        return scores
    lengths = doc_lengths if doc_lengths is None or not shared_docs else doc_lengths.unsqueeze(0)
    return empty_is_lowest(scores, lengths, query_lengths, D.shape[-2])


__all__ = ["flash_maxsim_int8_batched_train"]
