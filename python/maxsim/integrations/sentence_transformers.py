"""Late interaction of sentence-transformers (MultiVectorEncoder), scored by maxsim.

    from maxsim.integrations import sentence_transformers
    sentence_transformers.enable()

In force, ``util.maxsim``, ``maxsim_pairwise``, ``mean_maxsim`` and ``mean_maxsim_pairwise``, the
ColBERT scores of ``multi_vector_encoder.scoring``, the losses that use them, the evaluators and
``MultiVectorEncoder.similarity`` are computed here, on the CPU and on CUDA devices, also where a
caller imported them before. XTR and what is not scored here (float64, other devices) stay
sentence-transformers'.
"""

from __future__ import annotations

from typing import Any, Callable

from ._exchange import Enabled, Integration


def enable(*, check_version: bool = True) -> Enabled:
    """Makes sentence-transformers score with maxsim, from now on or inside a ``with`` block.

    Args:
        check_version: refuse versions of sentence-transformers that are not known to fit.

    Raises:
        ImportError: sentence-transformers is not installed.
        RuntimeError: a version that is not known to fit.
    """
    return _integration.enable(check_version)


def disable() -> None:
    """Gives sentence-transformers its own functions back."""
    _integration.disable()


def _score(
    score: Callable[..., Any], original: Callable[..., Any], a: Any, b: Any, a_mask: Any,
    b_mask: Any,
) -> Any:
    """Scores a padded chunk, in float32; documents without a token score their -1e9."""
    from . import _served

    a, b = _served.as_products(a, b)
    if a_mask is not None and a_mask.is_floating_point():
        # A factor, not only a mask: weights of tokens are their caller's business.
        a, a_mask = a * a_mask.unsqueeze(-1).to(a.dtype), None
    if a_mask is not None:
        a_mask = a_mask.bool()
    tf32 = _served.allows_tf32(a)
    if b_mask is None:
        return score(a, b, q_mask=a_mask, tf32=tf32)
    b_mask = b_mask.bool()
    scores = score(a, b, q_mask=a_mask, d_mask=b_mask, tf32=tf32)
    fill = original.__globals__["_fill_empty_document_scores"]
    return fill(scores, ~b_mask.any(dim=-1))


def _score_documents(original: Callable[..., Any]) -> Callable[..., Any]:
    def _maxsim_score_documents(a: Any, b: Any, a_mask: Any, b_mask: Any) -> Any:
        from ..scoring import maxsim
        from . import _served

        if _served.served(a, b) and _served.fits(a_mask, a) and _served.fits(b_mask, b):
            return _score(maxsim, original, a, b, a_mask, b_mask)
        return original(a, b, a_mask, b_mask)

    return _maxsim_score_documents


def _score_pairs(original: Callable[..., Any]) -> Callable[..., Any]:
    def _maxsim_score_pairs(a: Any, b: Any, a_mask: Any, b_mask: Any) -> Any:
        from ..scoring import pairs
        from . import _served

        if (_served.served(a, b) and len(a) == len(b) and _served.fits(a_mask, a)
                and _served.fits(b_mask, b)):
            return _score(pairs, original, a, b, a_mask, b_mask)
        return original(a, b, a_mask, b_mask)

    return _maxsim_score_pairs


#: Rows that are looked at as a whole at once.
_ROWS_AT_ONCE = 4096


def _zero_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    def _zero_row_mask(padded: Any) -> Any:
        """Which rows are no padding, without a copy of all of them as truth values."""
        from . import _served

        if not (_served.is_plain(padded) and _served.is_eager() and padded.device.type == "cpu"
                and padded.ndim > 1 and padded.numel() > 0 and padded.is_contiguous()):
            return original(padded)
        rows = padded.detach().flatten(0, -2)
        found = rows[:, 0] != 0
        # Few rows begin with a zero but those that are padding.
        for part in (~found).nonzero()[:, 0].split(_ROWS_AT_ONCE):
            found[part] = rows[part].any(dim=-1)
        return found.view(padded.shape[:-1]).to(padded.dtype)

    return _zero_row_mask


_integration = Integration(
    "sentence_transformers", "sentence-transformers", ("6.0", "6.3"),
    {
        ("sentence_transformers.util.similarity", "_maxsim_score_documents"): _score_documents,
        ("sentence_transformers.util.similarity", "_maxsim_score_pairs"): _score_pairs,
        ("sentence_transformers.util.similarity", "_zero_row_mask"): _zero_rows,
    },
)
