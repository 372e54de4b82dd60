"""Modules of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _ranking, scoring


class MaxSimScorer(torch.nn.Module):
    """Scores as a module without parameters: ``scorer(Q, D)``.

    Args:
        normalize: divide every row by its length.
        tf32: let float32 products be TF32 where a GPU is faster for it.
    """

    def __init__(self, *, normalize: bool = False, tf32: bool = False) -> None:
        super().__init__()
        self.normalize, self.tf32 = normalize, tf32

    def forward(self, Q: Tensor, D: Tensor, **arguments: Any) -> Any:
        """:func:`maxsim` of queries and documents; of ``D [Nq, K, Ld, dim]``,
        :func:`candidates`."""
        score = scoring.candidates if getattr(D, "ndim", 3) == 4 else scoring.maxsim
        return score(Q, D, normalize=self.normalize, tf32=self.tf32, **arguments)

    @torch.no_grad()
    def topk(self, Q: Tensor, D: Any, k: int, **arguments: Any) -> _ranking.Ranking:
        """:func:`topk` of queries and documents."""
        return _ranking.topk(Q, D, k, normalize=self.normalize, tf32=self.tf32, **arguments)

    def extra_repr(self) -> str:
        """What the module prints of itself."""
        return f"normalize={self.normalize}, tf32={self.tf32}"
