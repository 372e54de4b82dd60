"""Rankings, corpora, compressed tokens and PLAID indexes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import DEVICES, case, close, cuda, oracle, valid
from maxsim._backends import torch as _torch


def order(scores, has, k):
    """The order of rankings, spelled out."""
    def key(i):
        if not has[i]:
            return (2, 0, i)
        return (1, 0, i) if np.isnan(scores[i]) else (0, -scores[i], i)

    return sorted(range(len(scores)), key=key)[:k]


@pytest.mark.parametrize("device", DEVICES)
def test_topk_order(device):
    Q, D = case(m=12, device=device)
    D[3] = D[7]
    D[5] = float("nan")
    lengths = torch.tensor([11, 3, 0, 11, 2, 1, 4, 11, 0, 5, 6, 7])
    mask = torch.ones(12, 11, dtype=torch.bool, device=device)
    mask[10] = False
    for k in (0, 1, 4, 12, 40):
        for how in ({"d_lengths": lengths}, {"d_mask": mask}, {}):
            scores = maxsim.maxsim(Q, D, **how).cpu().numpy()
            has = {"d_lengths": (lengths > 0).numpy(), "d_mask": mask.any(-1).cpu().numpy()}
            has = has.get(next(iter(how), ""), np.ones(12, bool))
            best = maxsim.topk(Q, D, k, **how)
            for q in range(3):
                wanted = order(scores[q], has, k)
                assert best.ids[q].tolist() == wanted
                assert np.array_equal(best.scores[q].cpu(), scores[q][wanted], equal_nan=True)
            assert (best.n_nan == 1).all() and (best.n_empty == (~has).sum()).all()
    one = maxsim.topk(Q[0], D, 2)
    assert one.ids.shape == (2,)


def test_the_device_ranks_as_the_host():
    scores = torch.randint(-3, 3, (5, 40)).float()
    scores[torch.rand(5, 40) < 0.1] = float("nan")
    scores[torch.rand(5, 40) < 0.1] = float("-inf")
    has = torch.rand(40) > 0.2
    scores = torch.where(has, scores, 0.0)
    for k in (1, 7, 40):
        ids = _torch.ranked(scores, has, k)[1]
        for q in range(5):
            assert ids[q].tolist() == order(scores[q].numpy(), has.numpy(), k)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", [None, "int8", "int8-affine", "fp8"])
def test_corpus(device, format):
    Q, D = case(m=60, dim=64, device=device)
    if format == "int8-affine":
        Q = Q.half()
    lengths = torch.arange(60) % 12
    corpus = maxsim.Corpus(D, lengths=lengths, format=format)
    assert len(corpus) == 60 and "60 documents" in repr(corpus)
    best = maxsim.search(Q, corpus, 5)
    exact = oracle(Q, D, None, valid(lengths, 11))[0]
    tolerance = {None: 1e-4, "int8": 1.0, "int8-affine": 1.0, "fp8": 3.0}[format]
    for q in range(3):
        assert abs(best.scores[q].cpu().numpy() - exact[q][best.ids[q].cpu()]).max() < tolerance
        assert (exact[q] > best.scores[q, -1].item() + tolerance).sum() <= 5
    if format is None:
        close(maxsim.maxsim(Q, corpus), exact, 64)
        packed = maxsim.Corpus([D[i, :n] for i, n in enumerate(lengths)])
        assert torch.equal(maxsim.search(Q, packed, 5).ids, best.ids)
        cosine = maxsim.search(Q, maxsim.Corpus(D, normalize=True), 5)
        close(cosine.scores, -np.sort(-oracle(Q, D, normalize=True)[0])[:, :5], 64)
    else:
        assert corpus.nbytes < D.nbytes / 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format, tolerance", [
    (None, 1e-5), ("int8", 0.05), ("int8-affine", 0.05), ("fp8", 0.3)])
def test_cosine_similarities_of_a_corpus(device, format, tolerance):
    """Scores are those of normalised rows on both sides, whatever documents are kept as."""
    Q, D = case(m=60, dim=64, device=device)
    Q, D = Q * 10 ** torch.linspace(-2, 2, 7, device=device)[:, None], D * 3e30
    exact = oracle(Q, D, normalize=True)[0]
    best = maxsim.search(Q, maxsim.Corpus(D, format=format, normalize=True), 5)
    if format is None and device == "cuda":
        return  # Products of rows that are as long as these are infinite.
    for q in range(3):
        assert abs(best.scores[q].cpu().numpy() - exact[q][best.ids[q].cpu()]).max() < tolerance
    if format != "fp8":
        corpus = maxsim.Corpus(D.cpu().numpy(), format=format, normalize=True)
        close(maxsim.search(Q.cpu().numpy(), corpus, 5).scores, best.scores, 64, 1e3)
    if format not in (None, "int8-affine"):
        found = maxsim.search(Q, corpus_of(D, format, normalize=True), 5)
        close(found.scores, -np.sort(-exact)[:, :5], 64)
        assert found.proven.all()
        with pytest.raises(ValueError, match="divides"):
            maxsim.search(maxsim.quantize(Q, format), maxsim.Corpus(
                D, format=format, normalize=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format, scales, bound", [
    ("int8", None, 0.51), ("int8", "float32", 0.501), ("int8-affine", None, 0.51),
    ("fp8", None, 18), ("fp8", "float32", 18), ("fp8", "tensor", 18),
])
def test_codes(device, format, scales, bound):
    D = torch.randn(5, 11, 24, device=device)
    codes = maxsim.quantize(D, format, scales=scales)
    assert codes.codes.shape == D.shape and codes.codes.element_size() == 1
    decoded = maxsim.dequantize(codes)
    step = codes.scales.float()
    error = (decoded - D).abs().amax(-1) / step
    assert (error < bound + 0.15 * (format == "int8-affine")).all(), error.max()
    queries = codes if format != "int8-affine" else D.half()
    wanted = oracle(decoded if format != "int8-affine" else D.half(), decoded)[0]
    close(maxsim.maxsim(queries, codes), wanted, 24, 1000 if format == "fp8" else 1)
    with_mask = maxsim.quantize(D, format, scales=scales, lengths=torch.tensor([3, 0, 11, 1, 5]))
    assert (maxsim.maxsim(queries, with_mask)[:, 1] == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_codes_are_the_same_everywhere(device):
    X = torch.randn(7, 9, 33) * 10 ** torch.linspace(-6, 4, 7)[:, None, None]
    X[2, 3, 4], X[3, 1, 2], X[4, 4] = float("nan"), float("inf"), 0.0
    lengths = torch.tensor([9, 3, 0, 9, 9, 1, 2])
    for name, scales in (("int8", None), ("int8", "float32"), ("int8-affine", None),
                         ("fp8", None), ("fp8", "float32"), ("fp8", "tensor")):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            ours = maxsim.quantize(X.to(dtype), name, scales=scales, lengths=lengths)
            of = X.to(device, dtype)
            theirs = maxsim.quantize(of, name, scales=scales, lengths=lengths)
            wide = maxsim.quantize(of[:, ::2], name, scales=scales)
            assert wide.codes.shape == (7, 5, 33)
            for x, y in ((ours.codes.view(torch.uint8), theirs.codes.cpu().view(torch.uint8)),
                         (ours.scales.nan_to_num(-1), theirs.scales.cpu().nan_to_num(-1)),
                         *([] if ours.mins is None else [(ours.mins, theirs.mins.cpu())])):
                assert torch.equal(x, y), (name, scales, dtype)


def test_one_scale_for_all_is_that_of_the_host():
    from maxsim._backends import codes as _codes
    from maxsim._sides import FORMATS, TENSOR_SCALE, Side

    X = torch.randn(7, 9, 33)
    X[2, 3, 4], X[3, 1, 2] = float("nan"), float("inf")
    ours = maxsim.quantize(X, "fp8", scales="tensor")
    codes, scale, _ = _codes.quantize(Side(X), FORMATS["float8_e4m3fn"], TENSOR_SCALE)
    assert torch.equal(ours.codes.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(ours.scales, scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_codes_of_one_scale_at_ties_and_ends(device, is_compiled, dtype):
    """Every code, what lies between two and beside that, and what is no number."""
    from maxsim._backends import codes as _codes
    from maxsim._sides import Side

    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values = values[values.isfinite()].sort().values
    ties = (values[1:] + values[:-1]) / 2
    beside = [torch.nextafter(ties, torch.tensor(end)) for end in (1e9, -1e9)]
    values = torch.cat([values, ties, *beside, torch.tensor([1e-30, -1e-30, 0.0, -0.0])])
    quantize = _codes._of_one_scale
    if is_compiled:
        backend = "inductor" if device == "cuda" else "aot_eager"
        quantize = torch.compile(quantize, backend=backend, fullgraph=True)
    exponents = (-100, -21, 0, 1, 40) if dtype != torch.float16 else (-8, 0, 6)
    for exponent, factor in ((n, x) for n in exponents for x in (1.0, 1.2345)):
        X = (values * factor * 2.0**exponent)[:1016].view(1, -1, 4).to(dtype)
        for has_ends in (False, True):
            if has_ends:
                X[0, 5, 1:] = torch.tensor([float("nan"), float("inf"), -float("inf")])
            wanted = maxsim.quantize(X, "fp8", scales="tensor")
            codes, scale, _ = quantize(Side(X.to(device)))
            assert torch.equal(wanted.scales, scale.cpu())
            found = codes.cpu().view(torch.uint8)
            assert torch.equal(wanted.codes.view(torch.uint8), found), (exponent, factor)


@pytest.mark.parametrize("bit_order", ["colbert", "little-endian"])
@pytest.mark.parametrize("nbits", [1, 2, 4, 8])
def test_plaid(bit_order, nbits):
    generator = np.random.default_rng(nbits)
    dim, rows, n = 24, 30, 6
    codes = generator.integers(0, n, rows)
    buckets = generator.integers(0, 2**nbits, (rows, dim))
    centroids = generator.standard_normal((n, dim)).astype(np.float32)
    weights = np.sort(generator.standard_normal(2**nbits)).astype(np.float32) * 0.1
    bits = buckets[..., None] >> np.arange(nbits) & 1
    little = "big" if bit_order == "colbert" else "little"
    residuals = np.packbits(bits.reshape(rows, -1), axis=1, bitorder=little)
    decoded = centroids[codes] + weights[buckets]
    decoded /= np.linalg.norm(decoded, axis=1, keepdims=True)
    offsets = [0, 10, 10, 24, 30]
    index = maxsim.PlaidIndex(codes, residuals, centroids, weights, nbits, bit_order=bit_order,
                              offsets=offsets)
    assert len(index) == 4 and "4 documents" in repr(index)
    np.testing.assert_allclose(index.decode(), decoded, atol=1e-5)
    Q = case(dim=dim)[0]
    wanted = maxsim.packed(Q, torch.tensor(decoded), None, offsets, winners=True)
    found = index.score(Q, winners=True)
    close(found.scores, wanted.scores, dim)
    assert torch.equal(found.winners, wanted.winners)
    close(index.score(Q.numpy()), wanted.scores, dim)
    ids = torch.tensor([[0, 3], [2, 2], [1, 0]])
    close(index.score(Q, ids=ids), wanted.scores.gather(1, ids), dim)
    best = maxsim.search(Q, index, 4)
    assert (best.ids[:, 3] == 1).all() and (best.n_empty == 1).all()
    grads = []
    for score in (index.score, lambda q: maxsim.packed(q, torch.tensor(decoded), None, offsets)):
        queries = Q.clone().requires_grad_()
        (score(queries) * torch.arange(4.0)).sum().backward()
        grads.append(queries.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_plaid_of_documents():
    D = torch.nn.functional.normalize(torch.randn(40, 8, 32), dim=-1)
    index = maxsim.PlaidIndex.train(D, nbits=8, n_centroids=16)
    assert np.abs(index.decode() - D.reshape(-1, 32).numpy()).mean() < 0.01
    parts = index.parts()
    again = maxsim.PlaidIndex(parts["codes"], parts["residuals"], parts["centroids"],
                              parts["bucket_weights"], 8, bit_order="colbert",
                              offsets=np.arange(41) * 8)
    assert np.array_equal(again.decode(), index.decode())
    with pytest.raises(ValueError, match="bit_order"):
        maxsim.PlaidIndex(parts["codes"], parts["residuals"], parts["centroids"],
                          parts["bucket_weights"], 8, bit_order="guess")
    with pytest.raises(ValueError, match="codes"):
        maxsim.PlaidIndex(parts["codes"] + 16, parts["residuals"], parts["centroids"],
                          parts["bucket_weights"], 8, bit_order="colbert",
                          offsets=np.arange(41) * 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("nbits, bit_order, normalize, how", [
    (2, "colbert", True, "packed"), (4, "little-endian", False, "padded"),
    (1, "little-endian", True, "masked"), (8, "colbert", True, "packed"),
])
def test_plaid_on_a_gpu(dtype, nbits, bit_order, normalize, how):
    """An index whose tensors are there, beside one that is copied: the same bits."""
    torch.manual_seed(nbits)
    n, length, dim, n_centroids = 40, 50, 128, 64
    codes = torch.randint(0, n_centroids, (n, length))
    residuals = torch.randint(0, 256, (n, length, dim * nbits // 8), dtype=torch.uint8)
    centroids = torch.nn.functional.normalize(torch.randn(n_centroids, dim), dim=-1)
    weights = (torch.randn(2**nbits) * 0.05).sort().values
    items = {}
    if how == "packed":
        codes, residuals = codes.flatten(), residuals.flatten(0, 1)
        items["offsets"] = torch.tensor([0, 7, 7, *range(50, 1900, 50), 2000])
    elif how == "padded":
        items["lengths"] = torch.arange(n) + 5
    else:
        items["mask"] = torch.rand(n, length) < 0.7
    kept = {"bit_order": bit_order, "normalize": normalize, **items}
    copied = maxsim.PlaidIndex(codes, residuals, centroids, weights, nbits, **kept)
    there = maxsim.PlaidIndex(codes.cuda(), residuals.cuda(), centroids.cuda(), weights.cuda(),
                              nbits, **kept)
    np.testing.assert_allclose(there.decode(), copied.decode(), atol=1e-5)
    for name, part in copied.parts().items():
        assert np.array_equal(there.parts()[name], part), name
    Q = torch.randn(6, 32, dim, device="cuda", dtype=dtype)
    ids = torch.randint(0, len(there), (6, 9))
    found = []
    for index in (copied, there):
        for call in ({}, {"ids": ids}):
            with_winners = index.score(Q, winners=True, token_scores=True, **call)
            queries = Q.clone().requires_grad_()
            scores = index.score(queries, **call)
            weight = torch.arange(scores.numel(), device="cuda").view(scores.shape) / 7
            (scores * weight).sum().backward()
            found.append((*with_winners, index.score(Q, **call), queries.grad))
        assert torch.equal(maxsim.search(Q, index, 5).ids, maxsim.search(Q, copied, 5).ids)
    for of_copied, of_there in zip(found[:2], found[2:]):
        for x, y in zip(of_copied, of_there):
            assert torch.equal(x, y)
    host = copied.score(Q.cpu().float())
    torch.testing.assert_close(found[2][0].cpu(), host, rtol=0.02, atol=0.3)
    queries = Q.cpu().float().requires_grad_()
    scores = copied.score(queries)
    (scores * (torch.arange(scores.numel()).view(scores.shape) / 7)).sum().backward()
    error = (found[2][-1].cpu().float() - queries.grad).norm() / queries.grad.norm()
    assert error < 0.2  # bfloat16 finds other winners of near ties
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(there.score(Q, winners=True).scores, found[2][0])
    with pytest.raises(ValueError, match="like the index"):
        there.score(Q.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_compressed_calls_on_a_gpu_wait_for_nothing():
    D, Q = (torch.randn(n, 40, 128, device="cuda", dtype=torch.float16) for n in (30, 4))
    codes = torch.randint(0, 16, (30, 40), device="cuda")
    residuals = torch.randint(0, 256, (30, 40, 32), dtype=torch.uint8, device="cuda")
    index = maxsim.PlaidIndex(codes, residuals, torch.randn(16, 128, device="cuda"),
                              torch.randn(4, device="cuda"), 2, bit_order="colbert")
    queries = Q.clone().requires_grad_()

    def calls():
        for format in ("int8", "fp8"):
            documents = maxsim.quantize(D, format)
            maxsim.maxsim(maxsim.quantize(Q, format), documents)
        maxsim.maxsim(Q, maxsim.quantize(D, "int8-affine"))
        maxsim.maxsim(maxsim.quantize(Q, "fp8", scales="tensor"),
                      maxsim.quantize(D, "fp8", scales="tensor"))
        index.score(Q, winners=True)
        index.score(queries).sum().backward()

    calls()
    torch.cuda.set_sync_debug_mode("error")
    try:
        calls()
    finally:
        torch.cuda.set_sync_debug_mode("default")


LENGTHS = torch.arange(60) % 12


def corpus_of(D, format, **options):
    return maxsim.Corpus(D, format=format, exact=True, **options)


@pytest.mark.parametrize("dtype, format", [
    (torch.float32, "int8"), (torch.float32, "fp8"), (torch.float16, "int8"),
    (torch.float16, "int8-affine"), (torch.bfloat16, "int8-affine"),
])
@pytest.mark.parametrize("n_candidates", [0, 100])
def test_the_ranking_is_the_exact_one(dtype, format, n_candidates):
    Q, D = case(dtype, m=60, dim=64)
    D[7] = D[3]
    corpus = corpus_of(D, format, lengths=LENGTHS)
    assert corpus.is_exact
    found = maxsim.search(Q, corpus, 9, n_candidates=n_candidates)
    assert isinstance(found, maxsim.ProvenRanking)
    wanted = maxsim.topk(Q, D, 9, d_lengths=LENGTHS)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.scores, wanted.scores)
    assert found.proven.dtype == torch.bool and found.proven.all()
    assert (found.n_empty == 5).all() and (found.n_nan == 0).all()
    # All documents need not have been scored again.
    assert (found.n_rescored >= 9).all() and (found.n_rescored <= 55).all()
    one = maxsim.search(Q[0], corpus, 4)
    assert one.ids.shape == one.proven.shape == (4,) and one.n_rescored.ndim == 0
    assert torch.equal(one.ids, wanted.ids[0, :4])


def test_a_proof_says_what_the_candidates_prove():
    """With few candidates some places are proven, and what is proven is true."""
    Q, D = case(m=400, dim=64)
    D = D * torch.linspace(1, 1.4, 400)[:, None, None]
    found = maxsim.search(Q, corpus_of(D, "int8"), 10, n_candidates=10, exact=False)
    wanted = maxsim.topk(Q, D, 10)
    assert (found.n_rescored == 10).all()
    assert not found.proven.all()
    assert torch.equal(found.ids[found.proven], wanted.ids[found.proven])
    # The proven places come first.
    assert (found.proven[:, 1:] <= found.proven[:, :-1]).all()


def test_the_corpus_has_documents_of_its_own():
    Q, D = case(m=30, dim=32)
    wanted = maxsim.topk(Q, D, 5)
    corpus = corpus_of(D, "int8")
    D.zero_()
    found = maxsim.search(Q, corpus, 5)
    assert torch.equal(found.ids, wanted.ids) and found.proven.all()


def test_proven_places_of_masks_and_packed_documents():
    Q, D = (x.numpy() for x in case(m=20, dim=32))
    mask = np.random.default_rng(1).random((20, 11)) < 0.7
    mask[4] = False
    wanted = maxsim.topk(Q, D, 20, d_mask=mask)
    found = maxsim.search(Q, corpus_of(D, "int8", mask=mask), 25)
    assert np.array_equal(found.ids, wanted.ids) and found.proven.all()
    assert np.array_equal(found.scores, wanted.scores) and (found.n_empty == 1).all()
    packed = corpus_of([x[:n] for x, n in zip(D, range(20))], "int8")
    wanted = maxsim.topk(Q, D, 3, d_lengths=np.minimum(np.arange(20), 11))
    assert np.array_equal(maxsim.search(Q, packed, 3).ids, wanted.ids)


def test_proven_places_of_nan_and_nothing():
    Q, D = case(m=20, dim=32)
    D[2, 3] = float("nan")
    found, wanted = maxsim.search(Q, corpus_of(D, "int8"), 20), maxsim.topk(Q, D, 20)
    assert torch.equal(found.ids, wanted.ids) and (found.n_nan == 1).all()
    assert maxsim.search(Q, corpus_of(D, "int8"), 0).ids.shape == (3, 0)
    assert maxsim.search(Q[:0], corpus_of(D, "int8"), 4).ids.shape == (0, 4)
    assert maxsim.search(Q, corpus_of(D[:0], "int8"), 4).ids.shape == (3, 0)


def test_errors_of_exact_corpora():
    Q, D = case(m=20, dim=32)
    with pytest.raises(ValueError, match="exact"):
        maxsim.Corpus(D, exact=True)
    with pytest.raises(ValueError, match="exact"):
        maxsim.Corpus(maxsim.quantize(D), exact=True)
    with pytest.raises(TypeError, match="int8 or fp8"):
        corpus_of(D, "int8-affine")
    with pytest.raises(ValueError, match="dim 32"):
        maxsim.search(Q[..., :8], corpus_of(D, "int8"))
    with pytest.raises(ValueError, match="n_candidates"):
        maxsim.search(Q, corpus_of(D, "int8"), n_candidates=-1)


@cuda
@pytest.mark.parametrize("dtype, format", [
    (torch.float32, "int8"), (torch.float32, "fp8"), (torch.float16, "int8"),
    (torch.float16, "int8-affine"), (torch.bfloat16, "fp8"),
])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_ranking_on_a_gpu_is_the_exact_one(dtype, format, normalize):
    if normalize and format == "int8-affine":
        pytest.skip("normalised rows are float32")
    Q, D = case(dtype, m=60, dim=64, device="cuda")
    D[7], D[9, 1] = D[3], float("nan")
    lengths = LENGTHS.cuda() if normalize else LENGTHS
    corpus = corpus_of(D, format, lengths=lengths, normalize=normalize)
    wanted = maxsim.topk(Q, maxsim.Corpus(D, lengths=lengths), 9) if not normalize else \
        maxsim.topk(Q.float(), D.float(), 9, d_lengths=lengths, normalize=True)
    D.zero_()  # The corpus has documents of its own.
    found = maxsim.search(Q, corpus, 9)
    assert found.ids.device == found.proven.device == Q.device
    assert torch.equal(found.ids, wanted.ids) and found.proven.all()
    torch.testing.assert_close(found.scores, wanted.scores, rtol=1e-5, atol=1e-4)
    assert (found.n_empty == 5).all() and (found.n_nan == 1).all()
    few = maxsim.search(Q, corpus, 9, n_candidates=9, exact=False)
    assert torch.equal(few.ids[few.proven], wanted.ids[few.proven])


@cuda
def test_exact_corpora_are_where_their_queries_are():
    Q, D = case(m=20, dim=32)
    for queries, documents in ((Q, D.cuda()), (Q.cuda(), D)):
        with pytest.raises(ValueError, match="like the corpus"):
            maxsim.search(queries, corpus_of(documents, "int8"))
