"""``import qdrun.tools``: the module that ``qd.tools`` is."""

import sys

from qdrun.compiler.lang.compat import tools
from qdrun.compiler.lang.compat.tools import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = tools
