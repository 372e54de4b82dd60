"""Weights of query tokens by the library itself, and its gradients."""

import pytest
import torch

import maxsim
from maxsim import _weighted
from test_weights import case, formula

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(autouse=True)
def only_native(monkeypatch):
    """Nothing is composed of the scores of every token."""
    def refuse(*_):
        raise AssertionError("weights are composed")

    torch.manual_seed(11)
    monkeypatch.setattr(_weighted, "_composed", refuse)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("kind", ["cross", "own", "ids", "pairs", "normalized"])
def test_scores_and_gradients(device, kind, mean, dtype):
    # Made under the device, and scored outside of its mode.
    with torch.device(device):
        q, d, weights, q_valid, d_valid = case(kind == "own")
    # On the host: with ids that a GPU alone knows, weights are composed.
    host_ids = torch.tensor([[0, 3], [1, 1], [2, 0]])
    ids = host_ids.to(device)
    q, d = (x.detach().to(dtype).requires_grad_(True) for x in (q, d))
    options = dict(q_mask=q_valid, d_mask=d_valid, weights=weights, mean=mean)
    normalize = kind == "normalized"
    want = formula(q.float(), d.float(), weights, q_valid, d_valid, mean, normalize)
    if kind == "ids":
        found, want = maxsim.candidates(q, d, host_ids, **options), want.gather(1, ids)
    elif kind == "pairs":
        q_ids, d_ids = host_ids.flatten() % 3, host_ids.flatten()
        found = maxsim.pairs(q, d, q_ids, d_ids, **options)
        want = want[q_ids.to(device), d_ids.to(device)]
    elif kind == "own":
        found = maxsim.candidates(q, d, **options)
    else:
        found = maxsim.maxsim(q, d, normalize=normalize, **options)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    factor = torch.randn(want.shape).to(device)
    bound = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for a, b in zip(torch.autograd.grad((found * factor).sum(), (q, d, weights)),
                    torch.autograd.grad((want * factor).sum(), (q, d, weights))):
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_one_side(device):
    with torch.device(device):
        sides = case()
    q_valid, d_valid = sides[3:]

    def gradient(wanted):
        q, d, weights = (x if i in wanted else x.detach() for i, x in enumerate(sides[:3]))
        scores = maxsim.maxsim(q, d, weights=weights, q_mask=q_valid, d_mask=d_valid)
        return torch.autograd.grad(scores.sum(), [sides[i] for i in wanted])

    for i, whole in enumerate(gradient([0, 1, 2])):
        assert torch.equal(gradient([i])[0], whole)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_view_and_winners_are(device):
    with torch.device(device):
        q, d, weights, *_ = (x.detach() for x in case())
    wide = torch.stack([weights, weights + 1], dim=-1)[..., 0]
    assert not wide.is_contiguous()
    found = maxsim.maxsim(q, d, weights=wide, winners=True, token_scores=True)
    plain = maxsim.maxsim(q, d, winners=True, token_scores=True)
    assert torch.equal(found.winners, plain.winners)
    assert torch.equal(found.token_scores, plain.token_scores)
    sums = (plain.token_scores * weights[:, None]).sum(-1)
    torch.testing.assert_close(found.scores, sums, rtol=1e-5, atol=1e-5)
    # Every second query, where its rows are.
    some = maxsim.maxsim(q[::2], d, weights=weights[::2])
    assert torch.equal(some, found.scores[::2])


def test_weights_of_numpy_lie_in_any_order():
    numpy = pytest.importorskip("numpy")
    torch.manual_seed(3)
    q, d = torch.randn(2, 3, 8).numpy(), torch.randn(4, 5, 8).numpy()
    weights = torch.randn(2, 3).numpy()
    want = maxsim.maxsim(q, d, weights=weights)
    wide = numpy.stack([weights, weights], axis=-1)
    backwards = numpy.ascontiguousarray(weights[:, ::-1])[:, ::-1]
    others = (numpy.ascontiguousarray(weights.T).T, numpy.asfortranarray(weights), wide[..., 1],
              backwards)
    for same in others:
        assert numpy.array_equal(same, weights)
        assert numpy.array_equal(maxsim.maxsim(q, d, weights=same), want)
