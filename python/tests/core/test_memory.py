"""Sizes of memory: the compiled half checks every one that it is given, and the operators what
nothing has checked before."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import case
from maxsim import _maxsim
from maxsim._backends import ops as _ops
from maxsim._backends.numpy import describe, memory
from maxsim._sides import Side

CROSS = (0, 0, 0, 0, 0, False)


def changes(room):
    """Rooms of which one piece of memory is an entry too short, or too long."""
    for i, piece in enumerate(room):
        if isinstance(piece, tuple):
            for n in (piece[1] - 1, piece[1] + 1):
                yield (*room[:i], (piece[0], n), *room[i + 1:])


@pytest.fixture
def sides():
    Q, D = (x.numpy() for x in case())
    mask = np.ones(D.shape[:2], np.uint8)
    (q, q_kept), (d, d_kept) = describe(Side(Q)), describe(Side(D, mask))
    yield q, d
    del q_kept, d_kept


def test_scores_and_gradients(sides):
    scores, winners = np.zeros((3, 5), np.float32), np.zeros((3, 5, 7), np.int32)
    token_scores = np.zeros((3, 5, 7), np.float32)
    room = (memory(scores), memory(winners), memory(token_scores), 7)
    _maxsim.score(1, sides, CROSS, False, room)
    for wrong in changes(room):
        with pytest.raises(ValueError, match="expected .* entries, found"):
            _maxsim.score(1, sides, CROSS, False, wrong)
    with pytest.raises(ValueError):
        _maxsim.score(1, sides, CROSS, False, (*room[:3], 6))
    with pytest.raises(ValueError):
        _maxsim.score(1, sides, CROSS, False, (*room[:3], 2**63))
    of_q, of_d = np.zeros((3, 7, 24), np.float32), np.zeros((5, 11, 24), np.float32)
    room = (memory(scores), memory(winners), 7, memory(of_q), memory(of_d))
    _maxsim.backward(1, sides, CROSS, False, room)
    for wrong in changes(room):
        with pytest.raises(ValueError):
            _maxsim.backward(1, sides, CROSS, False, wrong)


def test_masks_and_scales(sides):
    q, (items, matrix) = sides
    scores = np.zeros((3, 5), np.float32)
    for n in (0, 54, 56):
        wrong = (items, (*matrix[:3], (matrix[3][0], n), *matrix[4:]))
        with pytest.raises(ValueError, match="mask: expected 55 entries"):
            _maxsim.score(1, (q, wrong), CROSS, False, (memory(scores), None, None, 0))
    codes, scales = np.zeros((5, 11, 24), np.uint8), np.ones((5, 11), np.float16)
    (items, matrix), kept = describe(Side(codes, None, None, None, scales, scales))
    found = np.zeros((5, 11, 24), np.float32)
    _maxsim.dequantize(1, (items, matrix), memory(found))
    for place in (4, 6):
        for n in (54, 56):
            wrong = (items, (*matrix[:place], (matrix[place][0], n), *matrix[place + 1:]))
            with pytest.raises(ValueError, match="expected 55 entries"):
                _maxsim.dequantize(1, wrong, memory(found))
    for n in (found.size - 1, found.size + 1):
        with pytest.raises(ValueError, match="tokens"):
            _maxsim.dequantize(1, (items, matrix), (memory(found)[0], n))
    del kept


def test_codes_and_rankings(sides):
    codes, scales = np.zeros((3, 7, 24), np.uint8), np.zeros((3, 7), np.float16)
    room = (memory(codes), memory(scales), memory(scales))
    _maxsim.quantize(1, sides[0], 4, 4, room)
    for wrong in changes(room):
        with pytest.raises(ValueError):
            _maxsim.quantize(1, sides[0], 4, 4, wrong)
    best, ids = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.int64)
    counts, scores = np.zeros((3, 2), np.int64), np.zeros((3, 5), np.float32)
    has = np.ones(5, np.uint8)
    room = (memory(best), memory(ids), memory(counts), 3, 2)
    _maxsim.topk(1, sides, False, 2, room)
    _maxsim.rank(1, memory(scores), memory(has), 5, 2, room)
    for wrong in changes(room):
        with pytest.raises(ValueError):
            _maxsim.topk(1, sides, False, 2, wrong)
        with pytest.raises(ValueError):
            _maxsim.rank(1, memory(scores), memory(has), 5, 2, wrong)
    for wrong_scores, wrong_has in (((memory(scores)[0], 14), memory(has)),
                                    (memory(scores), (memory(has)[0], 4))):
        with pytest.raises(ValueError):
            _maxsim.rank(1, wrong_scores, wrong_has, 5, 2, room)


def test_plaid():
    rng = np.random.default_rng(1)
    centroids, weights = rng.normal(size=(4, 8)).astype(np.float32), np.zeros(4, np.float32)
    codes, residuals = np.zeros(6, np.int64), np.zeros((6, 2), np.uint8)
    (items, matrix), kept = describe(Side(residuals.view(np.int8), None, np.array([0, 2, 6])))
    numbers = ((*items[:4], 8, *items[5:]), matrix)
    tables = (2, 8, memory(centroids), 0, 4, memory(weights), None, False)
    rest = (memory(codes), memory(residuals), False)
    index = _maxsim.Plaid(1, tables, numbers, *rest)
    for wrong in changes(tables):
        with pytest.raises(ValueError):
            _maxsim.Plaid(1, wrong, numbers, *rest)
    for wrong in changes(rest):
        with pytest.raises(ValueError):
            _maxsim.Plaid(1, tables, numbers, *wrong)
    parts = (np.zeros(6, np.int32), residuals, centroids, weights)
    room = tuple(memory(x) for x in parts)
    index.parts(*room)
    for wrong in changes(room):
        with pytest.raises(ValueError):
            index.parts(*wrong)
    with pytest.raises(ValueError):
        index.has_tokens(memory(np.zeros(3, np.uint8)))
    with pytest.raises(ValueError):
        index.decode(1, memory(np.zeros(47, np.float32)))
    del kept


def test_operators_check_what_they_are_given():
    """A call of the operators themselves has come past nothing that checks it."""
    Q, D = case()
    score = getattr(torch.ops, _ops.NAMESPACE).score
    backward = getattr(torch.ops, _ops.NAMESPACE).score_backward
    names = "q q_mask q_first q_lengths q_scales q_mins d d_mask d_first d_lengths d_scales " \
        "d_mins q_ids d_ids pairing k max_q_len max_d_len normalize tf32 consistent"
    values = (Q, *[None] * 5, D, *[None] * 7, 0, 0, 7, -1, False, False, False)
    right = dict(zip(names.split(), values))
    mask, ids, wide = torch.ones(3, 7, dtype=torch.bool), torch.arange(3), torch.ones(3, 7)
    wrong = [
        {"q_mask": mask[:2]}, {"q_mask": mask[:, :4]}, {"q_mask": wide}, {"d": D.double()},
        {"d": D[..., :8]}, {"d": D[0]}, {"q_lengths": ids[:2]}, {"q_lengths": wide[:, 0]},
        {"q_first": ids}, {"q_scales": wide}, {"pairing": 3, "q_ids": ids},
        {"pairing": 3, "q_ids": ids, "d_ids": ids[:2]}, {"pairing": 2, "k": 2, "d_ids": ids},
        {"pairing": 1, "k": 2}, {"pairing": 7}, {"d_ids": ids}, {"k": -1},
        {"q": Q.to(torch.int8)}, {"pairing": 3, "q_ids": ids, "d_ids": wide[:, 0]},
        {"max_q_len": 3}, {"pairing": 3, "q_ids": ids, "d_ids": torch.tensor([0, 1, 5])},
        {"d_lengths": torch.tensor([1, 2, 3, 4, 12])},
    ]
    found, winners, _ = score(*right.values(), True, True)
    for change in wrong:
        with pytest.raises((ValueError, TypeError)):
            score(*{**right, **change}.values(), True, True)
    for winners_too in (False, True):
        # Documents of four axes are each query's own: of another pairing.
        with pytest.raises(ValueError):
            score(*{**right, "d": D.expand(3, *D.shape).contiguous()}.values(), winners_too, False)
    grad = torch.ones(3, 5)
    for g, w in ((grad[:2], winners), (grad, winners[:, :4]), (grad, winners.long()),
                 (grad, winners[..., :3]), (grad, winners[0])):
        with pytest.raises((ValueError, TypeError)):
            backward(g, w, *right.values(), True, True)
    # Winners that are no tokens of their documents give nothing, or are an error.
    for bad in (-7, 11, 2**31 - 1, -2**31):
        try:
            of_q, _ = backward(grad, torch.full_like(winners, bad), *right.values(), True, True)
        except ValueError:
            continue
        assert (of_q == 0).all()
