"""MaxSim against documents that are projected on the way."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ...composed import _hidden
from ._utils import lead


def maxsim_from_hidden(
    Q: Tensor,
    H_d: Tensor,
    W: Tensor,
    b: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    normalize: bool = True,
) -> Tensor:
    """Scores `[Nq, Nd]` f32 of `Q` and the rows `H_d · Wᵀ + b`, differentiable in all four.

    `Q` is `[Nq, Lq, d_out]` or `[Lq, d_out]` (result `[Nd]`), `H_d` `[Nd, Ld, d_model]`, `W`
    `[d_out, d_model]`, `b` `[d_out]`; `normalize` divides the projected rows by their length.
    Raises ValueError for shapes or devices that disagree.
    """
    queries = Q.unsqueeze(0) if Q.dim() == 2 else Q
    if queries.dim() != 3:
        raise ValueError(f"Q must be [Lq, d_out] or [Nq, Lq, d_out], got {tuple(Q.shape)}")
    if H_d.dim() != 3:
        raise ValueError(f"H_d must be [Nd, Ld, d_model], got {tuple(H_d.shape)}")
    if W.dim() != 2 or W.shape != (Q.shape[-1], H_d.shape[-1]):
        raise ValueError(
            f"W must be [d_out={Q.shape[-1]}, d_model={H_d.shape[-1]}], got {tuple(W.shape)}"
        )
    if not Q.device == H_d.device == W.device:
        raise ValueError(f"Q, H_d and W must be on the same device: {Q.device}, {H_d.device}")
    if b is not None and b.shape != (Q.shape[-1],):
        raise ValueError(f"b must be [d_out={Q.shape[-1]}], got {tuple(b.shape)}")
    scores: Tensor = _hidden.from_hidden(
        queries, H_d, W, b, normalize=normalize, d_mask=lead(d_mask, 2), consistent=True
    )
    return scores.squeeze(0) if Q.dim() == 2 else scores


__all__ = ["maxsim_from_hidden"]
