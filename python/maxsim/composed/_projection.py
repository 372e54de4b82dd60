"""Projection of hidden states to tokens.

The projected rows are accumulated in f32 and rounded once. The library projects f16, bf16 and f32
on the CPU; the rest is composed of torch, where f32 values exist for one chunk of rows at a time.
The backward pass makes them again from the hidden states.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _maxsim
from .._backends.torch import memory, some_memory
from .._sides import Side
from . import _maxima, _native
from ._native import DIM_MAX, described, waited

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The least squared length: shorter rows are divided as if they had it, by a constant.
_LEAST = 1e-12
#: Elements of the longest hidden states that the library projects.
HIDDEN_MAX = 8192


def takes(hidden: Tensor, weight: Tensor, bias: Optional[Tensor], *others: Tensor) -> bool:
    """Whether the library may take these, and others of the same type."""
    dim, size = weight.shape
    fits = 1 <= dim <= DIM_MAX and 1 <= size <= HIDDEN_MAX
    return fits and _native.takes(hidden, weight, bias, *others)


def head_of(layer: Sequence[Any], normalize: bool) -> Tuple[Tuple[Any, ...], Any]:
    """A layer of weight and bias as numbers, and what must live as long as these are used."""
    weight, bias = layer
    sides = [Side(weight[None])] + ([] if bias is None else [Side(bias[None, None])])
    numbers, kept = described(*sides)
    return (numbers[0], None if bias is None else numbers[1], normalize), kept


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


class _ProjectNatively(torch.autograd.Function):
    """Tokens of rows in host memory, with the library's gradients."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, normalize):  # type: ignore[no-untyped-def]
        result = hidden.new_empty((hidden.shape[0], weight.shape[0]))
        (sides, kept), (head, kept_head) = (described(Side(hidden[None])),
                                            head_of((weight, bias), normalize))
        waited(_maxsim.project, hidden, sides[0], head, memory(result))
        del kept, kept_head
        ctx.save_for_backward(hidden, weight, bias)
        ctx.normalize = normalize
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        given = ctx.saved_tensors
        (sides, kept), (head, kept_head) = (described(Side(given[0][None])),
                                            head_of(given[1:], ctx.normalize))
        grad = grad.float().resolve_neg().contiguous()
        to: list[Any] = [None if x is None else torch.empty(x.shape) for x in given]
        room = memory(to[0]), memory(to[1]), some_memory(to[2])
        waited(_maxsim.project_backward, given[0], sides[0], head, memory(grad), room)
        del kept, kept_head
        found = (x.to(of.dtype) if need else None
                 for x, of, need in zip(to, given, ctx.needs_input_grad))
        return (*found, None)


class _Project(torch.autograd.Function):
    """Tokens composed of torch."""

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


def check(hidden: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
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
    1e-6, a constant in its gradient. Differentiable in all three tensors. On the CPU the library
    projects f16, bf16 and f32, where all are of one type; the rest is composed of torch.

    Raises ValueError for shapes or devices that disagree, TypeError for other element types.
    """
    check(hidden, weight, bias)
    dtype = dtype or hidden.dtype
    if dtype not in _FLOATS:
        raise TypeError(f"dtype must be a float type, got {dtype}")
    flat = hidden.reshape(-1, hidden.shape[-1])
    rows: Tensor
    if dtype == hidden.dtype and not hidden.is_cuda and takes(hidden, weight, bias):
        given = (None if x is None else x.resolve_neg() for x in (flat, weight, bias))
        rows = _ProjectNatively.apply(*given, normalize)
    else:
        rows = _Project.apply(flat, weight, bias, normalize, dtype)
    return rows.reshape(*hidden.shape[:-1], weight.shape[0])
