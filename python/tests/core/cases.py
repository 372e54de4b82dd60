"""What all tests share: the oracle in float64, cases, and how GPUs are asked for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

has_gpu = torch.cuda.is_available()
if os.environ.get("MAXSIM_REQUIRE_GPU") == "1":
    assert has_gpu, "MAXSIM_REQUIRE_GPU=1, but torch sees no GPU"

cuda = pytest.mark.skipif(not has_gpu, reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]


def oracle(
    Q: Any, D: Any, q_valid: Any = None, d_valid: Any = None, normalize: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, winners and token scores of padded items in float64, token by token."""
    Q, D = (np.asarray(x.detach().double().cpu() if torch.is_tensor(x) else x, np.float64)
            for x in (Q, D))
    q_valid = np.ones(Q.shape[:2], bool) if q_valid is None else np.asarray(q_valid) != 0
    d_valid = np.ones(D.shape[:2], bool) if d_valid is None else np.asarray(d_valid) != 0
    if normalize:
        Q, D = (x / np.sqrt(np.maximum((x * x).sum(-1, keepdims=True), 1e-12)) for x in (Q, D))
    shape = (Q.shape[0], D.shape[0], Q.shape[1])
    winners, tokens = np.full(shape, -1, np.int32), np.zeros(shape)
    for q in range(Q.shape[0]):
        for d in range(D.shape[0]):
            rows = np.flatnonzero(d_valid[d])
            if not len(rows):
                continue
            for s in np.flatnonzero(q_valid[q]):
                similarities = D[d, rows] @ Q[q, s]
                nan = np.flatnonzero(np.isnan(similarities))
                best = nan[0] if len(nan) else similarities.argmax()
                winners[q, d, s], tokens[q, d, s] = rows[best], similarities[best]
    return tokens.sum(-1), winners, tokens


def naive(Q: Any, D: Any, q_valid: Any = None, d_valid: Any = None, normalize: bool = False) -> Any:
    """The formula in torch, for its autograd; in the precision of its arguments."""
    if normalize:
        Q, D = (x * x.square().sum(-1, keepdim=True).clamp_min(1e-12).rsqrt() for x in (Q, D))
    similarities = torch.einsum("qsk,dtk->qdst", Q, D)
    if d_valid is not None:
        similarities = similarities.masked_fill(~d_valid[None, :, None], float("-inf"))
    best = similarities.max(-1).values
    if d_valid is not None:
        best = torch.where(d_valid.any(-1)[None, :, None], best, 0.0)
    if q_valid is not None:
        best = torch.where(q_valid[:, None], best, 0.0)
    return best.sum(-1)


def valid(lengths: Any, longest: int) -> Any:
    """The mask of prefix lengths."""
    return torch.arange(longest) < torch.as_tensor(lengths)[:, None]


def close(found: Any, wanted: Any, dim: int, scale: float = 1.0) -> None:
    """Scores of rounded values are off by what f32 sums are."""
    found = np.asarray(found.detach().double().cpu() if torch.is_tensor(found) else found)
    wanted = np.asarray(wanted.detach().double().cpu() if torch.is_tensor(wanted) else wanted)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    tolerance = scale * (dim + 16) * 2.0**-22
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * 8)


def case(dtype: torch.dtype = torch.float32, n: int = 3, m: int = 5, lq: int = 7, ld: int = 11,
         dim: int = 24, device: str = "cpu") -> tuple[Any, Any]:
    """Queries and documents of random numbers."""
    generator = torch.Generator().manual_seed(n * 1000 + m * 100 + lq * 10 + ld + dim)
    Q = torch.randn(n, lq, dim, generator=generator)
    D = torch.randn(m, ld, dim, generator=generator)
    return Q.to(device, dtype), D.to(device, dtype)
