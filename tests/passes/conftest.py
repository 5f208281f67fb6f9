"""Lets the tests of this folder import ``irtools`` and ``irgen``: pytest's importlib mode leaves ``sys.path`` alone."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
