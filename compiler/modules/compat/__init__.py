"""``import qdrun.compat as quadrants``: the names of ``qd`` for programs of Quadrants or Taichi, and the import hook ``install()``."""

import sys
from typing import TYPE_CHECKING

from qdrun.compiler.lang.compat.imports import begin, facade

if TYPE_CHECKING:
    from qdrun.compiler.face import *  # noqa: F403
    from qdrun.compiler.lang.compat.imports import install as install
    from qdrun.compiler.lang.compat.imports import uninstall as uninstall

begin()
sys.modules[__name__] = facade(__name__, __spec__)
