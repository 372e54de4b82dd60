"""What the names of flash-maxsim promise beyond what its own tests look at."""

import math

import pytest
import torch

from maxsim.compat import flash_maxsim as fm
from maxsim.composed import _maxima
from places import PLACES, tensors_at


@pytest.fixture(autouse=True, params=PLACES)
def place(request):
    torch.manual_seed(7)
    with tensors_at(request.param):
        yield request.param


def scores_by_hand(q, d, lengths=None):
    """f64 scores `[B]` of one query, -∞ for an empty document."""
    out = []
    for i, document in enumerate(d):
        rows = document if lengths is None else document[: int(lengths[i])]
        if len(rows) == 0:
            out.append(torch.tensor(-math.inf, dtype=torch.float64))
        else:
            out.append((q.double() @ rows.double().T).max(1).values.sum())
    return torch.stack(out)


def close(found, want, **tolerance):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, **(tolerance or dict(rtol=1e-5, atol=1e-4)))


SINGLE = [
    fm.flash_maxsim,
    fm.flash_maxsim_persistent,
    fm.flash_maxsim_qreuse,
    fm.flash_maxsim_splitk,
    lambda q, d, n: fm.flash_maxsim(q, d, n, query_chunk_size=None, splitk=True),
    lambda q, d, n: fm.flash_maxsim_batched(q[None], d, n)[0],
    lambda q, d, n: fm.flash_maxsim_batched(q[None], d[None], n, shared_docs=False)[0],
    lambda q, d, n: fm.flash_maxsim_batched_train(q[None], d, doc_lengths=n)[0],
    lambda q, d, n: fm.flash_maxsim_int8_batched_train(q[None], d, doc_lengths=n)[0],
    lambda q, d, n: fm.flash_maxsim_rerank_padded(q[None], d[None], None, n[None])[0],
    lambda q, d, n: fm.flash_maxsim_pairs_dense(q.expand(len(d), -1, -1), d, None, n),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", SINGLE)
def test_lengths_and_empty_documents(call, dtype):
    q, d = torch.randn(5, 16).to(dtype), torch.randn(4, 7, 16).to(dtype)
    lengths = torch.tensor([7, 0, 3, 1], dtype=torch.int32)
    close(call(q, d, lengths), scores_by_hand(q, d, lengths))


@pytest.mark.parametrize("call", [
    lambda q, rows, cu: fm.flash_maxsim(q, rows, cu),
    lambda q, rows, cu: fm.flash_maxsim_packed(q, rows, cu),
    lambda q, rows, cu: fm.flash_maxsim_rerank(q, rows, cu, 7),
    lambda q, rows, cu: fm.flash_maxsim_rerank_direct(q, rows, cu[:-1], cu[1:] - cu[:-1], 7),
])
def test_packed_documents(call):
    q = torch.randn(3, 8)
    documents = [torch.randn(n, 8) for n in (4, 0, 7, 1)]
    rows, offsets, longest = fm.pack_docs(documents)
    assert offsets.tolist() == [0, 4, 4, 11, 12] and offsets.dtype == torch.int32 and longest == 7
    close(call(q, rows, offsets), scores_by_hand(q, documents))


def test_documents_anywhere_in_a_larger_tensor():
    q, rows = torch.randn(3, 8), torch.randn(30, 8)
    starts, lengths = torch.tensor([20, 3, 3]), torch.tensor([4, 9, 0])
    documents = [rows[s : s + n] for s, n in zip(starts, lengths)]
    close(fm.flash_maxsim_rerank_direct(q, rows, starts, lengths, 9), scores_by_hand(q, documents))


def test_pairs_of_lists_and_tensors():
    queries = [torch.randn(n, 8) for n in (2, 5, 1)]
    documents = [torch.randn(n, 8) for n in (3, 1, 6)]
    want = torch.cat([scores_by_hand(q, [d]) for q, d in zip(queries, documents)])
    close(fm.flash_maxsim_pairs(queries, documents), want)
    equal = torch.stack([torch.randn(4, 8) for _ in range(3)])
    want = torch.cat([scores_by_hand(q, [d]) for q, d in zip(equal, equal.flip(0))])
    close(fm.flash_maxsim_pairs(equal, equal.flip(0)), want)
    close(fm.flash_maxsim_pairs(list(equal), list(equal.flip(0))), want)


def test_query_lengths_hold_for_long_queries():
    q, d = torch.randn(2, 300, 8), torch.randn(3, 6, 8)
    lengths = torch.tensor([300, 140])
    found = fm.flash_maxsim_batched(q, d, query_lengths=lengths)
    want = torch.stack([scores_by_hand(x[:n], d) for x, n in zip(q, lengths)])
    close(found, want, rtol=1e-5, atol=1e-3)


def test_an_empty_query_scores_zero_even_with_empty_documents():
    q, d = torch.randn(2, 4, 8), torch.randn(3, 5, 8)
    found = fm.flash_maxsim_batched(
        q, d, torch.tensor([5, 0, 2]), query_lengths=torch.tensor([4, 0])
    )
    assert found[1].tolist() == [0, 0, 0] and found[0, 1] == -math.inf


def test_nan_shows():
    q, d = torch.randn(4, 8), torch.randn(3, 5, 8)
    d[1, 4, 0] = math.nan
    assert fm.flash_maxsim(q, d).isnan().tolist() == [False, True, False]
    assert not fm.flash_maxsim(q, d, torch.tensor([5, 4, 5])).isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_quantisers_and_their_scores(monkeypatch, dtype):
    monkeypatch.setattr(_maxima, "CHUNK_ELEMENTS", 300)
    q, d = torch.randn(4, 16).to(dtype), torch.randn(6, 5, 16)
    d[2, 1] = 0.0
    lengths = torch.tensor([5, 0, 3, 1, 5, 5])
    codes, scales, mins = fm.quantize_int8(d)
    assert codes.dtype == torch.uint8 and scales.shape == mins.shape == (6, 5, 1)
    assert scales.dtype == mins.dtype == torch.float16
    widened = fm.dequantize_int8(codes, scales, mins)
    # Half a step of the code, and what f16 makes of the least value and of the step.
    assert ((widened - d).abs() <= 0.5 * scales.float() + 2e-3).all()
    close(fm.flash_maxsim_int8(q, codes, scales, mins, lengths),
          scores_by_hand(q, widened, lengths))
    codes, scales = fm.quantize_int8_symmetric(d)
    assert codes.dtype == torch.int8 and scales.shape == (6, 5, 1)
    widened = codes.float() * scales.float()
    assert ((widened - d).abs() <= 0.51 * scales.float()).all()
    for given in (scales, scales.squeeze(-1)):
        close(fm.flash_maxsim_int8_symmetric(q, codes, given, lengths),
              scores_by_hand(q, widened, lengths))
    q_codes, q_scales = fm.quantize_query_int8(q)
    assert q_codes.dtype == torch.int8 and q_scales.shape == (4,)
    want = scores_by_hand(q_codes.double() * q_scales.double()[:, None], widened, lengths)
    close(fm.flash_maxsim_int8x8(q, codes, scales, doc_lengths=lengths), want)
    close(fm.flash_maxsim_int8x8(q, codes, scales, q_codes, q_scales, lengths), want)


@pytest.mark.parametrize("shared", [True, False])
def test_training_gradients(shared):
    q = torch.randn(3, 4, 8, dtype=torch.float32, requires_grad=True)
    d = torch.randn((5, 6, 8) if shared else (3, 5, 6, 8), requires_grad=True)
    lengths = torch.randint(0, 7, (5,) if shared else (15,))
    q_lengths = torch.tensor([4, 1, 3])
    weight = torch.randn(3, 5)
    valid = torch.arange(6) < lengths.view(d.shape[:-2]).unsqueeze(-1)
    want = torch.einsum("qsd,ntd->qnst" if shared else "qsd,qntd->qnst", q, d)
    mask = valid[None, :, None] if shared else valid[:, :, None]
    best = want.masked_fill(~mask, -math.inf).max(-1).values
    keep = (torch.arange(4) < q_lengths[:, None]).unsqueeze(1) & best.isfinite()
    torch.where(keep, best, 0.0).sum(-1).mul(weight).sum().backward()
    wanted = q.grad.clone(), d.grad.clone()
    for call in (fm.flash_maxsim_batched_train, fm.flash_maxsim_int8_batched_train):
        q.grad = d.grad = None
        found = call(q, d, shared, lengths, q_lengths)
        torch.where(found.isfinite(), found, 0.0).mul(weight).sum().backward()
        int8 = call is fm.flash_maxsim_int8_batched_train
        torch.testing.assert_close(d.grad, wanted[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(q.grad, wanted[0], rtol=1e-5, atol=5e-2 if int8 else 1e-5)
        assert not int8 or not torch.equal(q.grad, wanted[0])


def test_topk_is_exact_and_in_order():
    q, d = torch.randn(4, 8), torch.randn(30, 5, 8)
    d[7] = d[3]
    lengths = torch.full((30,), 5)
    lengths[11] = 0
    want = scores_by_hand(q, d, lengths)
    scores, indices = fm.flash_maxsim_topk(q, d, 40, lengths, n_candidates=2)
    assert indices[-1] == 11 and indices.tolist().index(7) == indices.tolist().index(3) + 1
    close(scores, want[indices])
    assert (scores[:-1] >= scores[1:]).all() and sorted(indices.tolist()) == list(range(30))
    assert fm.flash_maxsim_topk(q, d, 3)[1].shape == (3,)


def test_sparse_queries():
    q, d = torch.randn(6, 8), torch.randn(3, 5, 8)
    indices = torch.tensor([[0, 5], [2, 2], [1, 3]])
    lengths = torch.tensor([5, 2, 0])
    want = torch.cat([scores_by_hand(q[i], x[None], n[None])
                      for i, x, n in zip(indices, d, lengths)])
    close(fm.flash_maxsim_sparse(q, d, indices, lengths), want)
    want = torch.cat([scores_by_hand(q[i], x[None]) for i, x in zip(indices, d)])
    close(fm.maxsim_sparse_naive(q, d, indices), want)


def test_contrastive_step_adds_gradients():
    q, d = torch.randn(3, 4, 8), torch.randn(5, 6, 8)
    left, right = q.clone().requires_grad_(True), d.clone().requires_grad_(True)
    labels = torch.tensor([4, 0, 2])
    loss = torch.nn.functional.cross_entropy(fm.flash_maxsim_batched_train(left, right), labels)
    loss.backward()
    q.grad = torch.ones_like(q)
    found = fm.colbert_contrastive_step(q, d, labels)
    assert not found.requires_grad
    torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close(q.grad, left.grad + 1)
    torch.testing.assert_close(d.grad, right.grad)
    with pytest.raises(ValueError, match="labels"):
        fm.colbert_contrastive_step(q, d, labels[:2])


@pytest.mark.parametrize("metric", ["l2_sq", "l1"])
def test_chamfer(monkeypatch, metric):
    monkeypatch.setattr(_maxima, "CHUNK_ELEMENTS", 500)
    p, q = torch.randn(40, 3), torch.randn(50, 3)
    want = fm.naive_chamfer(p.double(), q.double(), metric)
    torch.testing.assert_close(fm.flash_chamfer(p, q, metric), want.float())
    torch.testing.assert_close(fm.naive_chamfer(p, q, metric), want.float())
    for train in (fm.flash_chamfer_train, fm.flash_chamfer_invgrid_train):
        left, right = p.clone().requires_grad_(True), q.clone().requires_grad_(True)
        train(left, right).backward()
        gap = p[:, None] - q[None]
        near = gap.square().sum(-1)
        to_q, to_p = near.argmin(1), near.argmin(0)
        grad = 2 / 40 * (p - q[to_q])
        grad.index_add_(0, to_p, -2 / 50 * (q - p[to_p]))
        torch.testing.assert_close(left.grad, grad)


def test_naive_functions_agree():
    q, d = torch.randn(4, 8), torch.randn(6, 5, 8)
    want = scores_by_hand(q, d)
    for call in (fm.maxsim_naive, fm.maxsim_naive_fp32, fm.maxsim_at_operator, fm.maxsim_bmm):
        close(call(q, d), want)
    close(fm.maxsim_chunked(q, d, chunk_size=4), want)
    close(fm.maxsim_naive_batched(q[None], d)[0], want)
    codes, scales = fm.quantize_int8_symmetric(d)
    found = fm.maxsim_naive_int8(q.half(), codes, scales)
    want = scores_by_hand(q, codes.float() * scales.float())
    close(found, want, rtol=0, atol=5e-2)


@pytest.mark.parametrize("call", [
    lambda: fm.flash_maxsim(torch.zeros(1, 3, 8), torch.zeros(2, 3, 8)),
    lambda: fm.flash_maxsim(torch.zeros(3, 8), torch.zeros(2, 3, 9)),
    lambda: fm.flash_maxsim(torch.zeros(3, 8), torch.zeros(20, 8)),
    lambda: fm.flash_maxsim_batched(torch.zeros(2, 3, 8), torch.zeros(3, 2, 3, 8), None, False),
    lambda: fm.flash_maxsim_batched_train(torch.zeros(2, 3, 8), torch.zeros(2, 2, 3, 8)),
    lambda: fm.flash_maxsim_pairs([torch.zeros(2, 8)], []),
    lambda: fm.flash_maxsim_pairs_dense(torch.zeros(2, 3, 8), torch.zeros(3, 3, 8)),
    lambda: fm.flash_maxsim_rerank_padded(torch.zeros(2, 3, 8), torch.zeros(3, 2, 3, 8)),
    lambda: fm.flash_maxsim_topk(torch.zeros(1, 3, 8), torch.zeros(2, 3, 8), 1),
    lambda: fm.quantize_int8(torch.zeros(3, 8)),
    lambda: fm.flash_chamfer(torch.zeros(3, 2), torch.zeros(3, 3)),
    lambda: fm.flash_chamfer(torch.zeros(3, 2), torch.zeros(3, 2), "cosine"),
])
def test_errors_are_both_of_what_callers_catch(call):
    for kind in (AssertionError, ValueError):
        with pytest.raises(kind):
            call()


def test_every_exported_name_is_there():
    assert all(hasattr(fm, name) for name in fm.__all__)
    assert fm.warmup([(3, 2, 4, 8)], [(3, 2, 4, 8)])["bwd_shapes"] == 1
    if not torch.cuda.is_available():
        assert fm.warmup()["fwd_shapes"] == 0
