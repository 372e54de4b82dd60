"""Lengths, offsets, starts and ids that are on a GPU: the results of those on the host, and no
wait for the device."""

from __future__ import annotations

import contextlib

import pytest
import torch

import maxsim
from cases import case, close, cuda, valid
from lists import FORMATS, LENGTHS, calls, compressed, packed

pytestmark = cuda

@contextlib.contextmanager
def no_wait():
    """Torch raises where it would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def moved(lists, integers):
    return {name: None if x is None else x.to("cuda", integers) for name, x in lists.items()}


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("normalize", [False, True])
def test_scores_are_those_of_lists_on_the_host(kind, integers, normalize):
    for name, tensors, lists, others, function in calls(kind, "cuda"):
        others = {**others, "normalize": normalize}
        wanted = function(*tensors, **lists, **others, winners=True, token_scores=True)
        on_device = moved(lists, integers)
        function(*tensors, **on_device, **others)  # Loads what is loaded once.
        with no_wait():
            scores = function(*tensors, **on_device, **others)
        with no_wait():
            found = function(*tensors, **on_device, **others, winners=True, token_scores=True)
        close(scores, wanted.scores, 24)
        close(found.scores, wanted.scores, 24)
        width = wanted.winners.shape[-1]
        assert torch.equal(found.winners[..., :width], wanted.winners), name
        assert (found.winners[..., width:] == -1).all(), name
        close(found.token_scores[..., :width], wanted.token_scores, 24)


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
@pytest.mark.parametrize("formats", FORMATS)
def test_scores_of_codes_are_those_of_lists_on_the_host(formats, integers):
    for name, tensors, lists, others, function in calls(torch.float16, "cuda"):
        sides = [compressed(x, format, formats[2]) for x, format in zip(tensors, formats)]
        wanted = function(*sides, **lists, **others, winners=True, token_scores=True)
        on_device = moved(lists, integers)
        function(*sides, **on_device, **others)  # Loads what is loaded once.
        with no_wait():
            scores = function(*sides, **on_device, **others)
        with no_wait():
            found = function(*sides, **on_device, **others, winners=True, token_scores=True)
        # Tensor cores add products of FP8 with fewer bits, in another order in another kernel.
        scale = 2e3 if formats[0] == "fp8" else 1
        close(scores, wanted.scores, 24, scale)
        close(found.scores, wanted.scores, 24, scale)
        width = wanted.winners.shape[-1]
        if formats[0] != "fp8":
            assert torch.equal(found.winners[..., :width], wanted.winners), name
        assert (found.winners[..., width:] == -1).all(), name
        close(found.token_scores[..., :width], wanted.token_scores, 24, scale)


def test_lists_that_codes_carry_may_be_on_the_device():
    Q, D = case(torch.float16, device="cuda")
    lengths = torch.tensor(LENGTHS[1])
    codes = maxsim.quantize(D, "int8", lengths=lengths)
    wanted = maxsim.maxsim(maxsim.quantize(Q, "int8"), codes)
    of_device = maxsim.quantize(D, "int8", lengths=lengths.cuda())
    queries = maxsim.quantize(Q, "int8")
    maxsim.maxsim(queries, of_device)
    with no_wait():
        found = maxsim.maxsim(queries, of_device)
    close(found, wanted, 24)
    corpus = maxsim.Corpus(D, format="int8", lengths=lengths.cuda())
    host = maxsim.Corpus(D, format="int8", lengths=lengths)
    maxsim.search(Q, corpus, 3)
    with no_wait():
        ranking = maxsim.search(Q, corpus, 3)
    assert torch.equal(ranking.ids, maxsim.search(Q, host, 3).ids)


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("how", ["padded", "lengths", "packed", "masked"])
@pytest.mark.parametrize("nbits", [2, 4])
def test_candidates_of_an_index(is_there, how, nbits):
    torch.manual_seed(nbits)
    lists = {"lengths": dict(lengths=torch.tensor(LENGTHS[1])), "packed": dict(
        offsets=torch.tensor([0, 11, 12, 12, 16, 22])), "padded": {},
        "masked": dict(mask=torch.rand(5, 11) > 0.4)}[how]
    shape = (22,) if how == "packed" else (5, 11)
    codes = torch.randint(0, 7, shape)
    residuals = torch.randint(0, 256, (*shape, 24 * nbits // 8), dtype=torch.uint8)
    centroids, weights = torch.randn(7, 24).half(), torch.randn(2**nbits) / 4
    parts = codes, residuals, centroids, weights
    if is_there:
        parts = [x.cuda() for x in parts]
    index = maxsim.PlaidIndex(*parts, nbits, bit_order="colbert", **lists)
    Q = case(torch.float16, device="cuda")[0]
    ids = torch.tensor([[4, 0, 2, 2], [0, 0, 1, 3], [3, 1, 4, 0]])
    factors = torch.rand(3, 4, device="cuda")
    for q_lengths in (None, torch.tensor(LENGTHS[0])):
        queries = Q.clone().requires_grad_()
        wanted = index.score(queries, ids=ids, q_lengths=q_lengths, winners=True)
        (wanted.scores * factors).sum().backward()
        gradient, queries.grad = queries.grad.clone(), None
        on_device = dict(ids=ids.cuda(),
                         q_lengths=None if q_lengths is None else q_lengths.cuda())
        for waits in (True, False):
            queries.grad = None
            with contextlib.nullcontext() if waits else no_wait():
                found = index.score(queries, **on_device, winners=True)
                (found.scores * factors).sum().backward()
        close(found.scores, wanted.scores, 24, 512)
        assert torch.equal(found.winners, wanted.winners)
        torch.testing.assert_close(queries.grad, gradient, rtol=2e-3, atol=2e-3)
    of_none, lengths = torch.full((3, 1), 5).cuda(), torch.tensor(LENGTHS[0]).cuda()
    with no_wait():
        wrong, scores = index.score(Q, ids=of_none), index.score(Q, q_lengths=lengths)
    assert wrong.isnan().all()
    close(scores, index.score(Q, q_lengths=torch.tensor(LENGTHS[0])), 24, 512)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_gradients_are_those_of_lists_on_the_host(kind, normalize, needs):
    for name, tensors, lists, others, function in calls(kind, "cuda"):
        others = {**others, "normalize": normalize}

        def gradients(lists, waits):
            leaves = [x.clone().requires_grad_(need) for x, need in zip(tensors, needs)]
            with contextlib.nullcontext() if waits else no_wait():
                scores = function(*leaves, **lists, **others)
                factors = torch.arange(1.0, scores.numel() + 1, device="cuda").view(scores.shape)
                (scores * factors).sum().backward()
            return [x.grad for x in leaves]

        wanted, on_device = gradients(lists, True), moved(lists, torch.int64)
        found = gradients(on_device, True)
        again = gradients(on_device, False)
        for one, two, three in zip(wanted, found, again):
            assert (one is None) == (two is None) == (three is None)
            if one is not None:
                assert torch.equal(two, three), f"{name}: repeats"
                scale = 64.0 if kind == torch.float16 else 1.0
                torch.testing.assert_close(two, one, rtol=2e-6 * scale * 40, atol=1e-4 * scale)


def test_a_compiled_call_waits_for_nothing_either():
    Q, D = case(torch.float16, device="cuda")
    lengths = torch.tensor(LENGTHS[1], device="cuda")

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(q, d, lengths):
        return maxsim.maxsim(q, d, d_lengths=lengths).logsumexp(1).sum()

    q, d = Q.clone().requires_grad_(), D.clone().requires_grad_()
    loss(q, d, lengths).backward()
    q.grad = d.grad = None
    with no_wait():
        loss(q, d, lengths).backward()
    found = q.grad.clone()
    q.grad = None
    maxsim.maxsim(q, d, d_lengths=lengths.cpu()).logsumexp(1).sum().backward()
    torch.testing.assert_close(found, q.grad, rtol=1e-3, atol=1e-3)


def test_a_captured_call_reads_its_lists_anew():
    Q, D = case(torch.float16, device="cuda")
    lengths = torch.tensor(LENGTHS[1], device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            maxsim.maxsim(Q, D, d_lengths=lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = maxsim.maxsim(Q, D, d_lengths=lengths)
    for other in ([3, 3, 3, 3, 3], [0, 11, 2, 5, 1]):
        lengths.copy_(torch.tensor(other))
        graph.replay()
        close(found, maxsim.maxsim(Q, D, d_mask=valid(other, 11).cuda()), 24)


def test_what_the_host_would_refuse_is_nan():
    Q, D = case(torch.float16, device="cuda")
    plain = maxsim.maxsim(Q, D)
    lengths = torch.tensor([11, 12, -1, 4, 11], device="cuda")
    found = maxsim.maxsim(Q, D, d_lengths=lengths)
    assert found[:, [1, 2]].isnan().all() and not found[:, [0, 3, 4]].isnan().any()
    close(found[:, 0], plain[:, 0], 24)
    found = maxsim.maxsim(Q, D, q_lengths=torch.tensor([8, 7, 0], device="cuda"))
    assert found[0].isnan().all() and not found[1:].isnan().any()
    ids = torch.tensor([[0, 5], [-1, 2], [4, 4]], device="cuda")
    found = maxsim.candidates(Q, D, ids)
    assert found.isnan().tolist() == [[False, True], [True, False], [False, False]]
    q_ids, d_ids = torch.tensor([0, 3, 1], device="cuda"), torch.tensor([0, 0, 9], device="cuda")
    assert maxsim.pairs(Q, D, q_ids, d_ids).isnan().tolist() == [False, True, True]
    offsets = torch.tensor([0, 11, 5, 11], device="cuda")
    found = maxsim.packed(Q, D[0], None, offsets)
    assert found.isnan().any(0).tolist() == [False, True, False]
    for options in (dict(weights=torch.rand(3, 7, device="cuda")), dict(mean=True)):
        found = maxsim.maxsim(Q, D, d_lengths=lengths, **options)
        assert found.isnan().tolist() == [[False, True, True, False, False]] * 3
    for lists in (dict(d_lengths=lengths.cpu()), dict(q_lengths=torch.tensor([8, 7, 0]))):
        with pytest.raises(ValueError):
            maxsim.maxsim(Q, D, **lists)


def test_the_longest_may_be_unknown():
    """It is looked up then, which waits."""
    Q, D = case(torch.float16, device="cuda")
    (q_rows, q_offsets), (d_rows, d_offsets) = (packed(x, n) for x, n in zip((Q, D), LENGTHS))
    lists = q_offsets.cuda(), d_offsets.cuda()
    wanted = maxsim.packed(q_rows, d_rows, q_offsets, d_offsets)
    close(maxsim.packed(q_rows, d_rows, *lists), wanted, 24)
    q, d = q_rows.clone().requires_grad_(), d_rows.clone().requires_grad_()
    maxsim.packed(q, d, *lists).sum().backward()
    found = q.grad.clone(), d.grad.clone()
    q.grad = d.grad = None
    maxsim.packed(q, d, q_offsets, d_offsets).sum().backward()
    for one, two in zip(found, (q.grad, d.grad)):
        torch.testing.assert_close(one, two, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_consistent_scores_have_the_bits_of_those_with_gradients(kind):
    for shape in ((4, 8, 32, 128, 128), (1, 1000, 32, 300, 128), (2, 40, 144, 180, 128)):
        n, m, lq, ld, dim = shape
        Q, D = case(kind, n, m, lq, ld, dim, device="cuda")
        plain = maxsim.maxsim(Q, D, consistent=True)
        found = maxsim.maxsim(Q.requires_grad_(), D)
        assert torch.equal(plain, found.detach()), shape
