"""Compressed tokens: one byte per element, with a scale per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._sides import AFFINE_SCALES, F16_SCALES, F32_SCALES, FORMATS, TENSOR_SCALE, Side, check
from ._sides import check_side
from .scoring import library, side

#: Names of formats with their kinds of codes.
_FORMATS = {"int8": "int8", "int8-affine": "uint8", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True)
class Quantized:
    """Tokens as codes: a token is ``codes * scales``, or ``codes * scales + mins``.

    Attributes:
        codes: ``[n, len, dim]`` or ``[rows, dim]``: int8, uint8 (affine) or float8_e4m3fn (as
            uint8 bytes in numpy without ml_dtypes: ``format`` says what they are).
        scales: float16 or float32, one per token (the shape of ``codes`` without dim); of fp8
            also one number for all.
        mins: float16, one per token, of int8-affine; else None.
        format: "int8", "int8-affine" or "fp8".
        mask, offsets, lengths: which rows are tokens, as in :func:`maxsim`.
    """

    codes: Any
    scales: Any
    mins: Any = None
    format: str = "int8"
    mask: Any = None
    offsets: Any = None
    lengths: Any = None

    def __post_init__(self) -> None:
        check(self.format in _FORMATS, "format", "int8, int8-affine or fp8", self.format)
        check((self.mins is not None) == (self.format == "int8-affine"), "mins",
              "those of int8-affine codes, and of no others",
              "none" if self.mins is None else f"some for {self.format}")
        kind = str(self.codes.dtype).split(".")[-1]
        # numpy alone has no name for FP8; minima, checked above, tell these bytes from others.
        is_numpy = type(self.codes).__module__ == "numpy"
        is_unnamed = is_numpy and (self.format, kind) == ("fp8", "uint8")
        if kind != _FORMATS[self.format] and not is_unnamed:
            raise TypeError(
                f"codes: expected {_FORMATS[self.format]} for {self.format}, found {kind}")
        if self.scales.ndim:
            want = tuple(self.codes.shape[:-1])
            check(tuple(self.scales.shape) == want, "scales", f"shape {want}",
                  tuple(self.scales.shape))
        else:
            check(self.format == "fp8", "scales", "one per token", "one for all")

    def as_side(self, mask: Any, first: Any, lengths: Any) -> Side:
        """These tokens as one side of a call; arguments of the call come before own ones."""
        lib = library(self.codes)
        if mask is None and self.mask is not None:
            mask = lib.mask(self.mask, "mask")
        if first is None and self.offsets is not None:
            first = lib.indices(self.offsets, "offsets")
        if lengths is None and self.lengths is not None:
            lengths = lib.indices(self.lengths, "lengths")
        return Side(self.codes, mask, first, lengths, self.scales, self.mins)

    @property
    def arrays(self) -> Any:
        """The array that says which library this is of."""
        return self.codes


def quantize(
    X: Any, format: str = "int8", *, scales: str | None = None, mask: Any = None,
    lengths: Any = None, offsets: Any = None,
) -> Quantized:
    """Compresses tokens to one byte per element.

    With x the elements of a token, in float32, rounded to nearest with ties to even:

    ===========  ============================  ====================================
    format       scale                         code
    ===========  ============================  ====================================
    int8         max(max abs x, 1e-8) / 127    rint(x / scale), clamped to +-127
    int8-affine  max(1e-8, (max - min) / 255)  rint((x - min) / scale), 0 to 255
    fp8          max(max abs x, 1e-6) / 448    x / scale to the nearest e4m3 number
    ===========  ============================  ====================================

    Args:
        X: ``[n, len, dim]``, or ``[rows, dim]`` (with ``offsets``), float32, float16 or bfloat16.
        format: "int8", "int8-affine" or "fp8".
        scales: "float16" (default), "float32", or of fp8 "tensor": one for all valid tokens.
        mask, lengths, offsets: which rows are tokens; kept with the codes.

    Raises:
        ValueError: a format or scales that there are none of.
        TypeError: other element types.
    """
    check(format in _FORMATS, "format", "int8, int8-affine or fp8", format)
    kinds = {"float16": F16_SCALES, "float32": F32_SCALES, "tensor": TENSOR_SCALE}
    scales = "float16" if scales is None else scales
    check(scales in kinds, "scales", "float16, float32 or tensor", scales)
    check(scales != "tensor" or format == "fp8", "scales", f"float16 or float32 for {format}",
          scales)
    check(scales == "float16" or format != "int8-affine", "scales", "float16 for int8-affine",
          scales)
    lib = library(X)
    tokens = side(lib, X, "X", mask, lengths, offsets)
    check_side(tokens, "X")
    found = lib.quantize(tokens, FORMATS[_FORMATS[format]],
                         AFFINE_SCALES if format == "int8-affine" else kinds[scales])
    codes, of_rows, mins = found
    return Quantized(codes, of_rows, mins, format, tokens.mask, tokens.first, tokens.lengths)


def dequantize(codes: Quantized) -> Any:
    """The tokens that codes stand for, in float32, in the shape of the codes."""
    lib = library(codes.codes)
    return lib.dequantize(codes.as_side(None, None, None))
