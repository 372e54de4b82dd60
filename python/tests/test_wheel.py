"""What a wheel computes, against float64, with nothing but numpy.

As a program it needs no pytest, so that wheels for other processors can be tried under an emulator:
``qemu-aarch64 -L ROOT ROOT/usr/bin/python3 test_wheel.py``.
"""

import platform

import numpy as np

import maxsim

#: Queries, their tokens, documents, their tokens, dim: single, odd, whole registers, and tails.
SHAPES = [(1, 1, 1, 1, 1), (3, 5, 7, 11, 64), (2, 32, 9, 33, 128), (4, 17, 5, 300, 96),
          (1, 130, 3, 65, 257), (2, 3, 40, 2, 8)]


def similarities(Q, D):
    return np.einsum("qsd,ntd->qnst", Q.astype(np.float64), D.astype(np.float64))


def exact(Q, D):
    return similarities(Q, D).max(-1).sum(-1)


def unit(X):
    X = X.astype(np.float64)
    return X / np.linalg.norm(X, axis=-1, keepdims=True)


def sides(element, shape, rng):
    n_q, q_len, n_d, d_len, dim = shape
    return (rng.standard_normal((n_q, q_len, dim)).astype(element),
            rng.standard_normal((n_d, d_len, dim)).astype(element))


def cases():
    rng = np.random.default_rng(0)
    for element in (np.float32, np.float16):
        for shape in SHAPES:
            yield *sides(element, shape, rng), rng


def off(found, wanted):
    """The largest difference, relative to the largest score."""
    return np.abs(np.asarray(found) - wanted).max() / max(1.0, np.abs(wanted).max())


def test_scores_and_winners():
    for Q, D, _ in cases():
        found = maxsim.maxsim(Q, D, winners=True)
        assert off(found.scores, exact(Q, D)) < 1e-6
        at = np.asarray(found.winners)[..., None].astype(np.int64)
        of_winners = np.take_along_axis(similarities(Q, D), at, -1)[..., 0].sum(-1)
        assert off(of_winners, exact(Q, D)) < 1e-6


def test_lengths_and_cosines():
    for Q, D, rng in cases():
        lengths = rng.integers(1, D.shape[1] + 1, len(D))
        wanted = np.stack([exact(Q, D[i:i + 1, :n])[:, 0] for i, n in enumerate(lengths)], 1)
        assert off(maxsim.maxsim(Q, D, d_lengths=lengths), wanted) < 1e-6
        assert off(maxsim.maxsim(Q, D, normalize=True), exact(unit(Q), unit(D))) < 1e-5


def test_codes():
    n = 0
    for Q, D, _ in cases():
        codes = maxsim.quantize(D, "int8")
        queries = maxsim.quantize(Q, "int8")
        back = maxsim.dequantize(queries), maxsim.dequantize(codes)
        assert off(maxsim.maxsim(queries, codes), exact(*map(np.asarray, back))) < 1e-6
        if Q.dtype == np.float16:
            codes = maxsim.quantize(D, "int8-affine")
            back = np.asarray(maxsim.dequantize(codes))
            assert off(maxsim.maxsim(Q, codes), exact(Q, back)) < 1e-6
            n += 1
    assert n == len(SHAPES)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(platform.machine(), "maxsim", maxsim.__version__, name, "passed")
