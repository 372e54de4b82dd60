"""`patch_pylate`: PyLate's scores computed by this library.

PyLate 1.5.1 and later has a choice of backends of its own, which knows only other packages: there
the call goes to `maxsim.integrations.pylate`. In earlier versions the scoring functions are
replaced, in the modules that define them and in those that took them at import.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from ._utils import package_at_least
from .autograd import maxsim, maxsim_pairs

_PYLATE_NATIVE_MIN = "1.5.1"
_NATIVE_NOTICE_SHOWN = False
#: The functions that were replaced, by name; empty where nothing is patched.
_ORIGINAL: Dict[str, Callable[..., Any]] = {}


def _device_path(q: Tensor, d: Tensor) -> Optional[str]:
    """`cuda` or `mps` where this library computes, None where PyLate does."""
    if os.environ.get("LIK_DISABLE", "0") == "1" or q.device != d.device or q.shape[-1] < 8:
        return None
    if q.is_cuda:
        return "cuda" if torch.cuda.get_device_capability(q.device)[0] >= 8 else None
    return "mps" if q.device.type == "mps" else None


def _lazy(*values: Any) -> List[Tensor]:
    convert = importlib.import_module("pylate.utils.tensor").convert_to_tensor
    return [convert(value) for value in values]


def _mask(mask: Optional[Tensor]) -> Optional[Tensor]:
    return mask if mask is None or mask.dtype == torch.bool else mask != 0


def _call(
    name: str,
    fused: Callable[..., Tensor],
    queries: Any,
    documents: Any,
    queries_mask: Optional[Tensor],
    documents_mask: Optional[Tensor],
) -> Tensor:
    q, d = _lazy(queries, documents)
    path = _device_path(q, d)
    if path is None or (name == "colbert_scores_pairwise" and path != "cuda"):
        result: Tensor = _ORIGINAL[name](
            q, d, queries_mask=queries_mask, documents_mask=documents_mask
        )
        return result
    if name == "colbert_kd_scores" and d.dim() != 4:
        raise ValueError(f"colbert_kd_scores takes documents of 4 axes, got {d.dim()}")
    return fused(q, d, q_mask=_mask(queries_mask), d_mask=_mask(documents_mask))


def _patched(name: str, fused: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyLate's function of a name, computed by `fused` where this library serves it."""

    def patched(
        queries_embeddings: Any,
        documents_embeddings: Any,
        queries_mask: Optional[Tensor] = None,
        documents_mask: Optional[Tensor] = None,
        *,
        mask: Optional[Tensor] = None,
    ) -> Tensor:
        documents_mask = mask if documents_mask is None else documents_mask
        sides = (queries_embeddings, documents_embeddings, queries_mask, documents_mask)
        return _call(name, fused, *sides)

    patched.__name__ = patched.__qualname__ = f"patched_{name}"
    patched.__doc__ = f"PyLate's `{name}`; `mask` is an old name of `documents_mask`."
    return patched


patched_colbert_scores = _patched("colbert_scores", maxsim)
patched_colbert_kd_scores = _patched("colbert_kd_scores", maxsim)
patched_colbert_scores_pairwise = _patched("colbert_scores_pairwise", maxsim_pairs)

_REPLACEMENTS: Dict[str, Callable[..., Tensor]] = {
    "colbert_scores": patched_colbert_scores,
    "colbert_kd_scores": patched_colbert_kd_scores,
    "colbert_scores_pairwise": patched_colbert_scores_pairwise,
}


def _scores_defining_module() -> Tuple[ModuleType, bool]:
    """The module that defines the scores, and whether it is that of PyLate 1.5."""
    try:
        return importlib.import_module("pylate.scores.scores"), False
    except ImportError:
        return importlib.import_module("pylate.scores.colbert"), True


def _captures(new_layout: bool) -> List[Tuple[str, str]]:
    """The loss modules that took a function when they were imported."""
    captures = [("pylate.losses.distillation", "colbert_kd_scores")]
    if not new_layout:
        captures += [
            ("pylate.losses.contrastive", "colbert_scores"),
            ("pylate.losses.cached_contrastive", "colbert_scores"),
        ]
    return captures


def _native() -> None:
    """PyLate has backends: hand over to the integration, and say so once."""
    from ...integrations import pylate

    pylate.enable(masked="skip")
    global _NATIVE_NOTICE_SHOWN
    if not _NATIVE_NOTICE_SHOWN:
        _NATIVE_NOTICE_SHOWN = True
        warnings.warn(
            f"late-interaction-kernels: with PyLate {_PYLATE_NATIVE_MIN} and later patch_pylate() "
            'is maxsim.integrations.pylate.enable(masked="skip"), which is the name to call',
            DeprecationWarning,
            stacklevel=3,
        )


def patch_pylate() -> None:
    """Have PyLate score with this library. A second call does nothing.

    Warns (RuntimeWarning) of a loss module that could not be reached.
    """
    if package_at_least("pylate", _PYLATE_NATIVE_MIN):
        _native()
        return
    if _ORIGINAL:
        return
    api = importlib.import_module("pylate.scores")
    defining, new_layout = _scores_defining_module()
    for name, replacement in _REPLACEMENTS.items():
        if hasattr(defining, name):
            _ORIGINAL[name] = getattr(defining, name)
            setattr(defining, name, replacement)
            setattr(api, name, replacement)
    missed = []
    for module_name, name in _captures(new_layout):
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        if hasattr(module, name):
            setattr(module, name, _REPLACEMENTS[name])
        else:
            missed.append(f"{module_name}.{name}")
    if missed:
        warnings.warn(
            f"late-interaction-kernels: patch_pylate() did not find {', '.join(missed)}; what "
            "took the original function at import keeps it. This comes of a refactor of PyLate.",
            RuntimeWarning,
            stacklevel=2,
        )


def unpatch_pylate() -> None:
    """Give PyLate its own functions back."""
    if not _ORIGINAL:
        from ...integrations import pylate

        pylate.disable()
        return
    api = importlib.import_module("pylate.scores")
    defining, new_layout = _scores_defining_module()
    for name, original in _ORIGINAL.items():
        setattr(defining, name, original)
        setattr(api, name, original)
    for module_name, name in _captures(new_layout):
        module = sys.modules.get(module_name)
        if module is not None and hasattr(module, name):
            setattr(module, name, _ORIGINAL[name])
    _ORIGINAL.clear()
