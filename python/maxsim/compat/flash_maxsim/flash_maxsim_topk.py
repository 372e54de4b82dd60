"""The best documents of one query."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ...composed import _order
from ._shapes import need, score_single


@torch.no_grad()
def flash_maxsim_topk(
    Q: Tensor,
    D: Tensor,
    k: int,
    doc_lengths: Optional[Tensor] = None,
    n_candidates: Optional[int] = None,
    D_int8: Optional[Tensor] = None,
    scales: Optional[Tensor] = None,
    mins: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """`(scores, indices)` of the `min(k, N)` best of `D` `[N, Ld, d]` for `Q` `[Lq, d]`.

    Every document is scored at full precision, so the result is exact: `n_candidates` and the
    codes, which choose what the original scores again, are taken and not needed. Equal scores are
    in the order of their indices; documents without tokens come last.
    """
    del n_candidates, D_int8, scales, mins
    need(Q.dim() == 2, f"Q must be [Lq, d], got {tuple(Q.shape)}")
    scores = score_single(Q, D, doc_lengths)
    empty = None if doc_lengths is None else doc_lengths.to(scores.device) <= 0
    return _order.topk(scores, k, empty=empty)


__all__ = ["flash_maxsim_topk"]
