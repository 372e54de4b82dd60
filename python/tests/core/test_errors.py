"""Errors: of the kinds that torch users expect, naming the argument."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import DEVICES, case, cuda


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call, kind, words", [
    (lambda Q, D: maxsim.maxsim(Q, D[..., :8]), ValueError, ["D", "dim 24", "dim 8"]),
    (lambda Q, D: maxsim.maxsim(Q[0, 0], D), ValueError, ["Q", "[n, len, dim]"]),
    (lambda Q, D: maxsim.maxsim(Q, D[None]), ValueError, ["D"]),
    (lambda Q, D: maxsim.maxsim(Q, D, q_mask=torch.ones(3, 6)), ValueError, ["q_mask", "(3, 7)"]),
    (lambda Q, D: maxsim.maxsim(Q, D, d_lengths=[1, 2]), ValueError, ["d_lengths", "(5,)"]),
    (lambda Q, D: maxsim.maxsim(Q, D, d_lengths=[1, 2, 3, 4, 12]), ValueError,
     ["lengths[4]", "0 to 11", "12"]),
    (lambda Q, D: maxsim.maxsim(Q, D, d_lengths=[1, -2, 3, 4, 1]), ValueError, ["lengths[1]"]),
    (lambda Q, D: maxsim.maxsim(Q, D, d_lengths=[1.5] * 5), TypeError, ["d_lengths", "float32"]),
    (lambda Q, D: maxsim.maxsim(Q.double(), D), TypeError, ["Q", "float64"]),
    (lambda Q, D: maxsim.maxsim(Q, D.int()), TypeError, ["D", "int32"]),
    (lambda Q, D: maxsim.maxsim([], D), ValueError, ["Q", "empty"]),
    (lambda Q, D: maxsim.pairs(Q, D), ValueError, ["D", "3 x 1", "5"]),
    (lambda Q, D: maxsim.pairs(Q, D, [0], None), ValueError, ["q_ids and d_ids"]),
    (lambda Q, D: maxsim.pairs(Q, D, [0, 1], [0]), ValueError, ["d_ids", "2 entries"]),
    (lambda Q, D: maxsim.pairs(Q, D, [0, 3], [0, 1]), ValueError, ["query_ids[1]", "id 3"]),
    (lambda Q, D: maxsim.pairs(Q, D, [0, 1], [0, -1]), ValueError, ["document_ids[1]"]),
    (lambda Q, D: maxsim.candidates(Q, D, [[0], [1], [5]]), ValueError, ["ids[2]", "id 5"]),
    (lambda Q, D: maxsim.candidates(Q, D, [[0], [1]]), ValueError, ["ids", "(3, 1)"]),
    (lambda Q, D: maxsim.candidates(Q, D), ValueError, ["D", "[Nq, K, Ld, dim]"]),
    (lambda Q, D: maxsim.packed(Q, D[0], None, [0, 5, 3]), ValueError, ["offsets[2]"]),
    (lambda Q, D: maxsim.packed(Q, D[0], None, [0, 5, 12]), ValueError, ["offsets[2]", "12"]),
    (lambda Q, D: maxsim.scattered(Q, D[0], None, None, [9], [3]), ValueError, ["lengths[0]"]),
    (lambda Q, D: maxsim.topk(Q, D, -1), ValueError, ["k", "-1"]),
    (lambda Q, D: maxsim.maxsim(Q.new_zeros(1, 1, 0), D.new_zeros(1, 1, 0)), ValueError, ["dim"]),
    (lambda Q, D: maxsim.maxsim(Q.new_zeros(1, 1, 4097), D.new_zeros(1, 1, 4097)), ValueError,
     ["dim", "4096"]),
    (lambda Q, D: maxsim.quantize(D, "int4"), ValueError, ["format", "int4"]),
    (lambda Q, D: maxsim.quantize(D, "int8", scales="tensor"), ValueError, ["scales"]),
])
def test_messages(device, call, kind, words):
    Q, D = case(device=device)
    with pytest.raises(kind) as error:
        call(Q, D)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_numpy_says_the_same():
    Q, D = (x.numpy() for x in case())
    with pytest.raises(TypeError, match="float64"):
        maxsim.maxsim(Q.astype(np.float64), D)
    with pytest.raises(ValueError, match="dim 24"):
        maxsim.maxsim(Q, D[..., :8])
    with pytest.raises(ValueError, match=r"lengths\[4\]"):
        maxsim.maxsim(Q, D, d_lengths=[1, 2, 3, 4, 12])


def test_compressed_tokens_have_no_gradients():
    Q, D = case(torch.float16)
    codes = maxsim.quantize(D, "int8-affine")
    assert maxsim.maxsim(Q, codes).shape == (3, 5)
    with pytest.raises(ValueError, match="gradients"):
        maxsim.maxsim(Q.requires_grad_(), codes)


def test_formats_that_do_not_go_together():
    Q, D = case()
    with pytest.raises(RuntimeError, match="do not go together"):
        maxsim.maxsim(Q, maxsim.quantize(D, "fp8"))
    with pytest.raises(TypeError, match="codes"):
        maxsim.Quantized(D, D[..., 0])
    with pytest.raises(ValueError, match="normalize"):
        codes = maxsim.quantize(D)
        try:
            maxsim.maxsim(codes, codes, normalize=True)
        except RuntimeError as error:
            raise ValueError(str(error)) from None


@cuda
def test_devices_that_differ():
    Q, D = case()
    with pytest.raises(ValueError, match="cuda:0"):
        maxsim.maxsim(Q, D.cuda())
    with pytest.raises(ValueError, match="cpu"):
        maxsim.maxsim(Q.cuda(), D)
    with pytest.raises(ValueError, match="d_mask"):
        maxsim.maxsim(Q, D, d_mask=torch.ones(5, 11).cuda())
