"""``import qdrun.ad``: the module that ``qd.ad`` is."""

import sys

from qdrun.compiler.lang.autograd import ad
from qdrun.compiler.lang.autograd.ad import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = ad
