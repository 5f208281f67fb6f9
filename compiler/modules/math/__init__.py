"""``import qdrun.math``: the module that ``qd.math`` is."""

import sys

from qdrun.compiler.lang import math
from qdrun.compiler.lang.math import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = math
