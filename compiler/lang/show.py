"""``QDRUN_PRINT=reverse`` prints the IR after that stage: lower, simplify, reverse-raw (before clean-up), reverse, tangent-raw, tangent,
or all.
"""

from __future__ import annotations

import os
import sys

from ..ir.nodes import Kernel
from ..ir.printer import print_kernel


def show(stage: str, kernel: Kernel) -> Kernel:
    """Print ``kernel`` to stderr if the environment asks for this stage; returns it."""
    wanted = os.environ.get("QDRUN_PRINT", "")
    if wanted and (wanted == "all" or stage in wanted.split(",")):
        sys.stderr.write(f"---- {stage}\n{print_kernel(kernel)}")
    return kernel
