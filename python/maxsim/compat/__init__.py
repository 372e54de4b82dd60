"""Other packages' functions under their own names, on this library.

 - `maxsim.compat.late_interaction_kernels`: late-interaction-kernels 0.4
 - `maxsim.compat.flash_maxsim`: flash-maxsim 0.3
 - `maxsim.compat.kernels_hub`: the Hub kernel `erikkaum/maxsim`, version 2
 - `maxsim.compat.pytorch3d`: `loss.chamfer_distance` of pytorch3d 0.7

Changing the import is all that a caller does. Names, arguments, defaults, results and exceptions
are theirs; what is computed is this library's operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import submodules

if TYPE_CHECKING:
    from . import flash_maxsim as flash_maxsim
    from . import kernels_hub as kernels_hub
    from . import late_interaction_kernels as late_interaction_kernels
    from . import pytorch3d as pytorch3d

__getattr__ = submodules(
    __name__, ("flash_maxsim", "kernels_hub", "late_interaction_kernels", "pytorch3d"))
