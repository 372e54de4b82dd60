"""Codes of tokens on a GPU, as :func:`maxsim.quantize` defines them, and their scales there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import AFFINE_SCALES, F16_SCALES, TENSOR_SCALE, Options, Side

#: What a scale must be more than: the largest negative number that is not subnormal.
_LEAST = -1.17549435e-38


def scale_words(scales: Tensor, mins: Tensor | None, rows: int) -> Tensor:
    """Scales as GPUs read them, a word per row and padding: nothing is waited for.

    A scale that is negative becomes NaN, so that it shows in the scores.
    """
    words = torch.empty(rows + _maxsim.SCALE_PADDING, dtype=torch.float32, device=scales.device)
    if mins is not None:
        halves = words.view(torch.float16).view(-1, 2)[:rows]
        halves[:, 0] = torch.nn.functional.threshold(scales.float().reshape(-1), _LEAST,
                                                       math.nan)
        halves[:, 1] = mins.reshape(-1)
        return words
    wide = scales.float().reshape(-1).expand(rows if scales.ndim == 0 else -1)
    words[:rows] = torch.nn.functional.threshold(wide, _LEAST, math.nan)
    return words


def quantize(tokens: Side, format: int, kind: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes, scales and minima; nothing is waited for."""
    if kind == TENSOR_SCALE:
        return _of_one_scale(tokens)
    from .cuda import call_numbers, describe, enqueue
    from .torch import CODES, memory

    data = tokens.data
    dim = data.shape[-1]
    rows = data.numel() // dim if dim else 0
    # Every row, whatever the items are.
    numbers, kept = describe(Side(data if data.ndim == 3 else data[None]), dense=True)
    types = {code: dtype for dtype, code in CODES.items()}
    # Rows begin at multiples of 16 bytes.
    codes = torch.empty((*data.shape[:-1], -(-dim // 16) * 16), dtype=types[format],
                        device=data.device)
    words = torch.empty(rows + _maxsim.SCALE_PADDING, dtype=torch.float32, device=data.device)
    enqueue(_maxsim.cuda_quantize, call_numbers(data, Options()), numbers, format,
            kind in (F16_SCALES, AFFINE_SCALES), memory(codes), memory(words))
    del kept
    if kind == AFFINE_SCALES:
        halves = words.view(torch.float16).view(-1, 2)[:rows]
        scales, mins = (halves[:, i].reshape(data.shape[:-1]).contiguous() for i in (0, 1))
        return codes[..., :dim], scales, mins
    scales = words[:rows].view(data.shape[:-1])
    return codes[..., :dim], scales.half() if kind == F16_SCALES else scales, None


def _of_one_scale(tokens: Side) -> tuple[Tensor, Tensor, None]:
    """FP8 codes with one scale for all valid tokens, by torch's own operations."""
    from .torch import row_is_valid

    x = tokens.data.float()
    finite = x.isfinite()
    largest = torch.where(finite, x.abs(), 0).amax(-1)
    valid = row_is_valid(tokens)
    largest = largest if valid is None else torch.where(valid, largest, 0)
    largest = (largest.amax() if largest.numel() else x.new_zeros(())).clamp_min(1e-6)
    # On a GPU torch multiplies by the inverse of a number, and is off by a bit.
    scale = _quotient(largest, torch.full_like(largest, 448.0))
    codes = torch.where(finite, _quotient(x, scale).clamp(-448, 448), float("nan"))
    return codes.to(torch.float8_e4m3fn), scale, None


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    """Quotients in float32, rounded to nearest: a code at a tie is another where one is off."""
    if not torch.compiler.is_compiling():
        return x / y
    # Compilers may make divisions of float32 that are off by a bit; in float64 that is less than
    # what float32 quotients can be apart from a tie.
    return (x.double() / y.double()).float()
