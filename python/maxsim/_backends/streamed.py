"""Searches of documents that stay in host memory: the device has two or three pieces at a time.

A piece is copied on a stream of its own while the one before it is scored, and the best of both are
kept: what a search needs of a device does not grow with the documents.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch import Tensor

from .._sides import Options, Side, check
from .torch import ranked, topk as topk_of

#: Pieces that are on a device before the host waits for the oldest one's scores.
_AHEAD = 2


class Best(NamedTuple):
    """The best of the documents so far: as a ranking, and of how many documents."""

    scores: Tensor
    ids: Tensor
    n_nan: Tensor
    n_empty: Tensor
    n: int

    def has(self) -> Tensor:
        """Which of the best have tokens, ``[Nq, columns]``: those without are the last."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < (self.n - self.n_empty)[:, None]

    def merged(self, other: Best, k: int) -> Best:
        """The best of these and of documents with higher ids."""
        scores, ids, has = (
            torch.cat(pair, 1)
            for pair in ((self.scores, other.scores), (self.ids, other.ids),
                         (self.has(), other.has()))
        )
        scores, places = ranked(scores, has, k)[:2]
        counts = self.n_nan + other.n_nan, self.n_empty + other.n_empty
        return Best(scores, ids.gather(-1, places), *counts, self.n + other.n)


def check_documents(d: Side) -> None:
    """Checks that documents can be read a piece at a time from host memory."""
    check(d.data.device.type == "cpu", "streamed", "documents in host memory", d.data.device)
    check(d.first is None or d.lengths is None, "streamed",
          "padded documents, packed ones with offsets, or a list", "lengths beside offsets")
    if d.first is not None:
        begins, n_rows = d.first.detach().cpu(), d.data.shape[0]
        rises = begins.numel() > 0 and bool((begins.diff() >= 0).all())
        check(rises and int(begins[0]) == 0 and int(begins[-1]) == n_rows, "offsets",
              f"rising numbers from 0 to {n_rows}, the rows of D", "others")


def pieces(d: Side, piece_bytes: int) -> Iterator[tuple[int, Side]]:
    """Runs of documents of about so many bytes, each with the number of its first document. One
    run at least, which is empty where there are no documents."""
    row = d.data.shape[-1] * d.data.element_size()
    if d.first is None:
        step = max(1, piece_bytes // max(1, row * d.data.shape[1]))
        for first in range(0, max(1, d.n_items), step):
            of = slice(first, first + step)
            yield first, Side(*(_part(x, of, d.data) for x in d))
        return
    begins = d.first.detach().cpu().to(torch.int64)
    most, first = max(1, piece_bytes // max(1, row)), 0
    while first < max(1, d.n_items):
        # The documents that end within so many rows of this one's first, and one at least.
        end = int(torch.searchsorted(begins, begins[first] + most, right=True)) - 1
        end = min(max(end, first + 1), d.n_items)
        begin, behind = int(begins[first]), int(begins[end])
        part = Side(*(_part(x, slice(begin, behind), d.data) for x in d))
        yield first, part._replace(first=begins[first:end + 1] - begin)
        first = max(end, 1)


def _part(x: Tensor | None, of: slice, data: Tensor) -> Tensor | None:
    """A piece of what has an entry per document or row; a scale of all of them stays."""
    return x if x is None or x.ndim == 0 or x.shape[0] != data.shape[0] else x[of]


class _Copies:
    """Copies pieces to a GPU on a stream of their own, by way of page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        #: Pieces that are being scored, with what is on the device of each.
        self._alive: list[tuple[torch.cuda.Event, Any]] = []

    def copy(self, d: Side) -> Side:
        """A piece on the device, which the current stream may use. Lists stay in host memory."""
        while len(self._alive) > _AHEAD:
            self._alive.pop(0)[0].synchronize()
        held: list[Any] = []
        with torch.cuda.stream(self._stream):
            found = d._replace(**{
                name: self._one(getattr(d, name), held)
                for name in ("data", "mask", "scales", "mins")
            })
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._held = [held, found]
        return found

    def scored(self) -> None:
        """Everything that reads the last piece is enqueued."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        self._alive.append((done, self._held))

    def _one(self, x: Tensor | None, held: list[Any]) -> Tensor | None:
        if x is None:
            return None
        if not x.is_pinned():
            x = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x)
        held.append(x)
        return x.to(self._device, non_blocking=True)

    def end(self) -> None:
        """Waits for what is still read, also of a piece on which a call failed: its memory belongs
        to another stream."""
        torch.cuda.current_stream(self._device).synchronize()
        self._stream.synchronize()


def topk(
    d: Side, q: Side, k: int, options: Options, piece_bytes: int,
    meet: Callable[[Side], tuple[Side, Side]],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ranks documents where the queries are; ``meet`` gives queries and a piece one format."""
    device = q.data.device
    on_gpu = device.type == "cuda"
    best: Best | None = None
    with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
        copies = _Copies(device) if on_gpu else None
        try:
            for first, piece in pieces(d, piece_bytes):
                queries, documents = meet(copies.copy(piece) if copies else piece)
                n = documents.n_items
                scores, ids, n_nan, n_empty = topk_of(queries, documents, min(k, n), options)
                found = Best(scores, ids + first, n_nan, n_empty.expand(q.n_items), n)
                best = found if best is None else best.merged(found, k)
                if copies:
                    copies.scored()
        finally:
            if copies:
                copies.end()
    assert best is not None
    return best[:4]
