"""The stages of the compiler, in order: from a Python function to the kernel that a device compiles.

``FORWARD``, ``REVERSE``, ``TANGENT`` and ``DEVICE`` list the stages with what each takes and gives; the functions below run them.
``FORWARD`` gives the kernel that ``REVERSE`` and ``TANGENT`` start from. ``DEVICE`` prepares any of the three for ``Device.compile``,
which writes the text of a module and has LLVM compile it.

``QDRUN_PRINT=simplify,reverse`` prints the IR after these stages to stderr; ``all`` prints it after every stage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, ParamSpec, Protocol, TypeVar

from ..codegen.block_skipping.tiling import tiling
from ..codegen.llvm.cost import block_cost
from ..frontend.lower import lower
from ..frontend.signature import ArgSpec, LowerOptions
from ..frontend.source.inputs import Inputs
from ..frontend.source.parse import FunctionSource
from ..ir.nodes import Kernel, Op, Task
from ..ir.printer import print_kernel
from ..ir.walk import walk
from ..options import Options, checks
from ..passes.batch import batch_kernel
from ..passes.debug_checks import checked, unchecked
from ..passes.exits import lower_exits
from ..passes.forward.second_order import second_order_primal
from ..passes.forward.tangent import Tangent, forward_kernel
from ..passes.gather.gather import gather_kernel
from ..passes.parallel.injective import ordered, race_free
from ..passes.parallel.reduce import reduce_kernel
from ..passes.parallel.rows import loop_orders, row_order
from ..passes.pools import in_blocks
from ..passes.reciprocals import share_reciprocals
from ..passes.reverse.gradient import Gradient, reverse_kernel
from ..passes.shuffle_lowering import through_memory
from ..passes.simplify.simplify import simplify
from ..passes.simplify.slopes import without_slopes, without_unused_slopes
from ..runtime.compiled import CompileOptions as DeviceOptions

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name in ``QDRUN_PRINT`` and in benchmarks, its input and its output."""

    name: str
    takes: str
    gives: str


LOWER = Stage("lower", "a function's source and the types of its arguments", "typed IR: functions inlined, loops as tasks")
EXITS = Stage("exits", "lowered IR", "IR without break, continue and return")
SIMPLIFY = Stage("simplify", "IR without exits", "fewer statements with the same bits: forwarding, folding, CSE, DCE")

RAW_REVERSE = Stage("reverse-raw", "the simplified kernel", "the kernel of the adjoints, and the sizing of its adstacks")
SIMPLIFY_REVERSE = Stage("reverse", "the kernel of the adjoints", "fewer statements with the same bits")

RAW_TANGENT = Stage("tangent-raw", "the simplified kernel", "the kernel of values and tangents")
SIMPLIFY_TANGENT = Stage("tangent", "the kernel of values and tangents", "fewer statements with the same bits")

SLOPES = Stage("slopes", "a simplified kernel", "IR without `attach` and `detach`, which only differentiation reads")
BLOCKS = Stage("blocks", "a reduced kernel", "accesses to fields in levels with a budget as accesses to blocks")
GATHER = Stage("gather", "a kernel without slopes", "adds to neighbours as sums of each element")
REDUCE = Stage("reduce", "a kernel without slopes", "atomics on one element as reductions of the loop")
CHECKS = Stage(
    "checks", "a kernel without slopes, with reductions", "checks of bounds, overflow and NaN, where the options ask for them"
)
BATCH = Stage("batch", "a checked kernel", "of a batched program: loops instead of axes, and the trials as the one axis")

FORWARD = (LOWER, EXITS, SIMPLIFY)
REVERSE = (RAW_REVERSE, SIMPLIFY_REVERSE)
TANGENT = (RAW_TANGENT, SIMPLIFY_TANGENT)
DEVICE = (SLOPES, GATHER, REDUCE, BLOCKS, CHECKS, BATCH)


class Runner(Protocol):
    """Runs a stage: calls ``run`` with the arguments and gives its result."""

    def __call__(self, stage: Stage, run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


Gathers = Literal["", "cpu", "gpu"]


def printing(stage: Stage, run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a stage, and prints the IR that it gives if ``QDRUN_PRINT`` asks for it."""
    result = run(*args, **kwargs)
    wanted = os.environ.get("QDRUN_PRINT", "")
    if wanted and (wanted == "all" or stage.name in wanted.split(",")):
        kernel = result if isinstance(result, Kernel) else getattr(result, "kernel", None)
        assert isinstance(kernel, Kernel)
        sys.stderr.write(f"---- {stage.name}\n{print_kernel(kernel)}")
    return result


def lowered(
    source: FunctionSource,
    args: Mapping[str, ArgSpec],
    options: LowerOptions,
    inputs: Inputs | None = None,
    run: Runner = printing,
) -> Kernel:
    """A function as IR. ``inputs`` keeps a record of what was looked up outside of it.

    Raises:
        QdrunCompilationError: see ``lower``.
    """
    return run(LOWER, lower, source, dict(args), options, inputs)


def simplified(kernel: Kernel, run: Runner = printing) -> Kernel:
    """The rest of ``FORWARD``: what plans, the reverse kernel and the tangent kernel are made from."""
    return run(SIMPLIFY, simplify, run(EXITS, lower_exits, kernel), keep_slopes=True)


def gradient(kernel: Kernel, segmented: bool = False, marks: bool = False, run: Runner = printing) -> Gradient:
    """``REVERSE`` of a simplified kernel, with what its heap plan is computed from; see ``reverse_kernel``.

    Raises:
        DifferentiationError: no correct gradient exists, by name and line.
    """
    found = run(RAW_REVERSE, reverse_kernel, without_unused_slopes(kernel), segmented=segmented, marks=marks)
    return replace(found, kernel=run(SIMPLIFY_REVERSE, _simplified_reverse, found.kernel))


def _simplified_reverse(kernel: Kernel) -> Kernel:
    return share_reciprocals(simplify(kernel))


def tangent(kernel: Kernel, run: Runner = printing) -> Tangent:
    """``TANGENT`` of a simplified kernel.

    Raises:
        DifferentiationError: something has no tangent, by name and line.
    """
    found = run(RAW_TANGENT, forward_kernel, without_unused_slopes(kernel))
    return replace(found, kernel=run(SIMPLIFY_TANGENT, simplify, found.kernel))


def second_order(kernel: Kernel, run: Runner = printing) -> Kernel:
    """A simplified kernel with its tangents, as a kernel that is simplified and reversed like others; see ``second_order_primal``.

    Raises:
        DifferentiationError: something has no tangent or no second derivative, by name and line.
    """
    return second_order_primal(run(RAW_TANGENT, forward_kernel, kernel, smooth=True).kernel)


def device_input(
    kernel: Kernel, options: Options, run: Runner = printing, nested: bool = True, out: Kernel | None = None
) -> tuple[Kernel, DeviceOptions]:
    """``DEVICE`` of a simplified kernel: what a device compiles, and how, in one lane.

    Args:
        kernel: the simplified kernel.
        options: those of its program.
        run: runs the stages.
        nested: see ``batch_kernel``.
        out: what ``reduced`` gives for the kernel, if that is known.
    """
    out = reduced(kernel, run, gathers(options, nested)) if out is None else out
    if checks(options):
        out = run(CHECKS, checked, out, options.nan_check)
        for task, plain in zip(out.tasks, without_checks(kernel).tasks):
            task.cost = block_cost(plain.body)  # decides which iterations share a partial sum
    if options.batch is not None:
        out = run(BATCH, batch_kernel, out, nested)
    if options.batch is not None and nested:
        plain = frozenset(op for task in out.tasks for op in walk(task.body) if isinstance(op, Op) and op.op == "atomic")
        return out, DeviceOptions(offline_cache=options.offline_cache, plain=plain, fast_math=options.fast_math)
    plain = frozenset(op for task in out.tasks for op in race_free(task))
    in_order = frozenset(op for task in out.tasks for op in ordered(task, plain))
    cache, fast = options.offline_cache, options.fast_math
    rows = {task: order for task in out.tasks if (order := row_order(task)) is not None}
    loops = {loop: order for task in out.tasks for loop, order in loop_orders(task).items()}
    return out, DeviceOptions(
        lanes=1, offline_cache=cache, plain=plain, ordered=in_order, rows=rows, loops=loops, fast_math=fast
    )


def reduced(kernel: Kernel, run: Runner = printing, gathers: Gathers = "") -> Kernel:
    """``DEVICE`` without checks. ``gathers``: with the stage ``GATHER``, for this kind of device."""
    out = through_memory(run(SLOPES, without_slopes, kernel))
    if gathers:
        out = run(GATHER, gather_kernel, out, block_cost, _skips_blocks, gathers == "gpu")
    return run(BLOCKS, in_blocks, run(REDUCE, reduce_kernel, out))


def gathers(options: Options, on_host: bool) -> Gathers:
    """Whether kernels have the stage ``GATHER``: on a CPU not where lanes run trials, on a GPU where the lanes of a trial share its
    iterations, and not where iterations are checked.
    """
    if checks(options) or (options.batch is None) != on_host:
        return ""
    return "cpu" if on_host else "gpu"


def _skips_blocks(task: Task) -> bool:
    """Whether a loop leaves out inactive blocks of a sparse field."""
    cells = tiling(task)
    return cells is not None and any(x.op == "gload" for needed in cells.slices.values() for x in needed)


def planned(plain: Kernel, options: Options) -> Kernel:
    """A reduced kernel without checks: its launch context is that of what a device will compile."""
    return plain if options.batch is None else batch_kernel(plain)


def without_checks(kernel: Kernel) -> Kernel:
    """The kernel that a device would compile if it had been lowered without checks."""
    return reduced(simplify(unchecked(kernel)), _quietly)


def _quietly(stage: Stage, run: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a stage of a kernel that nothing is compiled of."""
    return run(*args, **kwargs)
