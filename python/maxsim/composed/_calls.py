"""The operator as the compositions and the compatible namespaces call it.

One place decides what runs natively: f16, bf16 and f32 on the CPU and on CUDA devices go to the
library, everything else (f64, other devices) to plain torch. Sides of two element types are
brought to the narrower one first.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import scoring
from .._backends.torch import indices
from . import _maxima

_NATIVE = (torch.float16, torch.bfloat16, torch.float32)
_RANK = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.float64: 3}

Result = Union[Tensor, Tuple[Tensor, Tensor]]


def is_native(*tensors: Tensor) -> bool:
    """Whether the library's engines take these tensors."""
    return all(
        tensor.dtype in _NATIVE and tensor.device.type in ("cpu", "cuda") for tensor in tensors
    )


def same_type(queries: Tensor, documents: Tensor) -> Tuple[Tensor, Tensor]:
    """Both in one element type: bf16 if either is, else the narrower of f16, f32 and f64."""
    if queries.dtype == documents.dtype:
        return queries, documents
    for name, tensor in (("queries", queries), ("documents", documents)):
        if tensor.dtype not in _RANK:
            raise TypeError(f"{name} must have a float type, got {tensor.dtype}")
    kind = min(queries.dtype, documents.dtype, key=_RANK.__getitem__)
    return queries.to(kind), documents.to(kind)


def as_mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    """A mask of bools; other types are valid where they are not zero."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask != 0


def from_lengths(lengths: Tensor, size: int) -> Tensor:
    """The mask `[..., size]` of the first `lengths[...]` places."""
    places = torch.arange(size, device=lengths.device)
    return places < lengths.to(torch.int64).unsqueeze(-1)


def valid(
    mask: Optional[Tensor], lengths: Optional[Tensor], shape: Sequence[int], side: str
) -> Optional[Tensor]:
    """What of a side is valid: the mask, the first `lengths` tokens, or both; None for all."""
    if mask is not None and tuple(mask.shape) != tuple(shape):
        raise ValueError(f"{side}_mask must be {list(shape)}, got {list(mask.shape)}")
    if lengths is not None and tuple(lengths.shape) != tuple(shape[:-1]):
        raise ValueError(f"{side}_lengths must be {list(shape[:-1])}, got {list(lengths.shape)}")
    mask = as_mask(mask)
    if lengths is None:
        return mask
    lengths = indices(lengths, f"{side}_lengths")
    # Those of a device are not waited for, and what is traced has no numbers.
    is_known = lengths.device.type == "cpu" and not torch.compiler.is_compiling()
    if is_known and ((lengths < 0) | (lengths > shape[-1])).any():
        raise ValueError(f"{side}_lengths must lie in 0..={shape[-1]}")
    prefix = from_lengths(lengths, shape[-1])
    return prefix if mask is None else mask & prefix


def check_dense(queries: Tensor, documents: Tensor) -> None:
    """Queries `[Nq, Lq, d]` against documents `[Nd, Ld, d]` or `[Nq, K, Ld, d]`."""
    if queries.dim() != 3 or documents.dim() not in (3, 4):
        raise ValueError(
            "queries must be [Nq, Lq, d], documents [Nd, Ld, d] or [Nq, K, Ld, d]; got "
            f"{list(queries.shape)} and {list(documents.shape)}"
        )
    if queries.shape[-1] != documents.shape[-1]:
        raise ValueError(
            f"queries have dim {queries.shape[-1]}, documents {documents.shape[-1]}"
        )
    if documents.dim() == 4 and documents.shape[0] != queries.shape[0]:
        raise ValueError(
            f"there are {queries.shape[0]} queries, documents for {documents.shape[0]}"
        )
    if queries.device != documents.device:
        raise ValueError(f"queries are on {queries.device}, documents on {documents.device}")


def _in_torch(
    queries: Tensor,
    documents: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    normalize: bool,
    winners: bool,
) -> Result:
    if normalize:
        queries, documents = _maxima.normalized(queries), _maxima.normalized(documents)
    maxima, places = _maxima.token_maxima(queries, documents, d_mask)
    scores = _maxima.total(maxima, q_mask)
    if not winners:
        return scores
    if q_mask is not None:
        places = places.masked_fill(~q_mask.unsqueeze(1), -1)
    return scores, places


def dense(
    queries: Tensor,
    documents: Tensor,
    *,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    q_lengths: Optional[Tensor] = None,
    d_lengths: Optional[Tensor] = None,
    normalize: bool = False,
    winners: bool = False,
    consistent: bool = False,
) -> Any:
    """Scores `[Nq, Nd]` or, for documents `[Nq, K, Ld, d]`, `[Nq, K]`, f32 (f64 for f64).

    With `winners` also their int32 `[Nq, N, Lq]`, -1 where there is none.
    """
    queries, documents = same_type(queries, documents)
    if not is_native(queries, documents):
        q_valid = valid(q_mask, q_lengths, queries.shape[:-1], "q")
        d_valid = valid(d_mask, d_lengths, documents.shape[:-1], "d")
        return _in_torch(queries, documents, q_valid, d_valid, normalize, winners)
    call = scoring.candidates if documents.dim() == 4 else scoring.maxsim
    result = call(
        queries,
        documents,
        q_mask=q_mask,
        d_mask=d_mask,
        q_lengths=q_lengths,
        d_lengths=d_lengths,
        normalize=normalize,
        winners=winners,
        consistent=consistent,
    )
    return (result.scores, result.winners) if winners else result


def padded(rows: Tensor, offsets: Tensor) -> Tuple[Tensor, Tensor]:
    """Packed rows as `[n, longest, d]` with the mask of what is valid."""
    offsets = offsets.to(torch.int64)
    lengths = offsets[1:] - offsets[:-1]
    longest = int(lengths.max()) if lengths.numel() else 0
    mask = from_lengths(lengths, longest)
    places = offsets[:-1].unsqueeze(-1) + torch.arange(longest, device=rows.device)
    if rows.shape[0] == 0:
        return rows.new_zeros((*mask.shape, rows.shape[-1])), mask
    return rows[torch.where(mask, places, 0)], mask


def packed(
    queries: Tensor,
    documents: Tensor,
    query_offsets: Tensor,
    document_offsets: Tensor,
    *,
    query_ids: Optional[Tensor] = None,
    document_ids: Optional[Tensor] = None,
    max_q_len: Optional[int] = None,
    max_d_len: Optional[int] = None,
    normalize: bool = False,
    winners: bool = False,
    consistent: bool = False,
) -> Any:
    """Packed queries against packed documents: `[Nq, Nd]`, or `[P]` for lists of ids."""
    queries, documents = same_type(queries, documents)
    if is_native(queries, documents):
        result = scoring.packed(
            queries,
            documents,
            query_offsets,
            document_offsets,
            query_ids,
            document_ids,
            max_q_len=max_q_len,
            max_d_len=max_d_len,
            normalize=normalize,
            winners=winners,
            consistent=consistent,
        )
        return (result.scores, result.winners) if winners else result
    q_rows, q_mask = padded(queries, query_offsets)
    d_rows, d_mask = padded(documents, document_offsets)
    if query_ids is None or document_ids is None:
        return _in_torch(q_rows, d_rows, q_mask, d_mask, normalize, winners)
    chosen = document_ids.long()
    result = _in_torch(
        q_rows[query_ids.long()],
        d_rows[chosen].unsqueeze(1),
        q_mask[query_ids.long()],
        d_mask[chosen].unsqueeze(1),
        normalize,
        winners,
    )
    if isinstance(result, tuple):
        return result[0][:, 0], result[1][:, 0]
    return result[:, 0]


def scattered(queries: Tensor, rows: Tensor, starts: Tensor, lengths: Tensor) -> Any:
    """Queries `[Nq, Lq, d]` against documents that lie anywhere in `rows` `[T, d]`."""
    queries, rows = same_type(queries, rows)
    if is_native(queries, rows):
        return scoring.scattered(queries, rows, None, None, starts, lengths)
    sizes = lengths.to(torch.int64)
    mask = from_lengths(sizes, int(sizes.max()) if sizes.numel() else 0)
    places = starts.to(torch.int64).unsqueeze(-1) + torch.arange(mask.shape[-1], device=rows.device)
    taken = rows[torch.where(mask, places, 0)]
    return _in_torch(queries, taken, None, mask, False, False)
