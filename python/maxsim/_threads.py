"""How many threads calls of the CPU engine use."""

from __future__ import annotations

import os
import sys

_asked: int | None = None


def set_num_threads(n: int | None) -> None:
    """Sets how many threads a call on CPU tensors uses; None for the default.

    Raises ValueError for a number below 1.
    """
    global _asked
    if n is not None and n < 1:
        raise ValueError(f"n: expected 1 or more threads, found {n}")
    _asked = n


def get_num_threads() -> int:
    """How many threads a call on CPU tensors uses.

    By default as many as torch (``torch.get_num_threads()``), or where torch is not loaded as the
    process has cores.
    """
    if _asked is not None:
        return _asked
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
