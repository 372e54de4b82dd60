"""How functions are replaced and put back, on a package made here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

from maxsim.integrations import _exchange
from maxsim.integrations._exchange import Integration

FILES = {
    "__init__.py": "",
    "scores.py": (
        "def score(q, d, *, scale=1):\n    'Their words.'\n    return 'theirs'\n"
        "class Scorer:\n    def __call__(self, q):\n        return score(q, None)\n"
    ),
    "losses.py": (
        "from .scores import score, Scorer\n"
        "def loss(q, metric=score, *, other=score):\n    return metric(q, q), other(q, q)\n"
        "class Loss:\n    def __init__(self, metric=score):\n        self.metric = metric\n"
    ),
    "later.py": "from .scores import score\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "framework_x"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_exchange, "version_of", lambda name: "2.5.1+cu130")
    import framework_x.losses
    import framework_x.scores

    yield framework_x
    for name in [n for n in sys.modules if n.split(".")[0] == "framework_x"]:
        del sys.modules[name]


def ours(versions: tuple[str, str] = ("2.5", "2.6"), name: str = "score") -> Integration:
    def make(original: Any) -> Any:
        if name == "score":
            return lambda q, d, *, scale=1: "ours"
        return lambda self, q: "ours"
    return Integration("framework_x", "framework-x", versions,
                       {("framework_x.scores", name): make})


def test_all_captures_are_replaced_and_put_back(package: Any) -> None:
    scores, losses = package.scores, package.losses
    original = scores.score
    integration = ours()
    integration.enable(True)
    assert scores.score is losses.score is not original
    assert scores.score.__doc__ == "Their words." and scores.score.__name__ == "score"
    assert losses.loss(1) == ("ours", "ours")
    assert losses.Loss().metric(1, 2) == "ours"
    assert scores.Scorer()(1) == "ours"
    import framework_x.later

    held = framework_x.later.score
    assert held(1, 2) == "ours"
    integration.disable()
    assert scores.score is losses.score is framework_x.later.score is original
    assert losses.loss.__defaults__ == (original,)
    assert losses.loss.__kwdefaults__ == {"other": original}
    assert losses.Loss.__init__.__defaults__ == (original,)
    # Whoever holds the replacement has the framework's function now.
    assert held(1, 2) == "theirs"


def test_methods_are_replaced(package: Any) -> None:
    original = package.scores.Scorer.__call__
    integration = ours(name="Scorer.__call__")
    scorer = package.losses.Scorer()
    with integration.enable(True):
        assert scorer(1) == "ours"
    assert scorer(1) == "theirs" and package.scores.Scorer.__call__ is original


def test_blocks_nest_and_errors_leave_them(package: Any) -> None:
    integration = ours()
    with pytest.raises(KeyError):
        with integration.enable(True):
            with integration.enable(True):
                assert package.scores.score(1, 2) == "ours"
            assert package.scores.score(1, 2) == "ours"
            raise KeyError
    assert package.scores.score(1, 2) == "theirs"
    integration.disable()
    integration.enable(True)
    with integration.enable(True):
        pass
    assert package.scores.score(1, 2) == "ours"
    integration.disable()
    assert package.scores.score(1, 2) == "theirs"


def test_a_later_patch_of_others_is_left(package: Any) -> None:
    integration = ours()
    integration.enable(True)
    package.losses.score = other = lambda *args: "another"
    integration.disable()
    assert package.losses.score is other and package.scores.score(1, 2) == "theirs"


@pytest.mark.parametrize("versions", [("2.5.2", "2.6"), ("2.4", "2.5"), ("2.4", "2.5.1")])
def test_unknown_versions_are_named(package: Any, versions: tuple[str, str]) -> None:
    integration = ours(versions)
    with pytest.raises(RuntimeError) as error:
        integration.enable(True)
    for words in (*versions, "framework-x 2.5.1+cu130", "check_version=False"):
        assert words in str(error.value)
    assert not integration.enabled
    with integration.enable(False):
        assert package.scores.score(1, 2) == "ours"


def test_a_function_that_is_gone_is_named(package: Any) -> None:
    integration = ours(name="Scorer.score")
    with pytest.raises(RuntimeError, match=r"framework_x\.scores\.Scorer\.score.*>= 2\.5"):
        integration.enable(True)
    assert not integration.enabled


def test_other_parameters_are_named(package: Any) -> None:
    integration = ours()
    integration.replacements = {("framework_x.scores", "score"): lambda original: lambda q: "ours"}
    with pytest.raises(RuntimeError, match=r"scores\.score.* takes q, d, scale; .*takes q$"):
        integration.enable(True)
    assert package.scores.score(1, 2) == "theirs"


def test_a_framework_that_is_not_there() -> None:
    with pytest.raises(ImportError, match="framework-y is not installed"):
        Integration("framework_y", "framework-y", ("1", "2"), {}).enable(True)


def test_old_sentence_transformers_are_named() -> None:
    framework = pytest.importorskip("sentence_transformers")
    if int(framework.__version__.split(".")[0]) >= 6:
        pytest.skip("sentence-transformers is new enough")
    from maxsim.integrations import sentence_transformers

    with pytest.raises(RuntimeError, match=rf">= 6\.0.*{framework.__version__}"):
        sentence_transformers.enable()
    with pytest.raises(RuntimeError, match="has no function"):
        sentence_transformers.enable(check_version=False)


def test_imports_bring_no_framework() -> None:
    code = (
        "import sys\n"
        "from maxsim.integrations import pylate, colpali, sentence_transformers, vllm\n"
        "found = {'torch', 'numpy', 'pylate', 'colpali_engine', 'transformers', 'vllm',\n"
        "         'sentence_transformers'} & set(sys.modules)\n"
        "assert not found, found\n"
        "for module in (pylate, colpali, sentence_transformers, vllm):\n"
        "    module.disable()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
