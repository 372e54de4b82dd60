"""Packed queries against packed documents, all against all."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ...composed import _calls
from ._utils import assert_max_seqlen_covers


def check_packed(Q_packed: Tensor, D_packed: Tensor) -> None:
    """Both `[tokens, d]` with one `d`."""
    for name, rows in (("Q_packed", Q_packed), ("D_packed", D_packed)):
        if rows.dim() != 2:
            raise ValueError(
                f"{name} must be 2-D [tokens, d], got {tuple(rows.shape)}; padded tokens go to "
                "`maxsim`"
            )
    if Q_packed.shape[1] != D_packed.shape[1]:
        raise ValueError(
            "Q_packed and D_packed must share the embedding dim, got "
            f"{Q_packed.shape[1]} and {D_packed.shape[1]}"
        )


def check_bounds(
    cu_seqlens_q: Tensor, cu_seqlens_d: Tensor, max_q: Optional[int], max_d: Optional[int]
) -> None:
    """What the caller says of the longest sequences must be true."""
    if max_q is not None:
        assert_max_seqlen_covers(cu_seqlens_q, int(max_q), "max_seqlen_q")
    if max_d is not None:
        assert_max_seqlen_covers(cu_seqlens_d, int(max_d), "max_seqlen_d")


def maxsim_varlen(
    Q_packed: Tensor,
    D_packed: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_d: Tensor,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_d: Optional[int] = None,
) -> Tensor:
    """Scores `[Nq, Nd]` f32 of packed tokens, differentiable.

    `cu_seqlens_*` are the int32 or int64 offsets `[n + 1]`. `max_seqlen_*` may be larger than the
    longest sequence; a smaller one fails an assertion on the device. Raises ValueError for ranks
    or dims that disagree.
    """
    check_packed(Q_packed, D_packed)
    check_bounds(cu_seqlens_q, cu_seqlens_d, max_seqlen_q, max_seqlen_d)
    scores: Tensor = _calls.packed(
        Q_packed,
        D_packed,
        cu_seqlens_q,
        cu_seqlens_d,
        max_q_len=max_seqlen_q,
        max_d_len=max_seqlen_d,
        consistent=True,
    )
    return scores


__all__ = ["maxsim_varlen"]
