"""Small helpers that other modules share."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from typing import Optional, Tuple

import torch
from torch import Tensor


def _release(version: str) -> Tuple[int, ...]:
    """The leading numbers of a version: `1.5.1rc1` gives (1, 5, 1)."""
    numbers = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits.group()))
    return tuple(numbers)


def package_at_least(name: str, minimum: str) -> bool:
    """Whether the distribution `name` is installed in version `minimum` or a later one."""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return _release(installed) >= _release(minimum)


def assert_max_seqlen_covers(cu_seqlens: Tensor, max_seqlen: int, arg_name: str) -> None:
    """Check on the device, without a wait, that no sequence is longer than `max_seqlen`."""
    if cu_seqlens.numel() < 2:
        return
    longest = (cu_seqlens[1:] - cu_seqlens[:-1]).max()
    torch._assert_async(
        longest <= max_seqlen,
        f"{arg_name}={max_seqlen} is smaller than the longest sequence of cu_seqlens",
    )


def next_pow2(x: int) -> int:
    """The least power of two that is not below `x`."""
    return 1 if x <= 1 else 1 << (x - 1).bit_length()


def bucket_seqlen(max_len: int, floor: int = 16) -> int:
    """`max_len` rounded up to a power of two of at least `floor`; 0 stays 0."""
    return 0 if max_len <= 0 else max(floor, next_pow2(max_len))


_FAMILIES = {(8, 0): "a100", (8, 9): "ada"}
_GENERATIONS = {8: "ampere", 9: "hopper", 10: "blackwell", 11: "blackwell", 12: "ada"}


@functools.lru_cache(maxsize=1)
def detect_gpu() -> str:
    """The family of the current CUDA device by its compute capability, `generic` for others."""
    if not torch.cuda.is_available():
        return "generic"
    major, minor = torch.cuda.get_device_capability()
    return _FAMILIES.get((major, minor)) or _GENERATIONS.get(major, "generic")


def lead(tensor: Optional[Tensor], dims: int) -> Optional[Tensor]:
    """`tensor` with a leading axis of 1 where it has one axis less than `dims`."""
    if tensor is not None and tensor.dim() == dims - 1:
        return tensor.unsqueeze(0)
    return tensor


def drop_single(scores: Tensor, query_is_2d: bool, document_is_2d: bool) -> Tensor:
    """Scores `[Nq, Nd]` without the axes of sides that were given without one."""
    if query_is_2d and document_is_2d:
        return scores.reshape(())
    if query_is_2d:
        return scores.squeeze(0)
    return scores.squeeze(-1) if document_is_2d else scores
