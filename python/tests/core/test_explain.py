"""Matches of a query and a document, to look at."""

import json
import struct

import maxsim
import numpy
import pytest
import torch

QUERY = numpy.array([[1, 0], [0, 1]], numpy.float32)
DOCUMENT = numpy.array([[4, 0], [0, 1], [4, 1]], numpy.float32)
#: What says that it is a picture of 8 x 4 pixels.
PICTURE = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 8, 4, 8, 6, 0, 0, 0)


def test_matches_are_those_of_the_scores():
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(5, 16, generator=generator, requires_grad=True)
    document = torch.randn(40, 16, generator=generator)
    found = maxsim.explain(query, document)
    whole = maxsim.maxsim(query[None], document[None], winners=True)
    assert found.score == pytest.approx(float(whole.scores.detach()), rel=1e-6)
    assert found.winners == whole.winners.flatten().tolist()
    similarities = query.detach() @ document.T
    numpy.testing.assert_allclose(found.similarities, similarities, atol=1e-5)
    numpy.testing.assert_allclose(found.token_scores, similarities.max(1).values, atol=1e-5)
    cosines = maxsim.explain(query, document, normalize=True).similarities
    assert abs(cosines).max() <= 1.00001


def test_pages_pictures_and_text():
    words = {"query_words": ["<a>", "b"], "document_words": ["x", "y", "z"]}
    found = maxsim.explain(QUERY, DOCUMENT, **words)
    assert found.winners == [0, 1] and found.score == 5
    assert "&lt;a&gt;" in found.html() and "<a>" not in found.html()
    assert found.svg().count("<rect ") == 6
    assert "y (#1)" in found.text()
    assert json.loads(found.json())["matches"][1]["chosen"] == 1
    assert found._repr_html_().startswith("<iframe srcdoc=\"&lt;!doctype html&gt;")
    assert "2 query tokens, 3 document tokens" in repr(found)


def test_pages_of_images(tmp_path):
    (tmp_path / "page.png").write_bytes(PICTURE)
    for image in (PICTURE, tmp_path / "page.png"):
        found = maxsim.explain(QUERY, DOCUMENT, image=image, grid=(2, 1), first_patch=1)
        assert found.html().count("<i data-t=") == 2
        assert "viewBox=\"0 0 8 4\"" in found.svg()


def test_documents_without_tokens_match_nothing():
    found = maxsim.explain(QUERY, DOCUMENT[:0])
    assert found.winners == [None, None] and found.score == 0
    assert found.similarities.shape == (2, 0)
    assert "none" in found.html()


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="dim 2"):
        maxsim.explain(QUERY, numpy.zeros((3, 4), numpy.float32))
    with pytest.raises(ValueError, match=r"\[tokens, dim\]"):
        maxsim.explain(QUERY[None], DOCUMENT)
    with pytest.raises(ValueError, match="words of the query: 1 words for 2 tokens"):
        maxsim.explain(QUERY, DOCUMENT, query_words=["a"])
    with pytest.raises(ValueError, match="grid"):
        maxsim.explain(QUERY, DOCUMENT, image=PICTURE)
    with pytest.raises(ValueError, match="2 × 2 patches"):
        maxsim.explain(QUERY, DOCUMENT, image=PICTURE, grid=(2, 2))
    with pytest.raises(ValueError, match="a picture that browsers show"):
        maxsim.explain(QUERY, DOCUMENT, image=b"nothing", grid=(1, 1))
    with pytest.raises(ValueError, match="NaN"):
        maxsim.explain(QUERY * numpy.nan, DOCUMENT)
