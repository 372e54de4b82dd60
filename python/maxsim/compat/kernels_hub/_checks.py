"""What the functions of this namespace refuse, with which exception."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch
from torch import Tensor

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64)


def _elements(queries: Tensor, documents: Tensor) -> None:
    for name, tensor in (("queries", queries), ("documents", documents)):
        if tensor.dtype not in _FLOATS:
            raise TypeError(f"{name} must be float32, float16 or bfloat16, got {tensor.dtype}")
    if queries.dtype != documents.dtype:
        raise TypeError(
            "queries and documents must share dtype (have the same dtype), got "
            f"{queries.dtype} and {documents.dtype}"
        )


def _integers(**lists: Tensor) -> None:
    for name, values in lists.items():
        if values.dtype not in _INTEGERS:
            raise TypeError(f"{name} must be int32 or int64, got {values.dtype}")


def _one_device(**tensors: Tensor) -> None:
    places = {name: tensor.device for name, tensor in tensors.items()}
    if len(set(places.values())) > 1:
        listed = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise RuntimeError(f"all tensors must be on the same device, got {listed}")


def _dims(queries: Tensor, documents: Tensor) -> None:
    if queries.shape[-1] != documents.shape[-1]:
        raise ValueError(
            "the dim of queries and documents must match, got "
            f"{queries.shape[-1]} and {documents.shape[-1]}"
        )


def _lengths(lengths: Tensor, size: int, name: str) -> None:
    if lengths.numel() == 0:
        return
    least, most = (int(value) for value in torch.stack(list(lengths.aminmax())).tolist())
    if least <= 0:
        raise ValueError(f"{name} must be above 0, got {least}")
    if most > size:
        raise ValueError(f"{name} must not exceed the padded length {size}, got {most}")


def padded(
    queries: Tensor, documents: Tensor, query_lengths: Tensor, doc_lengths: Tensor
) -> None:
    """Padded queries and candidates with lengths."""
    if queries.dim() != 3:
        raise ValueError(f"queries must be 3-D [B, Lq, D], got {tuple(queries.shape)}")
    if documents.dim() != 4:
        raise ValueError(f"documents must be 4-D [B, C, Ld, D], got {tuple(documents.shape)}")
    batch, count = documents.shape[:2]
    if queries.shape[0] != batch:
        raise ValueError(f"batch mismatch: {queries.shape[0]} queries, documents of {batch}")
    _dims(queries, documents)
    if tuple(query_lengths.shape) != (batch,):
        raise ValueError(f"query_lengths must be [{batch}], got {tuple(query_lengths.shape)}")
    if tuple(doc_lengths.shape) != (batch, count):
        raise ValueError(f"doc_lengths must be [{batch}, {count}], got {tuple(doc_lengths.shape)}")
    _elements(queries, documents)
    _integers(query_lengths=query_lengths, doc_lengths=doc_lengths)
    _one_device(
        queries=queries,
        documents=documents,
        query_lengths=query_lengths,
        doc_lengths=doc_lengths,
    )
    _lengths(query_lengths, queries.shape[1], "query_lengths")
    _lengths(doc_lengths, documents.shape[2], "doc_lengths")


def _offsets(offsets: Tensor, rows: int, name: str, error: type[Exception]) -> List[int]:
    """Offsets that rise strictly from 0 to `rows`, read by the host."""
    if offsets.dim() != 1 or offsets.shape[0] < 2:
        raise error(f"{name} must be [n + 1] for at least one item, got {tuple(offsets.shape)}")
    values: List[int] = offsets.detach().cpu().tolist()
    if values[0] != 0:
        raise error(f"{name} must start at 0, got {values[0]}")
    if values[-1] != rows:
        raise error(f"{name} must end at the total of {rows} tokens, got {values[-1]}")
    for place, (start, end) in enumerate(zip(values, values[1:])):
        if end <= start:
            raise error(
                f"{name} must be strictly increasing, without an empty segment: at {place} "
                f"{start} to {end}"
            )
    return values


def _ids(ids: Tensor, count: int, name: str) -> None:
    for place, value in enumerate(ids.detach().cpu().tolist()):
        if not 0 <= value < count:
            raise RuntimeError(f"{name}[{place}] = {value} is out of range 0..{count}")


def packed(
    queries: Tensor,
    documents: Tensor,
    offsets: Tuple[Tensor, Tensor],
    ids: Tuple[Tensor, Tensor],
    max_q_len: Optional[int],
) -> int:
    """Packed sides with pairs; the length of the winners' last axis."""
    for name, rows in (("queries", queries), ("documents", documents)):
        if rows.dim() != 2:
            raise ValueError(f"{name} must be 2-D [tokens, dim], got {tuple(rows.shape)}")
    _dims(queries, documents)
    _elements(queries, documents)
    _integers(
        query_offsets=offsets[0],
        document_offsets=offsets[1],
        pair_query_ids=ids[0],
        pair_document_ids=ids[1],
    )
    _one_device(
        queries=queries,
        query_offsets=offsets[0],
        documents=documents,
        document_offsets=offsets[1],
        pair_query_ids=ids[0],
        pair_document_ids=ids[1],
    )
    if ids[0].dim() != 1 or ids[0].shape != ids[1].shape:
        raise ValueError(
            "pair_query_ids and pair_document_ids must be 1-D and of one length, got "
            f"{tuple(ids[0].shape)} and {tuple(ids[1].shape)}"
        )
    starts = _offsets(offsets[0], queries.shape[0], "query_offsets", RuntimeError)
    ends = _offsets(offsets[1], documents.shape[0], "document_offsets", RuntimeError)
    _ids(ids[0], len(starts) - 1, "pair_query_ids")
    _ids(ids[1], len(ends) - 1, "pair_document_ids")
    longest = max(end - start for start, end in zip(starts, starts[1:]))
    if max_q_len is None:
        return longest
    if max_q_len < max(1, longest):
        raise ValueError(f"max_q_len must be at least {longest}, the longest query: {max_q_len}")
    return int(max_q_len)


def contrastive(queries: Tensor, documents: Tensor, document_offsets: Tensor) -> None:
    """Padded queries of full length and packed documents."""
    _elements(queries, documents)
    _integers(document_offsets=document_offsets)
    if queries.dim() != 3:
        raise ValueError(f"queries must be 3-D [Nq, Lq, D], got {tuple(queries.shape)}")
    if documents.dim() != 2:
        raise ValueError(f"documents must be packed, 2-D [tokens, D]: {tuple(documents.shape)}")
    _dims(queries, documents)
    if queries.shape[1] <= 0:
        raise ValueError("Lq must be above 0")
    if queries.shape[2] <= 0:
        raise ValueError("dim must be above 0")
    _one_device(queries=queries, documents=documents, document_offsets=document_offsets)
    _offsets(document_offsets, documents.shape[0], "document_offsets", ValueError)
