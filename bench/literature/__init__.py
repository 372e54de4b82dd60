"""Measures the tables and figures of the literature: a record `literature.json` of rows.

The modules of the folder above are imported by their own names, as its programs do.
"""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

if str(FOLDER.parent) not in sys.path:
    sys.path.insert(0, str(FOLDER.parent))
