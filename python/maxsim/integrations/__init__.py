"""Other packages' scoring, done by this one: a module for each, with ``enable()``.

``enable()`` replaces a framework's scoring functions where it finds them, ``disable()`` puts its
own back. Nothing of a framework is imported before its ``enable()``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import submodules

if TYPE_CHECKING:
    from . import colpali as colpali
    from . import pylate as pylate
    from . import sentence_transformers as sentence_transformers
    from . import vllm as vllm

__getattr__ = submodules(__name__, ("colpali", "pylate", "sentence_transformers", "vllm"))
