"""vLLM's late-interaction scores of pairs, computed by maxsim.

    from maxsim.integrations import vllm
    vllm.enable()

In force, ``vllm.v1.pool.late_interaction.compute_maxsim_score_batched`` scores all pairs of a call
at once, without padding them. vLLM scores in processes of its own: :func:`register` is a plug-in
for the entry-point group ``vllm.general_plugins``, which vLLM runs in each of them.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from ._exchange import Enabled, Integration


def enable(*, check_version: bool = True) -> Enabled:
    """Makes vLLM score with maxsim in this process, from now on or inside a ``with`` block.

    Args:
        check_version: refuse versions of vLLM that are not known to fit.

    Raises:
        ImportError: vLLM is not installed.
        RuntimeError: a version that is not known to fit, or without this function.
    """
    return _integration.enable(check_version)


def disable() -> None:
    """Gives vLLM its own function back."""
    _integration.disable()


def register() -> None:
    """The plug-in: enables where the environment says ``MAXSIM_VLLM=1``."""
    if os.environ.get("MAXSIM_VLLM") == "1":
        enable()


def _compute(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_maxsim_score_batched(
        q_embs: Any, d_embs: Any, max_batch_size: int = 64,
        max_score_matrix_elements: int = 64_000_000,
    ) -> Any:
        limits = (max_batch_size, max_score_matrix_elements)
        if min(limits) > 0 and _all_served(q_embs, d_embs):
            return _score(list(q_embs), list(d_embs))
        return original(q_embs, d_embs, *limits)

    return compute_maxsim_score_batched


def _all_served(queries: Any, documents: Any) -> bool:
    """Whether these are tensors ``[tokens, dim]`` of one device, as many on either side."""
    from . import _served

    if len(queries) == 0 or len(queries) != len(documents):
        return False
    first = queries[0]
    for x in (*queries, *documents):
        if not _served.is_plain(x) or x.ndim != 2 or x.device != first.device:
            return False
        if x.shape[1] != first.shape[1] or x.requires_grad:
            return False
    return bool(0 < first.shape[1] <= _served.MAX_DIM)


def _score(queries: list[Any], documents: list[Any]) -> list[Any]:
    """Scores pairs in one call; float32 scalars, -inf where there is no document token."""
    import torch

    from .._backends.torch import on
    from ..scoring import scattered

    if len({x.dtype for x in (*queries, *documents)}) > 1:
        queries = [x.float() for x in queries]
        documents = [x.float() for x in documents]
    device = queries[0].device
    q_rows, q_starts = _rows(queries)
    d_rows, d_starts = _rows(documents)
    lists = [q_starts, [len(x) for x in queries], d_starts, [len(x) for x in documents]]
    # Lists stay in host memory, where they are read.
    numbers = torch.tensor(lists, dtype=torch.int64)
    ids = torch.arange(len(queries))
    q_first, q_len, d_first, d_len = numbers.unbind(0)
    scores = scattered(q_rows, d_rows, q_first, q_len, d_first, d_len, ids, ids)
    empty = [len(q) > 0 and len(d) == 0 for q, d in zip(queries, documents)]
    if any(empty):
        scores = scores.masked_fill(on(torch.tensor(empty), device), float("-inf"))
    return list(scores.unbind(0))


def _rows(items: list[Any]) -> tuple[Any, list[int]]:
    """One matrix that has all items' rows, and the first row of each.

    The memory that the items are parts of, where they are parts of one; else a copy.
    """
    import torch

    dim = items[0].shape[1]
    starts = [x.storage_offset() for x in items]
    lowest = min(starts)
    memory = items[0].untyped_storage().data_ptr()
    one = memory != 0 and all(
        x.is_contiguous() and x.untyped_storage().data_ptr() == memory
        and (start - lowest) % dim == 0 for x, start in zip(items, starts)
    )
    if one:
        rows = [(start - lowest) // dim for start in starts]
        count = max(row + len(x) for row, x in zip(rows, items))
        return items[0].as_strided((count, dim), (dim, 1), lowest), rows
    # Queries of several pairs are one tensor: its rows are taken once.
    kept: dict[int, int] = {}
    parts, rows, count = [], [], 0
    for x in items:
        if id(x) not in kept:
            kept[id(x)] = count
            parts.append(x)
            count += len(x)
        rows.append(kept[id(x)])
    return torch.cat(parts), rows


_integration = Integration(
    "vllm", "vllm", ("0.17", "0.34"),
    {("vllm.v1.pool.late_interaction", "compute_maxsim_score_batched"): _compute},
)
