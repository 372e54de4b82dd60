"""PyLate's ColBERT scores, evaluators, reranker and losses, scored by maxsim.

    from maxsim.integrations import pylate
    pylate.enable()

In force, ``pylate.scores.colbert_scores``, ``colbert_scores_pairwise``, ``colbert_kd_scores`` and
``ColBERTScores`` are computed here wherever the backend is ``"auto"``, on the CPU and on CUDA
devices, and so are the losses and evaluators that call them. ``backend="torch"`` and the others,
XTR, and what is not scored here (float64, other devices) stay PyLate's.
"""

from __future__ import annotations

from typing import Any, Callable

from ._exchange import Enabled, Integration

#: How masked document tokens count: with similarity 0, or not at all.
_masked = "zero"


def enable(*, masked: str = "zero", check_version: bool = True) -> Enabled:
    """Makes PyLate score with maxsim, from now on or inside a ``with`` block.

    Args:
        masked: ``"zero"``: a masked document token has similarity 0, as in PyLate's own torch
            code: it wins over tokens whose similarities are negative. Documents are copied where
            that is cheaper than the similarities of all winners, and where masks are weights.
            ``"skip"``: a masked token cannot win, as in PyLate's backends for GPUs; this never
            needs a copy of the documents.
        check_version: refuse versions of PyLate that are not known to fit.

    Raises:
        ImportError: PyLate is not installed.
        RuntimeError: a version that is not known to fit.
        ValueError: ``masked`` is neither.
    """
    global _masked
    if masked not in ("zero", "skip"):
        raise ValueError(f'masked: expected "zero" or "skip", found {masked!r}')
    enabled = _integration.enable(check_version)
    _masked = masked
    return enabled


def disable() -> None:
    """Gives PyLate its own functions back."""
    _integration.disable()


class _Own:
    """What PyLate's module of scores has of its own, by one of its functions."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.names = original.__globals__

    def chooses(self, backend: str | None) -> bool:
        """Whether the choice of the backend is free; an unknown one is PyLate's error."""
        return bool(self.names["_resolve_backend"](backend) == "auto")

    def tensor(self, x: Any) -> Any:
        """A tensor of what PyLate takes for one."""
        return None if x is None else self.names["convert_to_tensor"](x)


def _score(
    score: Callable[..., Any], queries: Any, documents: Any, queries_mask: Any = None,
    documents_mask: Any = None,
) -> Any:
    """Scores with masks that multiply similarities, in the element type that these have."""
    import torch

    from .._backends import zeroed
    from . import _served

    given = queries, documents
    queries, documents = _served.as_products(queries, documents)
    dtype = queries.dtype
    skipped, tf32 = None, _served.allows_tf32(queries)
    if queries_mask is not None:
        dtype = torch.promote_types(dtype, queries_mask.dtype)
        queries = _times(queries, queries_mask, queries is not given[0])
    if documents_mask is not None:
        dtype = torch.promote_types(dtype, documents_mask.dtype)
        if _masked == "zero" and _served.is_eager() and zeroed.takes(
                queries, documents, documents_mask):
            scores = zeroed.score(queries, documents, documents_mask, tf32)
            return scores.to(_served.sum_type(dtype, scores.device))
        if _masked == "zero":
            documents = _times(documents, documents_mask, documents is not given[1])
        else:
            skipped = documents_mask != 0
    scores = score(queries, documents, d_mask=skipped, tf32=tf32)
    return scores.to(_served.sum_type(dtype, scores.device))


def _times(tokens: Any, mask: Any, is_own: bool) -> Any:
    """Tokens times their mask: in place where they are a copy that was made here."""
    factors = mask.unsqueeze(-1)
    if mask.is_floating_point():
        # Other masks are factors as they are, and need no copy that gradients would keep.
        factors = factors.to(tokens.dtype)
    return tokens.mul_(factors) if is_own else tokens * factors


def _colbert_scores(original: Callable[..., Any]) -> Callable[..., Any]:
    own = _Own(original)

    def colbert_scores(
        queries_embeddings: Any, documents_embeddings: Any, queries_mask: Any = None,
        documents_mask: Any = None, backend: str | None = None,
    ) -> Any:
        from ..scoring import maxsim
        from . import _served

        q, d = own.tensor(queries_embeddings), own.tensor(documents_embeddings)
        q_mask, d_mask = own.tensor(queries_mask), own.tensor(documents_mask)
        if (own.chooses(backend) and _served.served(q, d) and _served.fits(q_mask, q)
                and _served.fits(d_mask, d)):
            return _score(maxsim, q, d, q_mask, d_mask)
        return original(q, d, q_mask, d_mask, backend=backend)

    return colbert_scores


def _colbert_kd_scores(original: Callable[..., Any]) -> Callable[..., Any]:
    own = _Own(original)

    def colbert_kd_scores(
        queries_embeddings: Any, documents_embeddings: Any, queries_mask: Any = None,
        documents_mask: Any = None, backend: str | None = None,
    ) -> Any:
        from ..scoring import candidates
        from . import _served

        q, d = own.tensor(queries_embeddings), own.tensor(documents_embeddings)
        q_mask, d_mask = own.tensor(queries_mask), own.tensor(documents_mask)
        if (own.chooses(backend) and _served.served(q, d, 4) and len(q) == len(d)
                and _served.fits(q_mask, q) and _served.fits(d_mask, d)):
            return _score(candidates, q, d, q_mask, d_mask)
        return original(q, d, q_mask, d_mask, backend=backend)

    return colbert_kd_scores


def _colbert_scores_pairwise(original: Callable[..., Any]) -> Callable[..., Any]:
    own = _Own(original)

    def colbert_scores_pairwise(
        queries_embeddings: Any, documents_embeddings: Any, backend: str | None = None,
    ) -> Any:
        from ..scoring import pairs
        from . import _served

        q, d = queries_embeddings, documents_embeddings
        if own.chooses(backend):
            if _served.served(q, d) and len(q) == len(d):
                return _score(pairs, q, d)
            if isinstance(q, (list, tuple)) and isinstance(d, (list, tuple)):
                scores = _scores_of_lists(own, q, d)
                if scores is not None:
                    return scores
        return original(q, d, backend=backend)

    return colbert_scores_pairwise


def _scores_of_lists(own: _Own, queries: Any, documents: Any) -> Any:
    """Scores of pairs of items of any lengths; None where they are PyLate's to score."""
    import torch

    from ..scoring import packed
    from . import _served

    n = len(queries)
    if n == 0 or n != len(documents):
        return None
    queries = [own.tensor(x) for x in queries]
    documents = [own.tensor(x) for x in documents]
    first = queries[0]
    for x in (*queries, *documents):
        if not _served.is_plain(x) or x.ndim != 2:
            return None
        if x.dtype != first.dtype or x.device != first.device:
            return None
    if not all(_served.served(q[None], d[None]) for q, d in zip(queries, documents)):
        return None
    if len({x.shape[1] for x in queries}) > 1:
        return None

    def offsets(items: Any) -> Any:
        # In host memory, where lists are read.
        lengths = torch.tensor([0] + [len(x) for x in items])
        return lengths.cumsum(0)

    q, d = _served.as_products(torch.cat(queries), torch.cat(documents))
    ids = torch.arange(n)
    longest = max(len(x) for x in queries)
    scores = packed(q, d, offsets(queries), offsets(documents), ids, ids, max_q_len=longest,
                    tf32=_served.allows_tf32(q))
    return scores.to(_served.sum_type(q.dtype, q.device))


def _contrastive(original: Callable[..., Any]) -> Callable[..., Any]:
    own = _Own(original)

    def __call__(
        self: Any, queries_embeddings: Any, documents_embeddings: Any, queries_mask: Any = None,
        documents_mask: Any = None, backend: str | None = None,
    ) -> Any:
        """All groups of documents in one call."""
        from . import _served

        q, d = own.tensor(queries_embeddings), own.tensor(documents_embeddings)
        if (own.chooses(backend) and _served.served(q, d, 4) and _served.fits(documents_mask, d)
                and _served.fits(queries_mask, q)):
            mask = None if documents_mask is None else documents_mask.flatten(0, 1)
            scores = own.names["colbert_scores"]
            return scores(q, d.flatten(0, 1), queries_mask, mask, backend=backend)
        return original(self, q, d, queries_mask, documents_mask, backend=backend)

    return __call__


_integration = Integration(
    "pylate", "pylate", ("1.5.1", "1.7"),
    {
        ("pylate.scores.colbert", "colbert_scores"): _colbert_scores,
        ("pylate.scores.colbert", "colbert_kd_scores"): _colbert_kd_scores,
        ("pylate.scores.colbert", "colbert_scores_pairwise"): _colbert_scores_pairwise,
        ("pylate.scores.colbert", "ColBERTScores.__call__"): _contrastive,
    },
)
