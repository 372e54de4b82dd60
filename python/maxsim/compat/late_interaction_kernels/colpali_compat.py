"""`patch_colpali_engine`: a name that colpali-engine's users know.

colpali-engine 0.3.17 and later has a choice of backends of its own, and the original patches
nothing there. Here that is the only supported case: `maxsim.integrations.colpali` is what makes
colpali-engine score with this library.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict

from ._utils import package_at_least

_COLPALI_NATIVE_MIN = "0.3.17"
_NATIVE_NOTICE_SHOWN = False
#: Nothing is ever replaced here.
_ORIGINAL: Dict[str, Callable[..., Any]] = {}


def patch_colpali_engine() -> None:
    """Say, once, what does this now. Raises RuntimeError for versions before 0.3.17."""
    global _NATIVE_NOTICE_SHOWN
    if not package_at_least("colpali-engine", _COLPALI_NATIVE_MIN):
        raise RuntimeError(
            f"late-interaction-kernels: colpali-engine {_COLPALI_NATIVE_MIN} or later is needed; "
            "earlier versions are not patched by maxsim"
        )
    if not _NATIVE_NOTICE_SHOWN:
        _NATIVE_NOTICE_SHOWN = True
        warnings.warn(
            f"late-interaction-kernels: colpali-engine {_COLPALI_NATIVE_MIN} and later is not "
            "patched; use maxsim.integrations.colpali.enable()",
            DeprecationWarning,
            stacklevel=2,
        )


def unpatch_colpali_engine() -> None:
    """Does nothing: nothing was patched."""
