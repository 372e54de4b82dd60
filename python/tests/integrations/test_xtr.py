"""XTR scores and their gradients beside those of sentence-transformers and PyLate.

Masked tokens, documents without tokens and ties are where each has its own meaning; what is
compared here is where they must agree.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from comparing import DEVICE, gradients, near, rand, randn

import maxsim


def tensors() -> list[torch.Tensor]:
    """Queries, and three documents of each, with masks; many similarities are below 0."""
    q, d = randn(4, 6, 16), randn(4, 3, 9, 16)
    q_mask, d_mask = rand(4, 6) > 0.2, rand(4, 3, 9) > 0.4
    d_mask[..., 0] = True  # no document is empty
    d_mask[1] = True  # and some are whole
    return [q, d, q_mask, d_mask]


def compare(theirs: Any, normalizer: str, k: int, sign: float) -> None:
    q, d, q_mask, d_mask = tensors()
    d = d * sign if sign > 0 else -d.abs()
    q = q if sign > 0 else q.abs()
    weight = randn(4, 12)

    def ours(q: Any, d: Any) -> Any:
        return maxsim.xtr(q, d.flatten(0, 1), k=k, q_mask=q_mask, d_mask=d_mask.flatten(0, 1),
                          normalizer=normalizer)

    def wanted(q: Any, d: Any) -> Any:
        return theirs(q, d, q_mask, d_mask)

    near(ours(q, d), wanted(q, d))
    for found, expected in zip(gradients(lambda *x: (ours(*x) * weight).sum(), q, d),
                               gradients(lambda *x: (wanted(*x) * weight).sum(), q, d)):
        near(found, expected)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_sentence_transformers(k: int, sign: float) -> None:
    scoring = pytest.importorskip("sentence_transformers.multi_vector_encoder.scoring",
                                  reason="sentence-transformers 6 is not installed")
    compare(lambda *x: scoring.xtr_scores(*x, top_k=k), "retrieved", k, sign)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_pylate(k: int, sign: float) -> None:
    scores = pytest.importorskip("pylate.scores", reason="PyLate is not installed")
    compare(scores.XTRScores(k=k), "pylate", k, sign)


def test_both_are_one_where_all_is_positive() -> None:
    q, d = rand(2, 3, 8), rand(5, 4, 8)
    near(maxsim.xtr(q, d, k=3, normalizer="pylate"), maxsim.xtr(q, d, k=3))
    assert q.device.type == DEVICE.split(":")[0]
