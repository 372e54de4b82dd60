"""Projection of hidden states to tokens, and MaxSim of what it gives.

The projected rows are accumulated in f32 and rounded once. Their f32 values exist for one chunk
of rows at a time; the backward pass makes them again from the hidden states.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _calls, _maxima

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The least squared length: shorter rows are divided as if they had it, by a constant.
_LEAST = 1e-12


def _rows(
    hidden: Tensor, weight: Tensor, bias: Optional[Tensor], normalize: bool
) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """Projected rows, their factors `r` and which of them were clamped."""
    with _maxima.as_given(hidden):
        rows = hidden @ weight.T
    if bias is not None:
        rows = rows + bias
    if not normalize:
        return rows, None, None
    squared = rows.square().sum(-1, keepdim=True)
    return rows, squared.clamp_min(_LEAST).rsqrt(), squared < _LEAST


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, normalize, dtype):  # type: ignore[no-untyped-def]
        kind = _maxima.accumulation_type(hidden, weight)
        wide_weight = weight.to(kind)
        wide_bias = None if bias is None else bias.to(kind)
        result = hidden.new_empty((hidden.shape[0], weight.shape[0]), dtype=dtype)
        for start, end in _maxima.spans(hidden.shape[0], sum(weight.shape)):
            rows, factor, _ = _rows(hidden[start:end].to(kind), wide_weight, wide_bias, normalize)
            result[start:end] = rows if factor is None else rows * factor
        ctx.save_for_backward(hidden, weight, bias)
        ctx.normalize = normalize
        return result

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        hidden, weight, bias = ctx.saved_tensors
        kind = _maxima.accumulation_type(hidden, weight)
        wide_weight = weight.to(kind)
        wide_bias = None if bias is None else bias.to(kind)
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(wide_weight) if ctx.needs_input_grad[1] else None
        d_bias = None
        if wide_bias is not None and ctx.needs_input_grad[2]:
            d_bias = torch.zeros_like(wide_bias)
        for start, end in _maxima.spans(hidden.shape[0], sum(weight.shape)):
            part = hidden[start:end].to(kind)
            step = gradient[start:end].to(kind)
            if ctx.normalize:
                rows, factor, clamped = _rows(part, wide_weight, wide_bias, True)
                assert factor is not None and clamped is not None
                unit = rows * factor
                along = (unit * step).sum(-1, keepdim=True).masked_fill(clamped, 0.0)
                step = (step - unit * along) * factor
            with _maxima.as_given(hidden):
                if d_hidden is not None:
                    d_hidden[start:end] = step @ wide_weight
                if d_weight is not None:
                    d_weight += step.T @ part
            if d_bias is not None:
                d_bias += step.sum(0)
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
        )


def _check(hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
    named = [("hidden", hidden), ("weight", weight)]
    if bias is not None:
        named.append(("bias", bias))
    for name, tensor in named:
        if tensor.dtype not in _FLOATS:
            raise TypeError(f"{name} must have a float type, got {tensor.dtype}")
        if tensor.device != hidden.device:
            raise ValueError(f"{name} is on {tensor.device}, hidden on {hidden.device}")
    if weight.dim() != 2 or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"weight must be [d_out, {hidden.shape[-1] if hidden.dim() else '?'}] for hidden of "
            f"shape {tuple(hidden.shape)}, got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}], got {tuple(bias.shape)}")


def project(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    normalize: bool = True,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Tokens of hidden states: `hidden · weightᵀ + bias`, each row divided by its length.

    `hidden` is `[..., d_model]`, `weight` `[d_out, d_model]` (as `torch.nn.Linear` has it), `bias`
    `[d_out]`. The result is `[..., d_out]` of type `dtype` (default: `hidden`'s): accumulated in
    f32 (f64 for f64) and rounded once. A row whose squared length is below 1e-12 is divided by
    1e-6, a constant in its gradient. Differentiable in all three tensors.

    Raises ValueError for shapes or devices that disagree, TypeError for other element types.
    """
    _check(hidden, weight, bias)
    dtype = dtype or hidden.dtype
    if dtype not in _FLOATS:
        raise TypeError(f"dtype must be a float type, got {dtype}")
    flat = hidden.reshape(-1, hidden.shape[-1])
    rows: Tensor = _Project.apply(flat, weight, bias, normalize, dtype)
    return rows.reshape(*hidden.shape[:-1], weight.shape[0])


def from_hidden(
    queries: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    normalize: bool = True,
    **options: Any,
) -> Tensor:
    """MaxSim of `queries` against documents that are projected on the way.

    `hidden` is `[Nd, Ld, d_model]` or `[Nq, K, Ld, d_model]`; the rest is as in `project`, whose
    rows are rounded to the element type of `queries`. `normalize` is about the documents: queries
    are taken as they are. `options` are those of `maxsim.maxsim` (`q_mask`, `d_mask`, …). Returns
    `[Nq, Nd]` or `[Nq, K]` f32, differentiable in queries, hidden, weight and bias.
    """
    documents = project(hidden, weight, bias, normalize=normalize, dtype=queries.dtype)
    scores: Tensor = _calls.dense(queries, documents, **options)
    return scores
