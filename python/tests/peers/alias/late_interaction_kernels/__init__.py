"""Stands for the package `late_interaction_kernels` in its own tests."""

from peer_alias import install

install("late_interaction_kernels", "maxsim.compat.late_interaction_kernels")
