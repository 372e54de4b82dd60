"""Codes of tokens on a GPU, by torch's own operations, as :func:`maxsim.quantize` defines them."""

from __future__ import annotations

import torch
from torch import Tensor

from .._sides import AFFINE_SCALES, F16_SCALES, FORMATS, TENSOR_SCALE, Side

#: The least and the largest positive float16 numbers.
_F16 = (2.0**-24, 65504.0)


def _stored(scale: Tensor, is_f16: bool) -> Tensor:
    """A scale rounded to its storage."""
    return scale.half().clamp(*_F16) if is_f16 else scale


def quantize(tokens: Side, format: int, kind: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes, scales and minima."""
    x = tokens.data.float()
    finite = x.isfinite()
    if kind == AFFINE_SCALES:
        least, most = x.amin(-1), x.amax(-1)
        good = finite.all(-1)
        scale = _stored(((most - least) / 255).clamp_min(1e-8), True)
        low = least.clamp(-65504.0, 65504.0).half()
        codes = ((x - low[..., None].float()) / scale[..., None].float()).round().clamp(0, 255)
        codes = torch.where(good[..., None], codes, 0).to(torch.uint8)
        return (codes, torch.where(good, scale, float("nan")),
                torch.where(good, low, 0.0).half())
    if format == FORMATS["int8"]:
        good = finite.all(-1)
        scale = _stored(x.abs().amax(-1).clamp_min(1e-8) / 127, kind == F16_SCALES)
        codes = (x / scale[..., None].float()).round().clamp(-127, 127)
        codes = torch.where(good[..., None], codes, 0).to(torch.int8)
        return codes, torch.where(good, scale, float("nan")).to(scale.dtype), None
    largest = torch.where(finite, x.abs(), 0).amax(-1)
    if kind == TENSOR_SCALE:
        from .torch import row_is_valid

        valid = row_is_valid(tokens)
        largest = largest if valid is None else torch.where(valid, largest, 0)
        largest = largest.amax() if largest.numel() else x.new_zeros(())
    scale = _stored(largest.clamp_min(1e-6) / 448, kind == F16_SCALES)
    divisor = scale.float() if kind == TENSOR_SCALE else scale[..., None].float()
    codes = (x / divisor).clamp(-448, 448)
    codes = torch.where(finite, codes, float("nan"))
    return codes.to(torch.float8_e4m3fn), scale, None
