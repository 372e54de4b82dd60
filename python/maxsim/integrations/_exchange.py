"""Replaces functions of a package everywhere inside that package, and undoes it."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import re
import sys
import threading
from types import FunctionType, ModuleType, TracebackType
from typing import Any, Callable, Iterator

#: Where a function is: a module, and a name in it (``function`` or ``Class.method``).
Place = tuple[str, str]

_lock = threading.RLock()


class Enabled:
    """What ``enable()`` gives: as a context manager it disables at the end of the block."""

    def __init__(self, integration: Integration, began: bool) -> None:
        self._integration = integration
        self._began = began

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An outer enable() stays in force.
        if self._began:
            self._integration.disable()


class Integration:
    """Functions of one framework and what replaces them.

    Args:
        package: the name under which the framework is imported.
        distribution: the name under which it is installed.
        versions: the first version that fits and the first that is not known to.
        replacements: for each place, what makes the replacement of the function found there.
    """

    def __init__(
        self, package: str, distribution: str, versions: tuple[str, str],
        replacements: dict[Place, Callable[[Any], Any]],
    ) -> None:
        self.package = package
        self.distribution = distribution
        self.versions = versions
        self.replacements = replacements
        self.enabled = False
        self._pairs: list[tuple[Any, Any]] = []

    def enable(self, check_version: bool) -> Enabled:
        """Replaces the functions, unless that is done."""
        with _lock:
            if self.enabled:
                return Enabled(self, False)
            if check_version:
                self._check_version()
            pairs = []
            for place, make in self.replacements.items():
                original = self._find(place)
                replacement = make(original)
                self._check_parameters(place, original, replacement)
                pairs.append((original, self._guarded(original, replacement)))
            exchange(self.package, pairs)
            self._pairs = pairs
            self.enabled = True
            return Enabled(self, True)

    def disable(self) -> None:
        """Puts the framework's functions back; does nothing where they are in place."""
        with _lock:
            exchange(self.package, [(new, original) for original, new in self._pairs])
            self._pairs = []
            self.enabled = False

    def _guarded(self, original: Any, replacement: Any) -> Any:
        """The replacement, for as long as this is enabled: others may hold it for longer."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (replacement if self.enabled else original)(*args, **kwargs)

        return call

    def _find(self, place: Place) -> Any:
        module, path = place
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        if not isinstance(found, FunctionType):
            raise RuntimeError(
                f"{self.package} {version_of(self.distribution)} has no function {module}.{path}; "
                f"maxsim fits {self._known()}"
            )
        return found

    def _check_parameters(self, place: Place, original: Any, replacement: Any) -> None:
        """Both must be callable with the same arguments."""
        found, wanted = (
            [(p.name, p.kind) for p in inspect.signature(x).parameters.values()]
            for x in (original, replacement)
        )
        if found != wanted:
            module, path = place
            raise RuntimeError(
                f"{module}.{path} of {self.package} {version_of(self.distribution)} takes "
                f"{', '.join(name for name, _ in found)}; maxsim fits {self._known()}, where it "
                f"takes {', '.join(name for name, _ in wanted)}"
            )

    def _known(self) -> str:
        first, end = self.versions
        return f"{self.distribution} >= {first}, < {end}"

    def _check_version(self) -> None:
        found = version_of(self.distribution)
        first, end = (_release(version) for version in self.versions)
        if not first <= _release(found) < end:
            raise RuntimeError(
                f"maxsim is known to fit {self._known()}, found {self.distribution} {found}; "
                "enable(check_version=False) tries all the same"
            )


def version_of(distribution: str) -> str:
    """The version of an installed package; ImportError where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{distribution} is not installed") from None


def _release(version: str) -> tuple[int, ...]:
    """The numbers in front of a version, without what follows them (``rc1``, ``+cu130``)."""
    found = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(number) for number in found[1].split(".")) if found else ()


def exchange(package: str, pairs: list[tuple[Any, Any]]) -> None:
    """Puts each pair's second in the place of its first, in all modules of a package.

    These places are names of modules, attributes of classes, and default arguments.
    """
    new_of = {id(old): new for old, new in pairs}
    if not new_of:
        return
    for holder in _holders(package):
        for name, value in list(vars(holder).items()):
            if id(value) in new_of:
                setattr(holder, name, new_of[id(value)])
            elif isinstance(value, FunctionType):
                _exchange_defaults(value, new_of)


def _exchange_defaults(function: FunctionType, new_of: dict[int, Any]) -> None:
    defaults = function.__defaults__
    if defaults and any(id(value) in new_of for value in defaults):
        function.__defaults__ = tuple(new_of.get(id(value), value) for value in defaults)
    named = function.__kwdefaults__ or {}
    for name, value in named.items():
        if id(value) in new_of:
            named[name] = new_of[id(value)]


def _holders(package: str) -> Iterator[Any]:
    """The loaded modules of a package and the classes that these define."""
    inside = (package, package + ".")
    for name, module in list(sys.modules.items()):
        if not (name == inside[0] or name.startswith(inside[1])):
            continue
        if not isinstance(module, ModuleType):
            continue
        yield module
        for value in list(vars(module).values()):
            if inspect.isclass(value) and value.__module__ == name:
                yield value
