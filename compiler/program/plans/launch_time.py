"""How long a launch of a kernel or of its gradient would take, on the program's backend or on another one: see ``tape.launch_time``."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from ...compile.fast_math_note import fast_math_note
from ...compile.lanes import lanes_of
from ...compile.pipeline import device_input
from ...ir.nodes import Kernel
from ...passes.reverse.final_values import compares_contents
from ...passes.task_work import task_work
from ...tape.launch_time import CHIPS, Chip, LaunchTime, Load, load_of, task_time
from ...tape.machine import machine
from ...tape.plan import costs_of
from ..call import Call
from ..variant import Variant
from .gradient_plans import LaunchHost

STATES_MOVE = 3
"""A gradient reads again what the kernel has read, reads adjoints, and writes them."""


def launch_time(
    kernel: Any,
    args: tuple[Any, ...],
    *,
    gradient: bool = False,
    arch: str | None = None,
    threads: int | None = None,
    budget: int | None = None,
) -> LaunchTime:
    """The prediction for one launch. Runs nothing and makes no machine code.

    Args:
        kernel: a kernel, or a bound one.
        args: of the launch.
        gradient: of ``kernel.grad`` instead.
        arch: on this backend, which need not be there; None: the program's own.
        threads: of the CPU; None: the program's, or those of this machine.
        budget: bytes for the states of the gradient, see ``kernel.grad.plan``.

    Raises:
        DifferentiationError: the kernel has no correct gradient.
        OutOfMemory: the gradient does not fit its budget.
    """
    instance = getattr(kernel, "instance", None)
    if instance is not None:
        kernel, args = kernel.kernel, (instance, *args)
    variant, bound = kernel.variant(args, {})
    program = variant.program
    wanted = arch or program.arch.value
    chip = CHIPS.get(wanted, CHIPS["cpu"])
    chip = chip.approximate() if program.options.fast_math else chip
    many = threads or (program.device.threads if program.device.on_host else 1)
    loads = _gradient(variant, bound.call, chip, wanted, budget) if gradient else _forward(variant, bound.call, chip)
    return LaunchTime(tuple(task_time(load, chip, many) for load in loads))


def _forward(variant: Variant, call: Call, chip: Chip) -> list[Load]:
    kernel, alone, lanes = _counted(variant, variant.compiled_kernel.ir, chip)
    host = LaunchHost(call, variant.owners)
    return [load_of(task_work(kernel, task, alone), host, chip, lanes(k)) for k, task in enumerate(kernel.tasks)]


def _gradient(variant: Variant, call: Call, chip: Chip, arch: str, budget: int | None) -> list[Load]:
    """Tasks that keep states by the cost model under their plan, the others by what their code says."""
    plans, host = variant.plans, LaunchHost(call, variant.owners)
    machine = None if arch == variant.program.arch.value else variant.program.machine(arch)
    options = plans.plan_options(machine)
    planned = {t.position: t for t in plans.plan(call, budget, machine).tasks}
    alone, share = (costs_of(plans.sizing, host, options, p) if p else {} for p in (chip.alone, chip.share))
    reverse, ours, side_by_side = _counted(variant, variant.compiled_kernel.reverse(variant.program.device)[1].kernel, chip)
    before = {f"{load.name}_grad": load for load in _forward(variant, call, chip)}
    loads = []
    for position, task in enumerate(reverse.tasks):
        if position not in alone:
            loads.append(load_of(task_work(reverse, task, ours), host, chip, side_by_side(position)))
            continue
        cost, plan = alone[position], planned[position]
        loops = {p.number: p.plan for p in plan.loops}
        lanes = plan.lanes if chip.simd else 1
        own = Load(task.name, cost.iterations, cost.one(loops), share[position].one(loops) if share else 0.0, lanes=lanes)
        like = before[task.name]
        moved = {"moved": STATES_MOVE * like.moved, "footprint": STATES_MOVE * like.footprint, "wide": like.wide}
        loads.append(replace(own, threads=plan.workers if plan.parallel else 1, **moved))
    return loads


def _counted(variant: Variant, kernel: Kernel, chip: Chip) -> tuple[Kernel, Container[object], Callable[[int], int]]:
    """What is compiled of a kernel, the atomics that no other thread meets, and the iterations that a thread of a CPU runs side by side
    in the task of a number.
    """
    options = variant.program.options
    reduced, how = device_input(kernel, options)
    if chip.share or compares_contents(variant.compiled_kernel.ir):
        return reduced, how.plain, lambda _: 1
    lanes = lanes_of(kernel, options)
    return reduced, how.plain, lambda number: 1 if number in lanes.narrow else lanes.width


def launch_note(kernel: Any, args: tuple[Any, ...], arch: str) -> str:
    """``fast_math_note`` of the kernel of one launch, bound or not; empty where ``fast_math`` is on, or changes nothing on ``arch``."""
    instance = getattr(kernel, "instance", None)
    if instance is not None:
        kernel, args = kernel.kernel, (instance, *args)
    variant, _ = kernel.variant(args, {})
    chosen = variant.program.options.fast_math or not machine(arch, fast_math=True).approximate
    return "" if chosen else fast_math_note(variant.compiled_kernel.ir)


__all__ = ["launch_note", "launch_time"]
