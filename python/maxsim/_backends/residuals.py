"""Residual-compressed documents on a GPU: arranged there, once, as the compiled half reads them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import unread as _unread
from .. import _maxsim
from .._sides import Options, Side, check
from .cuda import call_numbers, describe, enqueue
from .torch import CODES, memory, some_memory

#: Rows that are arranged at once: each takes some bytes per element meanwhile.
_ROWS = 1 << 18


class _Plan(NamedTuple):
    """How GPUs keep residuals (see ``Arrangement`` of the library)."""

    row_bytes: int
    padding: int
    centroid_bytes: int
    weight_bytes: int
    #: ``[nbits, 256]`` int64: what the values of a chunk's bytes become.
    tables: Tensor
    #: The place of each chunk in a row.
    slots: Tensor
    #: The place in a chunk of each bit of each of its bytes.
    places: list[list[int]]


@lru_cache(maxsize=64)
def _plan(dim: int, nbits: int, is_little_endian: bool, device: torch.device) -> _Plan:
    found = _maxsim.arrangement(dim, nbits, is_little_endian)
    row_bytes, padding, centroid_bytes, weight_bytes, tables, slots = found
    numbers = [[n - (1 << 64) if n >> 63 else n for n in table] for table in tables]
    places = [[table[1 << bit].bit_length() - 1 for bit in range(8)] for table in tables]
    return _Plan(row_bytes, padding, centroid_bytes, weight_bytes,
                 torch.tensor(numbers, device=device), torch.tensor(slots, device=device), places)


def _arranged(residuals: Tensor, nbits: int, plan: _Plan) -> Tensor:
    """Rows of residuals as GPUs keep them, with padding behind the last."""
    rows, stored = residuals.shape
    n_chunks = plan.slots.numel()
    shape = (rows + plan.padding, plan.row_bytes // nbits, nbits)
    found = torch.zeros(shape, dtype=torch.uint8, device=residuals.device)
    for start in range(0, rows, _ROWS):
        part = residuals[start:start + _ROWS]
        if stored < n_chunks * nbits:
            part = torch.nn.functional.pad(part, (0, n_chunks * nbits - stored))
        part = part.reshape(-1, n_chunks, nbits)
        chunks = plan.tables[0][part[..., 0].long()]
        for at in range(1, nbits):
            chunks |= plan.tables[at][part[..., at].long()]
        chunk_bytes = chunks.unsqueeze(-1).view(torch.uint8)[..., :nbits]
        found[start:start + _ROWS][:part.shape[0]].index_copy_(1, plan.slots, chunk_bytes)
    return found


def _stored(arranged: Tensor, stored: int, plan: _Plan) -> Tensor:
    """Residuals as they were before they were arranged."""
    nbits = arranged.shape[-1]
    wide = torch.nn.functional.pad(arranged[:, plan.slots], (0, 8 - nbits))
    chunks = wide.contiguous().view(torch.int64).squeeze(-1)
    found = torch.zeros((*chunks.shape, nbits), dtype=torch.uint8, device=arranged.device)
    for at, places in enumerate(plan.places):
        for bit, place in enumerate(places):
            found[..., at] |= (((chunks >> place) & 1) << bit).to(torch.uint8)
    return found.flatten(1)[:, :stored]


class Tables(NamedTuple):
    """What rows are decoded with, for queries of one type."""

    centroids: Tensor
    weights: Tensor
    norms: Tensor | None
    #: The stream that made them, and what that stream had done then; None off GPUs.
    made: tuple[int, torch.cuda.Event] | None = None


class Residuals:
    """Documents in memory of a GPU.

    ``items`` has the layout and mask of the rows, over codes ``[…, 1]``; nothing is waited for
    but lists that are on the GPU. Codes must be ids of centroids.
    """

    def __init__(
        self, items: Side, codes: Tensor, residuals: Tensor, centroids: Tensor, weights: Tensor,
        nbits: int, is_little_endian: bool, normalize: bool,
    ) -> None:
        """Arranges the residuals, and finds the longest document."""
        self.device, self.nbits, self.normalize = codes.device, nbits, normalize
        self.is_little_endian = is_little_endian
        self.centroids, self.weights = centroids, weights.float()
        self.items = items
        self.dim = int(centroids.shape[1])
        codes, residuals = codes.reshape(-1), residuals.reshape(-1, residuals.shape[-1])
        self.rows, self.n_stored = residuals.shape
        self.plan = _plan(self.dim, nbits, is_little_endian, self.device)
        self.codes = torch.zeros(self.rows + self.plan.padding, dtype=torch.int32,
                                 device=self.device)
        self.codes[:self.rows] = codes
        self.arranged = _arranged(residuals, nbits, self.plan)
        (layout, matrix), self._kept = describe(items, dense=True)
        self._layout = ((*layout[:4], self.dim, *layout[5:]), matrix)
        self._tables: dict[torch.dtype, Tables] = {}
        self._listed: Side | None = None
        first, lengths = self._kept[1:3]
        if first is not None and lengths is None:
            lengths = torch.diff(first)
        if lengths is not None:
            self._longest = int(lengths.max()) if lengths.numel() else 0
        else:
            self._longest = int(items.data.shape[1])

    def max_len(self) -> int:
        """Tokens of the longest document."""
        return self._longest

    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """Rows, documents, dim, bits, centroids, bytes of a row of residuals."""
        return (self.rows, self.items.n_items, self.dim, self.nbits, self.centroids.shape[0],
                self.n_stored)

    def listed(self) -> Side:
        """The documents' layout, with lists on the GPU."""
        if self._listed is None:
            self._listed = _unread.listed(self.items)
        return self._listed

    def numbers(self, tables: Tables, layout: Any = None) -> tuple[Any, ...]:
        """The documents as numbers, or other items of their rows."""
        own, matrix = self._layout
        return ((own if layout is None else layout, matrix), self.nbits, memory(self.codes),
                memory(self.arranged), memory(tables.centroids), self.centroids.shape[0],
                memory(tables.weights), some_memory(tables.norms))

    def tables(self, dtype: torch.dtype) -> Tables:
        """Tables for queries of a type; made at their first call, for calls on any stream."""
        found = self._tables.get(dtype)
        if self.device.type != "cuda":
            found = self._tables[dtype] = found or self._make(dtype)
            return found
        stream = torch.cuda.current_stream(self.device)
        is_captured = torch.cuda.is_current_stream_capturing()
        if found is None:
            found = self._make(dtype)
            if is_captured:
                # They are there when the graph has run, and are its own.
                return found
            made = (stream.cuda_stream, stream.record_event())
            found = self._tables[dtype] = found._replace(made=made)
        assert found.made is not None
        # A capture begins when all that was enqueued is done.
        if found.made[0] != stream.cuda_stream and not is_captured:
            stream.wait_event(found.made[1])
            for x in (self.codes, self.arranged, *found[:3]):
                if x is not None:
                    x.record_stream(stream)
        return found

    def _make(self, dtype: torch.dtype) -> Tables:
        check(dtype in (torch.float16, torch.bfloat16), "Q",
              "float16 or bfloat16 queries of a PLAID index on a GPU", dtype)
        n, plan = self.centroids.shape[0], self.plan
        centroids = torch.zeros((n, plan.centroid_bytes // 2), dtype=dtype, device=self.device)
        centroids[:, :self.dim] = self.centroids
        weights = self.weights.to(dtype).unsqueeze(-1).view(torch.uint8)
        table = torch.zeros(plan.weight_bytes, dtype=torch.uint8, device=self.device)
        first = min(16, weights.shape[0])
        table[:first], table[16:16 + first] = weights[:first, 0], weights[:first, 1]
        table[32:32 + weights.numel()] = weights.flatten()
        raw = centroids.view(torch.uint8)
        if not self.normalize:
            return Tables(raw, table, None)
        norms = torch.empty(self.rows + plan.padding, dtype=torch.float32, device=self.device)
        tables = Tables(raw, table, norms)
        call = call_numbers(self.codes, Options())
        enqueue(_maxsim.cuda_residual_norms, call, self.numbers(tables), CODES[dtype])
        return tables

    def stored(self) -> Tensor:
        """Residuals as they were given, ``[rows, …]``."""
        return _stored(self.arranged[:self.rows], self.n_stored, self.plan)

    def decode(self) -> Tensor:
        """The tokens, in float32 ``[rows, dim]``."""
        nbits, stored = self.nbits, self.stored().long()
        places = torch.arange(8 // nbits, device=self.device) * nbits
        if not self.is_little_endian:
            # Bit b of bucket i is bit 7 - (i * nbits + b) of its byte.
            flipped = torch.zeros_like(stored)
            for bit in range(8):
                flipped |= ((stored >> bit) & 1) << (7 - bit)
            stored = flipped
        buckets = (stored.unsqueeze(-1) >> places) & ((1 << nbits) - 1)
        codes = self.codes[:self.rows].long()
        found = self.centroids.float()[codes] + self.weights[buckets.flatten(1)[:, :self.dim]]
        if not self.normalize:
            return found
        return found / found.square().sum(-1, keepdim=True).clamp_min(1e-12).sqrt()

    def parts(self) -> dict[str, Tensor]:
        """Copies of codes, residuals, centroids and bucket weights."""
        return {"codes": self.codes[:self.rows], "residuals": self.stored(),
                "centroids": self.centroids.float(), "bucket_weights": self.weights}

    def size_bytes(self) -> int:
        """Bytes that the tokens take, without the tables."""
        return self.codes.numel() * 4 + self.arranged.numel()
