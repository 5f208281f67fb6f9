"""``import qdrun.linalg``: the module that ``qd.linalg`` is."""

import sys

from qdrun.compiler.lang import linalg
from qdrun.compiler.lang.linalg import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = linalg
