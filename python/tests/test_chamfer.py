"""Chamfer distances by the library, against float64, and pytorch3d's name for them."""

import types

import pytest
import torch

import maxsim
from maxsim.compat.pytorch3d.loss import chamfer_distance
from maxsim.composed import _clouds
from places import PLACES

REDUCE = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax}


@pytest.fixture(autouse=True, params=[place for place in PLACES if place != "mode"])
def place(request):
    torch.manual_seed(7)
    return torch.device(request.param)


@pytest.fixture
def only_native(monkeypatch):
    """The library alone may find neighbours."""
    def refuse(*_):
        raise AssertionError("neighbours are composed")

    monkeypatch.setattr(_clouds, "_places", refuse)


def matrix(x, y, norm):
    gap = x.double()[:, None] - y.double()[None]
    return gap.abs().sum(-1) if norm == 1 else gap.square().sum(-1)


def by_hand(x, y, norm, how, single):
    """The distance of two clouds in float64, differentiable."""
    if not len(x) or not len(y):
        return (x.double().sum() + y.double().sum()) * 0.0
    found = matrix(x, y, norm)
    value = REDUCE[how](found.min(1).values)
    return value if single else value + REDUCE[how](found.min(0).values)


def same(found, wanted, dtype):
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), wanted.double(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [2, 3, 7, 15])
@pytest.mark.parametrize("how", ["mean", "sum", "max"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("single", [False, True])
def test_batch_with_lengths(only_native, place, dtype, dim, how, norm, single):
    x = torch.randn(4, 17, dim, device=place).to(dtype).requires_grad_(True)
    y = torch.randn(4, 23, dim, device=place).to(dtype).requires_grad_(True)
    lengths = torch.tensor([17, 3, 0, 9], device=place), torch.tensor([23, 1, 4, 0])
    weights = torch.rand(4, device=place, requires_grad=True)
    found = maxsim.chamfer(
        x, y, x_lengths=lengths[0], y_lengths=lengths[1], norm=norm, point_reduction=how,
        single_directional=single, batch_reduction="none", weights=weights)
    assert found.dtype == torch.float32 and found.device == x.device
    pairs = zip(x, y, *(each.tolist() for each in lengths))
    wanted = torch.stack([by_hand(a[:n], b[:m], norm, how, single) for a, b, n, m in pairs])
    wanted = wanted * weights.double()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    sides = (x, y, weights)
    grad = torch.randn(4, device=place)
    for a, b in zip(torch.autograd.grad((found * grad).sum(), sides),
                    torch.autograd.grad((wanted * grad).sum(), sides)):
        assert a.dtype == b.dtype
        same(a, b, dtype)


@pytest.mark.parametrize("sides", ["xy", "x", "y"])
def test_clouds_of_any_sizes(only_native, place, sides):
    sizes = {"x": [3, 0, 40, 1], "y": [5, 2, 33, 0]}
    clouds = {name: [torch.randn(n, 3, device=place) for n in sizes[name]] for name in "xy"}
    given, options = {}, {}
    for name, items in clouds.items():
        lengths = torch.tensor(sizes[name])
        if name in sides:
            given[name] = torch.cat(items)
            options[f"{name}_offsets"] = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        else:
            given[name] = torch.nn.utils.rnn.pad_sequence(items, batch_first=True)
            options[f"{name}_lengths"] = lengths
        given[name].requires_grad_(True)
        clouds[name] = [rows[:n] for n, rows in zip(
            sizes[name], given[name].split(sizes[name]) if name in sides else given[name])]
    found, (of_x, of_y) = maxsim.chamfer(
        given["x"], given["y"], batch_reduction="none", neighbours=True, **options)
    wanted = torch.stack([by_hand(a, b, 2, "mean", False) for a, b in zip(*clouds.values())])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    for a, b in zip(torch.autograd.grad(found.sum(), tuple(given.values())),
                    torch.autograd.grad(wanted.sum(), tuple(given.values()))):
        torch.testing.assert_close(a, b)
    assert of_x.shape == (4, 40) and of_y.shape == (4, 33)
    for i, (a, b) in enumerate(zip(clouds["x"], clouds["y"])):
        for table, own, other in ((of_x, a, b), (of_y, b, a)):
            n = len(own) if len(other) else 0
            assert (table[i, n:] == -1).all()
            if n:
                assert torch.equal(table[i, :n], matrix(own, other, 2).argmin(1))


@pytest.mark.parametrize("single", [False, True])
def test_distances_of_points(only_native, place, single):
    x = torch.randn(3, 6, 3, device=place, requires_grad=True)
    y = torch.randn(3, 5, 3, device=place, requires_grad=True)
    for lengths in (None, torch.tensor([6, 0, 4])):
        found = maxsim.chamfer(x, y, x_lengths=lengths, point_reduction="none",
                               single_directional=single)
        n = [6] * 3 if lengths is None else lengths.tolist()
        wanted = torch.zeros(found.shape, dtype=torch.float64, device=place)
        for i, count in enumerate(n):
            if count:
                matrices = matrix(x[i, :count], y[i], 2)
                both = [matrices.min(1).values] + ([] if single else [matrices.min(0).values])
                wanted[i, : count + (0 if single else 5)] = torch.cat(both)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
        grad = torch.randn(found.shape, device=place)
        for a, b in zip(torch.autograd.grad((found * grad).sum(), (x, y)),
                        torch.autograd.grad((wanted * grad).sum(), (x, y))):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dim", [3, 16, 128])
def test_clouds_that_nearly_coincide(place, dim):
    p = torch.nn.functional.normalize(torch.randn(500, dim, device=place), dim=-1)
    q = (p + 1e-3 * torch.randn(500, dim, device=place)).requires_grad_(True)
    found, (of_p, of_q) = maxsim.chamfer(p, q, neighbours=True)
    wanted = by_hand(p, q, 2, "mean", False)
    assert abs(found.item() / wanted.item() - 1) < 1e-6
    assert torch.equal(of_p, matrix(p, q, 2).argmin(1))
    assert torch.equal(of_q, matrix(q, p, 2).argmin(1))
    gradients = [torch.autograd.grad(value, q, retain_graph=True)[0] for value in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-8)
    assert torch.equal(gradients[0], torch.autograd.grad(found, q)[0])


def test_large_clouds(only_native, place):
    n = 20_000 if place.type == "cuda" else 3_000
    x, y = torch.rand(n, 3, device=place), torch.rand(n - 7, 3, device=place)
    found, (of_x, of_y) = maxsim.chamfer(x, y, neighbours=True)
    best = [matrix(a, b, 2).min(1) for a, b in ((x[:900], y), (y[:900], x))]
    assert torch.equal(of_x[:900], best[0].indices) and torch.equal(of_y[:900], best[1].indices)
    distances = (x - y[of_x]).square().sum(-1).mean() + (y - x[of_y]).square().sum(-1).mean()
    torch.testing.assert_close(found, distances)


def test_views_and_element_types(only_native, place):
    x = torch.randn(5, 9, 3, device=place)
    y = torch.randn(5, 3, 8, device=place).transpose(1, 2)
    wanted = maxsim.chamfer(x.clone(), y.contiguous())
    assert torch.equal(maxsim.chamfer(x, y), wanted)
    assert torch.equal(maxsim.chamfer(x[::2], y[::2]),
                       maxsim.chamfer(x[::2].contiguous(), y[::2].contiguous()))
    mixed = maxsim.chamfer(x.half(), y)
    assert torch.equal(mixed, maxsim.chamfer(x.half().float(), y))


def test_results_may_be_changed(place):
    x = torch.randn(2, 9, 3, device=place, requires_grad=True)
    y = torch.randn(2, 8, 3, device=place)
    wanted = torch.autograd.grad(maxsim.chamfer(x, y, batch_reduction="sum"), x)[0]
    values, (places, _) = maxsim.chamfer(x, y, batch_reduction="none", neighbours=True)
    places.fill_(0)
    with torch.no_grad():
        values.detach().fill_(3.0)
    assert torch.equal(torch.autograd.grad(values.sum(), x)[0], wanted)


@pytest.mark.parametrize("change, words", [
    (dict(x_offsets=torch.tensor([0, 3])), "x_offsets must be"),
    (dict(x_offsets=torch.tensor([0, 3, 2, 4])), "must not fall"),
    (dict(x_offsets=torch.tensor([0, 4]), x_lengths=torch.tensor([4])), "must be None"),
    (dict(x_offsets=torch.tensor([0, 4])), "clouds"),
    (dict(x=torch.zeros(2, 4, 3), x_offsets=torch.tensor([0, 4])), "rows"),
    (dict(x=torch.zeros(2, 4, 3), x_lengths=torch.tensor([5, 1])), "0..=4"),
])
def test_refuses(change, words):
    given = dict(x=torch.zeros(4, 3), y=torch.zeros(2, 5, 3))
    with pytest.raises(ValueError, match=words):
        maxsim.chamfer(**{**given, **change})


# --- pytorch3d ---------------------------------------------------------------------------------


def p3d(x, y, n, m, weights, batch, how, norm, single):
    """What pytorch3d's documentation says, in float64."""
    values = []
    for i in range(len(x)):
        gaps = matrix(x[i, : n[i]], y[i, : m[i]], norm)
        both = [gaps.min(1).values, gaps.min(0).values][: 1 if single else 2]
        both = [REDUCE[how](each) for each in both]
        values.append(torch.stack(both).max() if how == "max" else sum(both))
    values = torch.stack(values)
    if weights is not None:
        values = values * weights
    if batch is None:
        return values
    total = values.sum()
    return total if batch == "sum" else total / (len(x) if weights is None else weights.sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("batch", ["mean", "sum", None])
@pytest.mark.parametrize("how", ["mean", "sum", "max"])
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("single", [False, True])
def test_chamfer_distance(place, weighted, batch, how, norm, single):
    x = torch.randn(3, 7, 3, device=place, requires_grad=True)
    y = torch.randn(3, 9, 3, device=place, requires_grad=True)
    n, m = torch.tensor([7, 2, 5], device=place), torch.tensor([9, 9, 1], device=place)
    weights = torch.tensor([1.0, 0.0, 3.0], device=place) if weighted else None
    found, of_normals = chamfer_distance(x, y, n, m, None, None, weights, batch, how, norm, single)
    wanted = p3d(x, y, n.tolist(), m.tolist(), weights, batch, how, norm, single)
    assert of_normals is None
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-6, atol=1e-6)
    for a, b in zip(torch.autograd.grad(found.sum(), (x, y), allow_unused=True),
                    torch.autograd.grad(wanted.sum(), (x, y))):
        torch.testing.assert_close(a, b)


def test_chamfer_distance_of_points_and_normals(place):
    x, y = torch.randn(2, 7, 3, device=place), torch.randn(2, 9, 3, device=place)
    normals = torch.randn(2, 7, 3, device=place), torch.randn(2, 9, 3, device=place)
    n = torch.tensor([7, 4], device=place)
    points, cosines = chamfer_distance(
        x, y, n, x_normals=normals[0], y_normals=normals[1], batch_reduction=None,
        point_reduction=None, abs_cosine=False)
    assert [p.shape for p in (*points, *cosines)] == [(2, 7), (2, 9)] * 2
    for i, count in enumerate(n.tolist()):
        gaps = matrix(x[i, :count], y[i], 2)
        torch.testing.assert_close(points[0][i, :count].double(), gaps.min(1).values)
        torch.testing.assert_close(points[1][i].double(), gaps.min(0).values)
        near = normals[1][i][gaps.argmin(1)]
        wanted = 1 - torch.cosine_similarity(normals[0][i, :count], near, dim=-1)
        torch.testing.assert_close(cosines[0][i, :count], wanted)
    assert not points[0][1, 4:].any() and not cosines[0][1, 4:].any()
    # Clouds with methods of their own.
    clouds = types.SimpleNamespace(
        points_padded=lambda: x, num_points_per_cloud=lambda: n, normals_padded=lambda: normals[0])
    found = chamfer_distance(clouds, y, y_normals=normals[1], batch_reduction=None,
                             point_reduction=None, abs_cosine=False)
    for a, b in zip((*points, *cosines), (*found[0], *found[1])):
        assert torch.equal(a, b)


def test_chamfer_distance_without_weight_is_zero(place):
    x = torch.randn(2, 4, 3, device=place, requires_grad=True)
    found, _ = chamfer_distance(x, x.detach() + 1, weights=torch.zeros(2, device=place))
    assert found.item() == 0.0
    assert not torch.autograd.grad(found, x)[0].any()


@pytest.mark.parametrize("change", [
    dict(x=torch.zeros(4, 3)), dict(y=torch.zeros(1, 4, 3)), dict(norm=3),
    dict(batch_reduction="max"), dict(point_reduction="median"), dict(point_reduction=None),
    dict(weights=torch.tensor([1.0, -1.0])), dict(weights=torch.ones(3)),
    dict(x_lengths=torch.ones(3)), dict(x_normals=torch.zeros(4, 3)),
])
def test_chamfer_distance_refuses(change):
    given = dict(x=torch.zeros(2, 4, 3), y=torch.zeros(2, 5, 3))
    with pytest.raises(ValueError):
        chamfer_distance(**{**given, **change})


def test_an_empty_batch_has_a_gradient(place):
    x = torch.zeros(0, 5, 3, device=place, requires_grad=True)
    found = maxsim.chamfer(x, torch.zeros(0, 4, 3, device=place))
    assert found.item() == 0.0
    assert torch.autograd.grad(found, x)[0].shape == x.shape


@pytest.mark.parametrize("weights", [[1.0, -2.0], [1e-13, 1e-13], [1.0, -1.0]])
def test_the_mean_is_divided_by_the_sum_of_weights(place, weights):
    x, y = torch.randn(2, 5, 3, device=place), torch.randn(2, 4, 3, device=place)
    given = torch.tensor(weights, device=place)
    each = maxsim.chamfer(x, y, batch_reduction="none")
    total = given.sum()
    want = (each * given).sum() / total if total != 0 else torch.zeros((), device=place)
    torch.testing.assert_close(maxsim.chamfer(x, y, weights=given), want)
