"""Exact searches by way of codes, on torch tensors: documents are copied to memory of their own, on
the host or on a GPU, whose bounds are measured there."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from .. import _maxsim
from .._sides import Side, check
from .._threads import get_num_threads
from .torch import describe, memory


class Screen(NamedTuple):
    """Documents with codes of theirs."""

    held: _maxsim.Screen
    device: torch.device


def _on_host(side: Side) -> Side:
    """A side in host memory; one that is elsewhere is copied, which waits."""
    return Side(*(None if x is None else x.detach().cpu() for x in side))


def _run(device: torch.device, function: Callable[[Any], Any]) -> Any:
    """Runs what may need memory of a device that torch keeps free, and raises torch's error."""
    if device.type == "cpu":
        return function(None)
    from .cuda import enqueue

    return enqueue(function, (device.index,))


def screen(d: Side, codes: Any) -> Screen:
    """Copies documents and codes of theirs to memory of their own, where they are."""
    device = d.data.device
    check(device.type in ("cpu", "cuda"), "exact", "documents on the CPU or a CUDA device", device)
    numbers, kept = describe(_on_host(d), dense=True)
    of_codes, codes_kept = describe(_on_host(codes.as_side(None, None, None)), dense=True)
    ordinal = None if device.type == "cpu" else device.index
    found = _run(device, lambda _: _maxsim.Screen(get_num_threads(), ordinal, numbers, of_codes))
    del kept, codes_kept
    return Screen(found, device)


def search(
    screen: Screen, q: Side, k: int, n_candidates: int, is_exact: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Ranks documents: a ranking, what is proven, how many were re-scored. Waits for a GPU."""
    device = screen.device
    check(q.data.device == device, "Q", f"a tensor on {device} like the corpus", q.data.device)
    n = q.n_items
    scores, ids = torch.empty((n, k), dtype=torch.float32), torch.empty((n, k), dtype=torch.int64)
    counts, proven = torch.empty((n, 2), dtype=torch.int64), torch.empty((n, k), dtype=torch.bool)
    n_rescored = torch.empty(n, dtype=torch.int64)
    numbers, kept = describe(_on_host(q), dense=True)
    room = (memory(scores), memory(ids), memory(counts), n, k)
    _run(device, lambda _: screen.held.search(
        get_num_threads(), numbers, n_candidates, is_exact, room, memory(proven),
        memory(n_rescored)))
    del kept
    found = (scores, ids, counts[:, 0], counts[:, 1], proven, n_rescored)
    return tuple(x.to(device) for x in found)  # type: ignore[return-value]
