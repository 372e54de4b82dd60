"""What GPU calls are given, seen without a GPU: the compiled half is stood for by numpy.

Tensors are in host memory here, so the stand-in can read and write at the addresses that it gets:
rows at their pitch, items as they are said, results as the library leaves them on a device.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

import maxsim
from cases import case, close, naive, oracle, valid
from maxsim import _maxsim
from maxsim._backends import cuda as backend
from maxsim._sides import AFFINE_SCALES, CANDIDATES, CROSS, OWN, PAIRS, Options, Pairing, Side

TYPES = {0: np.float32, 1: np.float16}


def at(address, count, dtype):
    """The numbers at an address."""
    if count == 0:
        return np.empty(0, dtype)
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


def decoded(codes, code, words, kind):
    """What codes stand for, with their scales as GPUs read them: a word per row, and padding."""
    rows = codes.shape[0]
    assert words[1] == rows + _maxsim.SCALE_PADDING
    types = {3: torch.int8, 4: torch.uint8, 5: torch.float8_e4m3fn}
    values = torch.tensor(codes).view(types[code]).double().numpy()
    if kind == AFFINE_SCALES:
        halves = at(words[0], 2 * rows, np.float16).reshape(rows, 2).astype(np.float64)
        return values * halves[:, :1] + halves[:, 1:]
    return values * at(words[0], rows, np.float32).astype(np.float64)[:, None]


def items_of(side):
    """Rows as float64, and each item's first row, length and valid rows."""
    (kind, n, length, rows, dim, first, lengths, wide), (address, pitch, code, mask, *_) = side
    assert mask is None or mask[1] == rows
    dtype, index = TYPES.get(code, np.uint8), np.int64 if wide else np.int32
    size = np.dtype(dtype).itemsize
    assert pitch % size == 0 and pitch >= dim * size
    extent = (rows - 1) * (pitch // size) + dim if rows else 0
    flat = at(address, extent, dtype)
    matrix = np.lib.stride_tricks.as_strided(flat, (rows, dim), (pitch, size)) if rows else \
        np.empty((0, dim), dtype)
    if code not in TYPES:
        matrix = decoded(matrix, code, side[1][4], side[1][5])
    if kind == 1:
        offsets = at(first, n + 1, index)
        starts, lens = offsets[:-1], np.diff(offsets)
    elif kind == 2:
        starts, lens = at(first, n, index), at(lengths, n, index)
    elif kind == 4:
        starts, lens = at(first, 2 * n, np.int32).reshape(n, 2).T
    else:
        starts = np.arange(n) * (length if kind == 0 else first)
        lens = at(lengths, n, index) if lengths else np.full(n, length)
    is_valid = at(*mask, np.uint8) != 0 if mask else np.ones(rows, bool)
    return matrix.astype(np.float64), starts, lens, is_valid


def pairs_of(pairs, n_queries, n_documents):
    kind, k, n, q_ids, d_ids, wide = pairs
    index = np.int64 if wide else np.int32
    if kind == CROSS:
        return [(q, d) for q in range(n_queries) for d in range(n_documents)]
    if kind == OWN:
        return [(q, q * k + i) for q in range(n_queries) for i in range(k)]
    ids = at(d_ids, n, index)
    if kind == CANDIDATES:
        return [(i // k, int(d)) for i, d in enumerate(ids)]
    return list(zip(at(q_ids, n, index).tolist(), ids.tolist()))


def cuda_score(call, sides, pairs, results):
    """As the compiled half: winners and token scores one after the other, query by query."""
    (Q, q_starts, q_lens, q_valid), (D, d_starts, d_lens, d_valid) = map(items_of, sides)
    scores, winners, tokens = [], [], []
    for q, d in pairs_of(pairs, len(q_lens), len(d_lens)):
        rows = [r for r in range(d_starts[d], d_starts[d] + d_lens[d]) if d_valid[r]]
        total = 0.0
        for s in range(q_starts[q], q_starts[q] + q_lens[q]):
            best, score = -1, 0.0
            if q_valid[s] and rows:
                similarities = D[rows] @ Q[s]
                best = rows[int(similarities.argmax())] - d_starts[d]
                score = similarities.max()
            winners.append(best)
            tokens.append(score)
            total += score
        scores.append(total)
    n_bytes = 2 if max(d_lens, default=0) < 65535 else 4
    to_scores, to_winners, to_tokens = results
    assert to_scores[1] == len(scores)
    at(*to_scores, np.float32)[:] = scores
    if to_winners:
        kind = np.uint16 if n_bytes == 2 else np.int32
        assert to_winners[1] >= len(winners) * n_bytes
        at(to_winners[0], len(winners), kind)[:] = np.array(winners).astype(kind)
    if to_tokens:
        assert to_tokens[1] >= len(tokens)
        at(to_tokens[0], len(tokens), np.float32)[:] = tokens
    return n_bytes


def cuda_backward(call, sides, pairs, memory, of_weights=None):
    """As the compiled half: gradients of dense rows, from its own winners."""
    (Q, q_starts, q_lens, _), (D, d_starts, d_lens, _) = map(items_of, sides)
    grad, winners, to_q, to_d = memory
    listed = pairs_of(pairs, len(q_lens), len(d_lens))
    total = sum(int(q_lens[q]) for q, _ in listed)
    kind = np.uint16 if max(d_lens, default=0) < 65535 else np.int32
    assert winners[1] >= total * np.dtype(kind).itemsize and grad[1] == len(listed)
    winners = iter(at(winners[0], total, kind).astype(np.int64).tolist())
    of_q, of_d = np.zeros_like(Q), np.zeros_like(D)
    for (q, d), g in zip(listed, at(*grad, np.float32)):
        for s in range(q_starts[q], q_starts[q] + q_lens[q]):
            winner = next(winners)
            if 0 <= winner < d_lens[d]:
                of_q[s] += g * D[d_starts[d] + winner]
                of_d[d_starts[d] + winner] += g * Q[s]
    for to, found, side in ((to_q, of_q, sides[0]), (to_d, of_d, sides[1])):
        if to:
            at(*to, TYPES[side[1][2]])[:] = found.ravel()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(_maxsim, "cuda_score", cuda_score)
    monkeypatch.setattr(_maxsim, "cuda_backward", cuda_backward)
    monkeypatch.setattr(backend, "call_numbers", lambda data, options: (0, 0, False, False, None))


def score(q, d, pairing=Pairing(), width=None):
    """Scores as torch's path does, with winners as a user has them; and their gradients."""
    width = q.data.shape[1] if width is None else width
    options = Options(winners=True, token_scores=True, max_q_len=width)
    found = backend.run(q, d, pairing, options)
    dense = backend.dense_winners(found.winners, q, pairing)
    weights = torch.randn(found.scores.shape, generator=torch.Generator().manual_seed(1))
    grads = backend.run_backward(weights, found.winners, q, d, pairing, options, (True, True))
    return found.scores, dense, found.token_scores, weights, grads


def same_gradients(formula, tensors, weights, grads):
    tensors = [x.detach().double().requires_grad_() for x in tensors]
    (formula(*tensors) * weights.double()).sum().backward()
    for x, grad in zip(tensors, grads):
        torch.testing.assert_close(grad.double(), x.grad, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_views(dtype):
    base = torch.randn(6, 9, 40).to(dtype)
    Q = case(dtype, dim=16)[0]
    views = [
        base[:, :, :16], base[:, :, 8:24], base[::2, :, :16], base[:, ::2, :16],
        base[:, :5, :16], base.transpose(0, 1)[:, :, :16], base[:1, :, :16].expand(4, 9, 16),
        base[0, 0, :16].expand(3, 2, 16), base[:, :, :16].contiguous()[:, 1:6],
        base[:, :, 0:32:2], base[:1, :1, :16], base[:, :1, :16],
    ]
    for view in views:
        mask = torch.arange(view.shape[0] * view.shape[1]).view(view.shape[:2]) % 3 > 0
        lengths = torch.arange(view.shape[0]) % (view.shape[1] + 1)
        for how, rows in ((Side(view), None), (Side(view, mask), mask),
                          (Side(view, None, None, lengths), valid(lengths, view.shape[1]))):
            wanted, winners, tokens = oracle(Q, view, None, rows)
            found, dense, of_tokens, weights, grads = score(Side(Q), how)
            close(found, wanted, 16)
            close(of_tokens, tokens, 16)
            assert np.array_equal(dense, winners)
            same_gradients(lambda q, d: naive(q, d, None, rows), (Q, view), weights, grads)
            assert all(g.dtype == dtype for g in grads)


def test_ragged_queries_and_pairings():
    Q, D = case(n=4, m=5)
    lengths, d_lengths = torch.tensor([7, 2, 0, 4]), torch.tensor([3, 0, 11, 1, 5])
    masks = valid(lengths, 7), valid(d_lengths, 11)
    wanted, winners, tokens = oracle(Q, D, *masks)
    offsets = [torch.cat([torch.zeros(1, dtype=torch.int64), x.cumsum(0)])
               for x in (lengths, d_lengths)]
    ids = torch.tensor([[0, 1], [4, 4], [2, 3], [1, 2]])
    a, b = torch.tensor([3, 0, 2, 1, 3]), torch.tensor([1, 2, 0, 4, 2])
    pairings = [
        (Pairing(), lambda x: x),
        (Pairing(CANDIDATES, 2, None, ids), lambda x: x[torch.arange(4)[:, None], ids]),
        (Pairing(PAIRS, 0, a, b), lambda x: x[a, b]),
    ]
    sides = [
        (Side(Q, None, None, lengths), Side(D, None, None, d_lengths), (Q, D), lambda q, d: (q, d)),
        (Side(Q[masks[0]], None, offsets[0]), Side(D[masks[1]], None, offsets[1].int()), None,
         None),
        (Side(Q.reshape(-1, 24), None, torch.arange(4) * 7, lengths),
         Side(D.reshape(-1, 24), None, torch.arange(5) * 11, d_lengths), None, None),
    ]
    for q, d, tensors, _ in sides:
        for pairing, of in pairings:
            found, dense, of_tokens, weights, grads = score(q, d, pairing, 7)
            close(found, of(wanted), 24)
            close(of_tokens, of(tokens), 24)
            assert np.array_equal(dense, of(winners))
            if tensors:
                same_gradients(lambda x, y: of(naive(x, y, *masks)), tensors, weights, grads)


def test_documents_that_could_have_been_long():
    """Winners of two bytes, kept in four where the matrix is long enough for more."""
    Q = case()[0]
    D = torch.randn(70000, 24)
    offsets = torch.tensor([0, 40, 70, 70])
    wanted, winners, _ = oracle(Q, torch.stack([D[:40], torch.cat([D[40:70], D[:10]])]), None,
                                valid([40, 30], 40))
    found, dense, _, weights, grads = score(Side(Q), Side(D, None, offsets))
    close(found[:, :2], wanted, 24)
    assert np.array_equal(dense[:, :2], winners) and (dense[:, 2] == -1).all()
    assert grads[1].shape == D.shape and (grads[1][70:] == 0).all()


def test_winners_of_two_bytes_beyond_the_sign():
    wide = torch.tensor([[0, 1, 32767, 32768, 65534, 65535]])
    kept = wide.to(torch.int32).to(torch.int16)
    dense = backend.dense_winners(kept, Side(torch.zeros(1, 6, 1)), Pairing())
    assert dense.tolist() == [[0, 1, 32767, 32768, 65534, -1]]


CALL = (0, 7, False, False, None)


def test_no_room_is_tried_again(monkeypatch):
    emptied, calls = [], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(None))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def full(call):
        calls.append(call)
        raise backend._maxsim.DeviceMemoryError("out of device memory")

    with pytest.raises(torch.OutOfMemoryError, match="out of device memory"):
        backend.enqueue(full, CALL)
    assert calls == [CALL, CALL] and len(emptied) == 1
    assert issubclass(backend._maxsim.DeviceMemoryError, MemoryError)
    assert maxsim.maxsim(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).item() == 1


class Room:
    """Calls that need memory to work in, and the streams that have some."""

    def __init__(self, monkeypatch, needs, is_captured=False):
        self.needs, self.is_captured, self.kept, self.calls = needs, is_captured, {}, []
        monkeypatch.setattr(backend, "_workspaces", {})
        monkeypatch.setattr(backend, "_allocate",
                            lambda index, n: torch.empty(n, dtype=torch.uint8))
        monkeypatch.setattr(backend._maxsim, "cuda_set_workspace", self.set)
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: empty(*a, **k))

    def set(self, index, stream, address, n_bytes):
        self.kept[index, stream] = n_bytes
        assert backend._workspaces.get((index, stream)) is None or address

    def __call__(self, call, value):
        index, stream, *_, of_call = call
        self.calls.append(of_call)
        found = of_call[1] if of_call else self.kept.get((index, stream), 0)
        if found < self.needs or self.is_captured and not of_call:
            raise backend._maxsim.WorkspaceError(self.needs, not self.is_captured)
        return value


def test_a_stream_keeps_what_its_calls_work_in(monkeypatch):
    room = Room(monkeypatch, 100)
    assert [backend.enqueue(room, CALL, i) for i in range(3)] == [0, 1, 2]
    assert room.calls == [None] * 4 and room.kept == {(0, 7): 2 << 20}
    # It grows when it must, and what is kept is what the stream was given.
    room.needs = (2 << 20) + 1
    assert backend.enqueue(room, CALL, 5) == 5
    assert backend._workspaces[0, 7].numel() == room.kept[0, 7] == 4 << 20
    # Another stream has its own.
    assert backend.enqueue(room, (0, 8, False, False, None), 6) == 6
    assert set(backend._workspaces) == {(0, 7), (0, 8)}


def test_a_captured_call_works_in_memory_of_its_own(monkeypatch):
    room = Room(monkeypatch, 100, is_captured=True)
    assert [backend.enqueue(room, CALL, i) for i in range(2)] == [0, 1]
    assert [x and x[1] for x in room.calls] == [None, 100, None, 100]
    assert not backend._workspaces and not room.kept
