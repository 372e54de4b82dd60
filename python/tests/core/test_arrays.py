"""numpy arrays, and those of other libraries by DLPack."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import maxsim
from cases import case, close, oracle, valid


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numpy(dtype):
    Q, D = (x.numpy().astype(dtype) for x in case())
    scores, winners, tokens = oracle(Q, D, None, valid([3, 0, 11, 1, 5], 11))
    found = maxsim.maxsim(Q, D, d_lengths=[3, 0, 11, 1, 5], winners=True, token_scores=True)
    assert all(isinstance(x, np.ndarray) for x in found)
    close(found.scores, scores, 24)
    close(found.token_scores, tokens, 24)
    assert np.array_equal(found.winners, winners) and found.winners.dtype == np.int32
    for view in (D[::2], D[:, ::-1], D[:, 1:4], D[::-1], np.broadcast_to(D[:1], (4, 11, 24)),
                 np.asfortranarray(D), D[:0]):
        close(maxsim.maxsim(Q, view), oracle(Q, view)[0], 24)
    odd = np.frombuffer(b"x" + D.tobytes(), np.uint8)[1:].view(dtype).reshape(D.shape)
    close(maxsim.maxsim(Q, odd), oracle(Q, D)[0], 24)
    rows = np.concatenate([D[0, :3], D[2]])
    close(maxsim.packed(Q, rows, None, np.array([0, 3, 14], np.uint32)),
          oracle(Q, D[[0, 2]], None, valid([3, 11], 11))[0], 24)
    close(maxsim.pairs(Q, D, [0, 2], np.array([1, 4], np.int16)), oracle(Q, D)[0][[0, 2], [1, 4]],
          24)
    best = maxsim.topk(Q, D, 2)
    assert isinstance(best.ids, np.ndarray) and best.ids.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bytes_in_the_other_order_are_the_same_numbers(dtype):
    def swapped(x):
        return np.asarray(x).astype(np.asarray(x).dtype.newbyteorder())

    Q, D = (x.numpy().astype(dtype) for x in case())
    lengths, mask = np.array([3, 0, 11, 1, 5]), np.arange(5 * 11).reshape(5, 11) % 3
    wanted = maxsim.maxsim(Q, D, d_lengths=lengths, d_mask=mask)
    assert np.abs(wanted).max() > 1
    others = {"d_lengths": swapped(lengths), "d_mask": swapped(mask)}
    for q, d in ((swapped(Q), swapped(D)), (Q, swapped(D)), (swapped(Q), D)):
        assert np.array_equal(maxsim.maxsim(q, d, **others), wanted)
        assert np.array_equal(maxsim.maxsim(q, [*d], d_lengths=None), maxsim.maxsim(Q, D))
    rows, offsets = D.reshape(-1, 24), np.arange(6) * 11
    assert np.array_equal(maxsim.packed(Q, swapped(rows), None, swapped(offsets)),
                          maxsim.maxsim(Q, D))
    ids = np.array([0, 2]), np.array([1, 4])
    assert np.array_equal(maxsim.pairs(Q, D, *map(swapped, ids)), maxsim.pairs(Q, D, *ids))
    codes = maxsim.quantize(D)
    other = maxsim.Quantized(codes.codes, swapped(codes.scales), lengths=swapped(lengths))
    assert np.array_equal(maxsim.maxsim(maxsim.quantize(Q), other),
                          maxsim.maxsim(maxsim.quantize(Q), codes, d_lengths=lengths))


@pytest.mark.parametrize("scales", ["float16", "float32", "tensor"])
def test_fp8_codes_of_numpy_are_bytes_where_it_has_no_name_for_them(scales, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    Q, D = case()
    want = [maxsim.quantize(x, "fp8", scales=scales) for x in (Q, D)]
    found = [maxsim.quantize(x.numpy(), "fp8", scales=scales) for x in (Q, D)]
    for one, other in zip(found, want):
        assert one.codes.dtype == np.uint8
        assert np.array_equal(one.codes, other.codes.view(torch.uint8).numpy())
        assert np.array_equal(maxsim.dequantize(one), maxsim.dequantize(other).numpy())
    assert np.array_equal(maxsim.maxsim(*found), maxsim.maxsim(*want).numpy())
    corpus = maxsim.Corpus(found[1])
    assert corpus.format == "fp8"
    best, other = maxsim.topk(Q.numpy(), corpus, 2), maxsim.topk(Q, maxsim.Corpus(want[1]), 2)
    assert np.array_equal(best.ids, other.ids) and np.array_equal(best.scores, other.scores)
    with pytest.raises(TypeError, match="codes: expected int8 for int8, found uint8"):
        maxsim.Quantized(found[1].codes, found[1].scales, format="int8")


@pytest.mark.parametrize("call, kind, words", [
    (lambda Q, D: maxsim.maxsim(Q, D.astype(np.int8)), TypeError, ["D", "int8"]),
    (lambda Q, D: maxsim.maxsim(Q.astype(np.uint8), D), TypeError, ["Q", "uint8"]),
    (lambda Q, D: maxsim.quantize(D[0, 0]), ValueError, ["X", "[n, len, dim]"]),
    (lambda Q, D: maxsim.quantize(D, mask=np.ones(3)), ValueError, ["x_mask", "(5, 11)"]),
    (lambda Q, D: maxsim.candidates(Q[0, 0, 0], D[None]), ValueError, ["D", "candidates"]),
    (lambda Q, D: maxsim.candidates(Q[0, 0, 0], D, [[0]]), ValueError, ["Q", "[n, len, dim]"]),
])
def test_arrays_that_are_none_of_tokens(call, kind, words):
    Q, D = (x.numpy() for x in case())
    with pytest.raises(kind) as found:
        call(Q, D)
    assert all(word in str(found.value) for word in words), str(found.value)


class Foreign:
    """An array of another library: DLPack and a namespace, nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        class Namespace:
            @staticmethod
            def from_dlpack(x):
                return Foreign(np.from_dlpack(x))

        return Namespace


def test_dlpack():
    Q, D = (x.numpy() for x in case())
    found = maxsim.maxsim(Foreign(Q), Foreign(D), winners=True)
    assert isinstance(found.scores, Foreign) and isinstance(found.winners, Foreign)
    close(found.scores.array, oracle(Q, D)[0], 24)


def test_nothing_is_imported_that_is_not_needed():
    code = """
import sys, maxsim
assert "torch" not in sys.modules and "numpy" not in sys.modules
import numpy as np
x = np.ones((2, 3, 4), np.float32)
assert (maxsim.maxsim(x, x) == 12).all()
assert "torch" not in sys.modules
import torch
t = torch.ones(2, 3, 4, requires_grad=True)
maxsim.maxsim(t, t).sum().backward()
# Compilers of torch's may look at the GPU themselves.
assert not torch.cuda.is_initialized()
f = torch.compile(lambda a: maxsim.maxsim(a, a), fullgraph=True, backend="aot_eager")
f(t).sum().backward()
assert t.grad is not None
"""
    subprocess.run([sys.executable, "-c", code], check=True)
