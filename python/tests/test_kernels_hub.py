"""The contract of the Hub kernel's twelve functions, as its users know it."""

import pytest
import torch

from maxsim.compat import kernels_hub as hub

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(11)
    return request.param


def padded(device, dtype=torch.float32, index=torch.int32):
    q = torch.randn(3, 6, 24, device=device).to(dtype)
    d = torch.randn(3, 4, 9, 24, device=device).to(dtype)
    q_len = torch.tensor([6, 1, 4], device=device, dtype=index)
    d_len = torch.tensor([[9, 1, 5, 3], [2, 9, 9, 1], [4, 4, 8, 9]], device=device, dtype=index)
    return q, d, q_len, d_len


def packed(device, dtype=torch.float32, index=torch.int32):
    q = torch.randn(11, 16, device=device).to(dtype)
    d = torch.randn(20, 16, device=device).to(dtype)
    q_off = torch.tensor([0, 3, 4, 11], device=device, dtype=index)
    d_off = torch.tensor([0, 8, 9, 15, 20], device=device, dtype=index)
    q_ids = torch.tensor([2, 0, 1, 2, 0], device=device, dtype=index)
    d_ids = torch.tensor([3, 3, 1, 0, 2], device=device, dtype=index)
    return q, q_off, d, d_off, q_ids, d_ids


def contrastive(device, dtype=torch.float32, index=torch.int32):
    q = torch.randn(3, 5, 16, device=device).to(dtype)
    d = torch.randn(20, 16, device=device).to(dtype)
    return q, d, torch.tensor([0, 8, 9, 15, 20], device=device, dtype=index)


CALLS = [
    pytest.param(padded, "score_candidates_padded", id="padded"),
    pytest.param(packed, "score_pairs_packed", id="packed"),
    pytest.param(contrastive, "score_contrastive", id="contrastive"),
]


def oracle(make, arguments):
    """f64 scores, pair by pair, and winners that are 0 beyond the query's length."""
    tensors = [a.double() if a.is_floating_point() else a.tolist() for a in arguments]
    if make is padded:
        q, d, q_len, d_len = tensors
        pairs = [(q[b, : q_len[b]], d[b, c, : d_len[b][c]]) for b in range(3) for c in range(4)]
        shape, width = (3, 4), q.shape[1]
    elif make is packed:
        q, q_off, d, d_off, q_ids, d_ids = tensors
        pairs = [
            (q[q_off[i] : q_off[i + 1]], d[d_off[j] : d_off[j + 1]]) for i, j in zip(q_ids, d_ids)
        ]
        shape, width = (len(q_ids),), 7
    else:
        q, d, d_off = tensors
        pairs = [(x, d[d_off[j] : d_off[j + 1]]) for x in q for j in range(4)]
        shape, width = (3, 4), q.shape[1]
    best = [(x @ y.T).max(dim=1) for x, y in pairs]
    winners = torch.zeros(len(pairs), width, dtype=torch.int32, device=arguments[0].device)
    for row, found in zip(winners, best):
        row[: len(found.indices)] = found.indices
    return torch.stack([b.values.sum() for b in best]).view(shape), winners.view(*shape, width)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("make, name", CALLS)
def test_scores_and_winners(device, make, name, dtype, index):
    arguments = make(device, dtype, index)
    want, winners = oracle(make, arguments)
    for function in (name, name + "_train"):
        scores = getattr(hub, function)(*arguments)
        assert scores.dtype == torch.float32 and not scores.requires_grad
        torch.testing.assert_close(scores.double(), want, rtol=1e-5, atol=1e-4)
    scores, found = getattr(hub, name + "_with_argmax")(*arguments)
    torch.testing.assert_close(scores.double(), want, rtol=1e-5, atol=1e-4)
    assert found.dtype == torch.int32 and torch.equal(found, winners)
    reference = getattr(hub, name + "_reference")(*arguments)
    torch.testing.assert_close(reference.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("make, name", CALLS)
def test_gradients(device, make, name):
    arguments = make(device)
    places = [i for i, a in enumerate(arguments) if a.is_floating_point()]
    found, want = [], []
    for function, grads in ((name + "_train", found), (name + "_reference", want)):
        given = list(arguments)
        for place in places:
            given[place] = given[place].clone().requires_grad_(True)
        scores = getattr(hub, function)(*given)
        weight = torch.arange(scores.numel(), device=device).view(scores.shape) - 2.5
        (scores * weight).sum().backward()
        grads += [given[place].grad for place in places]
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make, name", CALLS)
def test_half_gradients_have_the_inputs_type(device, make, name):
    arguments = [a.requires_grad_(True) if a.is_floating_point() else a
                 for a in make(device, torch.bfloat16)]
    getattr(hub, name + "_train")(*arguments).sum().backward()
    assert all(a.grad.dtype == torch.bfloat16 for a in arguments if a.is_floating_point())


@pytest.mark.parametrize("make, name", CALLS)
def test_plain_functions_make_no_graph(device, make, name):
    arguments = [a.requires_grad_(True) if a.is_floating_point() else a for a in make(device)]
    assert not getattr(hub, name)(*arguments).requires_grad
    assert not getattr(hub, name + "_with_argmax")(*arguments)[0].requires_grad


@pytest.mark.parametrize("make, name", CALLS)
def test_nan_shows_where_it_is(device, make, name):
    arguments = list(make(device))
    place = 0
    arguments[place] = arguments[place].clone()
    arguments[place].view(-1, arguments[place].shape[-1])[0, 0] = float("nan")
    scores = getattr(hub, name)(*arguments)
    clean = getattr(hub, name)(*make(device)).isnan()
    assert not clean.any() and scores.isnan().any() and not scores.isnan().all()


def test_winners_of_equals_are_the_first(device):
    q = torch.randn(1, 4, 8, device=device)
    d = torch.randn(1, 1, 1, 8, device=device).expand(1, 2, 6, 8).contiguous()
    lengths = torch.tensor([4], device=device), torch.tensor([[6, 3]], device=device)
    assert (hub.score_candidates_padded_with_argmax(q, d, *lengths)[1] == 0).all()


def test_a_wider_max_q_len_widens_winners(device):
    arguments = packed(device)
    scores, winners = hub.score_pairs_packed_with_argmax(*arguments, max_q_len=12)
    narrow = hub.score_pairs_packed_with_argmax(*arguments)
    assert winners.shape == (5, 12) and (winners[:, 7:] == 0).all()
    assert torch.equal(scores, narrow[0]) and torch.equal(winners[:, :7], narrow[1])


def changed(make, place, value):
    def arguments(device):
        given = list(make(device))
        given[place] = value(given[place])
        return given

    return arguments


def element(place, value):
    def change(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[place] = value
        return tensor

    return change


REFUSED = [
    ("candidates_padded", changed(padded, 1, lambda d: d[..., :8]), ValueError, "dim"),
    ("candidates_padded", changed(padded, 0, lambda q: q[0]), ValueError, "3-D"),
    ("candidates_padded", changed(padded, 1, lambda d: d[0]), ValueError, "4-D"),
    ("candidates_padded", changed(padded, 1, lambda d: d[:2]), ValueError, "batch"),
    ("candidates_padded", changed(padded, 1, lambda d: d.half()), TypeError, "same dtype"),
    ("candidates_padded", changed(padded, 0, lambda q: q.long()), TypeError, "float"),
    ("candidates_padded", changed(padded, 2, lambda n: n.short()), TypeError, "int32"),
    ("candidates_padded", changed(padded, 2, element(1, 0)), ValueError, "query_lengths"),
    ("candidates_padded", changed(padded, 2, element(1, 7)), ValueError, "query_lengths"),
    ("candidates_padded", changed(padded, 3, element(1, 0)), ValueError, "doc_lengths"),
    ("candidates_padded", changed(padded, 3, element(1, 10)), ValueError, "doc_lengths"),
    ("candidates_padded", changed(padded, 3, lambda n: n[:, :2]), ValueError, "doc_lengths"),
    ("pairs_packed", changed(packed, 0, lambda q: q[None]), ValueError, "2-D"),
    ("pairs_packed", changed(packed, 2, lambda d: d[:, :8]), ValueError, "match"),
    ("pairs_packed", changed(packed, 2, lambda d: d.half()), TypeError, "same dtype"),
    ("pairs_packed", changed(packed, 1, element(0, 1)), RuntimeError, "start at 0"),
    ("pairs_packed", changed(packed, 1, element(3, 9)), RuntimeError, "total"),
    ("pairs_packed", changed(packed, 1, element(1, 4)), RuntimeError, "empty segment"),
    ("pairs_packed", changed(packed, 3, element(2, 1)), RuntimeError, "strictly increasing"),
    ("pairs_packed", changed(packed, 4, element(0, -1)), RuntimeError, "out of range"),
    ("pairs_packed", changed(packed, 5, element(0, 4)), RuntimeError, "out of range"),
    ("pairs_packed", changed(packed, 5, lambda n: n[:2]), ValueError, "one length"),
    ("contrastive", changed(contrastive, 0, lambda q: q[None]), ValueError, "Nq, Lq"),
    ("contrastive", changed(contrastive, 1, lambda d: d[None]), ValueError, "packed"),
    ("contrastive", changed(contrastive, 1, lambda d: d[:, :8]), ValueError, "must match"),
    ("contrastive", changed(contrastive, 1, lambda d: d.half()), TypeError, "share dtype"),
    ("contrastive", changed(contrastive, 0, lambda q: q[:, :0]), ValueError, "Lq"),
    ("contrastive", changed(contrastive, 2, element(0, 1)), ValueError, "start at 0"),
    ("contrastive", changed(contrastive, 2, element(4, 19)), ValueError, "total"),
    ("contrastive", changed(contrastive, 2, element(1, 0)), ValueError, "strictly increasing"),
]


@pytest.mark.parametrize("suffix", ["", "_with_argmax", "_train"])
@pytest.mark.parametrize("name, arguments, error, words", REFUSED)
def test_refused(device, name, arguments, error, words, suffix):
    with pytest.raises(error, match=words):
        getattr(hub, f"score_{name}{suffix}")(*arguments(device))


@pytest.mark.parametrize("suffix", ["", "_with_argmax", "_train"])
def test_a_short_max_q_len_is_refused(device, suffix):
    with pytest.raises(ValueError, match="max_q_len"):
        getattr(hub, "score_pairs_packed" + suffix)(*packed(device), max_q_len=6)


def test_devices_must_agree():
    arguments = list(padded("cpu"))
    arguments[1] = arguments[1].to("meta")
    with pytest.raises(RuntimeError, match="same device"):
        hub.score_candidates_padded(*arguments)


def test_backward_references_match_autograd(device):
    q, d, offsets = contrastive(device)
    winners = hub.score_contrastive_with_argmax(q, d, offsets)[1]
    weight = torch.randn(3, 4, device=device)
    left, right = q.clone().requires_grad_(True), d.clone().requires_grad_(True)
    (hub.score_contrastive_reference(left, right, offsets) * weight).sum().backward()
    of_q, of_d = hub.score_contrastive_backward_reference(weight, q, d, offsets, winners)
    torch.testing.assert_close(of_q, left.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_d, right.grad, rtol=1e-5, atol=1e-5)
