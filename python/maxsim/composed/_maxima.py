"""Token maxima in plain torch: what a query token's best document token is, and its gradients.

Everything here goes over documents in chunks, so nothing of queries × tokens × documents × tokens
is ever held. It runs on every device and for every float type of torch, f64 and `meta` included:
the references, the compositions (XTR, weights) and what the native engine does not take use it.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Iterator, Optional, Tuple

import torch
from torch import Tensor

#: How many similarities (or gathered elements) a chunk may hold.
CHUNK_ELEMENTS = 1 << 23


def accumulation_type(*tensors: Tensor) -> torch.dtype:
    """f64 if any tensor is f64, else f32."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def as_given(tensor: Tensor) -> ContextManager[Any]:
    """A context in which products have the types of their factors, also under autocast."""
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, enabled=False)


def spans(total: int, per_item: int, budget: int = 0) -> Iterator[Tuple[int, int]]:
    """Cut `total` items of `per_item` elements into runs of at most `budget` elements."""
    step = max(1, (budget or CHUNK_ELEMENTS) // max(1, per_item))
    for start in range(0, total, step):
        yield start, min(start + step, total)


def _similarities(queries: Tensor, documents: Tensor, mask: Optional[Tensor]) -> Tensor:
    """`[Nq, n, Lq, Ld]` of queries `[Nq, Lq, d]` against `[n, Ld, d]` or `[Nq, n, Ld, d]`."""
    with as_given(queries):
        if documents.dim() == 3:
            count, length, dim = documents.shape
            flat = queries.reshape(-1, dim) @ documents.reshape(-1, dim).T
            shape = (queries.shape[0], queries.shape[1], count, length)
            products = flat.reshape(shape).transpose(1, 2)
        else:
            products = queries.unsqueeze(1) @ documents.transpose(-1, -2)
    if mask is not None:
        valid = mask if mask.dim() == 3 else mask.unsqueeze(0)
        products = products.masked_fill(~valid.unsqueeze(2), float("-inf"))
    return products


def find(
    queries: Tensor, documents: Tensor, d_mask: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """The maximum and the winner of every query token over every document.

    `queries` is `[Nq, Lq, d]`; `documents` is `[Nd, Ld, d]` (every query meets every document) or
    `[Nq, K, Ld, d]` (each query has its own); `d_mask` has the shape of `documents` without `d`.
    Returns `[Nq, N, Lq]` maxima in the accumulation type and int32 winners: the lowest index of
    equals, -1 with a maximum of 0 where a document has no valid token. NaN propagates.
    """
    kind = accumulation_type(queries, documents)
    own = documents.dim() == 4
    n_queries, length = queries.shape[:2]
    count, doc_length = documents.shape[-3], documents.shape[-2]
    maxima = torch.zeros((n_queries, count, length), dtype=kind, device=queries.device)
    winners = torch.full_like(maxima, -1, dtype=torch.int32)
    if maxima.numel() == 0 or doc_length == 0:
        return maxima, winners
    wide = queries.to(kind)
    for start, end in spans(count, n_queries * length * doc_length):
        part = documents[:, start:end] if own else documents[start:end]
        mask = None
        if d_mask is not None:
            mask = d_mask[:, start:end] if own else d_mask[start:end]
        values, indices = _similarities(wide, part.to(kind), mask).max(dim=-1)
        if mask is not None:
            empty = ~(mask.any(-1) if own else mask.any(-1).unsqueeze(0))
            values = values.masked_fill(empty.unsqueeze(-1), 0.0)
            indices = indices.masked_fill(empty.unsqueeze(-1), -1)
        maxima[:, start:end] = values
        winners[:, start:end] = indices.to(torch.int32)
    return maxima, winners


def query_gradient(gradient: Tensor, documents: Tensor, winners: Tensor) -> Tensor:
    """`Σ_n gradient[q, n, s] · documents[n, winner]`, `[Nq, Lq, d]` in the gradient's type."""
    own = documents.dim() == 4
    n_queries, count, length = winners.shape
    dim = documents.shape[-1]
    result = gradient.new_zeros((n_queries, length, dim))
    rows = torch.arange(n_queries, device=winners.device).view(-1, 1, 1)
    for start, end in spans(count, n_queries * length * dim):
        chosen = winners[:, start:end].long()
        weight = torch.where(chosen >= 0, gradient[:, start:end], 0.0)
        ids = torch.arange(start, end, device=winners.device).view(1, -1, 1)
        place = chosen.clamp_min(0)
        taken = documents[rows, ids, place] if own else documents[ids, place]
        with as_given(gradient):
            result += torch.einsum("qns,qnsd->qsd", weight, taken.to(gradient.dtype))
    return result


def _add_rows(to: Tensor, places: Tensor, rows: Tensor) -> None:
    """Adds rows at places, of which several may be one, in an order that is always the same."""
    if to.device.type == "cuda":
        # This sorts the places; `index_add_` would add with atomics.
        to.index_put_((places,), rows, accumulate=True)
    else:
        to.index_add_(0, places, rows)


def document_gradient(
    gradient: Tensor, queries: Tensor, documents: Tensor, winners: Tensor
) -> Tensor:
    """`Σ gradient[q, n, s] · queries[q, s]` at every winner, of the documents' shape."""
    own = documents.dim() == 4
    n_queries, count, length = winners.shape
    doc_length, dim = documents.shape[-2:]
    if documents.numel() == 0:
        return gradient.new_zeros(documents.shape)
    wide = queries.to(gradient.dtype).unsqueeze(1)
    result = gradient.new_zeros((documents.numel() // max(1, dim), dim))
    rows = torch.arange(n_queries, device=winners.device).view(-1, 1, 1)
    for start, end in spans(count, n_queries * length * dim):
        chosen = winners[:, start:end].long()
        weight = torch.where(chosen >= 0, gradient[:, start:end], 0.0)
        ids = torch.arange(start, end, device=winners.device).view(1, -1, 1)
        item = rows * count + ids if own else ids
        place = (item * doc_length + chosen.clamp_min(0)).reshape(-1)
        _add_rows(result, place, (weight.unsqueeze(-1) * wide).reshape(-1, dim))
    return result.reshape(documents.shape)


class _TokenMaxima(torch.autograd.Function):
    """Maxima that are known, with the gradients that their winners give."""

    @staticmethod
    def forward(ctx, queries, documents, winners, maxima):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(queries, documents, winners)
        return maxima.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        queries, documents, winners = ctx.saved_tensors
        d_queries = d_documents = None
        if ctx.needs_input_grad[0]:
            d_queries = query_gradient(gradient, documents, winners).to(queries.dtype)
        if ctx.needs_input_grad[1]:
            d_documents = document_gradient(gradient, queries, documents, winners)
            d_documents = d_documents.to(documents.dtype)
        return d_queries, d_documents, None, None


def attach(queries: Tensor, documents: Tensor, winners: Tensor, maxima: Tensor) -> Tensor:
    """`maxima` with gradients to `queries` and `documents` through `winners`."""
    if not (torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)):
        return maxima
    result: Tensor = _TokenMaxima.apply(queries, documents, winners, maxima)
    return result


def token_maxima(
    queries: Tensor, documents: Tensor, d_mask: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """`find` with gradients: maxima `[Nq, N, Lq]` (differentiable) and int32 winners."""
    with torch.no_grad():
        maxima, winners = find(queries.detach(), documents.detach(), d_mask)
    return attach(queries, documents, winners, maxima), winners


def total(maxima: Tensor, q_mask: Optional[Tensor]) -> Tensor:
    """The sum over a query's valid tokens: `[Nq, N]` of `[Nq, N, Lq]`."""
    if q_mask is not None:
        maxima = torch.where(q_mask.unsqueeze(1), maxima, torch.zeros_like(maxima))
    return maxima.sum(dim=-1)


def normalized(rows: Tensor) -> Tensor:
    """Rows divided by their length in the accumulation type, `1/√max(‖x‖², 1e-12)`."""
    return torch.nn.functional.normalize(rows.to(accumulation_type(rows)), dim=-1, eps=1e-6)


def scores(
    queries: Tensor,
    documents: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    normalize: bool = False,
) -> Tensor:
    """MaxSim in plain torch, `[Nq, N]`, differentiable, on any device and float type."""
    if normalize:
        queries, documents = normalized(queries), normalized(documents)
    return total(token_maxima(queries, documents, d_mask)[0], q_mask)
