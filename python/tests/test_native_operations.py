"""XTR and projection by the library, against the same composed of torch in float64."""

import pytest
import torch

import maxsim
from maxsim import _maxsim
from maxsim.composed import _calls, _hidden, _maxima, _projection, _xtr
from places import PLACES

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NEAR = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True, params=[place for place in PLACES if place != "mode"])
def place(request):
    torch.manual_seed(11)
    return torch.device(request.param)


def refuse(*_, **__):
    raise AssertionError("composed of torch")


def same(found, wanted, dtype):
    assert found.shape == wanted.shape
    torch.testing.assert_close(found.double(), wanted.double(), rtol=NEAR[dtype], atol=NEAR[dtype])


def leaves(*tensors):
    return [x.detach().clone().requires_grad_(True) for x in tensors]


def compare(ours, reference, given, dtype):
    """Compares scores and gradients of a call with those in float64."""
    own, wide = leaves(*given), leaves(*(x.double() for x in given))
    found, wanted = ours(*own), reference(*wide)
    assert found.dtype == torch.float32 and found.device == given[0].device
    same(found, wanted, dtype)
    step = torch.randn_like(found)
    (found * step).sum().backward()
    (wanted * step.double()).sum().backward()
    for a, b in zip(own, wide):
        assert a.grad.dtype == dtype
        same(a.grad, b.grad, dtype)
    with torch.no_grad():
        same(ours(*given), found, dtype)
    return found


# --- XTR ---------------------------------------------------------------------------------------


@pytest.fixture
def only_native(monkeypatch):
    """The library alone may score, but for what is f64."""
    for name in ("_composed", "_composed_search"):
        of = getattr(_xtr, name)
        monkeypatch.setattr(_xtr, name, lambda q, *x, of=of: (
            of(q, *x) if q.dtype == torch.float64 else refuse()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalizer", ["retrieved", "query", "none"])
@pytest.mark.parametrize("own, pool", [(False, "paired"), (True, "paired"), (True, "all")])
@pytest.mark.parametrize("normalize", [False, True])
def test_xtr(only_native, place, dtype, normalizer, own, pool, normalize):
    # Similarities of whole numbers: which tokens are retrieved is the same in every type.
    def whole(*shape):
        return torch.randint(-4, 5, shape, device=place).to(dtype)

    if normalize:
        q, d = (torch.randn(s, device=place).to(dtype) for s in ((3, 4, 8), (3, 5, 6, 8)))
    else:
        q, d = whole(3, 4, 8), whole(3, 5, 6, 8)
    d = d if own else d[0]
    q_mask = torch.rand(3, 4, device=place) > 0.2
    d_mask = torch.rand(d.shape[:-1], device=place) > 0.3
    d_mask[..., 1, :] = False
    for k in (1, 7, 500):
        def call(q, d, k=k):
            return maxsim.xtr(q, d, k=k, q_mask=q_mask, d_mask=d_mask, normalizer=normalizer,
                              pool=pool, normalize=normalize)

        found = compare(call, call, (q, d), dtype)
        assert (found[:, 1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [2, 9, 25])
def test_xtr_as_pylate(only_native, place, dtype, k):
    q = torch.randint(-4, 5, (2, 3, 8), device=place).to(dtype)
    d = -torch.randint(0, 5, (5, 6, 8), device=place).to(dtype)
    mask = torch.rand(5, 6, device=place) > 0.3
    mask[:2] = True

    def call(q, d):
        return maxsim.xtr(q, d, k=k, d_mask=mask, normalizer="pylate")

    for sides in ((q, d), (q.abs(), d)):
        found, wanted = call(*sides), call(*(x.double() for x in sides))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_xtr_of_nothing(only_native, place):
    def of(nq, lq, nd, ld):
        q, d = torch.randn(nq, lq, 4, device=place), torch.randn(nd, ld, 4, device=place)
        (q, d), found = leaves(q, d), []
        found.append(maxsim.xtr(q, d))
        found[0].sum().backward()
        return [*found, q.grad, d.grad]

    for shape in ((0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2), (2, 3, 2, 0)):
        scores, *gradients = of(*shape)
        assert scores.shape == (shape[0], shape[2]) and (scores == 0).all()
        assert all((x == 0).all() for x in gradients)
        ranking = maxsim.xtr_search(torch.randn(*shape[:2], 4, device=place),
                                    torch.randn(*shape[2:], 4, device=place), 3)
        assert (ranking.ids == -1).all() and ranking.ids.shape == (shape[0], min(3, shape[2]))


def test_xtr_of_others_is_composed(place):
    # Sides of two types, and a call within a mode.
    q, d = torch.randn(2, 3, 4, device=place), torch.randn(2, 5, 2, 4, device=place)
    for pool in ("paired", "all"):
        def call(d, pool=pool):
            return maxsim.xtr(q, d, k=3, pool=pool)

        same(call(d.bfloat16()), call(d.bfloat16().float()), torch.float32)
        wanted = call(d)
        with torch.device(place):
            same(call(d), wanted, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_xtr_search(only_native, place, dtype, normalize):
    q = torch.randint(-4, 5, (3, 4, 8), device=place).to(dtype)
    d = torch.randint(-4, 5, (30, 6, 8), device=place).to(dtype)
    q_mask = torch.rand(3, 4, device=place) > 0.2
    d_mask = torch.rand(30, 6, device=place) > 0.3
    d_mask[7] = False
    for k, n in ((1, 30), (5, 9), (40, 30), (1000, 40), (3, 0)):
        def call(q, d, k=k, n=n):
            return maxsim.xtr_search(q, d, n, k=k, q_mask=q_mask, d_mask=d_mask,
                                     normalize=normalize)

        found, wanted = call(q, d), call(q.double(), d.double())
        assert found.scores.dtype == torch.float32 and found.ids.dtype == torch.int64
        assert torch.equal(found.n_nan, wanted.n_nan) and torch.equal(found.n_empty, wanted.n_empty)
        same(found.scores, wanted.scores, dtype)
        # Equal scores of one type may differ in another.
        if not normalize:
            assert torch.equal(found.ids, wanted.ids)
        assert ((found.ids == -1) == (found.scores == -torch.inf)).all()


def test_what_a_device_refuses_is_composed(monkeypatch, place):
    q, d, w = torch.randn(2, 3, 8), torch.randn(4, 5, 16), torch.randn(8, 16)
    q, d, w = (x.to(place) for x in (q, d, w))

    def every():
        tokens = maxsim.project(d, w)
        ranking = maxsim.xtr_search(q, tokens, 4, k=9)
        return [maxsim.xtr(q, tokens, k=3), maxsim.from_hidden(q, d, w), ranking.scores]

    def refused(*_):
        raise NotImplementedError("there is no kernel")

    wanted = every()
    for name in ("xtr", "xtr_search", "score_projected"):
        monkeypatch.setattr(_maxsim, name, refused)
    for found, of in zip(every(), wanted):
        same(found, of, torch.float32)


def test_xtr_search_shows_nan(only_native, place):
    q, d = torch.ones(1, 2, 3, device=place), torch.rand(4, 2, 3, device=place)
    d[2, 0, 0] = torch.nan
    for sides in ((q, d), (q.double(), d.double())):
        found = maxsim.xtr_search(*sides, 4, k=100)
        assert found.ids[0, -1] == 2 and found.scores[0, -1].isnan() and found.n_nan.tolist() == [1]


def test_xtr_search_refuses():
    q, d = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    for given, word in (((q, d, -1), "n must"), ((q, d[None]), "documents"), ((q[0], d), "Nq")):
        with pytest.raises(ValueError, match=word):
            maxsim.xtr_search(*given)
    with pytest.raises(ValueError, match="k must"):
        maxsim.xtr_search(q, d, k=0)
    with pytest.raises(ValueError, match="pool"):
        maxsim.xtr(q, d, pool="none")


# --- projection --------------------------------------------------------------------------------


@pytest.fixture
def projected_natively(monkeypatch, place):
    """The library alone may project, but for gradients on a GPU."""
    if place.type == "cpu":
        monkeypatch.setattr(_projection, "_rows", refuse)
    monkeypatch.setattr(_calls, "dense", refuse)


def tokens_of(h, w, b, normalize, dtype):
    """Tokens in float64 that are rounded as the library's are; gradients take that for nothing."""
    rows = torch.nn.functional.linear(h, w, b)
    rows = torch.nn.functional.normalize(rows, dim=-1) if normalize else rows
    return rows + (rows.detach().to(dtype).double() - rows.detach())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_from_hidden(projected_natively, place, dtype, own, normalize, with_bias):
    q = torch.nn.functional.normalize(torch.randn(2, 5, 16, device=place), dim=-1).to(dtype)
    h = torch.randn(*((2, 3) if own else (3,)), 7, 24, device=place).to(dtype)
    w = (torch.randn(16, 24, device=place) / 5).to(dtype)
    b = torch.randn(16, device=place).to(dtype)
    q_mask, d_mask = torch.rand(2, 5, device=place) > 0.2, torch.rand(h.shape[:-1]) > 0.3
    d_mask = d_mask.to(place)
    d_mask[..., 1, :] = False
    with torch.no_grad():
        h[..., 1, :, :] = torch.nan  # masked: it does not show

    def ours(q, h, w, b=None):
        return maxsim.from_hidden(q, h, w, b, normalize=normalize, q_mask=q_mask, d_mask=d_mask)

    def reference(q, h, w, b=None):
        h = h.masked_fill(~d_mask[..., None], 0.0)
        return _maxima.scores(q, tokens_of(h, w, b, normalize, dtype), q_mask, d_mask)

    found = compare(ours, reference, (q, h, w, b) if with_bias else (q, h, w), dtype)
    assert (found[:, 1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_project(monkeypatch, dtype, normalize):
    monkeypatch.setattr(_projection, "_rows", refuse)
    h, w, b = torch.randn(4, 3, 24), torch.randn(16, 24) / 5, torch.randn(16)
    h, w, b = (x.to(dtype) for x in (h, w, b))
    own, wide = leaves(h, w, b), leaves(*(x.double() for x in (h, w, b)))
    found = maxsim.project(*own, normalize=normalize)
    wanted = tokens_of(*wide, normalize, dtype)
    assert found.dtype == dtype
    same(found, wanted, dtype)
    step = torch.randn_like(wanted).to(dtype)
    (found * step).sum().backward()
    (wanted * step.double()).sum().backward()
    for a, c in zip(own, wide):
        assert a.grad.dtype == dtype
        same(a.grad, c.grad, dtype)


def test_scores_are_those_of_project_to_the_bit():
    h, w, q = torch.randn(9, 33, 48), torch.randn(32, 48), torch.randn(4, 6, 32)
    found, winners = maxsim.from_hidden(q, h, w, winners=True)
    wanted = maxsim.maxsim(q, maxsim.project(h, w), winners=True)
    assert torch.equal(found, wanted.scores) and torch.equal(winners, wanted.winners)
    given = leaves(q, h, w)
    trained, of_trained = maxsim.from_hidden(*given, winners=True, consistent=True)
    assert torch.equal(trained, found) and torch.equal(of_trained, winners)


def test_only_what_is_asked_for_has_a_gradient(place):
    q, h, w = torch.randn(2, 3, 8), torch.randn(3, 5, 16), torch.randn(8, 16)
    q, h, w = (x.to(place) for x in (q, h, w))
    w.requires_grad_(True)
    maxsim.from_hidden(q, h, w).sum().backward()
    every = leaves(q, h, w)
    maxsim.from_hidden(*every).sum().backward()
    assert q.grad is None and h.grad is None
    torch.testing.assert_close(w.grad, every[2].grad)


def test_what_the_library_does_not_take(place):
    q, h, w = torch.randn(2, 3, 8), torch.randn(3, 5, 16), torch.randn(8, 16)
    q, h, w = (x.to(place) for x in (q, h, w))
    wanted = maxsim.from_hidden(q, h, w)
    assert _hidden.takes(q, h, w, None) and not _hidden.takes(q, h, w.double(), None)
    same(maxsim.from_hidden(q.double(), h.double(), w.double()), wanted, torch.float32)
    same(maxsim.from_hidden(q, h, w.double()), wanted, torch.float32)
    for shape in ((3, 0, 16), (0, 5, 16)):
        found = maxsim.from_hidden(q, h.new_zeros(shape), w)
        assert found.shape == (2, shape[0]) and (found == 0).all()
    with pytest.raises(ValueError, match="dim"):
        maxsim.from_hidden(q[..., :4], h, w)
