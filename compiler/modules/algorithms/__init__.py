"""``import qdrun.algorithms``: the module that ``qd.algorithms`` is."""

import sys

from qdrun.library import algorithms
from qdrun.library.algorithms import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = algorithms
