"""The names for Apple's GPUs. This library has no engine there: plain torch computes."""

from __future__ import annotations

from .compile_dispatch import maxsim_inference_mps, maxsim_mps

__all__ = ["maxsim_inference_mps", "maxsim_mps"]
