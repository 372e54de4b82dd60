"""What the names of late-interaction-kernels promise beyond what its own tests look at."""

import importlib
import math
import warnings

import pytest
import torch

from maxsim.compat import late_interaction_kernels as lik
from maxsim.compat.late_interaction_kernels import (
    autograd,
    colpali_compat,
    forward,
    fp8,
    fused_head,
    padded,
    plaid,
    pylate_compat,
    reference,
    score_pairs,
    topk,
)
from maxsim.compat.late_interaction_kernels.mps import maxsim_mps
from maxsim.composed import _maxima
from places import PLACES, tensors_at


@pytest.fixture(autouse=True, params=PLACES)
def place(request, monkeypatch):
    torch.manual_seed(3)
    monkeypatch.setenv("LIK_SUPPRESS_NORM_WARN", "1")
    with tensors_at(request.param):
        yield request.param


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(_maxima, "CHUNK_ELEMENTS", 120)


def oracle(q, d, q_mask=None, d_mask=None):
    """f64 scores of all against all; 0 for a document without a valid token."""
    products = torch.einsum("qsd,ntd->qnst", q.double(), d.double())
    if d_mask is not None:
        products = products.masked_fill(~d_mask[None, :, None], -math.inf)
    best = products.max(-1).values
    best = torch.where(best == -math.inf, 0.0, best)
    if q_mask is not None:
        best = torch.where(q_mask[:, None], best, 0.0)
    return best.sum(-1)


def test_f32_is_not_rounded():
    q, d = torch.randn(3, 8, 128), torch.randn(4, 30, 128)
    rounded = oracle(q.half(), d.half())
    error = (lik.maxsim(q, d).double() - oracle(q, d)).abs().max()
    assert error < 1e-4 < (rounded - oracle(q, d)).abs().max()


@pytest.mark.parametrize("left, right, kind", [
    (torch.float32, torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32, torch.float16),
    (torch.float16, torch.bfloat16, torch.bfloat16),
    (torch.float64, torch.float32, torch.float32),
])
def test_sides_of_two_types_meet_in_the_narrower(left, right, kind):
    q, d = torch.randn(2, 5, 16).to(left), torch.randn(3, 7, 16).to(right)
    q.requires_grad_(True)
    d.requires_grad_(True)
    scores = lik.maxsim(q, d)
    assert scores.dtype == torch.float32
    want = oracle(q.detach().to(kind), d.detach().to(kind))
    torch.testing.assert_close(scores.double(), want, rtol=1e-5, atol=1e-4)
    scores.sum().backward()
    assert q.grad.dtype == left and d.grad.dtype == right


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_of_holes_and_other_types(dtype):
    q, d = torch.randn(3, 6, 8, dtype=dtype), torch.randn(4, 9, 8, dtype=dtype)
    q_mask, d_mask = torch.rand(3, 6) > 0.4, torch.rand(4, 9) > 0.5
    d_mask[2] = False
    q_mask[1] = False
    want = oracle(q, d, q_mask, d_mask)
    for cast in (torch.bool, torch.int64, torch.float32, torch.uint8):
        found = lik.maxsim(q, d, q_mask.to(cast), d_mask.to(cast))
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-4)
    assert (want[1] == 0).all() and (want[:, 2] == 0).all()


def test_nan_shows_and_masked_nan_does_not():
    q, d = torch.randn(2, 3, 8), torch.randn(3, 4, 8)
    d[1, 2, 0] = math.nan
    mask = torch.ones(3, 4, dtype=torch.bool)
    assert lik.maxsim(q, d).isnan().tolist() == [[False, True, False]] * 2
    assert reference.maxsim_reference(q, d).isnan().tolist() == [[False, True, False]] * 2
    mask[1, 2] = False
    assert not lik.maxsim(q, d, d_mask=mask).isnan().any()


@pytest.mark.parametrize("side", [0, 1])
def test_a_gradient_of_one_side(side):
    sides = [torch.randn(2, 3, 8), torch.randn(3, 4, 8)]
    sides[side].requires_grad_(True)
    lik.maxsim(*sides).sum().backward()
    both = [x.detach().clone().requires_grad_(True) for x in sides]
    lik.maxsim(*both).sum().backward()
    torch.testing.assert_close(sides[side].grad, both[side].grad)
    assert sides[1 - side].grad is None


def test_shapes_of_results():
    q, d = torch.randn(2, 3, 8), torch.randn(4, 5, 8)
    assert lik.maxsim(q, d[0]).shape == (2,) and lik.maxsim(q[0], d).shape == (4,)
    assert lik.maxsim(q[0], d[0]).shape == () and lik.maxsim(q, d[:2, None]).shape == (2, 1)
    assert lik.maxsim_pairs(q, d[:2]).shape == (2,)
    assert lik.maxsim(q, d[:0]).shape == (2, 0) and lik.maxsim(q[:0], d).shape == (0, 4)


def test_the_warning_of_rows_that_are_not_normalised(monkeypatch):
    monkeypatch.delenv("LIK_SUPPRESS_NORM_WARN")
    monkeypatch.setattr(autograd, "_NORM_CHECKED", False)
    q, d = 5 * torch.randn(2, 3, 8), torch.randn(4, 5, 8)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        lik.maxsim(q, d, normalize=True)
        assert not seen
        lik.maxsim(q, d)
        lik.maxsim(q, d)
    assert len(seen) == 1 and "normalize=True" in str(seen[0].message)


def test_packed_empty_items():
    q, d = torch.randn(7, 8), torch.randn(9, 8)
    q_off, d_off = torch.tensor([0, 3, 3, 7]), torch.tensor([0, 0, 9, 9])
    found = lik.maxsim_varlen(q, d, q_off, d_off)
    torch.testing.assert_close(found, reference.maxsim_reference_varlen(q, d, q_off, d_off))
    assert (found[1] == 0).all() and (found[:, [0, 2]] == 0).all()
    ids = torch.tensor([2, 0, 1]), torch.tensor([1, 2, 1])
    found = score_pairs.score_pairs_packed(q, d, q_off, d_off, *ids)
    want = reference.maxsim_reference_scatter(q, d, q_off, d_off, *ids)
    torch.testing.assert_close(found, want)
    none = torch.zeros(0, dtype=torch.int32)
    assert score_pairs.score_pairs_packed(q, d, q_off, d_off, none, none).shape == (0,)


@pytest.mark.parametrize("call", [
    lambda q, d: lik.maxsim(q, d[..., :4]),
    lambda q, d: lik.maxsim(q[:, None], d),
    lambda q, d: lik.maxsim(q, d, backward="fast"),
    lambda q, d: lik.maxsim(q, d.to("meta")),
    lambda q, d: lik.maxsim(q, d, q_mask=torch.ones(2, 4)),
    lambda q, d: lik.maxsim(q, d, d_mask=torch.ones(3, 4)),
    lambda q, d: lik.maxsim(q, d[None, :1]),
    lambda q, d: lik.maxsim(q[:1], d[None], d_mask=torch.ones(1, 3, 5)),
    lambda q, d: lik.maxsim_pairs(q, d),
    lambda q, d: lik.maxsim_varlen(q, d[0], torch.tensor([0]), torch.tensor([0])),
    lambda q, d: lik.maxsim_varlen(q[0], d[0, :, :4], torch.tensor([0]), torch.tensor([0])),
    lambda q, d: lik.retrieve(q, d, 0),
    lambda q, d: topk.maxsim_topk(q, d, -1),
    lambda q, d: padded.maxsim_padded(q, d[None], torch.ones(2), torch.ones(1, 4)),
])
def test_refused(call):
    with pytest.raises(ValueError):
        call(torch.randn(2, 3, 8), torch.randn(4, 5, 8))


def test_lengths_are_checked(place):
    if place == "cuda":
        pytest.skip("a failed assertion on the device ends the process's use of it")
    q, d = torch.randn(2, 3, 8), torch.randn(2, 2, 4, 8)
    good = torch.tensor([3, 2]), torch.tensor([[4, 1], [2, 3]])
    for bad in ((torch.tensor([4, 2]), good[1]), (good[0], torch.tensor([[4, 1], [2, 5]]))):
        with pytest.raises(RuntimeError, match="exceeds"):
            padded.maxsim_padded(q, d, *bad)
        with pytest.raises(ValueError, match="exceeds"):
            padded.maxsim_padded(q, d, *bad, validate=True)
    want = reference.maxsim_padded_reference(q, d, *good)
    torch.testing.assert_close(padded.maxsim_padded(q, d, *good), want)
    with pytest.raises(RuntimeError, match="max_seqlen_d=3"):
        lik.maxsim_varlen(q[0], d[0, 0], torch.tensor([0, 3]), torch.tensor([0, 4]), 3, 3)


def test_retrieve_orders_equals_and_nan():
    q, d = torch.randn(1, 3, 8), torch.randn(9, 4, 8)
    d[5] = d[2]
    d[7, 0, 0] = math.nan
    for chunk in (None, 1, 4):
        scores, indices = lik.retrieve(q, d, 9, normalize=False, chunk=chunk)
        order = indices[0].tolist()
        assert order[-1] == 7 and order.index(5) == order.index(2) + 1
        assert indices.dtype == torch.int64
        low = lik.retrieve(q, d, 2, normalize=False, chunk=chunk, largest=False)
        assert low[0][0, 0] == scores[0, 7] and low[1][0, 0] == order[7]


def test_winners():
    q, d = torch.randn(2, 3, 8), torch.randn(4, 5, 8)
    mask = torch.rand(4, 5) > 0.5
    mask[1] = False
    scores, winners = forward.maxsim_forward(q, d, d_mask=mask, save_argmax=True)
    products = torch.einsum("qsd,ntd->qnst", q, d).masked_fill(~mask[None, :, None], -math.inf)
    want = torch.where(mask.any(-1)[None, :, None], products.argmax(-1), -1)
    assert winners.dtype == torch.int32 and torch.equal(winners.view(2, 4, 3).long(), want)
    assert forward.maxsim_forward(q, d)[1] is None
    torch.testing.assert_close(scores.double(), oracle(q, d, d_mask=mask))


def index(count, length, dim, nbits, centroids=11):
    buckets = torch.randint(0, 2**nbits, (count, length, dim))
    packed = torch.zeros(count, length, (dim * nbits + 7) // 8, dtype=torch.uint8)
    for place in range(dim):
        byte, slot = divmod(place, 8 // nbits)
        packed[..., byte] |= (buckets[..., place] << (slot * nbits)).to(torch.uint8)
    codes = torch.randint(0, centroids, (count, length))
    centers, weights = torch.randn(centroids, dim), torch.randn(2**nbits) * 0.3
    return codes, packed, centers, weights, centers[codes] + weights[buckets]


@pytest.mark.parametrize("nbits", [2, 4, 8])
@pytest.mark.parametrize("normalize", [True, False])
def test_residual_scores_and_gradients(small_chunks, nbits, normalize):
    codes, packed, centers, weights, tokens = index(5, 6, 10, nbits)
    lengths = torch.tensor([6, 1, 4, 2, 6])
    mask = torch.arange(6) < lengths[:, None]
    q = torch.randn(3, 4, 10, requires_grad=True)
    found = plaid.maxsim_residual(
        q, codes, packed, lengths, centers, weights, nbits, normalize=normalize
    )
    want = reference.maxsim_reference(q, tokens, d_mask=mask, normalize=normalize)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    weight = torch.randn(3, 5)
    (left,) = torch.autograd.grad((found * weight).sum(), q)
    (right,) = torch.autograd.grad((want * weight).sum(), q)
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    flat = [x[mask] for x in (codes, packed)]
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    varlen = plaid.maxsim_residual_varlen(
        q, *flat, offsets, centers, weights, nbits, normalize=normalize, max_seqlen_d=6
    )
    torch.testing.assert_close(varlen, want.detach(), rtol=1e-5, atol=1e-5)
    full = reference.maxsim_residual_reference(
        q, codes, packed, lengths, centers, weights, nbits, normalize=normalize
    )
    torch.testing.assert_close(full, want)


def test_approximate_scores(small_chunks):
    table = torch.randn(7, 5)
    codes = torch.randint(0, 7, (6, 4))
    lengths = torch.tensor([4, 0, 1, 3, 4, 2])
    want = reference.plaid_approx_score_reference(table, codes, lengths)
    torch.testing.assert_close(plaid.plaid_approx_score(table, codes, lengths), want)
    bad = codes.clone()
    bad[0, 0], bad[2, 0] = 7, -1
    zeroed = bad.clone()
    zeroed[0, 0] = zeroed[2, 0] = 0
    torch.testing.assert_close(
        plaid.plaid_approx_score(table, bad, lengths),
        reference.plaid_approx_score_reference(table, zeroed, lengths),
    )


@pytest.mark.parametrize("change", [
    dict(nbits=3), dict(codes=torch.zeros(5)), dict(residuals=torch.zeros(5, 6, 9)),
    dict(residuals=torch.zeros(5, 6)), dict(doc_lengths=torch.ones(4)),
])
def test_residual_refuses(change):
    codes, packed, centers, weights, _ = index(5, 6, 10, 4)
    given = dict(Q=torch.randn(3, 4, 10), codes=codes, residuals=packed,
                 doc_lengths=torch.full((5,), 6), centroids=centers, bucket_weights=weights,
                 nbits=4)
    with pytest.raises(ValueError):
        plaid.maxsim_residual(**{**given, **change})


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("per_token", [True, False])
def test_fp8_scores_are_of_the_codes(small_chunks, per_token, dtype):
    q, d = torch.randn(2, 3, 16), torch.randn(5, 6, 16)
    quantize = fp8.quantize_fp8_per_token if per_token else fp8.quantize_fp8_per_tensor
    widen = fp8.dequantize_fp8_per_token if per_token else fp8.dequantize_fp8_per_tensor
    (qc, qs), (dc, ds) = quantize(q, dtype), quantize(d, dtype)
    mask = torch.rand(5, 6) > 0.3
    found = fp8.maxsim_inference_fp8(qc, dc, scale_Q=qs, scale_D=ds, d_mask=mask)
    want = oracle(widen(qc, qs), widen(dc, ds), d_mask=mask)
    # Tensor cores add products of e4m3 with fewer bits than f32: 4e-4 of the products' sizes.
    sizes = oracle(widen(qc, qs).abs(), widen(dc, ds).abs(), d_mask=mask)
    bound = (4e-4 if q.is_cuda else 1e-6) * sizes + 1e-5
    assert ((found.double() - want).abs() <= bound).all()
    # e4m3 has 4 bits: half a unit of the last is 2^-4 of a value, or of the least normal one.
    bits = 4 if dtype == torch.float8_e4m3fn else 3
    bound = 2.0**-bits * q.abs() + 2.0**-10 * (qs.unsqueeze(-1) if per_token else qs)
    assert ((widen(qc, qs) - q).abs() <= bound).all()
    assert qc.dtype == dtype and qc.float().abs().max() == torch.finfo(dtype).max
    single = fp8.maxsim_inference_fp8(qc[0], dc[0], scale_Q=qs[0] if per_token else qs,
                                      scale_D=ds[0] if per_token else ds, d_mask=mask[0])
    torch.testing.assert_close(single, found[0, 0])


def test_projected_documents():
    q, h, w = torch.randn(2, 3, 8), torch.randn(4, 5, 12), torch.randn(8, 12)
    b, mask = torch.randn(8), torch.rand(4, 5) > 0.3
    want = reference.maxsim_from_hidden_reference(q, h, w, b, mask)
    torch.testing.assert_close(fused_head.maxsim_from_hidden(q, h, w, b, mask), want)
    single = fused_head.maxsim_from_hidden(q[0], h, w, b, mask)
    torch.testing.assert_close(single, want[0])
    for change in (dict(W=w.T), dict(b=b[:3]), dict(H_d=h[0]), dict(Q=q[0, 0])):
        with pytest.raises(ValueError):
            fused_head.maxsim_from_hidden(**{**dict(Q=q, H_d=h, W=w, b=b), **change})


def test_patches_are_the_integrations(monkeypatch):
    calls = []
    for module, name in ((colpali_compat, "colpali"), (pylate_compat, "pylate")):
        monkeypatch.setattr(module, "_NATIVE_NOTICE_SHOWN", False)
        integration = importlib.import_module(f"maxsim.integrations.{name}")
        monkeypatch.setattr(integration, "enable", lambda n=name, **o: calls.append((n, o)))
        monkeypatch.setattr(integration, "disable", lambda n=name: calls.append((n, None)))
    monkeypatch.setattr(pylate_compat, "package_at_least", lambda name, minimum: True)
    with pytest.warns(DeprecationWarning, match="integrations.colpali"):
        lik.patch_colpali_engine()
    lik.unpatch_colpali_engine()
    with pytest.warns(DeprecationWarning, match="integrations.pylate"):
        lik.patch_pylate()
    lik.unpatch_pylate()
    want = [("colpali", {}), ("colpali", None), ("pylate", {"masked": "skip"}), ("pylate", None)]
    assert calls == want


def test_every_exported_name_is_there():
    assert all(hasattr(lik, name) for name in lik.__all__)
    assert maxsim_mps(torch.randn(2, 3, 8), torch.randn(4, 5, 8)).shape == (2, 4)
