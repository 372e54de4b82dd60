"""The best of scores that lie on a device, in the one order of the library.

Documents with tokens come first, by score; equal scores by the lower index; then NaN; then
documents without tokens. `torch.topk` promises no order of equal scores and puts NaN first, so
score, class and index are packed into one integer key that it can select by.
"""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

_INDEX_BITS = 31
_NAN = -(1 << 31) + 1
_EMPTY = -(1 << 31)


def _ordered(scores: Tensor, empty: Optional[Tensor], largest: bool) -> Tensor:
    """int64 codes that order as the scores do; NaN and empty documents come below all."""
    values = scores.to(torch.float32) + 0.0  # -0 becomes +0: they are equal
    if not largest:
        values = 0.0 - values
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    code = torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    code = code.masked_fill(values.isnan(), _NAN)
    if empty is not None:
        code = code.masked_fill(empty, _EMPTY)
    return code


def _sorted_columns(scores: Tensor, empty: Optional[Tensor], largest: bool) -> Tensor:
    """Indices in the order of the library, for scores too wide for a key of 64 bits."""
    values = scores if largest else 0.0 - scores
    lowest = values.isnan()
    rank = lowest.to(torch.int8)
    if empty is not None:
        rank = rank.masked_fill(empty, 2)
    compared = values.masked_fill(rank > 0, 0.0)
    by_score = compared.sort(dim=-1, descending=True, stable=True).indices
    by_rank = rank.gather(-1, by_score).sort(dim=-1, stable=True).indices
    return by_score.gather(-1, by_rank)


def topk(
    scores: Tensor,
    k: int,
    *,
    empty: Optional[Tensor] = None,
    largest: bool = True,
) -> Tuple[Tensor, Tensor]:
    """The best `k` columns of each row: `(scores, indices)`, both `[..., min(k, n)]`.

    `empty`, of a shape that broadcasts to the scores', marks documents without tokens: they come
    last. `largest=False` gives the lowest scores first; NaN and empty documents still come last.
    Raises ValueError where `k` is negative. No value is read by the host.
    """
    if k < 0:
        raise ValueError(f"k must not be negative, got {k}")
    count = scores.shape[-1]
    k = min(k, count)
    if empty is not None:
        empty = empty.expand(scores.shape)
    if scores.dtype == torch.float64:
        indices = _sorted_columns(scores, empty, largest)[..., :k]
        return scores.gather(-1, indices), indices
    if count >= 1 << _INDEX_BITS:
        raise ValueError(f"a row has {count} scores; there may be fewer than 2^31")
    last = (1 << _INDEX_BITS) - 1
    places = last - torch.arange(count, device=scores.device)
    keys = _ordered(scores, empty, largest) * (1 << _INDEX_BITS) + places
    best = keys.topk(k, dim=-1, largest=True, sorted=True).values
    indices = last - (best & last)
    return scores.gather(-1, indices), indices
