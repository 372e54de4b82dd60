"""What GPU calls with lists on a device are given, seen without a GPU: the compiled half is stood
for by numpy, and tensors are in host memory, whose scores of lists on the host are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import case, close
from lists import FORMATS, LENGTHS, calls, compressed
from maxsim import _maxsim
from maxsim._backends import cuda as backend
from maxsim._backends import plaid as _plaid
from maxsim._backends import residuals as _residuals
from maxsim._backends import torch as _torch
from maxsim._backends import unread
from maxsim._sides import CANDIDATES, PADDED, Options, Pairing, Side
from test_cuda_compressed import cuda_backward_residuals, cuda_score_residuals
from test_cuda_numbers import at, cuda_score


def cuda_write_segments(call, items, ids, found):
    """As the compiled half: first row and length of each item, and what is wrong with it."""
    kind, n, longest, rows, stride, first, lengths, wide = items
    index = np.int64 if wide else np.int32
    first, lengths = (None if x is None else at(*x, index).tolist() for x in (first, lengths))
    ids = range(n) if ids is None else at(*ids[0], np.int64 if ids[1] else np.int32).tolist()
    invalid, segments, mask, mask_in = found
    wrong, segs = [], []
    for i in ids:
        if not 0 <= i < n:
            wrong.append(1), segs.append((0, 0))
            continue
        if kind == PADDED:
            start, length = i * stride, longest if lengths is None else lengths[i]
        else:
            end = first[i + 1] if lengths is None else first[i] + lengths[i]
            start, length = first[i], end - first[i]
        is_wrong = not 0 <= length <= longest or start < 0 or start + length > rows
        wrong.append(int(is_wrong)), segs.append((0, 0) if is_wrong else (start, length))
    assert invalid[1] == len(segs)
    at(*invalid, np.uint8)[:] = wrong
    segs = np.array(segs, np.int32).reshape(-1, 2)
    if segments:
        at(*segments, np.int32)[:] = segs.ravel()
    if mask:
        valid = np.arange(longest) < segs[:, 1:]
        if mask_in:
            valid &= at(*mask_in, np.uint8).reshape(valid.shape) != 0
        at(*mask, np.uint8)[:] = valid.ravel()


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    numbers = (0, 0, False, False, False, None)
    monkeypatch.setattr(_maxsim, "cuda_write_segments", cuda_write_segments)
    monkeypatch.setattr(_maxsim, "cuda_score", cuda_score)
    monkeypatch.setattr(_maxsim, "cuda_score_residuals", cuda_score_residuals)
    monkeypatch.setattr(_maxsim, "cuda_backward_residuals", cuda_backward_residuals)
    for module in (backend, _residuals):
        monkeypatch.setattr(module, "call_numbers", lambda data, options: numbers)


@pytest.fixture
def on_a_device(monkeypatch):
    """Calls whose lists are as those on a device."""
    def score(q, d, pairing, options):
        # Somebody has said the longest, of packed queries.
        longest = q.data.shape[1] if q.kind == PADDED else 8
        found = unread.run(q, d, pairing, options._replace(max_q_len=longest))
        if found.winners is not None and found.winners.dtype == torch.int16:
            found = found._replace(winners=backend._widened(found.winners, backend.WIDE_FROM))
        return found

    monkeypatch.setattr(_torch, "score", score)
    monkeypatch.setattr(unread, "takes", lambda *sides: False)  # of what the device has found


@pytest.mark.parametrize("formats", [(None, None, None), *FORMATS])
def test_scores_are_those_of_lists_on_the_host(formats, request):
    every = []
    for name, tensors, lists, others, function in calls(torch.float16, "cpu"):
        sides = [compressed(x, format, formats[2]) for x, format in zip(tensors, formats)]
        arguments = dict(**lists, **others, winners=True, token_scores=True)
        every.append((name, function, sides, arguments, function(*sides, **arguments)))
    request.getfixturevalue("on_a_device")
    for name, function, sides, arguments, wanted in every:
        found = function(*sides, **arguments)
        close(found.scores, wanted.scores, 24)
        width = wanted.winners.shape[-1]
        assert torch.equal(found.winners[..., :width], wanted.winners), name
        assert (found.winners[..., width:] == -1).all(), name
        close(found.token_scores[..., :width], wanted.token_scores, 24)


LAYOUTS = [dict(), dict(lengths=LENGTHS[1]), dict(offsets=[0, 11, 12, 12, 16, 22])]


def index_of(lists, **others):
    """Documents of a few centroids in host memory, and the same as on a GPU."""
    torch.manual_seed(1)
    shape = (22,) if "offsets" in lists else (5, 11)
    codes = torch.randint(0, 7, shape)
    residuals = torch.randint(0, 256, (*shape, 6), dtype=torch.uint8)
    centroids, weights = torch.randn(7, 24).half(), torch.randn(4).half().float()
    lists = {name: torch.tensor(x) for name, x in lists.items()}
    host = maxsim.PlaidIndex(codes, residuals, centroids, weights, 2, bit_order="colbert",
                             normalize=False, **lists, **others)
    items = Side(codes[..., None].byte(), None, lists.get("offsets"), lists.get("lengths"))
    there = _residuals.Residuals(items, codes, residuals, centroids, weights, 2, False, False)
    return host, there


@pytest.mark.parametrize("lists", LAYOUTS)
@pytest.mark.parametrize("q_lengths", [None, LENGTHS[0]])
def test_candidates_of_an_index(lists, q_lengths, monkeypatch):
    host, there = index_of(lists)
    Q = case(torch.float16)[0]
    ids = torch.tensor([[4, 0, 2, 2], [0, 0, 1, 3], [3, 1, 4, 0]])
    q_lengths = None if q_lengths is None else torch.tensor(q_lengths)
    queries = Q.float().requires_grad_()
    wanted = host.score(queries, ids=ids, q_lengths=q_lengths, winners=True)
    weights = torch.rand(3, 4)
    (wanted.scores * weights).sum().backward()

    q, pairing = Side(Q, None, None, q_lengths), Pairing(CANDIDATES, 4, None, ids)
    options = Options(winners=True, max_q_len=7)
    documents = _plaid._documents(there, q)
    found = unread.run_residuals(q, Side(torch.empty(5, 11, 0)), pairing, options, documents)
    close(found.scores, wanted.scores, 24, 512)
    assert torch.equal(backend._widened(found.winners, backend.WIDE_FROM), wanted.winners)
    monkeypatch.setattr(unread, "takes", lambda *sides: True)
    gradient = _plaid._gradient_on_gpu(there, weights, found.winners, q, pairing)
    torch.testing.assert_close(gradient, queries.grad, rtol=2e-3, atol=2e-3)


def test_candidates_that_are_none_are_nan():
    _, there = index_of(dict(lengths=LENGTHS[1]))
    q = Side(case(torch.float16)[0], None, None, torch.tensor([7, 8, 0]))
    ids = torch.tensor([[4, 5], [0, 1], [-1, 3]])
    pairing, options = Pairing(CANDIDATES, 2, None, ids), Options(max_q_len=7)
    documents = _plaid._documents(there, q)
    found = unread.run_residuals(q, Side(torch.empty(5, 11, 0)), pairing, options, documents)
    assert found.scores.isnan().tolist() == [[False, True], [True, True], [True, False]]


@pytest.mark.parametrize("lists", LAYOUTS)
def test_an_index_in_host_memory_says_where_documents_are(lists):
    host, there = index_of(lists)
    items = _plaid._items(host._index, torch.device("cpu"))
    first, lengths = there.items.first, there.items.lengths
    if first is None:
        first = 11 * torch.arange(5)
        lengths = torch.full((5,), 11) if lengths is None else lengths
    else:
        first, lengths = first[:-1], torch.diff(first)
    assert torch.equal(items.first.long(), first) and torch.equal(items.lengths.long(), lengths)
    assert _plaid._items(host._index, torch.device("cpu")) is items
    n_kept = len(_plaid._listed)
    del host
    assert len(_plaid._listed) == n_kept - 1
