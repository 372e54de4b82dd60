"""Fixtures of the tests of integrations."""

from __future__ import annotations

from typing import Any, Iterator

import pytest
import torch
from comparing import Calls

import maxsim._backends.zeroed
import maxsim.scoring


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Records calls of the package's scoring functions."""
    found = Calls()
    for name in ("maxsim", "pairs", "candidates", "packed", "scattered"):
        def record(*args: Any, _name: str = name, _own: Any = getattr(maxsim.scoring, name),
                   **kwargs: Any) -> Any:
            found.append(_name)
            return _own(*args, **kwargs)
        monkeypatch.setattr(maxsim.scoring, name, record)

    own_zeroed = maxsim._backends.zeroed.score

    def zeroed(Q: Any, D: Any, *options: Any) -> Any:
        found.append("candidates" if D.ndim == 4 else "maxsim")
        found.zeroed += 1
        return own_zeroed(Q, D, *options)
    monkeypatch.setattr(maxsim._backends.zeroed, "score", zeroed)
    return found


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
