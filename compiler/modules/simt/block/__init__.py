"""For type checkers: at run time ``qdrun.simt`` has put the module that ``qd.simt.block`` is in this place."""

from qdrun.compiler.lang.simt.block import *  # noqa: F403
