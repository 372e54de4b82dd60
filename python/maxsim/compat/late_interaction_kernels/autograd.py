"""`maxsim` and `maxsim_pairs`, differentiable."""

from __future__ import annotations

import os
import warnings
from typing import Optional

import torch
from torch import Tensor

from ...composed import _calls
from ._utils import drop_single, lead

_VALID_METHODS = ("auto", "unified", "lowmem")
_NORM_CHECKED = False


def _method(backward: Optional[str]) -> str:
    """The name of a gradient strategy; all of them are one deterministic kernel here."""
    if backward is not None and backward not in _VALID_METHODS:
        raise ValueError(f"backward must be None or one of {_VALID_METHODS}, got {backward!r}")
    return backward or "auto"


def _one_device(q: Tensor, d: Tensor, q_mask: Optional[Tensor], d_mask: Optional[Tensor]) -> None:
    if q.device != d.device:
        raise ValueError(f"Q and D must be on the same device: Q is on {q.device}, D on {d.device}")
    for name, mask, side in (("q_mask", q_mask, q), ("d_mask", d_mask, d)):
        if mask is not None and mask.device != side.device:
            raise ValueError(
                f"{name} must be on the same device as its tokens: {mask.device}, {side.device}"
            )


def _can_read(rows: Tensor) -> bool:
    """Whether a value may be read by the host now: not while tracing or capturing."""
    if torch.compiler.is_compiling() or rows.device.type == "meta":
        return False
    return not (rows.is_cuda and torch.cuda.is_current_stream_capturing())


def _maybe_warn_unnormalized(Q: Tensor) -> None:
    """Warn once, on the first call, where rows that are taken as they are are not unit vectors."""
    global _NORM_CHECKED
    if _NORM_CHECKED or os.environ.get("LIK_SUPPRESS_NORM_WARN", "0") == "1" or not _can_read(Q):
        return
    _NORM_CHECKED = True
    sample = Q.detach().reshape(-1, Q.shape[-1])[:64]
    if sample.numel() == 0:
        return
    median = sample.float().norm(dim=-1).median().item()
    if not 0.9 <= median <= 1.1:
        warnings.warn(
            f"late-interaction-kernels: the rows of Q have a median length of {median:.3f}, and "
            "normalize=False takes them as they are. Pass normalize=True, or set "
            "LIK_SUPPRESS_NORM_WARN=1 where this is meant.",
            UserWarning,
            stacklevel=3,
        )


def _maxsim_cross(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    normalize: bool,
    method: str,
) -> Tensor:
    """Every query `[Nq, Lq, d]` against every document `[Nd, Ld, d]`."""
    del method
    scores: Tensor = _calls.dense(
        Q, D, q_mask=q_mask, d_mask=d_mask, normalize=normalize, consistent=True
    )
    return scores


def _maxsim_kd(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor],
    d_mask: Optional[Tensor],
    normalize: bool,
) -> Tensor:
    """Each query against its own documents `[Nq, K, Ld, d]`."""
    if Q.dim() != 3:
        raise ValueError(f"the KD layout needs Q to be [Nq, Lq, d], got {tuple(Q.shape)}")
    if Q.shape[0] != D.shape[0]:
        raise ValueError(
            "the KD layout needs D.shape[0] == Q.shape[0], got "
            f"{D.shape[0]} and {Q.shape[0]}"
        )
    if Q.shape[-1] != D.shape[-1]:
        raise ValueError(
            f"Q and D must share the embedding dim, got {Q.shape[-1]} and {D.shape[-1]}"
        )
    (n_queries, length), (_, count, doc_length) = Q.shape[:2], D.shape[:3]
    if q_mask is not None and q_mask.shape != Q.shape[:2]:
        raise ValueError(
            f"q_mask must be [Nq={n_queries}, Lq={length}] in the KD layout, "
            f"got {tuple(q_mask.shape)}"
        )
    if d_mask is not None and d_mask.shape != D.shape[:3]:
        raise ValueError(
            f"d_mask must be [Nq={n_queries}, K={count}, Ld={doc_length}] in the KD layout, "
            f"got {tuple(d_mask.shape)}"
        )
    _one_device(Q, D, q_mask, d_mask)
    scores: Tensor = _calls.dense(
        Q, D, q_mask=q_mask, d_mask=d_mask, normalize=normalize, consistent=True
    )
    return scores


def maxsim(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = False,
    backward: Optional[str] = None,
) -> Tensor:
    """MaxSim scores, f32, differentiable in `Q` and `D`.

    `Q` is `[Nq, Lq, d]` or `[Lq, d]`; the rank of `D` chooses what is scored: `[Nd, Ld, d]` and
    `[Ld, d]` all against all, `[Nq, Nd]` without the axes that were not given; `[Nq, K, Ld, d]`
    each query against its own documents, `[Nq, K]`. Masks are True where a token is valid, in any
    pattern. `normalize` divides rows by their length. `backward` names a gradient strategy of
    the original; every name gives the same, deterministic gradients.

    Raises ValueError for an unknown `backward` and for dims, shapes or devices that disagree.
    """
    method = _method(backward)
    if D.dim() == 4:
        return _maxsim_kd(Q, D, q_mask, d_mask, normalize)
    query_is_2d, document_is_2d = Q.dim() == 2, D.dim() == 2
    queries, documents = (side.unsqueeze(0) if side.dim() == 2 else side for side in (Q, D))
    if queries.dim() != 3 or documents.dim() != 3:
        raise ValueError(
            "Q must be [Nq, Lq, d] or [Lq, d] and D [Nd, Ld, d], [Ld, d] or [Nq, K, Ld, d]; got "
            f"{tuple(Q.shape)} and {tuple(D.shape)}"
        )
    if Q.shape[-1] != D.shape[-1]:
        raise ValueError(
            f"Q and D must share the embedding dim, got {Q.shape[-1]} and {D.shape[-1]}"
        )
    q_mask, d_mask = lead(q_mask, 2), lead(d_mask, 2)
    _one_device(Q, D, q_mask, d_mask)
    if not normalize:
        _maybe_warn_unnormalized(queries)
    scores = _maxsim_cross(queries, documents, q_mask, d_mask, normalize, method)
    return drop_single(scores, query_is_2d, document_is_2d)


def maxsim_pairs(
    Q: Tensor,
    D: Tensor,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = False,
    backward: Optional[str] = None,
) -> Tensor:
    """One score for each pair `(Q[i], D[i])` of `[B, Lq, d]` and `[B, Ld, d]`: `[B]` f32.

    Raises ValueError unless both are `[B, L, d]` with the same `B`, and as `maxsim` does.
    """
    _method(backward)
    if Q.dim() != 3 or D.dim() != 3:
        raise ValueError(
            f"maxsim_pairs needs Q and D to be [B, L, d], got {tuple(Q.shape)}, {tuple(D.shape)}"
        )
    if Q.shape[0] != D.shape[0]:
        raise ValueError(
            f"maxsim_pairs needs Q.shape[0] == D.shape[0], got {Q.shape[0]} and {D.shape[0]}"
        )
    own_mask = None if d_mask is None else d_mask.unsqueeze(1)
    return _maxsim_kd(Q, D.unsqueeze(1), q_mask, own_mask, normalize).squeeze(-1)


__all__ = ["maxsim", "maxsim_pairs"]
