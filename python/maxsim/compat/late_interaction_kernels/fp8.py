"""FP8 tokens: quantisers, and scores of codes with scales."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ... import scoring
from ...composed import _calls, _maxima
from ...quantize import Quantized
from ._utils import drop_single, lead

#: No scale is below what this largest value gives.
_LEAST = 1e-6


def _codes(X: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    limit = torch.finfo(dtype).max
    return (X.float() / scale).clamp(-limit, limit).to(dtype).contiguous()


def quantize_fp8_per_tensor(
    X: Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tuple[Tensor, Tensor]:
    """Codes of `X` and one f32 scale (0-d): the largest value becomes the type's largest."""
    if X.numel() == 0:
        return X.to(dtype), torch.ones((), dtype=torch.float32, device=X.device)
    scale = X.abs().amax().float().clamp_min(_LEAST) / torch.finfo(dtype).max
    return _codes(X, scale, dtype), scale


def quantize_fp8_per_token(
    X: Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tuple[Tensor, Tensor]:
    """Codes of `X` and an f32 scale for each row, `X.shape[:-1]`."""
    scale = X.abs().amax(dim=-1).float().clamp_min(_LEAST) / torch.finfo(dtype).max
    return _codes(X, scale.unsqueeze(-1), dtype), scale


def dequantize_fp8_per_tensor(X_fp8: Tensor, scale: Tensor) -> Tensor:
    """f32 values of codes with one scale."""
    return X_fp8.float() * scale


def dequantize_fp8_per_token(X_fp8: Tensor, scale: Tensor) -> Tensor:
    """f32 values of codes with a scale for each row."""
    return X_fp8.float() * scale.unsqueeze(-1)


def _rows(codes: Tensor, scale: Tensor) -> Tensor:
    if scale.dim() == 0 or scale.numel() == 1:
        return dequantize_fp8_per_tensor(codes, scale.reshape(()))
    return dequantize_fp8_per_token(codes, scale)


@torch.no_grad()
def maxsim_inference_fp8(
    Q: Tensor,
    D: Tensor,
    *,
    scale_Q: Tensor,
    scale_D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
) -> Tensor:
    """Scores `[Nq, Nd]` f32 of FP8 tokens with scales, 0-d or one for each token.

    e4m3 codes are scored as they are (sums in f32 on the CPU; FP8 tensor cores of GPUs add with
    fewer bits); others are widened to f32 for a chunk of documents at a time. 2-D sides lose
    their axis. Raises ValueError for dims that disagree.
    """
    query_is_2d, document_is_2d = Q.dim() == 2, D.dim() == 2
    if query_is_2d:
        Q, scale_Q = Q.unsqueeze(0), scale_Q.unsqueeze(0) if scale_Q.dim() else scale_Q
    if document_is_2d:
        D, scale_D = D.unsqueeze(0), scale_D.unsqueeze(0) if scale_D.dim() else scale_D
    if Q.shape[-1] != D.shape[-1]:
        raise ValueError(
            f"Q and D must share the embedding dim, got {Q.shape[-1]} and {D.shape[-1]}"
        )
    q_mask, d_mask = lead(q_mask, 2), lead(d_mask, 2)
    if Q.dtype == D.dtype == torch.float8_e4m3fn:
        sides = [
            Quantized(side, scale.float().reshape(() if scale.numel() == 1 else scale.shape),
                      format="fp8")
            for side, scale in ((Q, scale_Q), (D, scale_D))
        ]
        found = scoring.maxsim(*sides, q_mask=q_mask, d_mask=d_mask)
        return drop_single(found, query_is_2d, document_is_2d)
    queries = _rows(Q, scale_Q)
    parts = [queries.new_zeros((Q.shape[0], 0))]
    for start, end in _maxima.spans(D.shape[0], D.shape[1] * D.shape[2]):
        scale = scale_D if scale_D.dim() < 2 else scale_D[start:end]
        mask = None if d_mask is None else d_mask[start:end]
        documents = _rows(D[start:end], scale)
        parts.append(_calls.dense(queries, documents, q_mask=q_mask, d_mask=mask))
    return drop_single(torch.cat(parts, dim=1), query_is_2d, document_is_2d)


__all__ = [
    "dequantize_fp8_per_tensor",
    "dequantize_fp8_per_token",
    "maxsim_inference_fp8",
    "quantize_fp8_per_tensor",
    "quantize_fp8_per_token",
]
