"""Stands for the Hub kernel in its own tests: this library, with the kernel's functions on top.

The kernel is a module `maxsim` too. This one imports the real package, gives it the functions and
the raw gradient operators that the tests call, and steps aside.
"""

import os
import sys
import types

_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_path = list(sys.path)
sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _here]
del sys.modules["maxsim"]

import maxsim as _real  # noqa: E402
from maxsim.compat import kernels_hub as _hub  # noqa: E402
from maxsim.compat.kernels_hub import reference as _reference  # noqa: E402

sys.path[:] = _path
for _name in dir(_hub):
    if _name.startswith(("score_", "maxsim_")):
        setattr(_real, _name, getattr(_hub, _name))


class _Operators:
    """The kernel's gradients from winners, flat as its operators take them."""

    @staticmethod
    def maxsim_padded_backward(dscore, q, d, q_lengths, d_lengths, argmax, lq, ld, count):
        batch, dim = q_lengths.shape[0], q.shape[1]
        of_q, of_d = _reference.score_candidates_padded_backward_reference(
            dscore.view(batch, count),
            q.view(batch, lq, dim),
            d.view(batch, count, ld, dim),
            q_lengths,
            d_lengths,
            argmax.view(batch, count, lq),
        )
        return of_q.view(-1, dim), of_d.view(-1, dim)

    @staticmethod
    def maxsim_packed_backward(dscore, q, q_off, d, d_off, q_ids, d_ids, argmax, width):
        lists = (q, q_off, d, d_off, q_ids, d_ids, argmax)
        return _hub.score_pairs_packed_backward_reference(dscore, *lists)

    @staticmethod
    def maxsim_contrastive_backward(dscore, q, d, offsets, argmax):
        return _hub.score_contrastive_backward_reference(dscore, q, d, offsets, argmax)


# Where the kernel has its operators.
_real._ops = sys.modules["maxsim._ops"] = types.ModuleType("maxsim._ops")
_real._ops.ops = _Operators
