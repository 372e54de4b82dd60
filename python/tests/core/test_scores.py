"""Scores, winners and token scores of every layout, against the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import DEVICES, DTYPES, case, close, oracle, valid


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_cross(device, dtype, normalize):
    Q, D = case(dtype, device=device)
    scores, winners, tokens = oracle(Q, D, normalize=normalize)
    found = maxsim.maxsim(Q, D, normalize=normalize, winners=True, token_scores=True)
    assert found.scores.dtype == torch.float32 and found.scores.device == Q.device
    close(found.scores, scores, 24)
    close(found.token_scores, tokens, 24)
    assert found.winners.dtype == torch.int32
    assert np.array_equal(found.winners.cpu(), winners)
    close(maxsim.maxsim(Q, D, normalize=normalize), scores, 24)


@pytest.mark.parametrize("device", DEVICES)
def test_masks_of_any_pattern_and_types(device):
    Q, D = case(device=device)
    q_mask, d_mask = torch.rand(3, 7) > 0.4, torch.rand(5, 11) > 0.5
    d_mask[2] = False
    q_mask[1] = False
    scores, winners, tokens = oracle(Q, D, q_mask, d_mask)
    for kind in (torch.bool, torch.uint8, torch.int64, torch.float32):
        found = maxsim.maxsim(Q, D, q_mask=q_mask.to(device, kind), d_mask=d_mask.to(device, kind),
                              winners=True, token_scores=True)
        close(found.scores, scores, 24)
        close(found.token_scores, tokens, 24)
        assert np.array_equal(found.winners.cpu(), winners)
    assert (found.scores[:, 2] == 0).all() and (found.scores[1] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.int16])
def test_lengths(device, kind):
    Q, D = case(device=device)
    q_lengths, d_lengths = torch.tensor([7, 0, 3]), torch.tensor([11, 1, 0, 4, 6])
    scores, winners, tokens = oracle(Q, D, valid(q_lengths, 7), valid(d_lengths, 11))
    found = maxsim.maxsim(Q, D, q_lengths=q_lengths.to(device, kind),
                          d_lengths=d_lengths.to(device, kind), winners=True, token_scores=True)
    close(found.scores, scores, 24)
    close(found.token_scores, tokens, 24)
    assert np.array_equal(found.winners.cpu(), winners)


def test_masks_and_lengths_hold_together():
    Q, D = case()
    mask, lengths = torch.rand(5, 11) > 0.5, torch.tensor([11, 1, 0, 4, 6])
    wanted = oracle(Q, D, None, mask & valid(lengths, 11))[0]
    close(maxsim.maxsim(Q, D, d_mask=mask, d_lengths=lengths), wanted, 24)


@pytest.mark.parametrize("device", DEVICES)
def test_two_axes_are_one_item(device):
    Q, D = case(device=device)
    scores = oracle(Q, D)[0]
    close(maxsim.maxsim(Q[0], D), scores[0], 24)
    close(maxsim.maxsim(Q, D[1]), scores[:, 1], 24)
    one = maxsim.maxsim(Q[0], D[1], winners=True)
    assert one.scores.shape == () and one.winners.shape == (7,)
    close(one.scores, scores[0, 1], 24)
    mask = torch.tensor([1, 0, 1, 0, 1, 1, 0], device=device)
    close(maxsim.maxsim(Q[0], D, q_mask=mask),
          oracle(Q[:1], D, mask.cpu()[None])[0][0], 24)


@pytest.mark.parametrize("device", DEVICES)
def test_pairs_and_candidates(device):
    Q, D = case(n=4, m=4, device=device)
    scores, winners, _ = oracle(Q, D)
    close(maxsim.pairs(Q, D), np.diagonal(scores), 24)
    found = maxsim.pairs(Q, D, [3, 0, 0], [1, 2, 1], winners=True)
    close(found.scores, scores[[3, 0, 0], [1, 2, 1]], 24)
    assert np.array_equal(found.winners.cpu(), winners[[3, 0, 0], [1, 2, 1]])
    ids = torch.tensor([[0, 1], [2, 2], [3, 0], [1, 3]], device=device)
    wanted = np.take_along_axis(scores, ids.cpu().numpy(), 1)
    close(maxsim.candidates(Q, D, ids), wanted, 24)
    own = D[ids]
    found = maxsim.candidates(Q, own, winners=True)
    close(found.scores, wanted, 24)
    assert found.winners.shape == (4, 2, 7)
    lengths = torch.tensor([[1, 2], [3, 0], [5, 11], [11, 4]], device=device)
    wanted = np.stack([oracle(Q[i:i + 1], own[i], None, valid(lengths[i].cpu(), 11))[0][0]
                       for i in range(4)])
    close(maxsim.candidates(Q, own, d_lengths=lengths), wanted, 24)
    mask = valid(lengths.cpu().flatten(), 11).view(4, 2, 11).to(device)
    close(maxsim.candidates(Q, own, d_mask=mask), wanted, 24)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_packed_and_scattered(device, kind):
    Q, D = case(device=device)
    q_lengths, d_lengths = [7, 2, 4], [3, 0, 11, 1, 5]
    scores, winners, tokens = oracle(Q, D, valid(q_lengths, 7), valid(d_lengths, 11))
    rows = [torch.cat([x[i, :n] for i, n in enumerate(lens)])
            for x, lens in ((Q, q_lengths), (D, d_lengths))]
    offsets = [torch.tensor([0, *np.cumsum(lens)], dtype=kind, device=device)
               for lens in (q_lengths, d_lengths)]
    found = maxsim.packed(*rows, *offsets, winners=True, token_scores=True)
    close(found.scores, scores, 24)
    close(found.token_scores, tokens, 24)
    assert np.array_equal(found.winners.cpu(), winners)
    q_ids, d_ids = torch.tensor([2, 0, 1]), torch.tensor([0, 3, 2])
    found = maxsim.packed(*rows, *offsets, q_ids, d_ids, winners=True, max_q_len=9)
    close(found.scores, scores[q_ids, d_ids], 24)
    assert found.winners.shape == (3, 9) and (found.winners[:, 7:] == -1).all()
    assert np.array_equal(found.winners[:, :7].cpu(), winners[q_ids, d_ids])
    starts = [torch.arange(3) * 7, torch.arange(5) * 11]
    lengths = [torch.tensor(q_lengths), torch.tensor(d_lengths)]
    found = maxsim.scattered(Q.reshape(-1, 24), D.reshape(-1, 24), starts[0], lengths[0],
                             starts[1], lengths[1], winners=True)
    close(found.scores, scores, 24)
    assert np.array_equal(found.winners.cpu(), winners)
    close(maxsim.packed(Q, rows[1], None, offsets[1]),
          oracle(Q, D, None, valid(d_lengths, 11))[0], 24)
    lists = [[x[i, :n] for i, n in enumerate(lens)] for x, lens in ((Q, q_lengths), (D, d_lengths))]
    close(maxsim.maxsim(*lists), scores, 24)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_strides(device, dtype):
    base = torch.randn(6, 9, 40, device=device).to(dtype)
    Q = case(dtype, dim=16, device=device)[0]
    views = [
        base[:, :, :16], base[:, :, 8:24], base[::2, :, :16], base[:, ::2, :16],
        base[:, :5, :16], base.transpose(0, 1)[:, :, :16], base[:1, :, :16].expand(4, 9, 16),
        base[0, 0, :16].expand(3, 2, 16), base[1:1, :, :16], base[:, 3:3, :16],
        base[:, :, :16].contiguous()[:, 1:6], base[:, :, :16].contiguous()[::2],
        base[:, :, 0:32:2], base[:1, :1, :16],
    ]
    for view in views:
        close(maxsim.maxsim(Q, view), oracle(Q, view)[0], 16)
        close(maxsim.maxsim(view, Q), oracle(view, Q)[0], 16)
        lengths = torch.arange(view.shape[0]) % (view.shape[1] + 1)
        close(maxsim.maxsim(Q, view, d_lengths=lengths),
              oracle(Q, view, None, valid(lengths, view.shape[1]))[0], 16)
        mask = torch.arange(view.shape[0] * view.shape[1]).view(view.shape[:2]) % 3 > 0
        close(maxsim.maxsim(Q, view, d_mask=mask.to(device)), oracle(Q, view, None, mask)[0], 16)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing(device):
    Q, D = case(device=device)
    assert maxsim.maxsim(Q[:0], D).shape == (0, 5)
    assert maxsim.maxsim(Q, D[:0]).shape == (3, 0)
    assert (maxsim.maxsim(Q[:, :0], D) == 0).all() and (maxsim.maxsim(Q, D[:, :0]) == 0).all()
    found = maxsim.maxsim(Q[:, :0], D, winners=True, token_scores=True)
    assert found.winners.shape == (3, 5, 0) and found.token_scores.shape == (3, 5, 0)
    assert maxsim.pairs(Q, D, [], []).shape == (0,)
    assert maxsim.topk(Q, D[:0], 4).ids.shape == (3, 0)
    ids = torch.zeros(3, 0, dtype=torch.int64, device=device)
    assert maxsim.candidates(Q, D, ids).shape == (3, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_and_infinity_show_where_they_are_valid(device):
    Q, D = case(device=device)
    D[1, 3] = float("nan")
    D[2, 4, 0] = float("inf")
    mask = torch.ones(5, 11, dtype=torch.bool, device=device)
    found = maxsim.maxsim(Q, D, d_mask=mask)
    assert found[:, 1].isnan().all() and found[:, 0].isfinite().all()
    mask[1, 3] = mask[2, 4] = False
    found = maxsim.maxsim(Q, D, d_mask=mask)
    assert found.isfinite().all()
    close(found, oracle(Q, torch.nan_to_num(D, posinf=0.0), None, mask.cpu())[0], 24)


@pytest.mark.parametrize("device", DEVICES)
def test_ties_go_to_the_lowest_token(device):
    D = torch.ones(2, 9, 8, device=device)
    found = maxsim.maxsim(torch.randn(1, 4, 8, device=device), D, winners=True)
    assert (found.winners == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_bits_again(device):
    Q, D = case(n=9, m=40, lq=33, ld=70, dim=128, device=device)
    first = maxsim.maxsim(Q, D)
    assert all(torch.equal(first, maxsim.maxsim(Q, D)) for _ in range(3))


def test_mixed_types_take_the_narrower():
    Q, D = case()
    assert torch.equal(maxsim.maxsim(Q, D.half()), maxsim.maxsim(Q.half(), D.half()))
    assert torch.equal(maxsim.maxsim(Q.bfloat16(), D.half()),
                       maxsim.maxsim(Q.bfloat16(), D.half().bfloat16()))


def test_masked_tokens_never_win():
    Q = torch.ones(1, 2, 4)
    D = -torch.ones(1, 3, 4)
    found = maxsim.maxsim(Q, D, d_mask=torch.tensor([[0, 1, 0]]), winners=True)
    assert found.scores.item() == -8.0 and (found.winners == 1).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_length_of_padded_queries_changes_nothing(device):
    """``max_q_len`` is of packed queries; padded ones have an axis of their own."""
    Q, D = case(device=device)
    offsets = torch.tensor([0, 11, 20])
    wanted = maxsim.packed(Q, D.flatten(0, 1), None, offsets, winners=True, token_scores=True)
    found = maxsim.packed(Q, D.flatten(0, 1), None, offsets, winners=True, token_scores=True,
                          max_q_len=9)
    assert all(torch.equal(one, two) for one, two in zip(found, wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_weights_and_means_of_plain_tensors(device):
    """Calls of plain tensors go a short way, on which nothing may be left out."""
    Q, D = case(device=device)
    own, weights = D[None].expand(3, *D.shape).contiguous(), torch.randn(3, 7, device=device)
    tokens = maxsim.maxsim(Q, D, token_scores=True).token_scores
    for function, documents in ((maxsim.maxsim, D), (maxsim.candidates, own)):
        close(function(Q, documents), tokens.sum(-1), 24)
        close(function(Q, documents, weights=weights), (tokens * weights[:, None]).sum(-1), 24)
        close(function(Q, documents, mean=True), tokens.mean(-1), 24)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_own_candidates_of_plain_tensors(device, dtype):
    Q, D = case(dtype, m=12, device=device)
    own, mask = D.view(3, 4, 11, 24), torch.rand(3, 4, 11, device=device) > 0.3
    for options in ({}, {"normalize": True}, {"d_mask": mask}):
        with torch.no_grad():
            plain = maxsim.candidates(Q, own, **options)
        found = maxsim.candidates(Q, own, winners=True, **options).scores
        close(plain, found, 24)
        leaves = [x.clone().requires_grad_() for x in (Q, own)]
        maxsim.candidates(*leaves, **options).square().sum().backward()
        others = [x.clone().requires_grad_() for x in (Q, own)]
        maxsim.candidates(*others, winners=True, **options).scores.square().sum().backward()
        for one, two in zip(leaves, others):
            assert torch.equal(one.grad, two.grad)
