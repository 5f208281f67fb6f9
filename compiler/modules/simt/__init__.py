"""``import qdrun.simt``, and with it ``qdrun.simt.block``: the modules that ``qd.simt`` and ``qd.simt.block`` are."""

import sys

from qdrun.compiler.lang import simt
from qdrun.compiler.lang.simt import *  # noqa: F403  (for type checkers)

sys.modules[f"{__name__}.block"] = simt.block  # importlib would load its file a second time
sys.modules[__name__] = simt
