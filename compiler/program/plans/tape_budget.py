"""The memory budget of a program while a tape runs its gradients: all that they need is known before the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...errors import OutOfMemory
from .remedies import smallest

if TYPE_CHECKING:
    from ..memory.kept import KeptElements
    from ..program import Program
    from ..variant import Variant

LESS = "qd.ad.checkpointed_steps, which keeps a few states and runs steps again"


def make_gradients(program: Program, variants: Iterable[Variant]) -> None:
    """Compile the gradients of a tape where a budget must count their contexts before the first plan."""
    if program.options.memory_budget:
        for variant in variants:
            if variant.plans.sizing:
                _ = variant.gradient


def compile_all(program: Program, function: Callable[[], Any]) -> None:
    """Compile what a function launches, and make the arrays that it borrows from the program. Nothing runs."""
    for kernel, args in program.rehearse(function, "a gradient", gradients=False).launches:
        kernel.prepare(*args)


def check_budget(program: Program, kept: KeptElements, launches: Iterable[tuple[Any, Any, Any]], more: int = 0) -> None:
    """Refuse a tape whose gradients do not fit ``memory_budget``: their kernels, or copies of overwritten elements.

    Args:
        program: its program.
        kept: its copies.
        launches: kernels with their arguments and keyword arguments.
        more: bytes that gradients will allocate besides.

    Raises:
        OutOfMemory: names the smallest budget.
    """
    budget = program.options.memory_budget
    held = program.device.used_bytes - program.usage().get("adstack", 0)
    if budget and (kept.missing or held + kept.last_bytes + more > budget):
        what = "the gradients of a tape do not fit the memory budget"
        if kept:
            what = f"a tape keeps {kept.nbytes:,} bytes of elements that later launches overwrite, and memory_budget leaves too little"
        error = program.heap.over_budget(OutOfMemory(what), least_heap(launches), kept.missing + kept.last_bytes + more)
        if kept:
            error = OutOfMemory(str(error).replace("\n  do: ", f"\n  do: {LESS}, or ", 1), error.smallest)
        raise error


def least_heap(launches: Iterable[tuple[Any, Any, Any]]) -> int:
    """Bytes of the smallest heap under which all gradients of these launches can run.

    Args:
        launches: kernels with their arguments and keyword arguments.
    """
    found: dict[object, int] = {}
    for kernel, args, kwargs in launches:
        variant, bound = kernel.variant(args, kwargs)
        if variant.plans.sizing:
            plans = variant.plans
            key = id(variant), plans.inputs.decisive(bound.call.words[8:])
            if key not in found:
                found[key] = smallest(plans, bound.call, plans.plan_options().machine).bytes
    return max(found.values(), default=0)


def of_all(program: Program, error: OutOfMemory, launches: Iterable[tuple[Any, Any, Any]]) -> OutOfMemory:
    """The error of one gradient as that of the tape: ``smallest`` suffices for all of its gradients."""
    if error.smallest is None or not program.options.memory_budget:
        return error
    whole = program.heap.over_budget(error, least_heap(launches))
    # snapshots and copies of time steps were given back since, and count in the error
    return error if whole.smallest is None or error.smallest >= whole.smallest else whole
