"""Loading kernels before the first request: `python -m maxsim.compat.flash_maxsim.warmup`."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple, Union

import torch

from .flash_maxsim import flash_maxsim_batched
from .flash_maxsim_batched_train import flash_maxsim_batched_train

Shape = Tuple[int, int, int, int]

#: (B, Lq, Ld, d): text, long text, pages, and wide rows.
DEFAULT_SHAPES: List[Shape] = [
    (1024, 32, 180, 128),
    (1024, 32, 1024, 128),
    (512, 128, 1024, 128),
    (128, 1024, 1024, 128),
    (64, 1024, 1024, 512),
    (64, 1024, 1024, 1024),
]
#: (B, Lq, Ld, d) of training batches.
DEFAULT_TRAIN_SHAPES: List[Shape] = [(128, 32, 180, 128), (64, 1024, 1024, 128)]


def _once(shape: Shape, device: torch.device, train: bool) -> None:
    count, length, doc_length, dim = shape
    rows = (count if train else 1, length, dim)
    queries = torch.zeros(rows, dtype=torch.float16, device=device, requires_grad=train)
    size = (count, doc_length, dim)
    documents = torch.zeros(size, dtype=torch.float16, device=device, requires_grad=train)
    if train:
        loss = flash_maxsim_batched_train(queries, documents).sum()
        torch.autograd.grad(loss, (queries, documents))
    else:
        flash_maxsim_batched(queries, documents)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warmup(
    shapes: Optional[List[Shape]] = None,
    train_shapes: Optional[List[Shape]] = None,
    device: Union[torch.device, str, None] = None,
    verbose: bool = False,
) -> Dict[str, Union[int, float]]:
    """Run calls of these shapes `(B, Lq, Ld, d)` once: `{"fwd_shapes", "bwd_shapes",
    "wall_seconds"}`.

    Without shapes a list of common ones is run on a CUDA device; the CPU has nothing to load.
    A shape that there is no memory for is left out and not counted.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device(device)
    defaults = place.type == "cuda"
    began = time.perf_counter()
    counts = []
    for train, given, usual in (
        (False, shapes, DEFAULT_SHAPES),
        (True, train_shapes, DEFAULT_TRAIN_SHAPES),
    ):
        done = 0
        for shape in given if given is not None else usual if defaults else []:
            try:
                _once(shape, place, train)
                done += 1
            except (torch.OutOfMemoryError, MemoryError):
                if verbose:
                    print(f"no memory for {shape}", flush=True)
                continue
            if verbose:
                print(f"{'training' if train else 'scores'} {shape}", flush=True)
        counts.append(done)
    seconds = max(0.01, round(time.perf_counter() - began, 2))
    return {"fwd_shapes": counts[0], "bwd_shapes": counts[1], "wall_seconds": seconds}


if __name__ == "__main__":
    print(warmup(verbose=True))
