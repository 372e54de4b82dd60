"""How results with maxsim and without are compared."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch

#: Where tensors are: MAXSIM_TEST_DEVICE=cuda runs the same tests on a GPU.
DEVICE = os.environ.get("MAXSIM_TEST_DEVICE", "cpu")
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="on the CPU only")


def randn(*shape: Any) -> torch.Tensor:
    """Normal numbers where the tests' tensors are."""
    return torch.randn(*shape, device=DEVICE)


def rand(*shape: Any) -> torch.Tensor:
    """Numbers from 0 to 1 where the tests' tensors are."""
    return torch.rand(*shape, device=DEVICE)


class Calls(list):
    """Names of the functions of this package that were called."""

    #: Calls with masked tokens of similarity 0 that copied no documents.
    zeroed = 0

    def take(self) -> list:
        """The names since the last time."""
        found = list(self)
        self.clear()
        return found


def traces(package: str) -> list[str]:
    """Where functions of the integrations are left in a package's modules."""
    found = []
    for name, module in list(sys.modules.items()):
        if name != package and not name.startswith(package + "."):
            continue
        for owner in [module, *(x for x in vars(module).values() if isinstance(x, type))]:
            for attribute, value in list(vars(owner).items()):
                for function in (value, *(getattr(value, "__defaults__", None) or ())):
                    code = getattr(function, "__code__", None)
                    if code is not None and "/maxsim/integrations/" in code.co_filename:
                        found.append(f"{name}: {owner.__name__}.{attribute}")
    return found


#: Relative and absolute differences that roundings of an element type explain.
NEAR = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def near(found: Any, wanted: Any, rounded: Any = None) -> None:
    """The same shape, element type and device, and numbers that differ by roundings.

    These are those of ``rounded``, or of the numbers' own element type.
    """
    assert type(found) is type(wanted)
    assert (found.dtype, found.device) == (wanted.dtype, wanted.device)
    tolerance = NEAR[rounded or wanted.dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def gradients(loss: Any, *tensors: Any) -> list[Any]:
    """The gradients of a loss of tensors."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    value = loss(*leaves)
    value.backward()
    return [value.detach(), *(x.grad for x in leaves)]
