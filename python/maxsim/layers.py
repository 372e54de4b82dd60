"""Layers that the Hugging Face `kernels` library puts in place of a model's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import scoring


class MaxSim(torch.nn.Module):
    """Scores of every query against every document, without a state of its own.

    `kernels.kernelize` gives :meth:`forward` to a model's layer, which stays what it was: nothing
    here may be read from ``self``.
    """

    can_torch_compile = True
    has_backward = True

    def forward(
        self, Q: Tensor, D: Tensor, q_mask: Tensor | None = None, d_mask: Tensor | None = None
    ) -> Any:
        """:func:`maxsim` of queries ``[Nq, Lq, dim]`` and documents ``[Nd, Ld, dim]``."""
        return scoring.maxsim(Q, D, q_mask=q_mask, d_mask=d_mask)
