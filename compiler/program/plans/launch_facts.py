"""Facts about one launch of a kernel that need no machine code: how parallel it is, and what ``fast_math`` would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...compile.fast_math_note import fast_math_note
from ...tape.bounds.bounds import max_tuples
from ...tape.bounds.reader import ExprReader
from ...tape.machine import machine
from .gradient_plans import LaunchHost

if TYPE_CHECKING:
    from ..call import Call
    from ..variant import Variant


def parallel_iterations(kernel: Any, args: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Iterations of the parallel loop of each task of a launch, at most; 1 for a serial task, None where only running can tell.

    Runs nothing and makes no machine code. The gradient of a kernel has the same parallel loops.

    Args:
        kernel: a kernel, or a bound one.
        args: of the launch.
    """
    variant, call = _launch(kernel, args)
    ir, host = variant.compiled_kernel.ir, LaunchHost(call, variant.owners)
    return tuple(max_tuples(ExprReader(ir, task).axes(), host) if task.parallel else 1 for task in ir.tasks)


def launch_note(kernel: Any, args: tuple[Any, ...], arch: str) -> str:
    """``fast_math_note`` of the kernel of one launch, bound or not; empty where ``fast_math`` is on, or changes nothing on ``arch``."""
    variant, _ = _launch(kernel, args)
    chosen = variant.program.options.fast_math or not machine(arch, fast_math=True).approximate
    return "" if chosen else fast_math_note(variant.compiled_kernel.ir)


def _launch(kernel: Any, args: tuple[Any, ...]) -> tuple[Variant, Call]:
    """The specialisation of a launch, and its arguments, of which an object that the kernel is bound to is the first."""
    instance = getattr(kernel, "instance", None)
    if instance is not None:
        kernel, args = kernel.kernel, (instance, *args)
    variant, bound = kernel.variant(args, {})
    return variant, bound.call
