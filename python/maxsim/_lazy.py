"""Packages whose modules are loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def submodules(package: str, names: tuple[str, ...]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` that loads the modules of these names."""
    def get(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
