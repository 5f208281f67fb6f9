"""``import qdrun._logging``: the functions ``info``, ``warn``, .. of the logger ``qdrun``."""

import sys

from qdrun.compiler.lang.compat import logs
from qdrun.compiler.lang.compat.logs import *  # noqa: F403  (for type checkers)

sys.modules[__name__] = logs
