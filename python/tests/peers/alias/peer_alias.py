"""Other packages' names for this package's namespaces, for their tests alone."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `alias.x` as `real.x`, the same module object under two names."""

    def __init__(self, alias, real):
        self.alias, self.real = alias + ".", real + "."

    def find_spec(self, name, path, target=None):
        if not name.startswith(self.alias):
            return None
        real = self.real + name[len(self.alias) :]
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        module = importlib.import_module(self.real + spec.name[len(self.alias) :])
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec  # the import system has put the alias' there


def install(alias, real):
    """Make the module `real` stand under the name `alias`, with its submodules."""
    package = importlib.import_module(real)
    sys.meta_path.insert(0, _Finder(alias, real))
    sys.modules[alias] = package
    # All are put in place now: a later import of a submodule would set the package's attribute of
    # that name, which may be a function.
    for found in pkgutil.walk_packages(package.__path__, real + "."):
        sys.modules[alias + found.name[len(real) :]] = importlib.import_module(found.name)
