"""``import qdrun.types``: the module that ``qd.types`` is."""

import sys

from qdrun.compiler.lang.data import types
from qdrun.compiler.lang.data.types import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = types
