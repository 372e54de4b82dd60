"""Stands for the package `flash_maxsim` in its own tests."""

from peer_alias import install

install("flash_maxsim", "maxsim.compat.flash_maxsim")
