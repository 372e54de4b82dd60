"""The best documents of each query."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ...composed import _calls, _order
from ._utils import lead


def maxsim_topk(
    Q: Tensor,
    D: Tensor,
    k: int,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = False,
    chunk_size: Optional[int] = None,
    largest: bool = True,
    sorted: bool = True,
) -> Tuple[Tensor, Tensor]:
    """The `k` best documents of each query: `(scores, indices)`, `[Nq, min(k, Nd)]`.

    `[k]` where `Q` is `[Lq, d]`. `chunk_size` scores that many documents at once and keeps the
    best, with the same result. Equal scores are in the order of their indices, NaN comes last;
    the result is always sorted. No gradients. Raises ValueError for a `k` below 1.
    """
    del sorted
    if k <= 0:
        raise ValueError(f"k must be positive, got {k}")
    query_is_2d = Q.dim() == 2
    if query_is_2d:
        Q = Q.unsqueeze(0)
    if D.dim() == 2:
        D = D.unsqueeze(0)
    q_mask, d_mask = lead(q_mask, 2), lead(d_mask, 2)
    count = D.shape[0]
    step = count if chunk_size is None else max(1, min(chunk_size, count))
    best: Optional[Tuple[Tensor, Tensor]] = None
    with torch.no_grad():
        for start in range(0, max(1, count), max(1, step)):
            end = min(start + step, count)
            mask = None if d_mask is None else d_mask[start:end]
            scores = _calls.dense(Q, D[start:end], q_mask=q_mask, d_mask=mask, normalize=normalize)
            found = _order.topk(scores, k, largest=largest)
            found = (found[0], found[1] + start)
            if best is not None:
                # The earlier chunk stands first, so equals stay in the order of their indices.
                joined = [torch.cat(parts, dim=-1) for parts in zip(best, found)]
                values, places = _order.topk(joined[0], k, largest=largest)
                found = (values, joined[1].gather(-1, places))
            best = found
    assert best is not None
    return (best[0].squeeze(0), best[1].squeeze(0)) if query_is_2d else best


__all__ = ["maxsim_topk"]
