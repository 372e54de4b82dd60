"""`MaxSimScorer` and `retrieve`, which normalise by default."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from .autograd import _VALID_METHODS, maxsim
from .topk import maxsim_topk


class MaxSimScorer(torch.nn.Module):
    """MaxSim as a module without parameters.

    `normalize` divides rows by their length, `backward` is that of `maxsim`, `mask_pad_token` the
    id of padding that `forward_with_ids` masks. Raises ValueError for an unknown `backward`.
    """

    def __init__(
        self,
        *,
        normalize: bool = True,
        backward: str = "auto",
        mask_pad_token: Optional[int] = None,
    ) -> None:
        super().__init__()
        if backward not in _VALID_METHODS:
            raise ValueError(f"backward must be one of {_VALID_METHODS}, got {backward!r}")
        self.normalize = normalize
        self.backward = backward
        self.mask_pad_token = mask_pad_token

    def extra_repr(self) -> str:
        return (
            f"normalize={self.normalize}, backward={self.backward!r}, "
            f"mask_pad_token={self.mask_pad_token!r}"
        )

    def forward(
        self,
        Q: Tensor,
        D: Tensor,
        q_mask: Optional[Tensor] = None,
        d_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Scores as `maxsim` gives them, differentiable."""
        return maxsim(
            Q, D, q_mask, d_mask, normalize=self.normalize, backward=self.backward
        )

    def score(
        self,
        Q: Tensor,
        D: Tensor,
        q_mask: Optional[Tensor] = None,
        d_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Scores without gradients."""
        with torch.no_grad():
            return self.forward(Q, D, q_mask, d_mask)

    def retrieve(
        self,
        Q: Tensor,
        D: Tensor,
        top_k: int,
        q_mask: Optional[Tensor] = None,
        d_mask: Optional[Tensor] = None,
        *,
        chunk: Optional[int] = None,
    ) -> Tuple[Tensor, Tensor]:
        """`retrieve` with this module's `normalize`."""
        return retrieve(Q, D, top_k, q_mask, d_mask, normalize=self.normalize, chunk=chunk)

    def forward_with_ids(self, Q: Tensor, D: Tensor, q_ids: Tensor, d_ids: Tensor) -> Tensor:
        """Scores with the tokens masked whose id is `mask_pad_token`."""
        if self.mask_pad_token is None:
            raise ValueError("forward_with_ids needs a MaxSimScorer with a mask_pad_token")
        return self.forward(Q, D, q_ids != self.mask_pad_token, d_ids != self.mask_pad_token)


def retrieve(
    Q: Tensor,
    D: Tensor,
    top_k: int,
    q_mask: Optional[Tensor] = None,
    d_mask: Optional[Tensor] = None,
    *,
    normalize: bool = True,
    chunk: Optional[int] = None,
    largest: bool = True,
    sorted: bool = True,
) -> Tuple[Tensor, Tensor]:
    """The `top_k` best documents of each query: `(scores, int64 indices)`, `[Nq, k]`.

    `top_k` is clamped to the number of documents; `chunk` bounds how many are scored at once.
    `[k]` where `Q` is `[Lq, d]`. No gradients. Raises ValueError for a `top_k` below 1 and for
    sides that are not on the same device.
    """
    if top_k <= 0:
        raise ValueError(f"top_k must be positive, got {top_k}")
    if Q.device != D.device:
        raise ValueError(f"Q and D must be on the same device: Q is on {Q.device}, D on {D.device}")
    return maxsim_topk(
        Q,
        D,
        top_k,
        q_mask,
        d_mask,
        normalize=normalize,
        chunk_size=chunk,
        largest=largest,
        sorted=sorted,
    )


__all__ = ["MaxSimScorer", "retrieve"]
