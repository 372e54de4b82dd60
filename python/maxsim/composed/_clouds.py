"""Clouds of points, and each point's nearest neighbour in another cloud.

The library finds neighbours and gradients of f16, bf16 and f32 points on the CPU and on CUDA
devices. What it does not take is composed of torch: f64, other devices, what is traced or
intercepted, and what a device's engine refuses.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from .. import _maxsim
from .._backends.torch import address, indices, is_plain, memory, on
from .._sides import Side
from .._threads import get_num_threads
from . import _calls, _maxima
from ._native import DIM_MAX, described

#: Reductions of a cloud's distances, as the compiled half numbers them.
REDUCTIONS = {"mean": 0, "sum": 1, "max": 2, "none": 3, None: 3}


class Clouds(NamedTuple):
    """Points `[B, n, d]` or `[rows, d]`, and the rows of each cloud, on the host."""

    points: Tensor
    starts: Tensor
    lengths: Tensor
    #: Whether clouds of a batch have all of their points.
    is_full: bool

    @property
    def width(self) -> int:
        """Points of a row of a table of all clouds."""
        if self.points.dim() == 3:
            return int(self.points.shape[1])
        return int(self.lengths.max()) if self.lengths.numel() else 0

    def side(self) -> Side:
        """The clouds as a side of a call."""
        if self.points.dim() == 3:
            return Side(self.points, None, None, None if self.is_full else self.lengths)
        return Side(self.points, None, torch.cat([self.starts, self.starts.new_tensor(
            [self.points.shape[0]])]))

    def rows(self) -> Tensor:
        """The row of each point, a cloud's points after the other's."""
        total = int(self.lengths.sum())
        before = self.lengths.cumsum(0) - self.lengths
        rows = torch.repeat_interleave(self.starts - before, self.lengths, output_size=total)
        return on(rows + torch.arange(total, device="cpu"), self.points.device)

    def of_points(self, of_clouds: Tensor) -> Tensor:
        """What belongs to clouds (on the host), for each point."""
        return on(torch.repeat_interleave(of_clouds, self.lengths), self.points.device)

    def table(self, flat: Tensor, fill: float) -> Tensor:
        """Entries of points as `[B, width]`; `fill` beyond a cloud's points."""
        n, width = self.lengths.shape[0], self.width
        if self.is_full:
            return flat.view(n, width)
        valid = on(torch.arange(width, device="cpu") < self.lengths[:, None], flat.device)
        return flat.new_full((n, width), fill).masked_scatter(valid, flat)


def clouds(points: Tensor, lengths: Any, offsets: Any, name: str) -> Clouds:
    """Clouds of a batch `[B, n, d]` with lengths `[B]`, or of rows `[rows, d]` with offsets."""
    if offsets is not None:
        if lengths is not None:
            raise ValueError(f"{name}_offsets say the lengths: {name}_lengths must be None")
        if points.dim() != 2:
            raise ValueError(
                f"{name} must be [rows, d] where there are {name}_offsets, got "
                f"{tuple(points.shape)}"
            )
        first = indices(offsets, f"{name}_offsets").detach().to("cpu", torch.int64)
        rows = points.shape[0]
        if first.dim() != 1 or not first.numel() or first[0] != 0 or first[-1] != rows:
            raise ValueError(f"{name}_offsets must be [B + 1], from 0 to {rows}")
        sizes = first[1:] - first[:-1]
        if (sizes < 0).any():
            raise ValueError(f"{name}_offsets must not fall")
        return Clouds(points, first[:-1], sizes, False)
    n, most = points.shape[:2]
    starts = torch.arange(n, dtype=torch.int64, device="cpu") * most
    if lengths is None:
        return Clouds(points, starts, torch.full_like(starts, most), True)
    if tuple(lengths.shape) != (n,):
        raise ValueError(f"{name}_lengths must be [{n}], got {tuple(lengths.shape)}")
    sizes = indices(lengths, f"{name}_lengths").detach().to("cpu", torch.int64)
    if ((sizes < 0) | (sizes > most)).any():
        raise ValueError(f"{name}_lengths must lie in 0..={most}")
    return Clouds(points, starts, sizes, False)


class Found(NamedTuple):
    """What is found of the points of both sides."""

    #: Values of pairs of clouds, `[B]`; None without a reduction, or where these are composed.
    values: Optional[Tensor]
    #: Distances of points, those of y after those of x; None as `values`.
    distances: Optional[Tensor]
    #: Each point's neighbour in the other cloud, likewise; -1 for none.
    places: Tensor


def takes(x: Clouds, y: Clouds) -> bool:
    """Whether the library may take these clouds."""
    points = (x.points, y.points)
    if not 1 <= x.points.shape[-1] <= DIM_MAX:
        return False
    return _calls.is_native(*points) and is_plain(*points)


def _call(points: Tensor) -> Any:
    """Where a call on a device runs, as numbers."""
    from .._backends.cuda import call_numbers
    from .._sides import Options

    return call_numbers(points, Options())


def _enqueued(function: Any, points: Tensor, *arguments: Any) -> Any:
    from .._backends.cuda import enqueue

    return enqueue(function, _call(points), *arguments)


class _Nearest(torch.autograd.Function):
    """Values or, without a reduction, distances, with the library's gradients."""

    @staticmethod
    def forward(ctx, x_points, y_points, x, y, asked):  # type: ignore[no-untyped-def]
        x, y = x._replace(points=x_points), y._replace(points=y_points)
        n_values = 0 if asked[1] == REDUCTIONS[None] else x.lengths.shape[0]
        n_points = int(x.lengths.sum()) + (0 if asked[2] else int(y.lengths.sum()))
        sides, kept = described(x.side(), y.side())
        if x_points.is_cuda:
            found = _enqueued(_maxsim.CudaChamfer, x_points, sides, asked)
            n_bytes, *offsets = found.memory()
            room = torch.zeros(n_bytes, dtype=torch.uint8, device=x_points.device)
            _enqueued(found.find, x_points, sides, memory(room))
            kinds = (torch.float32, torch.int32, torch.float32)
            lengths = (n_points, n_points, n_values)
            distances, places, values = (
                room[at : at + 4 * n].view(kind) for at, n, kind in zip(offsets, lengths, kinds)
            )
            # A caller may change results; gradients need what was found.
            values, distances = values.clone(), distances.clone()
        else:
            found, room = _maxsim.Chamfer(get_num_threads(), sides, asked), None
            values = torch.empty(n_values, dtype=torch.float32)
            distances = torch.empty(n_points, dtype=torch.float32)
            places = torch.empty(n_points, dtype=torch.int32)
            found.read(memory(values), memory(distances), memory(places))
        del kept
        ctx.save_for_backward(x_points, y_points)
        ctx.of = x._replace(points=None), y._replace(points=None), asked, found, room
        has_values = asked[1] != REDUCTIONS[None]
        ctx.mark_non_differentiable(places, distances if has_values else values)
        ctx.set_materialize_grads(False)
        return values, distances, places

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_values, of_distances, _):  # type: ignore[no-untyped-def]
        x, y, asked, found, room = ctx.of
        grad = of_distances if asked[1] == REDUCTIONS[None] else of_values
        if grad is None:
            return (None,) * 5
        points = ctx.saved_tensors
        sides, kept = described(*(c._replace(points=p).side() for c, p in zip((x, y), points)))
        grad = grad.float().resolve_neg().contiguous()
        if points[0].is_cuda:
            to = [torch.empty(p.shape, dtype=p.dtype, device=p.device) for p in points]
            addresses = tuple((address(t), t.numel()) for t in to)
            _enqueued(found.backward, points[0], sides, memory(room), memory(grad), addresses)
        else:
            to = [torch.empty(p.shape, dtype=torch.float32) for p in points]
            found.backward(get_num_threads(), sides, memory(grad), tuple(map(memory, to)))
            to = [t.to(p.dtype) for t, p in zip(to, points)]
        del kept
        needs = ctx.needs_input_grad
        return to[0] if needs[0] else None, to[1] if needs[1] else None, None, None, None


def find(x: Clouds, y: Clouds, norm: int, reduction: Optional[str], single: bool) -> Found:
    """Neighbours of the points of `x` in the cloud of `y` of the same number, and unless
    `single` the reverse, with what the library makes of their distances."""
    if x.points.device != y.points.device:
        raise ValueError(f"x is on {x.points.device}, y on {y.points.device}")
    asked = (norm == 1, REDUCTIONS[reduction], single)
    if takes(x, y):
        kind = torch.promote_types(x.points.dtype, y.points.dtype)
        points = [c.points.to(kind).resolve_neg() for c in (x, y)]
        try:
            values, of_points, neighbours = _Nearest.apply(*points, x, y, asked)
        except NotImplementedError:
            pass  # a device that has no kernel for these
        else:
            # On a device, the library has gradients of values alone.
            if x.points.is_cuda and reduction in ("none", None):
                return Found(None, None, neighbours)
            return Found(values, of_points, neighbours)
    places = [_places(x, y, norm)] + ([] if single else [_places(y, x, norm)])
    return Found(None, None, torch.cat(places))


def _places(x: Clouds, y: Clouds, norm: int) -> Tensor:
    """The neighbour of each point of `x`, composed."""
    own, other = (c.points.detach().reshape(-1, c.points.shape[-1]) for c in (x, y))
    parts = [torch.zeros(0, dtype=torch.int64, device=own.device)]
    of = (x.starts, x.lengths, y.starts, y.lengths)
    for start, n, other_start, m in zip(*(numbers.tolist() for numbers in of)):
        others = other[other_start : other_start + m]
        parts.append(compared(own[start : start + n], others, norm)[1])
    return torch.cat(parts)


def distances(points: Tensor, others: Tensor, norm: int) -> Tensor:
    """Distances by differences of rows that broadcast: squared L2, or L1."""
    difference = points - others
    return difference.abs().sum(-1) if norm == 1 else difference.square().sum(-1)


@torch.no_grad()
def compared(points: Tensor, others: Tensor, norm: int) -> Tuple[Tensor, Tensor]:
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
            part = others[first : first + columns]
            found = distances(points[start:end].unsqueeze(1), part, norm).min(dim=1)
            # A strict comparison keeps the earlier chunk at equals; a NaN always takes over.
            better = (found.values < least[start:end]) | found.values.isnan()
            better &= ~least[start:end].isnan()
            least[start:end] = torch.where(better, found.values, least[start:end])
            place[start:end] = torch.where(better, found.indices + first, place[start:end])
    return least, place
