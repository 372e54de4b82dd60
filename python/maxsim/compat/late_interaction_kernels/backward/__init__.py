"""Gradients from winners that a forward pass gave.

The original has two kernels with two names; here both names are one computation, which is
deterministic and accumulates in f32.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ....composed import _maxima


def maxsim_backward_unified_reference(
    grad_scores: Tensor,
    Q: Tensor,
    D: Tensor,
    argmax: Tensor,
    q_mask: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """`(grad_Q, grad_D)` in the inputs' types from winners `[Nq * Nd, Lq]`, on any device.

    `grad_scores` is `[Nq, Nd]`; winners below 0 and masked query tokens give nothing.
    """
    winners = argmax.view(Q.shape[0], D.shape[-3], Q.shape[1])
    if q_mask is not None:
        winners = winners.masked_fill(q_mask.eq(0).unsqueeze(1), -1)
    kind = _maxima.accumulation_type(Q, D)
    gradient = grad_scores.to(kind).unsqueeze(-1).expand(winners.shape)
    grad_Q = _maxima.query_gradient(gradient, D, winners)
    grad_D = _maxima.document_gradient(gradient, Q, D, winners)
    return grad_Q.to(Q.dtype), grad_D.to(D.dtype)


def _on_device(
    name: str,
    grad_scores: Tensor,
    Q: Tensor,
    D: Tensor,
    argmax: Tensor,
    q_mask: Optional[Tensor],
    kd_layout: bool,
) -> Tuple[Tensor, Tensor]:
    if not (Q.is_cuda and D.is_cuda):
        raise RuntimeError(f"{name} requires CUDA tensors, got {Q.device} and {D.device}")
    if not kd_layout:
        return maxsim_backward_unified_reference(grad_scores, Q, D, argmax, q_mask)
    own = D.reshape(Q.shape[0], -1, *D.shape[1:])
    grad_Q, grad_D = maxsim_backward_unified_reference(grad_scores, Q, own, argmax, q_mask)
    return grad_Q, grad_D.reshape(D.shape)


@torch.no_grad()
def maxsim_backward_unified(
    grad_scores: Tensor,
    Q: Tensor,
    D: Tensor,
    argmax: Tensor,
    q_mask: Optional[Tensor] = None,
    *,
    kd_layout: bool = False,
) -> Tuple[Tensor, Tensor]:
    """Gradients on a CUDA device; with `kd_layout` `D` is `[Nq * K, Ld, d]`.

    Raises RuntimeError for tensors on other devices.
    """
    name = "maxsim_backward_unified"
    return _on_device(name, grad_scores, Q, D, argmax, q_mask, kd_layout)


@torch.no_grad()
def maxsim_backward_lowmem(
    grad_scores: Tensor,
    Q: Tensor,
    D: Tensor,
    argmax: Tensor,
    q_mask: Optional[Tensor] = None,
    *,
    kd_layout: bool = False,
) -> Tuple[Tensor, Tensor]:
    """The same as `maxsim_backward_unified`."""
    name = "maxsim_backward_lowmem"
    return _on_device(name, grad_scores, Q, D, argmax, q_mask, kd_layout)


__all__ = [
    "maxsim_backward_lowmem",
    "maxsim_backward_unified",
    "maxsim_backward_unified_reference",
]
