"""Ways to save memory of a gradient: the same launch planned with other options."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import OutOfMemory
from ...tape.heap_plan import HeapPlan
from ...tape.machine import Machine

if TYPE_CHECKING:
    from ..call import Call
    from .gradient_plans import GradientPlans

NOW, SMALLEST = "now", "the smallest budget"


def remedies(gradient: GradientPlans, call: Call, machine: Machine | None = None) -> dict[str, HeapPlan]:
    """The plan of a launch as it is (``"now"``), with more checkpoint levels, with one thread, and with as few bytes as it can.

    Args:
        gradient: plans the launches of the reverse kernel.
        call: the arguments of the launch.
        machine: of another backend than the program's.

    Returns:
        Plans by name; a name that is an option of ``qd.init`` is written as one would give it. ``HeapPlan.seconds`` compares them.
        ``"now"`` is left out when the program's memory budget is too small.
    """
    found: dict[str, HeapPlan] = {}
    with suppress(OutOfMemory):
        found[NOW] = gradient.plan(call, None, machine)
    options = gradient.plan_options(machine)
    for levels in range(options.levels + 1, 4):
        found[f"ad_checkpoint_levels={levels}"] = gradient.plan_with(call, machine=options.machine, levels=levels)
    if options.machine.workers > 1 and options.machine.arch == "cpu":
        one = replace(options.machine, workers=1)
        found["cpu_max_num_threads=1"] = gradient.plan_with(call, machine=one)
    found[SMALLEST] = smallest(gradient, call, options.machine)
    return found


def smallest(gradient: GradientPlans, call: Call, machine: Machine) -> HeapPlan:
    """The plan of the fewest bytes that a budget can get."""
    try:
        return gradient.plan_with(call, machine=machine, budget=0)
    except OutOfMemory as error:
        return gradient.plan_with(call, machine=machine, budget=error.smallest)
