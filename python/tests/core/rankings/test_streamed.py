"""Corpora that stay in host memory, and are copied to a device a piece at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maxsim
from cases import DEVICES, case, cuda


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("format", [None, "int8", "int8-affine", "fp8"])
@pytest.mark.parametrize("layout", ["padded", "lengths", "mask", "packed", "list"])
def test_a_streamed_corpus(device, format, layout):
    """A piece at a time, the ranking is that of all documents at once, to the bit."""
    Q, D = case(m=60, dim=64, dtype=torch.float16)
    D[3], D[50], D[41] = D[7], D[7], float("nan") if format is None else 0
    lengths = torch.arange(60) % 12
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = torch.cat([D[i, :n] for i, n in enumerate(lengths)])
    D, how = {
        "padded": (D, {}),
        "lengths": (D, {"lengths": lengths}),
        "mask": (D, {"mask": torch.arange(11) < lengths[:, None]}),
        "packed": (rows, {"offsets": offsets}),
        "list": ([D[i, :n] for i, n in enumerate(lengths)], {}),
    }[layout]
    whole = maxsim.Corpus(D, format=format, **how)
    for piece_bytes in (1, 5000, 20000, 1 << 30):
        corpus = maxsim.Corpus(D, format=format, streamed=True, piece_bytes=piece_bytes, **how)
        for k in (0, 1, 7, 100):
            best, wanted = maxsim.search(Q.to(device), corpus, k), maxsim.search(Q, whole, k)
            if device == "cpu":
                for ours, theirs in zip(best, wanted):
                    assert torch.equal(torch.nan_to_num(ours, 9e9), torch.nan_to_num(theirs, 9e9))
            assert best.ids.device.type == device and best.scores.shape == wanted.scores.shape
            assert torch.equal(best.n_nan.cpu(), wanted.n_nan)
            assert torch.equal(best.n_empty.cpu(), wanted.n_empty)
    if device == "cuda":
        resident = maxsim.Corpus(
            [x.cuda() for x in D] if isinstance(D, list) else D.cuda(), format=format,
            **{name: x.cuda() for name, x in how.items()})
        best, wanted = maxsim.search(Q.cuda(), corpus, 60), maxsim.search(Q.cuda(), resident, 60)
        assert torch.allclose(best.scores, wanted.scores, 1e-3, 1e-2, equal_nan=True)


def test_pieces_are_no_larger_than_was_said():
    from maxsim._backends.streamed import pieces

    rows, offsets = torch.randn(40, 16), torch.tensor([0, 3, 3, 10, 11, 30, 40])
    packed = maxsim.Corpus(rows, offsets=offsets, streamed=True, piece_bytes=8 * 64)
    found = [(first, piece.data.shape[0], piece.n_items)
             for first, piece in pieces(packed._side, packed.piece_bytes)]
    assert found == [(0, 3, 2), (2, 8, 2), (4, 19, 1), (5, 10, 1)]
    none = maxsim.Corpus(torch.randn(0, 4, 16), streamed=True)
    best = maxsim.search(torch.randn(2, 3, 16), none, 5)
    assert best.ids.shape == (2, 0) and best.n_empty.tolist() == [0, 0]


@pytest.mark.parametrize("options, error", [
    ({"exact": True, "format": "int8"}, "streamed: expected False of an exact"),
    ({"piece_bytes": 0}, "piece_bytes: expected 1 or more"),
    ({"lengths": torch.tensor([2]), "offsets": torch.tensor([0])}, "lengths beside offsets"),
    ({"offsets": torch.tensor([0, 3])}, "offsets: expected rising numbers from 0 to 4"),
    ({"offsets": torch.tensor([0, 3, 2, 4])}, "offsets: expected rising"),
])
def test_what_cannot_be_streamed(options, error):
    with pytest.raises(ValueError, match=error):
        maxsim.Corpus(torch.randn(4, 16), streamed=True, **options)
    with pytest.raises(ValueError, match="torch.from_numpy"):
        maxsim.Corpus(np.zeros((2, 4, 16), np.float32), streamed=True)


@cuda
def test_a_streamed_corpus_takes_little_of_the_device():
    D = torch.randn(4000, 64, 128).half()
    for D in (D, D.pin_memory()):
        corpus = maxsim.Corpus(D, streamed=True, piece_bytes=2 << 20)
        Q = torch.randn(2, 32, 128, device="cuda").half()
        maxsim.search(Q, corpus, 10)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        best = maxsim.search(Q, corpus, 10)
        assert torch.cuda.max_memory_allocated() - before < 5 * (2 << 20)
        assert torch.equal(best.ids, maxsim.topk(Q, D.cuda(), 10).ids)
