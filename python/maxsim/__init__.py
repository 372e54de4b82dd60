"""Late-interaction (ColBERT, ColPali) scores, gradients and search, on CPU and CUDA devices.

``maxsim.maxsim(Q, D)`` scores every query against every document; :func:`pairs`,
:func:`candidates`, :func:`packed` and :func:`scattered` are the same operator in other layouts.
Arguments are torch tensors (with gradients), numpy arrays or whatever speaks DLPack. torch is
loaded with the first tensor, and nothing touches a GPU before a tensor is on one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ._lazy import submodules as _submodules
from ._maxsim import version as _version
from ._ranking import ProvenRanking, Ranking, search, topk
from ._sides import Result
from ._threads import get_num_threads, set_num_threads
from .corpus import Corpus
from .explain import Explanation, explain
from .plaid import PlaidIndex
from .quantize import Quantized, dequantize, quantize
from .scoring import candidates, maxsim, packed, pairs, scattered

if TYPE_CHECKING:
    from . import compat as compat
    from . import integrations as integrations
    from . import layers as layers
    from . import losses as losses
    from .composed import angular as angular
    from .composed import chamfer as chamfer
    from .composed import from_hidden as from_hidden
    from .composed import project as project
    from .composed import xtr as xtr
    from .composed import xtr_search as xtr_search
    from .nn import MaxSimScorer as MaxSimScorer

__version__ = _version()

__all__ = [
    "Corpus",
    "Explanation",
    "MaxSimScorer",
    "PlaidIndex",
    "ProvenRanking",
    "Quantized",
    "Ranking",
    "Result",
    "angular",
    "candidates",
    "chamfer",
    "dequantize",
    "explain",
    "from_hidden",
    "get_num_threads",
    "losses",
    "maxsim",
    "packed",
    "pairs",
    "project",
    "quantize",
    "scattered",
    "search",
    "set_num_threads",
    "topk",
    "xtr",
    "xtr_search",
]

_module = _submodules(__name__, ("compat", "integrations", "layers", "losses"))

#: Operations on torch tensors alone.
_COMPOSED = ("angular", "chamfer", "from_hidden", "project", "xtr", "xtr_search")

if "torch" in sys.modules:
    # Compilers find the operators registered, whatever they trace first.
    from ._backends import compiled as _compiled
    from ._lazy import find_torch as _find_torch

    _find_torch()


def __getattr__(name: str) -> Any:
    """What needs torch is loaded when it is asked for."""
    if name == "MaxSimScorer":
        from .nn import MaxSimScorer

        return MaxSimScorer
    if name in _COMPOSED:
        from . import composed

        return getattr(composed, name)
    return _module(name)


def __dir__() -> list[str]:
    return sorted(__all__)
