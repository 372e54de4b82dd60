"""Search, from queries to ids: scripts that are run as modules, `python3 -m bench.search.top_k`."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent

# The modules of the forward campaign are found by their names.
if str(FOLDER.parent) not in sys.path:
    sys.path.insert(0, str(FOLDER.parent))
