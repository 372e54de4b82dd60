"""Operations that are composed of the operator and plain torch, with their final signatures.

Nothing of queries × tokens × documents × tokens is held by any of them.
"""

from ._angular import angular
from ._chamfer import chamfer
from ._hidden import from_hidden
from ._order import topk
from ._projection import project
from ._xtr import xtr, xtr_search

__all__ = ["angular", "chamfer", "from_hidden", "project", "topk", "xtr", "xtr_search"]
