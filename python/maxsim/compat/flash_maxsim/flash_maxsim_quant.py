"""INT8 tokens: quantisers, and scores of one query against codes."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ... import scoring
from ...composed import _maxima
from ...quantize import Quantized
from ._shapes import empty_is_lowest, need, score_single

#: The least and the largest scale that f16 holds, as multiples that codes are divided by.
_SCALES = (2.0**-24, 65504.0)


def _stored(scale: Tensor) -> Tensor:
    return scale.clamp(*_SCALES).half()


def quantize_int8(D: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """`(u8 codes, f16 scales, f16 minima)` of `[B, Ld, d]`, the last two `[B, Ld, 1]`.

    `x ≈ code · scale + minimum`; codes are made with the scale and minimum as they are stored.
    """
    need(D.dim() == 3, f"D must be [B, Ld, d], got {tuple(D.shape)}")
    rows = D.float()
    least, most = rows.aminmax(dim=-1, keepdim=True)
    minima = least.half()
    scales = _stored((most - least) / 255.0)
    codes = ((rows - minima.float()) / scales.float()).round().clamp(0, 255).to(torch.uint8)
    return codes, scales, minima


def _symmetric(rows: Tensor) -> Tuple[Tensor, Tensor]:
    wide = rows.float()
    scales = _stored(wide.abs().amax(dim=-1, keepdim=True).clamp_min(1e-8) / 127.0)
    return (wide / scales.float()).round().clamp(-127, 127).to(torch.int8), scales


def quantize_int8_symmetric(D: Tensor) -> Tuple[Tensor, Tensor]:
    """`(i8 codes, f16 scales [B, Ld, 1])` of `[B, Ld, d]`: `x ≈ code · scale`."""
    need(D.dim() == 3, f"D must be [B, Ld, d], got {tuple(D.shape)}")
    return _symmetric(D)


def quantize_query_int8(Q: Tensor) -> Tuple[Tensor, Tensor]:
    """`(i8 codes, f16 scales [Lq])` of a query `[Lq, d]`."""
    codes, scales = _symmetric(Q)
    return codes, scales.squeeze(-1)


def dequantize_int8(D_uint8: Tensor, scales: Tensor, mins: Tensor) -> Tensor:
    """f32 `code · scale + minimum`."""
    return D_uint8.float() * scales.float() + mins.float()


def _check(Q: Tensor, codes: Tensor) -> None:
    need(
        Q.dim() == 2 and codes.dim() == 3 and Q.shape[1] == codes.shape[2],
        f"Q must be [Lq, d], codes [B, Ld, d], got {tuple(Q.shape)} and {tuple(codes.shape)}",
    )


def _per_token(values: Tensor) -> Tensor:
    return (values.squeeze(-1) if values.dim() == 3 else values).half()


def _column(values: Tensor) -> Tensor:
    return (values.unsqueeze(-1) if values.dim() == 2 else values).float()


@torch.no_grad()
def _of_codes(Q: Any, D: Quantized, lengths: Optional[Tensor], length: int) -> Tensor:
    """Scores of codes as they are; `length` is the number of query tokens."""
    scores: Tensor = scoring.maxsim(Q, D, d_lengths=lengths)[0]
    return empty_is_lowest(scores, lengths, None, D.codes.shape[1]) if length else scores


@torch.no_grad()
def _widened(
    Q: Tensor, codes: Tensor, scales: Tensor, mins: Optional[Tensor], lengths: Optional[Tensor]
) -> Tensor:
    """Scores of codes that are widened to f32 for a chunk of documents at a time."""
    query = Q.float()
    parts = [query.new_zeros(0)]
    for start, end in _maxima.spans(codes.shape[0], codes.shape[1] * codes.shape[2]):
        rows = codes[start:end].float() * _column(scales)[start:end]
        if mins is not None:
            rows += _column(mins)[start:end]
        part = None if lengths is None else lengths[start:end]
        parts.append(score_single(query, rows, part))
    return torch.cat(parts)


def flash_maxsim_int8(
    Q: Tensor,
    D_uint8: Tensor,
    scales: Tensor,
    mins: Tensor,
    doc_lengths: Optional[Tensor] = None,
    query_chunk_size: Optional[int] = 128,
) -> Tensor:
    """Scores `[B]` f32 of a query `[Lq, d]` and what `quantize_int8` gives."""
    del query_chunk_size
    _check(Q, D_uint8)
    if Q.dtype not in (torch.float16, torch.bfloat16):
        return _widened(Q, D_uint8, scales, mins, doc_lengths)
    tokens = Quantized(D_uint8, _per_token(scales), _per_token(mins), "int8-affine")
    return _of_codes(Q.detach().unsqueeze(0), tokens, doc_lengths, Q.shape[0])


def flash_maxsim_int8_symmetric(
    Q: Tensor,
    D_int8: Tensor,
    scales: Tensor,
    doc_lengths: Optional[Tensor] = None,
    query_chunk_size: Optional[int] = 128,
) -> Tensor:
    """Scores `[B]` f32 of a query `[Lq, d]` and what `quantize_int8_symmetric` gives."""
    del query_chunk_size
    _check(Q, D_int8)
    return _widened(Q, D_int8, scales, None, doc_lengths)


def flash_maxsim_int8x8(
    Q: Tensor,
    D_int8: Tensor,
    d_scales: Tensor,
    Q_int8: Optional[Tensor] = None,
    q_scales: Optional[Tensor] = None,
    doc_lengths: Optional[Tensor] = None,
    query_chunk_size: Optional[int] = 128,
) -> Tensor:
    """Scores `[B]` f32 of INT8 codes on both sides; the query is quantised where it is not."""
    del query_chunk_size
    if Q_int8 is None or q_scales is None:
        Q_int8, q_scales = quantize_query_int8(Q)
    _check(Q_int8, D_int8)
    query = Quantized(Q_int8.unsqueeze(0), q_scales.half().reshape(1, -1))
    tokens = Quantized(D_int8, _per_token(d_scales))
    return _of_codes(query, tokens, doc_lengths, Q_int8.shape[0])


__all__ = [
    "dequantize_int8",
    "flash_maxsim_int8",
    "flash_maxsim_int8_symmetric",
    "flash_maxsim_int8x8",
    "quantize_int8",
    "quantize_int8_symmetric",
    "quantize_query_int8",
]
