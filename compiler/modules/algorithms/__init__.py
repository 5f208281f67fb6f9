"""``import qdrun.algorithms``: the module that ``qd.algorithms`` is."""

import sys

from qdrun.compiler.lang import algorithms
from qdrun.compiler.lang.algorithms import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = algorithms
