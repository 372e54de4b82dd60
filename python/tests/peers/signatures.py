"""Compares the public functions of a package's sources with ours: names, parameters, defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any, List, Optional, Tuple

Parameter = Tuple[str, bool, Optional[str]]


def _theirs(function: ast.FunctionDef) -> List[Parameter]:
    """(name, keyword only, default) of each parameter, read from the text."""
    given = function.args
    placed = given.posonlyargs + given.args
    defaults: List[Any] = [None] * (len(placed) - len(given.defaults)) + given.defaults
    found = [(a.arg, False, d) for a, d in zip(placed, defaults)]
    found += [(a.arg, True, d) for a, d in zip(given.kwonlyargs, given.kw_defaults)]
    return [(name, only, None if d is None else ast.unparse(d)) for name, only, d in found]


def _ours(function: Any) -> List[Parameter]:
    return [
        (p.name, p.kind == p.KEYWORD_ONLY, None if p.default is p.empty else repr(p.default))
        for p in inspect.signature(function).parameters.values()
    ]


def _differs(name: str, function: ast.FunctionDef, ours: Any) -> List[str]:
    theirs, mine = _theirs(function), _ours(inspect.unwrap(ours))
    return [] if theirs == mine else [f"{name}: theirs {theirs}, ours {mine}"]


def _in_module(path: Path, real: str, internal: List[str], prefix: str) -> List[str]:
    module = importlib.import_module(real)
    wrong: List[str] = []
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        name = prefix + node.name
        ours = getattr(module, node.name, None)
        if name in internal:
            continue
        if ours is None:
            wrong.append(f"{name}: not there")
        elif isinstance(node, ast.FunctionDef):
            wrong += _differs(name, node, ours)
        else:
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    if not hasattr(ours, part.name):
                        wrong.append(f"{name}.{part.name}: not there")
                    elif part.name not in ("__init__", "__iter__"):
                        wrong += _differs(f"{name}.{part.name}", part, getattr(ours, part.name))
    return wrong


def compare(folder: Path, real: str, internal: List[str]) -> List[str]:
    """What differs between the sources in `folder` and the namespace `real`.

    `internal` lists modules and functions that are no interface: of their kernels.
    """
    wrong: List[str] = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in internal:
            module = f"{real}.{name}" if name else real
            wrong += _in_module(path, module, internal, f"{name}." if name else "")
    return wrong
