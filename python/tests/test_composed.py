"""Projection, XTR, Chamfer and top-k in the library's order, which are composed in torch."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import maxsim
from maxsim import composed
from maxsim.compat import flash_maxsim
from maxsim.compat.late_interaction_kernels import plaid, reference
from maxsim.composed import _maxima, _order
from maxsim.composed._chamfer import chamfer, nearest
from maxsim.composed._hidden import from_hidden
from maxsim.composed._projection import project
from maxsim.composed._xtr import xtr
from places import PLACES, tensors_at


@pytest.fixture(autouse=True, params=PLACES)
def place(request):
    torch.manual_seed(5)
    with tensors_at(request.param):
        yield request.param


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few elements, so that every loop goes round more than once."""
    monkeypatch.setattr(_maxima, "CHUNK_ELEMENTS", 200)


def test_names_of_the_package():
    for name in ("angular", "chamfer", "from_hidden", "project", "xtr", "xtr_search"):
        assert getattr(maxsim, name) is getattr(composed, name) and name in maxsim.__all__


# --- top-k -------------------------------------------------------------------------------------


def by_hand(row, empty, k, largest=True):
    def key(i):
        value = row[i]
        rank = 2 if empty[i] else 1 if math.isnan(value) else 0
        order = 0.0 if rank else (-value if largest else value)
        return (rank, order, i)

    return sorted(range(len(row)), key=key)[:k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_is_in_the_order_of_the_library(dtype, largest):
    values = [1.0, math.nan, -0.0, 0.0, math.inf, -math.inf, 1.0, 2.0, -3.5, 1e-40, -1e-40, 2.0]
    scores = torch.tensor([values, values[::-1]], dtype=dtype)
    empty = torch.zeros(12, dtype=torch.bool)
    empty[[2, 7]] = True
    for k in (0, 1, 5, 12, 40):
        found, indices = _order.topk(scores, k, empty=empty, largest=largest)
        assert indices.dtype == torch.int64 and found.shape == (2, min(k, 12))
        for row, places in zip(scores.tolist(), indices.tolist()):
            assert places == by_hand(row, empty.tolist(), k, largest)
        torch.testing.assert_close(found, scores.gather(-1, indices), equal_nan=True)


def test_topk_refuses_a_negative_k():
    with pytest.raises(ValueError, match="k must not be negative"):
        _order.topk(torch.zeros(3), -1)


# --- token maxima ------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
def test_token_maxima_and_gradients(small_chunks, own):
    q = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    shape = (3, 5, 7, 6) if own else (5, 7, 6)
    d = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape[:-1]) > 0.4
    mask[..., 2, :] = False
    maxima, winners = _maxima.token_maxima(q, d, mask)
    products = torch.einsum("qsd,qntd->qnst" if own else "qsd,ntd->qnst", q, d)
    valid = mask.unsqueeze(2) if own else mask.unsqueeze(0).unsqueeze(2)
    want = products.masked_fill(~valid, -math.inf).max(-1)
    some = mask.any(-1).expand(3, 5).unsqueeze(-1)
    torch.testing.assert_close(maxima, torch.where(some, want.values, 0.0))
    assert torch.equal(winners.long(), torch.where(some, want.indices, -1).expand(winners.shape))
    weight = torch.randn_like(maxima)
    found = torch.autograd.grad((maxima * weight).sum(), (q, d))
    wanted = torch.autograd.grad((torch.where(some, want.values, 0.0) * weight).sum(), (q, d))
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b)


def test_token_maxima_of_nothing():
    for shape in ((0, 4, 6), (5, 0, 6)):
        maxima, winners = _maxima.find(torch.randn(2, 3, 6), torch.randn(shape))
        assert maxima.shape == (2, shape[0], 3) and (maxima == 0).all() and (winners == -1).all()


# --- projection --------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_projection_gradcheck(small_chunks, normalize, bias):
    h = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    w = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    b = torch.randn(5, dtype=torch.float64, requires_grad=True) if bias else None
    want = torch.nn.functional.linear(h, w, b)
    if normalize:
        want = torch.nn.functional.normalize(want, dim=-1)
    torch.testing.assert_close(project(h, w, b, normalize=normalize), want)
    given = (h, w, b) if bias else (h, w)
    assert torch.autograd.gradcheck(lambda *x: project(*x, normalize=normalize), given)


def test_projection_is_rounded_once():
    h, w = torch.randn(40, 64).bfloat16(), torch.randn(16, 64).bfloat16()
    want = torch.nn.functional.normalize(h.double() @ w.double().T, dim=-1)
    found = project(h, w)
    assert found.dtype == torch.bfloat16
    # One rounding to bf16 of what is right to f32: half a unit in the last of 8 bits.
    assert ((found.double() - want).abs() <= want.abs() * 2.0**-8 + 1e-6).all()
    assert project(h, w, dtype=torch.float32).dtype == torch.float32


def test_a_clamped_row_is_divided_by_a_constant():
    h = torch.full((1, 2), 1e-8, dtype=torch.float64, requires_grad=True)
    w = torch.eye(2, dtype=torch.float64)
    out = project(h, w)
    torch.testing.assert_close(out, h.detach() * 1e6)
    out.sum().backward()
    torch.testing.assert_close(h.grad, torch.full_like(h, 1e6))


@pytest.mark.parametrize("own", [False, True])
def test_from_hidden(own):
    q = torch.nn.functional.normalize(torch.randn(2, 4, 8), dim=-1).requires_grad_(True)
    h = torch.randn((2, 3, 6, 12) if own else (3, 6, 12), requires_grad=True)
    w, b = torch.randn(8, 12, requires_grad=True), torch.randn(8, requires_grad=True)
    mask = torch.rand(h.shape[:-1]) > 0.3
    rows = torch.nn.functional.normalize(torch.nn.functional.linear(h, w, b), dim=-1)
    want = _maxima.scores(q, rows, None, mask)
    found = from_hidden(q, h, w, b, d_mask=mask)
    torch.testing.assert_close(found, want)
    weight = torch.randn_like(want)
    sides = (q, h, w, b)
    for a, c in zip(torch.autograd.grad((found * weight).sum(), sides),
                    torch.autograd.grad((want * weight).sum(), sides)):
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("change, error", [
    (dict(weight=torch.zeros(8, 11)), ValueError),
    (dict(bias=torch.zeros(7)), ValueError),
    (dict(hidden=torch.zeros(2, 12, dtype=torch.int32)), TypeError),
    (dict(dtype=torch.int8), TypeError),
])
def test_projection_refuses(change, error):
    given = dict(hidden=torch.zeros(2, 12), weight=torch.zeros(8, 12), bias=torch.zeros(8))
    with pytest.raises(error):
        project(**{**given, **change})


# --- XTR ---------------------------------------------------------------------------------------


def xtr_by_hand(q, d, k, q_mask, d_mask, normalizer):
    n_queries, length = q.shape[:2]
    own = d.dim() == 4
    count = d.shape[-3]
    scores = torch.zeros(n_queries, count, dtype=q.dtype)
    for i in range(n_queries):
        docs = d[i] if own else d
        valid = d_mask[i] if own else d_mask
        total, kept = torch.zeros(count, dtype=q.dtype), torch.zeros(count)
        for s in range(length):
            if not q_mask[i, s]:
                continue
            similarities = (docs @ q[i, s])
            seen = similarities[valid]
            tau = seen.sort(descending=True).values[k - 1] if len(seen) >= k else -math.inf
            for j in range(count):
                if valid[j].any():
                    best = similarities[j][valid[j]].max()
                    if best >= tau:
                        total[j] = total[j] + best
                        kept[j] += 1
        z = {"retrieved": kept, "query": torch.full_like(kept, float(q_mask[i].sum())),
             "none": torch.ones_like(kept)}[normalizer]
        scores[i] = total / z.clamp_min(1)
    return scores


@pytest.mark.parametrize("normalizer", ["retrieved", "query", "none"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("k", [1, 4, 500])
def test_xtr(small_chunks, own, k, normalizer):
    q = torch.randn(3, 4, 8)
    d = torch.randn((3, 5, 6, 8) if own else (5, 6, 8))
    q_mask, d_mask = torch.rand(3, 4) > 0.2, torch.rand(d.shape[:-1]) > 0.3
    d_mask[..., 1, :] = False
    want = xtr_by_hand(q, d, k, q_mask, d_mask, normalizer)
    found = xtr(q, d, k=k, q_mask=q_mask, d_mask=d_mask, normalizer=normalizer)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)


def test_xtr_gradients_go_through_what_was_retrieved():
    q = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    d = torch.randn(4, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: xtr(a, b, k=3), (q, d))


def test_xtr_shows_nan_and_counts_equals():
    # Integers: products of equal rows are equal however a processor adds them.
    q = torch.tensor([[[1.0, -2.0, 3.0, 1.0], [2.0, 0.0, -1.0, 4.0]]])
    d = torch.tensor([3.0, 1.0, 2.0, 1.0]).expand(3, 2, 4).contiguous()
    every = xtr(q, d, k=1)
    torch.testing.assert_close(every, every[:, :1].expand(1, 3))  # equals at τ are retrieved
    d[1, 0, 0] = math.nan
    found = xtr(q, d, k=1)
    assert found.isnan().tolist() == [[False, True, False]]
    torch.testing.assert_close(found[:, [0, 2]], every[:, [0, 2]])  # NaN is no threshold


def test_xtr_takes_masks_and_lengths_together():
    q, d = torch.randn(2, 3, 4), torch.randn(4, 5, 4)
    mask, lengths = torch.rand(4, 5) > 0.3, torch.tensor([5, 2, 0, 4])
    both = mask & (torch.arange(5) < lengths[:, None])
    found = xtr(q, d, k=3, d_mask=mask, d_lengths=lengths, q_lengths=torch.tensor([3, 1]))
    q_mask = torch.tensor([[True] * 3, [True, False, False]])
    torch.testing.assert_close(found, xtr(q, d, k=3, d_mask=both, q_mask=q_mask))
    with pytest.raises(ValueError, match="d_lengths"):
        xtr(q, d, d_lengths=lengths[:3])


def test_xtr_as_pylate():
    # One query token 1 against documents of these similarities; what PyLate 1.6 gives for them.
    def of(documents, k, mask=None):
        d = torch.tensor(documents).unsqueeze(-1)
        d_mask = None if mask is None else torch.tensor(mask)
        return xtr(torch.ones(1, 1, 1), d, k=k, d_mask=d_mask, normalizer="pylate")[0].tolist()

    # A maximum below 0 counts where the whole document was retrieved, and is divided by 1e-3.
    assert of([[-1.0, -2.0], [-3.0, 1.0]], 3) == pytest.approx([-1000.0, 1.0])
    assert of([[-1.0, -2.0], [-3.0, 1.0]], 2) == [0.0, 1.0]
    # A masked token is one that was not retrieved.
    assert of([[-1.0, 0.0], [2.0, 1.0]], 3, [[True, False], [True, True]]) == [0.0, 2.0]


def test_xtr_refuses():
    q, d = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="k must be"):
        xtr(q, d, k=0)
    with pytest.raises(ValueError, match="normalizer"):
        xtr(q, d, normalizer="sum")
    with pytest.raises(ValueError, match="dim"):
        xtr(q, torch.zeros(2, 3, 5))


# --- Chamfer -----------------------------------------------------------------------------------


def test_nearest_is_the_first_of_equals_and_shows_nan(small_chunks):
    p = torch.tensor([[0.0, 0.0], [5.0, 5.0], [math.nan, 0.0]])
    q = torch.tensor([[3.0, 0.0], [0.0, 3.0], [9.0, 9.0]]).repeat(40, 1)
    distance, place = nearest(p, q)
    assert place[:2].tolist() == [0, 0] and distance[:2].tolist() == [9.0, 29.0]
    assert distance[2].isnan()


def test_chamfer_of_clouds_that_nearly_coincide():
    p = torch.nn.functional.normalize(torch.randn(300, 3), dim=-1)
    q = p + 1e-3 * torch.randn(300, 3)
    matrix = (p.double()[:, None] - q.double()[None]).square().sum(-1)
    want = matrix.min(1).values.mean() + matrix.min(0).values.mean()
    assert abs(chamfer(p, q).item() / want.item() - 1) < 1e-6
    assert torch.equal(nearest(p, q)[1], matrix.argmin(1))


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "max"])
@pytest.mark.parametrize("single", [False, True])
def test_chamfer_batch(small_chunks, norm, reduction, single):
    x = torch.randn(3, 7, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 9, 2, dtype=torch.float64, requires_grad=True)
    x_lengths, y_lengths = torch.tensor([7, 3, 0]), torch.tensor([9, 1, 4])
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    reduce = {"mean": torch.mean, "sum": torch.sum, "max": torch.max}[reduction]
    want = torch.zeros(3, dtype=torch.float64)
    for i, (n, m) in enumerate(zip(x_lengths, y_lengths)):
        if n and m:
            gap = x[i, :n, None] - y[i, None, :m]
            matrix = gap.abs().sum(-1) if norm == 1 else gap.square().sum(-1)
            want[i] = reduce(matrix.min(1).values)
            if not single:
                want[i] = want[i] + reduce(matrix.min(0).values)
    options = dict(x_lengths=x_lengths, y_lengths=y_lengths, norm=norm,
                   point_reduction=reduction, single_directional=single)
    torch.testing.assert_close(chamfer(x, y, batch_reduction="none", **options), want)
    found = chamfer(x, y, weights=weights, **options)
    total = (want * weights).sum() / weights.sum()
    torch.testing.assert_close(found, total)
    for a, b in zip(torch.autograd.grad(found, (x, y)), torch.autograd.grad(total, (x, y))):
        torch.testing.assert_close(a, b)


def test_chamfer_without_reduction_and_with_normals():
    x, y = torch.randn(4, 3), torch.randn(6, 3)
    flat = chamfer(x, y, point_reduction="none")
    assert flat.shape == (10,)
    torch.testing.assert_close(flat[:4].mean() + flat[4:].mean(), chamfer(x, y))
    distance, normals = chamfer(x, y, x_normals=x, y_normals=y)
    want = []
    for left, right in ((x, y), (y, x)):
        chosen = right[nearest(left, right)[1]]
        want.append((1 - torch.cosine_similarity(left, chosen, dim=-1).abs()).mean())
    torch.testing.assert_close(normals, want[0] + want[1])
    torch.testing.assert_close(distance, chamfer(x, y))


def test_chamfer_of_nothing_is_zero_and_takes_no_gradient():
    x = torch.zeros(0, 3, requires_grad=True)
    y = torch.randn(4, 3, requires_grad=True)
    value = chamfer(x, y)
    assert value.item() == 0.0
    for gradient in torch.autograd.grad(value, (x, y)):
        assert not gradient.any()


@pytest.mark.parametrize("change, error", [
    (dict(y=torch.zeros(4, 2)), ValueError),
    (dict(y=torch.zeros(1, 4, 3)), ValueError),
    (dict(norm=3), ValueError),
    (dict(point_reduction="median"), ValueError),
    (dict(batch_reduction="max"), ValueError),
    (dict(x=torch.zeros(4, 3, dtype=torch.int32)), TypeError),
    (dict(x_normals=torch.zeros(4, 3)), ValueError),
])
def test_chamfer_refuses(change, error):
    given = dict(x=torch.zeros(4, 3), y=torch.zeros(5, 3))
    with pytest.raises(error):
        chamfer(**{**given, **change})


# --- autocast ----------------------------------------------------------------------------------


def test_autocast_changes_nothing(place):
    q, h = torch.randn(2, 3, 8), torch.randn(4, 5, 12)
    w = torch.randn(8, 12, requires_grad=True)

    def run():
        rows = project(h, w)
        scores = from_hidden(q, h, w) + xtr(q, rows, k=3) + _maxima.scores(q, rows.double())
        return scores, torch.autograd.grad(scores.sum(), w)[0]

    plain = run()
    with torch.autocast("cuda" if place == "cuda" else "cpu", dtype=torch.bfloat16):
        cast = run()
    for a, b in zip(plain, cast):
        assert torch.equal(a, b)


# --- memory ------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements that any result of torch had."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def _residual(q, d):
    codes = torch.randint(0, 9, d.shape[:-1])
    packed = torch.zeros(*d.shape[:-1], q.shape[-1] // 2, dtype=torch.uint8)
    lengths = torch.full((len(d),), d.shape[1])
    return plaid.maxsim_residual(q, codes, packed, lengths, torch.randn(9, 4), torch.ones(16), 4)


@pytest.mark.parametrize("call", [
    lambda q, d: xtr(q, d, k=5),
    lambda q, d: _maxima.scores(q.double(), d.double()),
    lambda q, d: reference.maxsim_reference(q, d, normalize=True),
    lambda q, d: from_hidden(q, d, torch.randn(4, 4, requires_grad=True)),
    lambda q, d: flash_maxsim.maxsim_naive(q.flatten(0, 1), d),
    lambda q, d: chamfer(q.flatten(0, 1), d.flatten(0, 1)),
    lambda q, d: flash_maxsim.flash_maxsim_int8_batched_train(q, d),
    _residual,
], ids=["xtr", "f64", "reference", "hidden", "naive", "chamfer", "int8", "residual"])
def test_similarities_of_all_tokens_are_never_held(monkeypatch, call):
    monkeypatch.setattr(_maxima, "CHUNK_ELEMENTS", 20_000)
    q = torch.randn(16, 24, 4, requires_grad=True)
    d = torch.randn(40, 32, 4, requires_grad=True)
    with Largest() as largest:
        call(q, d).sum().backward()
    # 491 520 similarities; maxima and winners of all pairs are 15 360, one document's 12 288.
    assert largest.elements <= 4 * 20_000
