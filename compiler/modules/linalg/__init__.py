"""``import qdrun.linalg``: the module that ``qd.linalg`` is."""

import sys

from qdrun.library import linalg
from qdrun.library.linalg import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = linalg
