"""Which calls of a framework are done here, and in which element types."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_ELEMENTS = (torch.float32, torch.float16, torch.bfloat16)
#: The most dimensions that a token has.
MAX_DIM = 4096


def served(queries: object, documents: object, axes: int = 3) -> bool:
    """Whether these are scored here: dense tensors of one element type on one device.

    All else is the framework's own: its errors, other element types and devices, transforms.
    Documents have ``axes`` axes.
    """
    for x, n in ((queries, 3), (documents, axes)):
        if not is_plain(x) or x.ndim != n:  # type: ignore[attr-defined]
            return False
    assert isinstance(queries, Tensor) and isinstance(documents, Tensor)
    if queries.dtype != documents.dtype or queries.device != documents.device:
        return False
    if queries.shape[-1] != documents.shape[-1] or queries.shape[-1] > MAX_DIM:
        return False
    if 0 in queries.shape or 0 in documents.shape:
        return False
    return not _is_transformed()


def is_plain(x: object) -> bool:
    """Whether this is an ordinary tensor of an element type and on a device that there are."""
    if type(x) not in (Tensor, torch.nn.Parameter):
        return False
    assert isinstance(x, Tensor)
    return (
        x.dtype in _ELEMENTS
        and x.layout == torch.strided
        and (x.device.type == "cpu" or _is_on_gpu(x.device))
    )


def fits(mask: object, tokens: Tensor) -> bool:
    """Whether there is no mask, or one entry for each token, with them."""
    if mask is None:
        return True
    return (
        isinstance(mask, Tensor)
        and mask.shape == tokens.shape[:-1]
        and mask.device == tokens.device
        and mask.layout == torch.strided
        and not mask.is_complex()
    )


def _is_on_gpu(device: torch.device) -> bool:
    """Whether this is a GPU that there are kernels for; a compiler is not asked which it is."""
    if torch.compiler.is_compiling():
        return device.type == "cuda"
    return _is_new_enough(device)


@functools.lru_cache(maxsize=None)
def _is_new_enough(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def is_eager() -> bool:
    """Whether code runs as it is written: nothing compiles, transforms or records it."""
    return not torch.compiler.is_compiling() and not _is_transformed()


def _is_transformed() -> bool:
    """Inside functions that have derivatives of derivatives, or that record operators."""
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def as_products(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the element type in which torch would multiply them: autocast's, if any."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    if dtype not in _ELEMENTS:
        return tensors
    return tuple(x.to(dtype) for x in tensors)


def allows_tf32(tokens: Tensor) -> bool:
    """Whether torch would multiply these as TF32: float32 on a GPU, where its user has said so
    (``torch.set_float32_matmul_precision("high")``). Compiled code cannot ask, and is exact."""
    if tokens.dtype != torch.float32 or not tokens.is_cuda or torch.compiler.is_compiling():
        return False
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def sum_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The element type of torch's sum of maxima of this type."""
    if not torch.is_autocast_enabled(device.type):
        return dtype
    return _autocast_sum_type(dtype, device, torch.get_autocast_dtype(device.type))


@functools.lru_cache(maxsize=None)
def _autocast_sum_type(
    dtype: torch.dtype, device: torch.device, autocast: torch.dtype
) -> torch.dtype:
    return torch.zeros((1, 1), dtype=dtype, device=device).sum(-1).dtype
