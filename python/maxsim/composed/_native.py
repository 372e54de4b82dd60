"""How operations call the library: what it takes, and calls that wait for their results.

The library takes f16, bf16 and f32 on the CPU and on CUDA devices. What it does not take is
composed of torch: f64, other devices, sides of several types, what is traced, intercepted or
captured into a graph, and what a device's engine refuses.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._backends.torch import describe, is_plain
from .._sides import Side
from .._threads import get_num_threads
from . import _calls

#: Elements of the longest tokens that are scored.
DIM_MAX = 4096


def takes(*tensors: Optional[Tensor]) -> bool:
    """Whether the library may take these tensors in a call that waits: all of one type, on one
    device, and nothing else is meant to happen to them."""
    given = [x for x in tensors if x is not None]
    first = given[0]
    if any((x.dtype, x.device) != (first.dtype, first.device) for x in given):
        return False
    if not (_calls.is_native(*given) and is_plain(*given)):
        return False
    return not (first.is_cuda and torch.cuda.is_current_stream_capturing())


def unless_refused() -> ContextManager[None]:
    """A context of a call that may return; behind it goes on what a device has no kernel for."""
    return contextlib.suppress(NotImplementedError)


def described(*sides: Side) -> Tuple[Tuple[Any, ...], Any]:
    """Sides as numbers, rows being those of their tensors, and what must live as long as these are
    used."""
    of = describe
    if sides[0].data.is_cuda:
        from .._backends.cuda import describe as of
    numbers = [of(side, dense=True) for side in sides]
    return tuple(n for n, _ in numbers), [kept for _, kept in numbers]


def waited(function: Callable[..., Any], like: Tensor, *arguments: Any) -> Any:
    """Makes a call of the library on the device of `like`, on which it waits: for what its current
    stream has to do before, and for the call itself."""
    if not like.is_cuda:
        return function((get_num_threads(), None), *arguments)
    from .._backends.cuda import enqueue

    torch.cuda.current_stream(like.device).synchronize()
    return enqueue(function, (get_num_threads(), like.device.index), *arguments)


def room(shape: Sequence[int], kind: torch.dtype, like: Tensor) -> Tensor:
    """Host memory for a result, from which a device can copy without a wait."""
    return torch.empty(tuple(shape), dtype=kind, device="cpu", pin_memory=like.is_cuda)


def there(found: Optional[Tensor], like: Tensor) -> Optional[Tensor]:
    """A result where the call's tensors are."""
    return None if found is None else found.to(like.device, non_blocking=True)
