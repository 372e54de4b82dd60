"""`patch_colpali_engine`: a name that colpali-engine's users know.

colpali-engine 0.3.17 and later has a choice of backends of its own, which knows only other
packages; `maxsim.integrations.colpali` is what makes it score with this library.
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict

from ...integrations import colpali

_NATIVE_NOTICE_SHOWN = False
#: Nothing is replaced here but by the integration.
_ORIGINAL: Dict[str, Callable[..., Any]] = {}


def patch_colpali_engine() -> None:
    """Have colpali-engine score with this library, and say once what the call is now.

    Raises ImportError where colpali-engine is not installed, RuntimeError for versions that are
    not known to fit.
    """
    global _NATIVE_NOTICE_SHOWN
    colpali.enable()
    if not _NATIVE_NOTICE_SHOWN:
        _NATIVE_NOTICE_SHOWN = True
        warnings.warn(
            "late-interaction-kernels: patch_colpali_engine() is "
            "maxsim.integrations.colpali.enable(), which is the name to call",
            DeprecationWarning,
            stacklevel=2,
        )


def unpatch_colpali_engine() -> None:
    """Give colpali-engine its own functions back."""
    colpali.disable()
