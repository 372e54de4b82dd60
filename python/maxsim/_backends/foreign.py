"""Calls on CUDA arrays of other libraries than torch (JAX, CuPy), through torch by DLPack."""

from __future__ import annotations

from typing import Any

from .._sides import Options, Pairing, Result, Side

try:
    import torch

    from . import torch as _torch
except ImportError as _error:
    raise RuntimeError(
        "CUDA arrays are scored as torch tensors, through DLPack; install torch") from _error


def _tensor(x: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else torch.utils.dlpack.from_dlpack(x)


def tokens(x: Any, name: str) -> Any:
    """A tensor over the memory of ``x``."""
    return _torch.tokens(_tensor(x), name)


def mask(x: Any, name: str) -> Any:
    """A mask as bytes."""
    return _torch.mask(_tensor(x) if hasattr(x, "__dlpack__") else x, name)


def indices(x: Any, name: str) -> Any:
    """Offsets, starts, lengths or ids as int32 or int64."""
    return _torch.indices(_tensor(x) if hasattr(x, "__dlpack__") else x, name)


def score(q: Side, d: Side, pairing: Pairing, options: Options) -> Result:
    """Scores tensors that have been checked."""
    return _torch.score(q, d, pairing, options)


def like(x: Any, source: Any) -> Any:
    """A result in the library of the caller's array."""
    if x is None or isinstance(source, torch.Tensor):
        return x
    if hasattr(source, "__array_namespace__"):
        return source.__array_namespace__().from_dlpack(x)
    module = __import__(type(source).__module__.split(".")[0])
    return module.from_dlpack(x)


as_elements = _torch.as_elements
concatenate = _torch.concatenate
offsets = _torch.offsets
squeeze = _torch.squeeze
topk = _torch.topk
quantize = _torch.quantize
dequantize = _torch.dequantize
unit = _torch.unit
half = _torch.half
screen = _torch.screen
search_exact = _torch.search_exact
score_plaid = _torch.score_plaid
rank_plaid = _torch.rank_plaid
