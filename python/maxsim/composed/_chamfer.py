"""Chamfer distance between clouds of points, by differences and without the matrix of them."""

from __future__ import annotations

from typing import Any, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _clouds, _maxima
from ._clouds import Clouds

_NONE = ("none", None)


def nearest(points: Tensor, others: Tensor, norm: int = 2) -> Tuple[Tensor, Tensor]:
    """For each of `points` `[n, d]` the least distance to `others` `[m, d]` and its index.

    By differences in f32 (f64 for f64); the lowest index of equals; NaN propagates. Without others
    the distance is 0 and the index -1. Without gradients.
    """
    x, y = (_clouds.clouds(p.detach()[None], None, None, "points") for p in (points, others))
    found = _clouds.find(x, y, norm, "sum", True)
    if found.distances is None:
        return _clouds.compared(points.detach(), others.detach(), norm)
    return found.distances, found.places.long()


def _rows_of(places: Tensor, x: Clouds, y: Clouds) -> Tensor:
    """The rows of neighbours; of a point without one, any."""
    return x.of_points(y.starts) + places.clamp_min(0)


def _gathered(flat: Tensor, x: Clouds) -> Tensor:
    """Rows of points, a cloud's after the other's."""
    rows = flat.reshape(-1, flat.shape[-1])
    return rows if x.is_full else rows[x.rows()]


def _distances(places: Tensor, x: Clouds, y: Clouds, norm: int) -> Tensor:
    """Distances to neighbours, differentiable in both clouds; 0 where there is none."""
    kind = _maxima.accumulation_type(x.points, y.points)
    own = _gathered(x.points, x).to(kind)
    others = y.points.reshape(-1, y.points.shape[-1]).to(kind)
    if others.shape[0] == 0:
        return own.new_zeros(own.shape[0])
    has = (places >= 0)[:, None]
    own, others = (rows.masked_fill(~has, 0.0) for rows in (own, others[_rows_of(places, x, y)]))
    return _clouds.distances(own, others, norm)


def _cosines(
    places: Tensor, x: Clouds, y: Clouds, normals: Tuple[Tensor, Tensor], is_abs: bool
) -> Tensor:
    """1 - cos of the normals of points and their neighbours; 0 where there is none."""
    kind = _maxima.accumulation_type(*normals)
    own = _gathered(normals[0], x).to(kind)
    others = normals[1].reshape(-1, normals[1].shape[-1]).to(kind)
    if others.shape[0] == 0:
        return own.new_zeros(own.shape[0])
    neighbours = others[_rows_of(places, x, y)]
    cosine = torch.nn.functional.cosine_similarity(own, neighbours, dim=-1, eps=1e-6)
    found = 1 - (cosine.abs() if is_abs else cosine)
    return torch.where(places >= 0, found, torch.zeros_like(found))


def _reduced(flat: Tensor, places: Tensor, x: Clouds, how: Optional[str]) -> Tensor:
    """Numbers of points, of each cloud: `[B]`; the points without a neighbour do not count."""
    table = x.table(flat, 0.0)
    if how == "max":
        if table.shape[1] == 0:
            return table.sum(-1)
        has = x.table(places, -1) >= 0
        most = table.masked_fill(~has, float("-inf")).max(-1).values
        return torch.where(has.any(-1), most, torch.zeros_like(most))
    sums = table.sum(-1)
    if how == "sum":
        return sums
    return sums / (x.table(places, -1) >= 0).sum(-1).clamp_min(1)


def _joined(numbers: list[Tensor], sides: list[Clouds]) -> Tensor:
    """Numbers of points, the directions of a pair of clouds one after the other: a row each."""
    if len(sides) == 1 or all(side.is_full for side in sides):
        return torch.cat([side.table(of, 0.0) for side, of in zip(sides, numbers)], dim=1)
    parts = [torch.split(of, side.lengths.tolist()) for side, of in zip(sides, numbers)]
    return torch.nn.utils.rnn.pad_sequence([torch.cat(rows) for rows in zip(*parts)],
                                           batch_first=True)


def over_batch(values: Tensor, weights: Optional[Tensor], how: Optional[str]) -> Tensor:
    """The values of a batch, weighted and reduced."""
    if weights is not None:
        values = values * (weights if values.dim() == 1 else weights.unsqueeze(-1))
    if how in _NONE or values.dim() > 1:
        return values
    if how == "sum":
        return values.sum()
    if weights is not None:
        total = weights.sum()
        has_weight = total != 0
        mean = values.sum() / torch.where(has_weight, total, torch.ones_like(total))
        return torch.where(has_weight, mean, values.sum() * 0.0)
    return values.mean() if values.numel() else values.sum()


def _check(
    x: Tensor, y: Tensor, norm: int, how: Optional[str], batch: Optional[str], is_packed: bool
) -> None:
    for name, cloud in (("x", x), ("y", y)):
        if not cloud.is_floating_point():
            raise TypeError(f"{name} must have a float type, got {cloud.dtype}")
    ranks = (x.dim(), y.dim())
    if not (set(ranks) <= {2, 3} if is_packed else ranks in ((2, 2), (3, 3))):
        raise ValueError(
            f"x and y must both be [n, d] or [B, n, d], got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"x and y disagree in shape: {tuple(x.shape)}, {tuple(y.shape)}")
    if norm not in (1, 2):
        raise ValueError(f"norm must be 1 or 2, got {norm}")
    if how not in _clouds.REDUCTIONS:
        reductions = tuple(_clouds.REDUCTIONS)
        raise ValueError(f"point_reduction must be one of {reductions}, got {how!r}")
    if batch not in ("mean", "sum", "none", None):
        raise ValueError(f"batch_reduction must be mean, sum or none, got {batch!r}")


def chamfer(
    x: Tensor,
    y: Tensor,
    *,
    x_lengths: Optional[Tensor] = None,
    y_lengths: Optional[Tensor] = None,
    x_offsets: Optional[Tensor] = None,
    y_offsets: Optional[Tensor] = None,
    x_normals: Optional[Tensor] = None,
    y_normals: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
    batch_reduction: Optional[str] = "mean",
    point_reduction: Optional[str] = "mean",
    norm: int = 2,
    single_directional: bool = False,
    abs_cosine: bool = True,
    neighbours: bool = False,
) -> Union[Tensor, Tuple[Any, ...]]:
    """Chamfer distance of clouds `x` and `y`: of each point to the nearest of the other cloud.

    Clouds are `[n, d]`; or `[B, n, d]`, with `x_lengths` and `y_lengths` `[B]` where they have
    fewer points; or of any sizes, one after the other in `[rows, d]` with `x_offsets` and
    `y_offsets` `[B + 1]`. `norm` 2 is the *squared* L2 distance, 1 the sum of absolute
    differences, both by differences in f32 (f64 for f64). `point_reduction` (`mean`, `sum`,
    `max`, `none`) reduces a direction, whose sums are added unless `single_directional`;
    `batch_reduction` the batch, each pair times its `weights` `[B]` (the mean is divided by their
    sum, and 0 where that is 0). With `none` for the points a direction is a vector: both directions
    are then given one after the other, padded with 0 in a batch.

    The result is the distance alone, or a tuple of it and what else is asked for. With normals,
    which lie as their points do: `1 - |cos|` of the normals of neighbours, or `1 - cos` without
    `abs_cosine`, reduced as the distances are. With `neighbours`: a pair of the index of each
    point's neighbour in the other cloud, `[n]` or `[B, n]` int64, -1 for none, of `x` and of `y`
    (None where `single_directional`).

    An empty cloud contributes 0 and takes no gradient; NaN shows; the nearest of equals is the
    lowest index. Differentiable in the clouds, normals and weights. The matrix of distances is
    never held. f16, bf16 and f32 of up to 4096 dims on the CPU and CUDA devices are the library's
    own engines; what a device's engine does not take, and f64, is composed of torch. Lengths and
    offsets on a device are read, which waits. Raises ValueError for shapes, lengths or options that
    disagree, TypeError for element types that are not floats, and for lengths that are.
    """
    is_packed = x_offsets is not None or y_offsets is not None
    _check(x, y, norm, point_reduction, batch_reduction, is_packed)
    if (x_normals is None) != (y_normals is None):
        raise ValueError("x_normals and y_normals must be given together")
    if x_normals is not None and y_normals is not None:
        if x_normals.shape != x.shape or y_normals.shape != y.shape:
            raise ValueError("normals must have the shapes of their clouds")
    single = x.dim() == 2 and not is_packed
    if single:
        x, y = x[None], y[None]
    sides = [_clouds.clouds(x, x_lengths, x_offsets, "x"),
             _clouds.clouds(y, y_lengths, y_offsets, "y")]
    n = sides[0].lengths.shape[0]
    if sides[1].lengths.shape[0] != n:
        raise ValueError(f"x has {n} clouds, y {sides[1].lengths.shape[0]}")
    if weights is not None and tuple(weights.shape) != (n,):
        raise ValueError(f"weights must be [{n}], got {tuple(weights.shape)}")
    found = _clouds.find(sides[0], sides[1], norm, point_reduction, single_directional)
    sizes = [int(side.lengths.sum()) for side in sides][: 1 if single_directional else 2]
    directions = [(sides[0], sides[1]), (sides[1], sides[0])][: len(sizes)]
    places = [part.long() for part in torch.split(found.places, sizes)]

    def over_points(numbers: list[Tensor]) -> Tensor:
        """Numbers of the points of all directions, of each pair of clouds."""
        if point_reduction in _NONE:
            return _joined(numbers, sides[: len(sizes)])
        of = zip(numbers, places, sides)
        return torch.stack([_reduced(*each, point_reduction) for each in of]).sum(0)

    if found.values is not None and point_reduction not in _NONE:
        values = found.values
    elif found.distances is not None:
        values = over_points(list(torch.split(found.distances, sizes)))
    else:
        values = over_points([_distances(p, *d, norm) for p, d in zip(places, directions)])
    batch = "none" if single else batch_reduction

    def shown(values: Tensor) -> Tensor:
        values = over_batch(values, weights, batch)
        return values[0] if single else values

    results: list[Any] = [shown(values)]
    if x_normals is not None and y_normals is not None:
        pairs = [(x_normals, y_normals), (y_normals, x_normals)]
        of_normals = zip(places, directions, pairs)
        results.append(shown(over_points([_cosines(p, *d, both, abs_cosine)
                                          for p, d, both in of_normals])))
    if neighbours:
        tables = [side.table(p, -1) for side, p in zip(sides, places)]
        tables = [table[0] if single else table for table in tables]
        results.append((tables[0], tables[1] if len(tables) > 1 else None))
    return results[0] if len(results) == 1 else tuple(results)
