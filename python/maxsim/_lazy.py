"""Tells torch's tensors without loading torch, and loads modules when they are asked for.

Compiled functions depend on what they read: a look at all modules that are loaded would compile
them again after any import. So torch is looked for until it is found, and then no more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

#: The class of torch's tensors, and the quick calls on them, from when torch is there.
tensor: Any = ()
quick: Any = None


def find_torch() -> Any:
    """The class of torch's tensors; an empty tuple as long as torch is not loaded."""
    global tensor, quick
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "Tensor"):
        from ._backends import quick as found

        quick, tensor = found, torch.Tensor
    return tensor


def is_tensor(x: Any) -> bool:
    """Whether this is a tensor of torch."""
    return isinstance(x, tensor or find_torch())


def submodules(package: str, names: tuple[str, ...]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that loads the modules of these names."""
    def get(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
