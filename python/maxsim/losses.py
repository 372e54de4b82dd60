"""Losses of late-interaction training, on scores or on tokens. Needs torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ._backends.torch import on
from .scoring import candidates, maxsim


def contrastive(
    scores: Tensor, targets: Tensor | None = None, *, temperature: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of each query's document among all: in-batch negatives.

    Args:
        scores: ``[Nq, Nd]``, as :func:`maxsim` gives them.
        targets: ids of the queries' documents, ``[Nq]``; by default query ``i`` has document
            ``i`` (further documents are negatives). In host memory, too: a GPU gets a copy that
            nothing waits for.
        temperature: scores are divided by it.
        reduction: "mean", "sum" or "none".

    Returns:
        The loss: a number, or ``[Nq]``.

    Raises:
        ValueError: shapes that are no such scores, fewer documents than queries without targets.
    """
    if scores.ndim != 2:
        raise ValueError(f"scores: expected [Nq, Nd], found shape {tuple(scores.shape)}")
    if targets is None:
        if scores.shape[1] < scores.shape[0]:
            raise ValueError(f"scores: expected {scores.shape[0]} documents or more, found "
                             f"{scores.shape[1]}; or give targets")
        targets = torch.arange(scores.shape[0], device=scores.device)
    targets = on(targets, scores.device)
    return torch.nn.functional.cross_entropy(scores / temperature, targets, reduction=reduction)


def distillation(
    scores: Tensor, teacher: Tensor, *, temperature: float = 1.0,
    teacher_temperature: float | None = None, reduction: str = "batchmean",
) -> Tensor:
    """KL divergence of the student's distribution over candidates from the teacher's.

    Args:
        scores: ``[Nq, K]``, as :func:`candidates` gives them.
        teacher: the teacher's scores, ``[Nq, K]``; in host memory, too.
        temperature, teacher_temperature: scores are divided by these; the teacher's is the
            student's by default.
        reduction: "batchmean" (sum over candidates, mean over queries), "sum", "mean" or "none".

    Raises:
        ValueError: shapes that differ.
    """
    if scores.shape != teacher.shape or scores.ndim != 2:
        raise ValueError(f"teacher: expected [Nq, K] like scores {tuple(scores.shape)}, found "
                         f"shape {tuple(teacher.shape)}")
    other = temperature if teacher_temperature is None else teacher_temperature
    student = torch.log_softmax(scores / temperature, dim=-1)
    wanted = torch.log_softmax(on(teacher, scores.device).to(scores.dtype) / other, dim=-1)
    return torch.nn.functional.kl_div(student, wanted, reduction=reduction, log_target=True)


class ContrastiveLoss(torch.nn.Module):
    """:func:`contrastive` of the scores of tokens: ``loss(Q, D, q_mask=…, d_mask=…)``."""

    def __init__(self, *, temperature: float = 1.0, normalize: bool = False) -> None:
        super().__init__()
        self.temperature, self.normalize = temperature, normalize

    def forward(
        self, Q: Tensor, D: Tensor, targets: Tensor | None = None, *,
        q_mask: Tensor | None = None, d_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss of queries ``[Nq, Lq, dim]`` and documents ``[Nd, Ld, dim]``."""
        scores = maxsim(Q, D, q_mask=q_mask, d_mask=d_mask, normalize=self.normalize)
        return contrastive(scores, targets, temperature=self.temperature)

    def extra_repr(self) -> str:
        """What the module prints of itself."""
        return f"temperature={self.temperature}, normalize={self.normalize}"


class DistillationLoss(torch.nn.Module):
    """:func:`distillation` of tokens: ``loss(Q, D, teacher, q_mask=…, d_mask=…)``."""

    def __init__(self, *, temperature: float = 1.0, normalize: bool = False) -> None:
        super().__init__()
        self.temperature, self.normalize = temperature, normalize

    def forward(
        self, Q: Tensor, D: Tensor, teacher: Tensor, *, q_mask: Tensor | None = None,
        d_mask: Tensor | None = None,
    ) -> Tensor:
        """The loss of queries ``[Nq, Lq, dim]`` and their candidates ``[Nq, K, Ld, dim]``."""
        scores = candidates(Q, D, q_mask=q_mask, d_mask=d_mask, normalize=self.normalize)
        return distillation(scores, teacher, temperature=self.temperature)

    def extra_repr(self) -> str:
        """What the module prints of itself."""
        return f"temperature={self.temperature}, normalize={self.normalize}"
