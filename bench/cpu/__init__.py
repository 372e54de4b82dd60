"""Measures the CPU engine beside its peers and its limits: a record `cpu.json` of rows.

The modules of the folder above are imported by their own names, as its programs do.
"""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

if str(FOLDER.parent) not in sys.path:
    sys.path.insert(0, str(FOLDER.parent))
