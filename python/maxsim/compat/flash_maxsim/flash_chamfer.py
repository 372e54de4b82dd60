"""Chamfer distance of two clouds `[N, d]` and `[M, d]`: a scalar, f32."""

from __future__ import annotations

from typing import Tuple, Union

import torch
from torch import Tensor

from ...composed import _chamfer, _maxima
from ._shapes import need


def _norm(metric: str) -> int:
    need(metric in ("l2_sq", "l1"), f"metric must be l2_sq or l1, got {metric!r}")
    return 1 if metric == "l1" else 2


def _check(P: Tensor, Q: Tensor) -> None:
    need(
        P.dim() == 2 and Q.dim() == 2 and P.shape[1] == Q.shape[1],
        f"clouds must be [N, d] and [M, d], got {tuple(P.shape)} and {tuple(Q.shape)}",
    )


def flash_chamfer_one_direction(
    P: Tensor, Q: Tensor, metric: str = "l2_sq", save_argmin: bool = False
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Each point's least distance `[N]` to `Q`; with `save_argmin` also whose it is, int32."""
    _check(P, Q)
    distances, places = _chamfer.nearest(P.detach(), Q.detach(), _norm(metric))
    return (distances, places.to(torch.int32)) if save_argmin else distances


@torch.no_grad()
def flash_chamfer(P: Tensor, Q: Tensor, metric: str = "l2_sq") -> Tensor:
    """The mean least distance of `P` to `Q` plus that of `Q` to `P`, without gradients."""
    _check(P, Q)
    distance = _chamfer.chamfer(P, Q, norm=_norm(metric))
    assert isinstance(distance, Tensor)
    return distance


def flash_chamfer_train(P: Tensor, Q: Tensor) -> Tensor:
    """`flash_chamfer` of squared distances, differentiable."""
    _check(P, Q)
    distance = _chamfer.chamfer(P, Q)
    assert isinstance(distance, Tensor)
    return distance


def flash_chamfer_invgrid_train(P: Tensor, Q: Tensor) -> Tensor:
    """The same as `flash_chamfer_train`."""
    return flash_chamfer_train(P, Q)


def naive_chamfer_one_direction(P: Tensor, Q: Tensor, metric: str = "l2_sq") -> Tensor:
    """Each point's least distance `[N]` to `Q` by `torch.cdist`, in chunks of points."""
    power = _norm(metric)
    parts = [P.new_zeros(0, dtype=torch.float32)]
    mode = "donot_use_mm_for_euclid_dist"
    for start, end in _maxima.spans(P.shape[0], max(1, Q.shape[0])):
        found = torch.cdist(P[start:end].float(), Q.float(), p=power, compute_mode=mode)
        parts.append((found if power == 1 else found.square()).amin(dim=1))
    return torch.cat(parts)


def naive_chamfer(P: Tensor, Q: Tensor, metric: str = "l2_sq") -> Tensor:
    """`flash_chamfer` by `naive_chamfer_one_direction`."""
    there = naive_chamfer_one_direction(P, Q, metric).mean()
    return there + naive_chamfer_one_direction(Q, P, metric).mean()


__all__ = [
    "flash_chamfer",
    "flash_chamfer_invgrid_train",
    "flash_chamfer_one_direction",
    "flash_chamfer_train",
    "naive_chamfer",
    "naive_chamfer_one_direction",
]
