"""Time and memory of a colpali-engine loss with its gradients, with maxsim and without.

    python python/examples/colpali_loss.py                        # a GPU: 128 pages of 1024 tokens
    python python/examples/colpali_loss.py --device cpu --batch 8 --tokens 128

``ColbertLoss`` of a batch of random embeddings, queries as long as pages: in its own code the
products of all queries' tokens with all pages' tokens are in memory, of 128 pages of 1024 tokens
17 billion numbers. What does not fit is said so. Needs colpali-engine 0.3.17 or 0.3.18.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

import torch
from colpali_engine.loss import ColbertLoss
from torch import Tensor

from maxsim.integrations import colpali as integration


def embeddings(batch: int, tokens: int, dim: int, device: str, dtype: Any) -> list[Tensor]:
    """Normalised queries and pages; a query resembles its page."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, tokens, dim)
    pages = torch.randn(shape, generator=generator)
    queries = pages + 5 * torch.randn(shape, generator=generator)
    return [torch.nn.functional.normalize(x, dim=-1).to(device, dtype) for x in (queries, pages)]


def measure(tensors: list[Tensor], device: str, repeat: int) -> tuple[float, float, list[Tensor]]:
    """Seconds of the fastest step, its peak of memory in MB above the inputs, and its results."""
    loss = ColbertLoss().to(device)
    seconds, peak = [], 0.0
    results: list[Tensor] = []
    for _ in range(repeat):
        leaves = [x.clone().requires_grad_() for x in tensors]
        started = _memory(device, begin=True)
        began = time.perf_counter()
        value = loss(*leaves)
        value.backward()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        peak = max(peak, _memory(device) - started)
        results = [value.detach(), *(x.grad for x in leaves if x.grad is not None)]
    return min(seconds), peak, results


def _memory(device: str, begin: bool = False) -> float:
    """MB in use at the beginning, or the most since; of the process, on a CPU, since its start."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if begin:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    return torch.cuda.max_memory_allocated() / 2**20


def main() -> None:
    """Measures both, the frugal one first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    os.environ["COLPALI_SCORES_BACKEND"] = "auto"
    tensors = embeddings(options.batch, options.tokens, options.dim, options.device,
                         getattr(torch, options.dtype))
    print(f"ColbertLoss, {options.batch} queries and pages of {options.tokens} tokens, "
          f"{options.dtype}, {options.device}: loss and gradients")
    found = []
    for name in ("maxsim", "its own code"):
        try:
            if name == "maxsim":
                with integration.enable():
                    seconds, peak, results = measure(tensors, options.device, options.repeat)
            else:
                seconds, peak, results = measure(tensors, options.device, options.repeat)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if "memory" not in str(error):
                raise
            print(f"{name:<13} does not fit: {str(error).splitlines()[0]}")
            continue
        found.append(results)
        print(f"{name:<13} {seconds * 1e3:10.1f} ms  {peak:10.1f} MB  loss {results[0]:.4f}")
    if len(found) == 2:
        differences = [(x.float() - y.float()).abs().max().item() for x, y in zip(*found)]
        print("largest differences: loss {:.1e}, gradients {:.1e} and {:.1e}".format(*differences))


if __name__ == "__main__":
    main()
