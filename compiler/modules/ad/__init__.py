"""``import qdrun.ad``: the module that ``qd.ad`` is."""

import sys

from qdrun.compiler.lang import ad
from qdrun.compiler.lang.ad import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = ad
