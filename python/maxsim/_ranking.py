"""Rankings: the best documents of every query."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._sides import CROSS, Options, Pairing, check, check_call
from .scoring import _items, agree, library, side


class Ranking(NamedTuple):
    """The best documents of every query, best first.

    Documents with tokens by falling score, equal scores by lower id; then those whose score is
    NaN; then documents without valid tokens (score 0).
    """

    #: float32 ``[Nq, min(k, Nd)]``.
    scores: Any
    #: int64 ``[Nq, min(k, Nd)]``.
    ids: Any
    #: int64 ``[Nq]``: documents whose score is NaN.
    n_nan: Any
    #: int64 ``[Nq]``: documents without a valid token.
    n_empty: Any


class ProvenRanking(NamedTuple):
    """A :class:`Ranking` with what is certain of it."""

    #: float32 ``[Nq, min(k, Nd)]``: of the elements, in full precision.
    scores: Any
    #: int64 ``[Nq, min(k, Nd)]``.
    ids: Any
    #: int64 ``[Nq]``: documents whose score is NaN.
    n_nan: Any
    #: int64 ``[Nq]``: documents without a valid token.
    n_empty: Any
    #: bool ``[Nq, min(k, Nd)]``: whether the place is that of the exact ranking, which no document
    #: that was not re-scored can come before.
    proven: Any
    #: int64 ``[Nq]``: documents that were re-scored.
    n_rescored: Any


def topk(
    Q: Any, D: Any, k: int, *, q_mask: Any = None, d_mask: Any = None, q_lengths: Any = None,
    d_lengths: Any = None, normalize: bool = False, tf32: bool = False,
) -> Ranking:
    """Ranks documents for every query.

    Args:
        Q: queries ``[Nq, Lq, dim]``, or one ``[Lq, dim]``.
        D: documents ``[Nd, Ld, dim]``, a list of ``[len, dim]``, or a :class:`Corpus`.
        k: documents per query; of fewer, all are ranked.

    The rest is that of :func:`maxsim`. On the CPU the scores of some documents at a time are in
    memory. There are no gradients.

    Returns:
        A :class:`Ranking`; of one query ``[Lq, dim]``, without the axis of queries.

    Raises:
        ValueError: as :func:`maxsim`, and a ``k`` below 0.
    """
    check(k >= 0, "k", "0 or more", k)
    lib = library(Q, D)
    q_data, q_added, (q_mask,) = _items(Q, lib, "Q", q_mask)
    q = side(lib, q_data, "Q", q_mask, q_lengths)
    options = Options(normalize, tf32)
    if hasattr(D, "ranked_by"):
        found = D.ranked_by(lib, q, k, options)
    else:
        d = side(lib, D, "D", d_mask, d_lengths)
        check_call(q, d, Pairing(CROSS))
        q, d = agree(lib, q, d)
        found = lib.topk(q, d, min(k, d.n_items), options)
    if q_added:
        found = tuple(x[0] for x in found)
    return Ranking(*(lib.like(x, Q) for x in found))


def search(
    Q: Any, corpus: Any, k: int = 10, *, q_mask: Any = None, q_lengths: Any = None,
    n_candidates: int = 100, exact: bool = True,
) -> Any:
    """Ranks the documents of a :class:`Corpus` for every query: :func:`topk` of a corpus.

    Rows are normalised where the corpus says so. Of a corpus that was made with ``exact=True``
    the codes are scanned, and the elements of the best documents are scored again.

    Args:
        Q, q_mask, q_lengths: queries, as :func:`topk` takes them.
        corpus: a :class:`Corpus`, or an index of :class:`PlaidIndex`.
        k: documents per query.
        n_candidates: documents per query that are scored again at least, of an exact corpus.
        exact: score as many more again as it takes to prove every place; where not, the places
            that the candidates prove are said to be so.

    Returns:
        A :class:`Ranking`; of an exact corpus a :class:`ProvenRanking`.

    Raises:
        ValueError: as :func:`topk`.
    """
    check(hasattr(corpus, "ranked_by"), "corpus", "a maxsim.Corpus", type(corpus).__name__)
    if getattr(corpus, "is_exact", False):
        check(k >= 0, "k", "0 or more", k)
        check(n_candidates >= 0, "n_candidates", "0 or more", n_candidates)
        lib = library(Q, corpus)
        q_data, q_added, (q_mask,) = _items(Q, lib, "Q", q_mask)
        q = side(lib, q_data, "Q", q_mask, q_lengths)
        found = corpus.proven_by(lib, q, k, n_candidates, exact)
        found = tuple(x[0] for x in found) if q_added else found
        return ProvenRanking(*(lib.like(x, Q) for x in found))
    return topk(Q, corpus, k, q_mask=q_mask, q_lengths=q_lengths, normalize=corpus.normalize)
