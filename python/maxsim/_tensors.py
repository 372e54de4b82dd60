"""Tells torch's tensors, without loading torch.

Compiled functions depend on what they read: a look at all modules that are loaded would compile
them again after any import. So torch is looked for until it is found, and then no more.
"""

from __future__ import annotations

import sys
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
