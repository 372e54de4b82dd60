"""colpali-engine's scores and losses, computed by maxsim.

    from maxsim.integrations import colpali
    colpali.enable()

In force, ``maxsim_inbatch`` and ``maxsim_kd`` of ``colpali_engine.utils.maxsim`` are computed here
wherever ``COLPALI_SCORES_BACKEND`` is ``auto``, on the CPU and on CUDA devices, and with them
``score_multi_vector`` of the processors and the ColBERT losses. Backends ``torch`` and ``lik``,
smooth maxima and what is not scored here (float64, other devices) stay colpali-engine's.
"""

from __future__ import annotations

from typing import Any, Callable

from ._exchange import Enabled, Integration


def enable(*, check_version: bool = True) -> Enabled:
    """Makes colpali-engine score with maxsim, from now on or inside a ``with`` block.

    Args:
        check_version: refuse versions of colpali-engine that are not known to fit.

    Raises:
        ImportError: colpali-engine is not installed.
        RuntimeError: a version that is not known to fit.
    """
    return _integration.enable(check_version)


def disable() -> None:
    """Gives colpali-engine its own functions back."""
    _integration.disable()


def _chooser(original: Callable[..., Any]) -> Callable[[], bool]:
    """Says whether the choice of the backend is free; an unknown one is colpali-engine's error."""
    names = original.__globals__
    return lambda: bool(names["_resolve_backend"]() == "auto")


def _maxsim_inbatch(original: Callable[..., Any]) -> Callable[..., Any]:
    chooses = _chooser(original)

    def maxsim_inbatch(query: Any, doc: Any) -> Any:
        from ..scoring import maxsim
        from . import _served

        if not (chooses() and _served.served(query, doc)):
            return original(query, doc)
        q, d = _served.as_products(query, doc)
        scores = maxsim(q, d, tf32=_served.allows_tf32(q))
        return scores.to(_served.sum_type(q.dtype, q.device))

    return maxsim_inbatch


def _maxsim_kd(original: Callable[..., Any]) -> Callable[..., Any]:
    chooses = _chooser(original)

    def maxsim_kd(query: Any, doc: Any) -> Any:
        from ..scoring import candidates
        from . import _served

        if not (chooses() and _served.served(query, doc, 4) and len(query) == len(doc)):
            return original(query, doc)
        q, d = _served.as_products(query, doc)
        scores = candidates(q, d, tf32=_served.allows_tf32(q))
        return scores.to(_served.sum_type(q.dtype, q.device))

    return maxsim_kd


_integration = Integration(
    "colpali_engine", "colpali-engine", ("0.3.17", "0.3.19"),
    {
        ("colpali_engine.utils.maxsim", "maxsim_inbatch"): _maxsim_inbatch,
        ("colpali_engine.utils.maxsim", "maxsim_kd"): _maxsim_kd,
    },
)
