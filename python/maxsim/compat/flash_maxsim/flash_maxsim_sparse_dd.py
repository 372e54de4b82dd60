"""Tables of the document tokens that won, each with the query tokens that chose it."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor

from ._shapes import need


def build_sparse_dd_tables(
    argmax: Tensor, Nq: int, B: int, Lq: int, Ld: int, shared_docs: bool
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Groups winners `[Nq * B, Lq]` by the document token that they name.

    Returns `(order, starts, counts, documents, tokens)`: the flat entries sorted by token, where
    each token's run starts and how long it is (int32), and the document and token of each run
    (int32). Without `shared_docs` every row of `argmax` is a document of its own.
    """
    need(argmax.is_cuda, f"argmax must be on a CUDA device, got {argmax.device}")
    need(
        tuple(argmax.shape) == (Nq * B, Lq),
        f"argmax must be [{Nq * B}, {Lq}], got {tuple(argmax.shape)}",
    )
    pairs = torch.arange(Nq * B, device=argmax.device)
    documents = torch.div(pairs, Nq, rounding_mode="floor") if shared_docs else pairs
    keys = (documents.unsqueeze(-1) * Ld + argmax.long()).reshape(-1)
    ordered, order = keys.sort(stable=True)
    runs, counts = torch.unique_consecutive(ordered, return_counts=True)
    starts = counts.cumsum(0) - counts
    return (
        order,
        starts.to(torch.int32),
        counts.to(torch.int32),
        torch.div(runs, Ld, rounding_mode="floor").to(torch.int32),
        (runs % Ld).to(torch.int32),
    )


__all__ = ["build_sparse_dd_tables"]
