"""The names of pytorch3d 0.7 that are Chamfer distances: `loss.chamfer_distance`."""

from . import loss

__all__ = ["loss"]
