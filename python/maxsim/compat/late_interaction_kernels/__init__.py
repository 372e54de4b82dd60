"""The functions of late-interaction-kernels 0.4 under their names.

Scores are f32, an empty or fully masked document scores 0 and takes no gradient. Unlike there,
f32 tokens are multiplied as f32, NaN shows in the score, and CPU tensors are taken everywhere.
"""

from __future__ import annotations

from . import reference
from .autograd import maxsim, maxsim_pairs
from .colpali_compat import patch_colpali_engine, unpatch_colpali_engine
from .padded import maxsim_padded
from .pylate_compat import patch_pylate, unpatch_pylate
from .retrieve import MaxSimScorer, retrieve
from .varlen import maxsim_varlen

#: The version whose functions these are.
__version__ = "0.4.5"

__all__ = [
    "MaxSimScorer",
    "__version__",
    "maxsim",
    "maxsim_padded",
    "maxsim_pairs",
    "maxsim_varlen",
    "patch_colpali_engine",
    "patch_pylate",
    "reference",
    "retrieve",
    "unpatch_colpali_engine",
    "unpatch_pylate",
]
