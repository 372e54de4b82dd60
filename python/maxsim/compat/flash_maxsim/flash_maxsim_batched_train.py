"""Training scores of a batch."""

from __future__ import annotations

from typing import Optional

from torch import Tensor

from ._shapes import need, score


def check_batch(Q: Tensor, D: Tensor, shared_docs: bool) -> None:
    """Queries `[Nq, Lq, d]` and documents of the rank that `shared_docs` says."""
    need(Q.dim() == 3, f"Q must be [Nq, Lq, d], got {tuple(Q.shape)}")
    if shared_docs:
        need(D.dim() == 3, f"D must be [B, Ld, d] when shared_docs=True, got {tuple(D.shape)}")
    else:
        need(
            D.dim() == 4 and D.shape[0] == Q.shape[0],
            f"D must be [Nq, B, Ld, d] when shared_docs=False, got {tuple(D.shape)}",
        )
    need(Q.shape[2] == D.shape[-1], f"dims differ: {Q.shape[2]} and {D.shape[-1]}")


def flash_maxsim_batched_train(
    Q: Tensor,
    D: Tensor,
    shared_docs: bool = True,
    doc_lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Scores `[Nq, B]` f32, differentiable; gradients have the inputs' types.

    Arguments are those of `flash_maxsim_batched`. Gradients do not depend on the environment
    variable that chooses a kernel in the original, and are deterministic.
    """
    check_batch(Q, D, shared_docs)
    return score(Q, D, doc_lengths, query_lengths)


__all__ = ["flash_maxsim_batched_train"]
