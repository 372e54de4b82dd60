"""Chamfer distance between clouds of points, by differences and without the matrix of them."""

from __future__ import annotations

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from . import _maxima

_REDUCTIONS = ("mean", "sum", "max", "none", None)


def _distances(points: Tensor, others: Tensor, norm: int) -> Tensor:
    """`[n, m]` distances by differences: squared L2, or L1."""
    difference = points.unsqueeze(1) - others.unsqueeze(0)
    return difference.abs().sum(-1) if norm == 1 else difference.square().sum(-1)


@torch.no_grad()
def nearest(points: Tensor, others: Tensor, norm: int = 2) -> Tuple[Tensor, Tensor]:
    """For each of `points` `[n, d]` the least distance to `others` `[m, d]` and its index.

    f32 (f64 for f64) differences, the lowest index of equals; NaN propagates. Without others the
    distance is 0 and the index -1. Chunked: `n × m` is never held.
    """
    kind = _maxima.accumulation_type(points, others)
    points, others = points.to(kind), others.to(kind)
    count = points.shape[0]
    least = points.new_zeros(count)
    place = torch.full((count,), -1, dtype=torch.int64, device=points.device)
    if count == 0 or others.shape[0] == 0:
        return least, place
    least = torch.full_like(least, float("inf"))
    place = torch.zeros_like(place)
    width = max(1, points.shape[1])
    columns = max(1, min(others.shape[0], _maxima.CHUNK_ELEMENTS // width // 64))
    for start, end in _maxima.spans(count, columns * width):
        for first in range(0, others.shape[0], columns):
            found = _distances(points[start:end], others[first : first + columns], norm).min(dim=1)
            # A strict comparison keeps the earlier chunk at equals; a NaN always takes over.
            better = (found.values < least[start:end]) | found.values.isnan()
            better &= ~least[start:end].isnan()
            least[start:end] = torch.where(better, found.values, least[start:end])
            place[start:end] = torch.where(better, found.indices + first, place[start:end])
    return least, place


def _to_nearest(points: Tensor, others: Tensor, place: Tensor, norm: int) -> Tensor:
    """Distances to the chosen neighbours, differentiable in both clouds."""
    kind = _maxima.accumulation_type(points, others)
    difference = points.to(kind) - others.to(kind)[place]
    return difference.abs().sum(-1) if norm == 1 else difference.square().sum(-1)


def _reduce(values: Tensor, how: Optional[str]) -> Tensor:
    if how in ("none", None):
        return values
    if values.shape[0] == 0:
        return values.sum()
    if how == "max":
        return values.max()
    return values.mean() if how == "mean" else values.sum()


def _one_way(
    points: Tensor,
    others: Tensor,
    normals: Optional[Tuple[Tensor, Tensor]],
    norm: int,
    how: Optional[str],
    abs_cosine: bool,
) -> Tuple[Tensor, Optional[Tensor]]:
    """The reduced distance of a cloud to another, and that of their normals."""
    kind = _maxima.accumulation_type(points, others)
    if points.shape[0] == 0 or others.shape[0] == 0:
        nothing = points.new_zeros(points.shape[0], dtype=kind)
        return _reduce(nothing, how), None if normals is None else _reduce(nothing, how)
    _, place = nearest(points.detach(), others.detach(), norm)
    distance = _reduce(_to_nearest(points, others, place, norm), how)
    if normals is None:
        return distance, None
    cosine = torch.nn.functional.cosine_similarity(
        normals[0].to(kind), normals[1].to(kind)[place], dim=-1, eps=1e-6
    )
    return distance, _reduce(1 - (cosine.abs() if abs_cosine else cosine), how)


def _lengths(given: Optional[Tensor], clouds: Tensor, name: str) -> list[int]:
    if given is None:
        return [clouds.shape[1]] * clouds.shape[0]
    if given.shape != clouds.shape[:1]:
        raise ValueError(f"{name} must be [{clouds.shape[0]}], got {tuple(given.shape)}")
    lengths = [int(length) for length in given.tolist()]
    if any(length < 0 or length > clouds.shape[1] for length in lengths):
        raise ValueError(f"{name} must lie in 0..={clouds.shape[1]}")
    return lengths


def _check(x: Tensor, y: Tensor, norm: int, how: Optional[str], batch: Optional[str]) -> None:
    for name, cloud in (("x", x), ("y", y)):
        if not cloud.is_floating_point():
            raise TypeError(f"{name} must have a float type, got {cloud.dtype}")
    if x.dim() != y.dim() or x.dim() not in (2, 3):
        raise ValueError(
            f"x and y must both be [n, d] or [B, n, d], got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    if x.shape[-1] != y.shape[-1] or (x.dim() == 3 and x.shape[0] != y.shape[0]):
        raise ValueError(f"x and y disagree in shape: {tuple(x.shape)}, {tuple(y.shape)}")
    if x.device != y.device:
        raise ValueError(f"x is on {x.device}, y on {y.device}")
    if norm not in (1, 2):
        raise ValueError(f"norm must be 1 or 2, got {norm}")
    if how not in _REDUCTIONS:
        raise ValueError(f"point_reduction must be one of {_REDUCTIONS}, got {how!r}")
    if batch not in ("mean", "sum", "none", None):
        raise ValueError(f"batch_reduction must be mean, sum or none, got {batch!r}")


def chamfer(
    x: Tensor,
    y: Tensor,
    *,
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
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """Chamfer distance of clouds `x` and `y`: of each point to the nearest of the other cloud.

    Clouds are `[n, d]`, or `[B, n, d]` with `x_lengths` and `y_lengths` `[B]`. `norm` 2 is the
    *squared* L2 distance, 1 the sum of absolute differences, both by differences in f32 (f64 for
    f64). `point_reduction` (`mean`, `sum`, `max`, `none`) reduces a direction, whose sums are
    added unless `single_directional`; `batch_reduction` the batch, each pair times its `weights`
    `[B]` (the mean is divided by their sum). With `none` for the points a direction is a vector:
    both directions are then given one after the other, padded with 0 in a batch. With normals the
    result is `(distance, normals)`, the second `1 - |cos|` of the normals of neighbours, or
    `1 - cos` without `abs_cosine`.

    An empty cloud contributes 0 and takes no gradient; NaN shows; the nearest of equals is the
    lowest index. Differentiable in the clouds, normals and weights. The matrix of distances is
    never held. Raises ValueError for shapes, lengths or options that disagree, TypeError for
    element types that are not floats.
    """
    _check(x, y, norm, point_reduction, batch_reduction)
    if (x_normals is None) != (y_normals is None):
        raise ValueError("x_normals and y_normals must be given together")
    single = x.dim() == 2
    if single:
        x, y = x.unsqueeze(0), y.unsqueeze(0)
        x_normals = None if x_normals is None else x_normals.unsqueeze(0)
        y_normals = None if y_normals is None else y_normals.unsqueeze(0)
    if x_normals is not None and y_normals is not None:
        if x_normals.shape != x.shape or y_normals.shape != y.shape:
            raise ValueError("normals must have the shapes of their clouds")
    if weights is not None and weights.shape != x.shape[:1]:
        raise ValueError(f"weights must be [{x.shape[0]}], got {tuple(weights.shape)}")
    x_sizes = _lengths(x_lengths, x, "x_lengths")
    y_sizes = _lengths(y_lengths, y, "y_lengths")
    distances: list[Tensor] = []
    normals: list[Tensor] = []
    for item, (n, m) in enumerate(zip(x_sizes, y_sizes)):
        left, right = x[item, :n], y[item, :m]
        pair = None
        if x_normals is not None and y_normals is not None:
            pair = (x_normals[item, :n], y_normals[item, :m])
        parts = [_one_way(left, right, pair, norm, point_reduction, abs_cosine)]
        if not single_directional:
            back = None if pair is None else (pair[1], pair[0])
            parts.append(_one_way(right, left, back, norm, point_reduction, abs_cosine))
        distances.append(_join([distance for distance, _ in parts], point_reduction))
        if pair is not None:
            normals.append(_join([n for _, n in parts if n is not None], point_reduction))
    batch = "none" if single else batch_reduction
    values = _over_batch(distances, weights, batch, x, point_reduction)
    if x_normals is None:
        return values[0] if single else values
    others = _over_batch(normals, weights, batch, x, point_reduction)
    return (values[0], others[0]) if single else (values, others)


def _join(directions: list[Tensor], how: Optional[str]) -> Tensor:
    """Both directions: one after the other where points are not reduced, else their sum."""
    if how in ("none", None):
        return torch.cat(directions)
    return torch.stack(directions).sum(0)


def _over_batch(
    values: list[Tensor],
    weights: Optional[Tensor],
    how: Optional[str],
    like: Tensor,
    points: Optional[str],
) -> Tensor:
    """The batch's distances, weighted and reduced."""
    if not values:
        return like.new_zeros(0 if how in ("none", None) else (), dtype=torch.float32)
    if points in ("none", None):
        table = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
        return table if weights is None else table * weights.unsqueeze(-1)
    table = torch.stack(values)
    if weights is not None:
        table = table * weights
    if how in ("none", None):
        return table
    if how == "sum":
        return table.sum()
    return table.mean() if weights is None else table.sum() / weights.sum().clamp_min(1e-12)
