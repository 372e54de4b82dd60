"""Runs at the start of every Python process that a peer's suite starts."""

import os

if os.environ.get("MAXSIM_PEERS_MODE") == "cpu":
    import cpu_mode

    cpu_mode.enable()
