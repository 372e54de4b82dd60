"""Scores together with the winning document tokens."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ...composed import _calls
from ._utils import drop_single, lead


def _run_forward(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    save_argmax: bool,
    normalize: bool = False,
    *,
    kd_layout: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Scores `[Nq, N]` and, with `save_argmax`, int32 winners `[Nq * N, Lq]`, without gradients.

    With `kd_layout` the documents of query `q` are the `q`-th run of `D` `[Nq * K, Ld, d]`.
    """
    n_queries = Q.shape[0]
    if kd_layout:
        if n_queries == 0 or D.shape[0] % n_queries != 0:
            raise ValueError(f"kd_layout needs {n_queries} equal runs of documents: {D.shape[0]}")
        D = D.reshape(n_queries, -1, *D.shape[1:])
        d_mask = None if d_mask is None else d_mask.reshape(D.shape[:-1])
    with torch.no_grad():
        result = _calls.dense(
            Q, D, q_mask=q_mask, d_mask=d_mask, normalize=normalize, winners=save_argmax
        )
    if not save_argmax:
        return result, None
    scores, winners = result
    return scores, winners.reshape(-1, Q.shape[1])


def maxsim_forward(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    save_argmax: bool = False,
    normalize: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """`(scores, winners)` of `Q` `[Nq, Lq, d]` or `[Lq, d]` and `D` `[Nd, Ld, d]` or `[Ld, d]`.

    Scores are f32 `[Nq, Nd]` without the axes that were not given; winners are int32
    `[Nq * Nd, Lq]`, -1 where there is none, or None without `save_argmax`. No gradients.
    """
    query_is_2d, document_is_2d = Q.dim() == 2, D.dim() == 2
    queries, documents = (side.unsqueeze(0) if side.dim() == 2 else side for side in (Q, D))
    scores, winners = _run_forward(
        queries, documents, lead(q_mask, 2), lead(d_mask, 2), save_argmax, normalize
    )
    return drop_single(scores, query_is_2d, document_is_2d), winners


__all__ = ["maxsim_forward"]
