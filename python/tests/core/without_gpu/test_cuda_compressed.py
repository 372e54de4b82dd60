"""What GPU calls of compressed tokens are given, seen without a GPU: tensors are in host memory,
and the compiled half is stood for by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from maxsim import _maxsim
from maxsim._backends import codes as _codes
from maxsim._backends import cuda as backend
from maxsim._backends import plaid as _plaid
from maxsim._backends import residuals as _residuals
from maxsim._sides import (
    AFFINE_SCALES, F16_SCALES, F32_SCALES, FORMATS, PADDED, TENSOR_SCALE, UNREAD, Options, Pairing,
    Side,
)
from test_cuda_numbers import at, items_of, pairs_of

FORMATS_OF = {"int8": "int8", "int8-affine": "uint8", "fp8": "float8_e4m3fn"}


def cuda_quantize(call, tokens, format, is_f16, codes, words):
    """As the compiled half: codes at a pitch of 16 bytes, a word per row."""
    X = torch.tensor(items_of(tokens)[0]).float()
    name = {FORMATS[kind]: name for name, kind in FORMATS_OF.items()}[format]
    found = maxsim.quantize(X, name, scales="float16" if is_f16 else "float32", offsets=[0, len(X)])
    rows, dim = X.shape
    pitch = -(-dim // 16) * 16
    assert codes[1] == rows * pitch and words[1] == rows + _maxsim.SCALE_PADDING
    to = at(codes[0], codes[1], np.uint8).reshape(rows, pitch)
    to[:, :dim] = found.codes.view(torch.uint8).numpy()
    to[:, dim:] = 0
    if found.mins is None:
        at(words[0], rows, np.float32)[:] = found.scales.float().numpy()
    else:
        halves = at(words[0], 2 * rows, np.float16).reshape(rows, 2)
        halves[:, 0], halves[:, 1] = found.scales.numpy(), found.mins.numpy()


def decoded(documents):
    """Tokens of a view, from what GPUs are given alone."""
    (items, matrix), nbits, codes, residuals, centroids, n, weights, norms = documents
    rows, dim = items[3], items[4]
    row_bytes, padding, centroid_bytes, weight_bytes, tables, slots = _maxsim.arrangement(
        dim, nbits, True)
    assert codes[1] == rows + padding and residuals[1] == (rows + padding) * row_bytes
    assert centroids[1] == n * centroid_bytes and weights[1] == weight_bytes
    codes = at(codes[0], rows, np.int32)
    chunks = at(residuals[0], rows * row_bytes, np.uint8).reshape(rows, -1, nbits)
    table = at(weights[0], weight_bytes, np.uint8)
    values = table[32:].view(np.float16)
    first = min(16, 2**nbits)
    assert np.array_equal(table[:first], values.view(np.uint8)[0:2 * first:2])
    assert np.array_equal(table[16:16 + first], values.view(np.uint8)[1:2 * first:2])
    # The place of a bucket in a chunk: that of its bits in little-endian order.
    place = {1: lambda i: 4 * (i % 2) + i // 2 % 2 + 2 * (i // 4),
             2: lambda i: 4 * (i % 4) + 2 * (i // 4)}.get(nbits, lambda i: nbits * i)
    of_rows = np.zeros((rows, dim))
    for k in range(dim):
        chunk = chunks[:, slots[k // 8]].astype(object)
        number = sum(chunk[:, b] * (1 << 8 * b) for b in range(nbits))
        buckets = [int(x) >> place(k % 8) & 2**nbits - 1 for x in number]
        of_rows[:, k] = values[buckets]
    table = at(centroids[0], centroids[1] // 2 * 2, np.uint8).view(np.float16).reshape(n, -1)
    assert not table[:, dim:].any()
    found = table[codes, :dim].astype(np.float64) + of_rows
    if norms is not None:
        assert norms[1] == rows + padding
        found *= at(norms[0], rows, np.float32)[:, None]
    return found


def cuda_residual_norms(call, documents, format):
    *others, norms = documents
    rows = decoded((*others, None))
    squares = np.maximum((rows**2).sum(1), 1e-12)
    at(norms[0], len(rows), np.float32)[:] = 1 / np.sqrt(squares)


def items_of_documents(documents):
    """Rows of a view, and first row and length of each document."""
    (kind, n, length, _, _, first, *_), _ = documents[0]
    if kind == UNREAD:
        return decoded(documents), *at(first, 2 * n, np.int32).reshape(n, 2).T
    assert kind == PADDED
    return decoded(documents), np.arange(n) * length, np.full(n, length)


def cuda_score_residuals(call, queries, documents, pairs, results):
    Q, q_starts, q_lens, q_valid = items_of(queries)
    D, d_starts, d_lens = items_of_documents(documents)
    scores, winners = [], []
    for q, d in pairs_of(pairs, len(q_lens), len(d_lens)):
        rows = D[d_starts[d]:d_starts[d] + d_lens[d]]
        score = 0.0
        for s in range(q_starts[q], q_starts[q] + q_lens[q]):
            similarities = rows @ Q[s]
            has = len(rows) and q_valid[s]
            winners.append(similarities.argmax() if has else 65535)
            score += similarities.max() if has else 0.0
        scores.append(score)
    assert len(scores) == results[0][1]
    at(results[0][0], len(scores), np.float32)[:] = scores
    if results[1]:
        at(results[1][0], len(winners), np.uint16)[:] = winners
    return 2


def cuda_backward_residuals(call, queries, documents, pairs, memory):
    Q, q_starts, q_lens, _ = items_of(queries)
    D, d_starts, d_lens = items_of_documents(documents)
    grad, winners, to = memory
    listed = pairs_of(pairs, len(q_lens), len(d_lens))
    winners = iter(at(winners[0], winners[1] // 2, np.uint16).tolist())
    found = np.zeros_like(Q)
    for (q, d), g in zip(listed, at(grad[0], grad[1], np.float32)):
        for s in range(q_starts[q], q_starts[q] + q_lens[q]):
            winner = next(winners)
            if winner != 65535:
                assert winner < d_lens[d]
                found[s] += g * D[d_starts[d] + winner]
    at(to[0], to[1], np.float32)[:] = found.ravel()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    for name in ("cuda_quantize", "cuda_residual_norms", "cuda_score_residuals",
                 "cuda_backward_residuals"):
        monkeypatch.setattr(_maxsim, name, globals()[name])
    numbers = (0, 0, False, False, None)
    for module in (backend, _residuals):
        monkeypatch.setattr(module, "call_numbers", lambda data, options: numbers)


@pytest.mark.parametrize("dim", [128, 33, 16, 1])
@pytest.mark.parametrize("name, kind, scales", [
    ("int8", F16_SCALES, None), ("int8", F32_SCALES, "float32"),
    ("int8-affine", AFFINE_SCALES, None), ("fp8", F16_SCALES, None),
    ("fp8", F32_SCALES, "float32"),
])
def test_codes_and_scales_are_taken_from_their_room(dim, name, kind, scales):
    X = torch.randn(3, 5, dim + 2)
    for x in (X[..., :dim], X[:, ::2, :dim], X[..., :dim].flatten(0, 1), X[:0, :, :dim]):
        offsets = [0, len(x)] if x.ndim == 2 else None
        wanted = maxsim.quantize(x.contiguous(), name, scales=scales, offsets=offsets)
        codes, of_rows, mins = _codes.quantize(Side(x), FORMATS[FORMATS_OF[name]], kind)
        assert codes.shape == x.shape and of_rows.dtype == wanted.scales.dtype
        assert torch.equal(codes.view(torch.uint8), wanted.codes.view(torch.uint8))
        assert torch.equal(of_rows, wanted.scales)
        assert mins is None if wanted.mins is None else torch.equal(mins, wanted.mins)


def test_scales_are_words_of_all_rows():
    scales = torch.tensor([[0.5, 0.0], [float("nan"), float("inf")], [-1.0, 2.0]])
    for found in (_codes.scale_words(scales, None, 6), _codes.scale_words(scales.half(), None, 6)):
        assert found.shape == (6 + _maxsim.SCALE_PADDING,) and found.dtype == torch.float32
        nan = float("nan")
        wanted = torch.tensor([0.5, 0.0, nan, float("inf"), nan, 2.0])
        assert torch.equal(found[:6].nan_to_num(-7), wanted.nan_to_num(-7))
    assert (_codes.scale_words(torch.tensor(0.25), None, 3)[:3] == 0.25).all()
    mins = torch.tensor([1.0, -2.0]).half()
    words = _codes.scale_words(torch.tensor([0.5, 3.0]).half(), mins, 2)
    assert words.view(torch.float16)[:4].tolist() == [0.5, 1.0, 3.0, -2.0]


def test_codes_are_described_with_their_words():
    codes = torch.randint(-127, 128, (4, 6, 24), dtype=torch.int8)
    scales = torch.rand(4, 6).half()
    for part in (slice(None), slice(None, None, 2)):
        side = Side(codes[:, part], scales=scales[:, part])
        ((kind, n, length, rows, *_), (address, pitch, code, mask, words, of, mins, _)), kept = (
            backend.describe(side))
        assert (kind, n, rows, of) == (0, 4, 4 * length, F16_SCALES)
        assert words[1] == rows + _maxsim.SCALE_PADDING and mins == (0, 0) and mask is None
        assert np.array_equal(at(words[0], rows, np.float32), scales[:, part].float().flatten())
        del kept


@pytest.mark.parametrize("dim", [128, 40, 7])
@pytest.mark.parametrize("nbits", [1, 2, 4, 8])
@pytest.mark.parametrize("is_little_endian", [False, True])
def test_residuals_are_arranged_once(nbits, is_little_endian, dim):
    torch.manual_seed(dim + nbits)
    n, length, n_centroids = 4, 9, 5
    codes = torch.randint(0, n_centroids, (n, length))
    stored = -(-dim * nbits // 8)
    residuals = torch.randint(0, 256, (n, length, stored), dtype=torch.uint8)
    centroids = torch.randn(n_centroids, dim).half()
    weights = torch.randn(2**nbits).half().float()
    order = "little-endian" if is_little_endian else "colbert"
    for normalize in (False, True):
        host = maxsim.PlaidIndex(codes, residuals, centroids, weights, nbits, bit_order=order,
                                 normalize=normalize, lengths=torch.full((n,), length))
        items = Side(codes[..., None].to(torch.uint8))
        there = _residuals.Residuals(items, codes, residuals, centroids, weights, nbits,
                                     is_little_endian, normalize)
        assert there.sizes() == host._index.sizes() and there.max_len() == length
        np.testing.assert_allclose(there.decode(), host.decode(), atol=1e-5)
        for name, part in host.parts().items():
            assert np.array_equal(there.parts()[name], part), name
        Q = torch.randn(2, 3, dim).half()
        side, pairing = Side(Q), Pairing()
        stand_in = Side(torch.empty((n, length, 0)))
        options = Options(winners=True, max_q_len=3)
        found = backend.run(side, stand_in, pairing, options, _plaid._scoring(there, side))
        queries = Q.float().requires_grad_()
        wanted = host.score(queries, winners=True)
        torch.testing.assert_close(found.scores, wanted.scores.detach(), rtol=1e-3, atol=1e-3)
        weight = torch.rand(2, n)
        (wanted.scores * weight).sum().backward()
        gradient = _plaid._gradient_on_gpu(there, weight, found.winners, side, pairing)
        torch.testing.assert_close(gradient, queries.grad, rtol=2e-3, atol=2e-3)


def test_one_scale_needs_no_kernel():
    codes, scale, mins = _codes.quantize(Side(torch.randn(2, 3, 8)), 5, TENSOR_SCALE)
    assert codes.dtype == torch.float8_e4m3fn and scale.ndim == 0 and mins is None
