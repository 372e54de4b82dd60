"""`maxsim_mps`: the operator in plain torch, in chunks, for devices without an engine."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..autograd import maxsim


def maxsim_mps(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = True,
) -> Tensor:
    """`maxsim` of these tensors wherever they are, normalised by default, differentiable."""
    return maxsim(Q, D, q_mask, d_mask, normalize=normalize)


def maxsim_inference_mps(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = True,
) -> Tensor:
    """`maxsim_mps` without gradients."""
    with torch.no_grad():
        return maxsim(Q, D, q_mask, d_mask, normalize=normalize)


__all__ = ["maxsim_inference_mps", "maxsim_mps"]
