"""Chooses the number of SIMD lanes of each task on the CPU, from the kernel without its checks."""

from __future__ import annotations

from dataclasses import replace

from ..codegen.llvm.cost import suggested_lanes
from ..codegen.llvm.target import SimdWidth
from ..ir.nodes import Kernel
from ..options import Options, checks
from ..passes.parallel.injective import race_free
from ..passes.parallel.rows import loop_orders
from ..runtime.jit import host
from .pipeline import without_checks


def lanes_of(kernel: Kernel, plain: Kernel, options: Options) -> SimdWidth:
    """The lanes of a simplified kernel. The checks of a debugged one do not count: lanes decide bits. ``plain``: the reduced kernel."""
    if options.cpu_lanes:
        return SimdWidth(options.cpu_lanes)
    plain = without_checks(kernel) if checks(options) else plain
    alone = frozenset(op for task in plain.tasks for op in race_free(task))
    in_vectors = {loop for task in plain.tasks for loop in loop_orders(task)}
    return replace(suggested_lanes(plain, alone, host().triple, host().features, in_vectors), fewer=True)
