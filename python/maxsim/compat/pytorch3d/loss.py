"""`chamfer_distance` with pytorch3d's arguments, results and exceptions."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ...composed._chamfer import chamfer, over_batch

#: A distance, one for each cloud or point, and the same of both directions.
_Distance = Any


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise ValueError(text)


def _batch(
    points: Any, lengths: Optional[Tensor], normals: Optional[Tensor]
) -> Tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
    """A padded batch: of a tensor, or of an object with the methods of `Pointclouds`."""
    if hasattr(points, "points_padded"):
        own = points.normals_padded()
        return points.points_padded(), points.num_points_per_cloud(), own
    _need(isinstance(points, Tensor), "clouds must be Pointclouds or tensors of shape (N, P, D)")
    _need(points.dim() == 3, "clouds must be of shape (N, P, D)")
    if lengths is not None:
        _need(tuple(lengths.shape) == (points.shape[0],), "lengths must be of shape (N,)")
    _need(normals is None or normals.dim() == 3, "normals must be of shape (N, P, 3)")
    return points, lengths, normals


def _check(batch: Optional[str], of_points: Optional[str], norm: int) -> None:
    _need(batch in ("mean", "sum", None), 'batch_reduction must be "mean", "sum" or None')
    words = 'point_reduction must be "mean", "sum", "max" or None'
    _need(of_points in ("mean", "sum", "max", None), words)
    _need(batch is None or of_points is not None,
          "batch_reduction must be None where point_reduction is None")
    _need(norm in (1, 2), "norm must be 1 or 2")


def _turned(options: dict[str, Any]) -> dict[str, Any]:
    """Options of both sides, with the sides exchanged."""
    other = {"x": "y", "y": "x"}
    return {other[name[0]] + name[1:] if name[:2] in ("x_", "y_") else name: value
            for name, value in options.items()}


def chamfer_distance(
    x: Any,
    y: Any,
    x_lengths: Optional[Tensor] = None,
    y_lengths: Optional[Tensor] = None,
    x_normals: Optional[Tensor] = None,
    y_normals: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
    batch_reduction: Optional[str] = "mean",
    point_reduction: Optional[str] = "mean",
    norm: int = 2,
    single_directional: bool = False,
    abs_cosine: bool = True,
) -> Tuple[_Distance, Optional[_Distance]]:
    """The distance of clouds `(N, P1, D)` and `(N, P2, D)`, and that of their normals or None.

    Without `point_reduction` each is `(N, P1)`, or a pair of `(N, P1)` and `(N, P2)` in both
    directions. With `"max"` the larger direction counts, and there are no normals. What is not as
    there: f16 and bf16 are taken, gradients have the same bits every time, and an empty cloud
    adds 0.
    """
    _check(batch_reduction, point_reduction, norm)
    x, x_lengths, x_normals = _batch(x, x_lengths, x_normals)
    y, y_lengths, y_normals = _batch(y, y_lengths, y_normals)
    _need(y.shape[0] == x.shape[0] and y.shape[2] == x.shape[2], "y does not go with x in shape")
    if weights is not None:
        _need(tuple(weights.shape) == (x.shape[0],), "weights must be of shape (N,)")
        _need(bool((weights >= 0).all()), "weights cannot be negative")
    has_normals = x_normals is not None and y_normals is not None
    if point_reduction == "max":
        assert not has_normals, "there are no normals with max"
    options: dict[str, Any] = dict(
        x_lengths=x_lengths, y_lengths=y_lengths, weights=weights, batch_reduction=batch_reduction,
        point_reduction=point_reduction, norm=norm, abs_cosine=abs_cosine,
    )
    if has_normals:
        options.update(x_normals=x_normals, y_normals=y_normals)

    def of(single: bool, turned: bool = False, **more: Any) -> Tuple[Tensor, Optional[Tensor]]:
        """Both directions, or that of one side's points."""
        of_sides = _turned(options) if turned else options
        found = chamfer(*((y, x) if turned else (x, y)), single_directional=single,
                        **(of_sides | more))
        return found if isinstance(found, tuple) else (found, None)

    if single_directional or point_reduction in ("mean", "sum"):
        return of(single_directional)
    if point_reduction is None:
        (there, of_there), (back, of_back) = of(True), of(True, turned=True)
        return (there, back), (of_there, of_back) if has_normals else None
    # The larger direction counts before weights do, which are not negative.
    each: dict[str, Any] = dict(weights=None, batch_reduction=None)
    larger = torch.maximum(of(True, **each)[0], of(True, turned=True, **each)[0])
    return over_batch(larger, weights, batch_reduction), None
