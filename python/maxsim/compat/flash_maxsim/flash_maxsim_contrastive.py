"""A contrastive training step in one call."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ._shapes import score


def _check(Q: Tensor, D: Tensor, labels: Optional[Tensor]) -> None:
    if Q.dim() != 3:
        raise ValueError(f"Q must be [Nq, Lq, d], got {tuple(Q.shape)}")
    if D.dim() != 3:
        raise ValueError(f"D must be [Nd, Ld, d], got {tuple(D.shape)}")
    if Q.device != D.device:
        raise ValueError(f"Q and D must be on the same device: {Q.device}, {D.device}")
    if Q.dtype != D.dtype:
        raise ValueError(f"Q and D must have the same dtype: {Q.dtype}, {D.dtype}")
    if Q.shape[2] != D.shape[2]:
        raise ValueError(f"Q and D must have one dim: {Q.shape[2]}, {D.shape[2]}")
    if labels is None:
        if D.shape[0] < Q.shape[0]:
            raise ValueError(f"{Q.shape[0]} queries need as many documents, got {D.shape[0]}")
        return
    if tuple(labels.shape) != (Q.shape[0],):
        raise ValueError(f"labels must be [{Q.shape[0]}], got {tuple(labels.shape)}")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64, got {labels.dtype}")


def _add(to: Tensor, gradient: Tensor) -> None:
    if to.grad is None:
        to.grad = gradient
        return
    if to.grad.shape != to.shape or to.grad.dtype != to.dtype or to.grad.device != to.device:
        raise ValueError("a gradient that is there must have the shape, dtype and device")
    to.grad += gradient


def colbert_contrastive_step(Q: Tensor, D: Tensor, labels: Optional[Tensor] = None) -> Tensor:
    """The f32 cross entropy of scores against `labels`, whose gradients are added to `.grad`.

    `Q` is `[Nq, Lq, d]`, `D` `[Nd, Ld, d]`; `labels` `[Nq]` int64 names each query's document and
    is its own number by default. The result has no graph: gradients are in `Q.grad` and `D.grad`
    when this returns. Raises ValueError for shapes, types or devices that disagree.
    """
    _check(Q, D, labels)
    if labels is None:
        labels = torch.arange(Q.shape[0], device=Q.device)
    with torch.enable_grad():
        queries, documents = (side.detach().requires_grad_(True) for side in (Q, D))
        loss = torch.nn.functional.cross_entropy(score(queries, documents), labels)
        gradients = torch.autograd.grad(loss, (queries, documents))
    _add(Q, gradients[0])
    _add(D, gradients[1])
    return loss.detach()


__all__ = ["colbert_contrastive_step"]
