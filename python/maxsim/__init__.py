"""Late-interaction (ColBERT, ColPali) scores, gradients and search, on CPU and CUDA devices."""

from ._maxsim import version as _version
from ._sides import Result
from ._threads import get_num_threads, set_num_threads
from .scoring import candidates, maxsim, packed, pairs, scattered

__version__ = _version()

__all__ = [
    "Result",
    "candidates",
    "get_num_threads",
    "maxsim",
    "packed",
    "pairs",
    "scattered",
    "set_num_threads",
]
