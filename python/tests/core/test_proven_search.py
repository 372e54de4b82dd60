"""Searches of codes whose places are proven, against the order of all exact scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import case, cuda

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


def test_numpy_masks_and_packed_documents():
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


def test_nan_and_nothing():
    Q, D = case(m=20, dim=32)
    D[2, 3] = float("nan")
    found, wanted = maxsim.search(Q, corpus_of(D, "int8"), 20), maxsim.topk(Q, D, 20)
    assert torch.equal(found.ids, wanted.ids) and (found.n_nan == 1).all()
    assert maxsim.search(Q, corpus_of(D, "int8"), 0).ids.shape == (3, 0)
    assert maxsim.search(Q[:0], corpus_of(D, "int8"), 4).ids.shape == (0, 4)
    assert maxsim.search(Q, corpus_of(D[:0], "int8"), 4).ids.shape == (3, 0)


def test_errors():
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
def test_a_gpu_is_refused():
    Q, D = case(m=20, dim=32)
    with pytest.raises(ValueError, match="host memory"):
        corpus_of(D.cuda(), "int8")
    with pytest.raises(ValueError, match="CPU"):
        maxsim.search(Q.cuda(), corpus_of(D, "int8"))
