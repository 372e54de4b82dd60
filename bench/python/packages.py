"""The peers and frameworks, from their unpacked source distributions where a folder has them."""

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import pathlib
import sys
import types

#: Folders of the source distributions, by package.
SOURCES = {
    "flash_maxsim": "flash_maxsim-0.3.0",
    "late_interaction_kernels": "late_interaction_kernels-0.4.5",
    "pylate": "pylate-1.6.0",
    "colpali_engine": "colpali_engine-0.3.18",
}


def use(folder):
    """Puts the source distributions of a folder before what is installed."""
    if folder is None:
        return
    for name in SOURCES.values():
        path = pathlib.Path(folder).resolve() / name
        if path.is_dir() and str(path) not in sys.path:
            sys.path.insert(0, str(path))


def original(name):
    """A peer's own package: one that re-exports this library's functions is refused."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} is not there")
    if "maxsim.compat" in pathlib.Path(spec.origin).read_text():
        raise ImportError(f"{name} at {spec.origin} is this library under that name")
    return importlib.import_module(name)


def losses_of_pylate():
    """PyLate's losses. Its data sets need a package that losses do not."""
    try:
        importlib.import_module("datasets")
    except ImportError:
        stand_in = types.ModuleType("datasets")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
        kinds = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict", "Value")
        for kind in kinds:
            setattr(stand_in, kind, type(kind, (), {}))
        sys.modules["datasets"] = stand_in
        try:
            return importlib.import_module("pylate.losses")
        finally:
            del sys.modules["datasets"]
    return importlib.import_module("pylate.losses")


def losses_of_colpali():
    """colpali-engine's late-interaction losses, without its models and what these need."""
    if "colpali_engine" not in sys.modules:
        for path in sys.path:
            folder = pathlib.Path(path) / "colpali_engine"
            if folder.is_dir():
                break
        else:
            raise ImportError("colpali_engine is not there")
        for name in ("colpali_engine", "colpali_engine.utils", "colpali_engine.loss"):
            module = types.ModuleType(name)
            module.__path__ = [str(folder.parent / name.replace(".", "/"))]
            sys.modules[name] = module
    return importlib.import_module("colpali_engine.loss.late_interaction_losses")


def installed(name):
    """The version that a package was installed as, where that is known."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions():
    """Versions of what is measured, where they are known."""
    found = {}
    others = ("sentence_transformers", "transformers", "fast_plaid")
    for name in ("maxsim", "torch", "triton", *SOURCES, *others):
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if version is None and name in SOURCES and module is not None:
            version = SOURCES[name].rpartition("-")[2]
        elif version is None and module is not None:
            version = installed(name)
        if version is not None:
            found[name] = str(version)
    return found
