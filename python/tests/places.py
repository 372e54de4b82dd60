"""Where tests of functions on tensors run: the CPU, the CPU under a mode, and a GPU."""

from contextlib import nullcontext

import torch

#: "mode" is the CPU under a mode of torch, where calls go through the dispatcher.
PLACES = ["cpu", "mode"] + (["cuda"] if torch.cuda.is_available() else [])


def tensors_at(place):
    """A context in which new tensors are at a place."""
    return nullcontext() if place == "cpu" else torch.device("cpu" if place == "mode" else place)
