"""Makes the log of a tape that was recorded, checked and reversed (``runtime.native.log``)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from ...program.memory.given_arrays import read_again
from ...program.memory.known_tapes import KnownTape, Launches
from ...program.memory.memory_regions import memory_base
from ...runtime.native.launch import NativeLaunch
from ...runtime.native.log import NOTHING_KEPT, GivenArray, KeptRuns, LaunchLog, LoggedLaunch, TapeCopies


def known_tape(program: Any, launches: Launches, kept: TapeCopies, functions: Mapping[str, int]) -> KnownTape | None:
    """A tape whose launches, and their gradients, can all be launched natively; None: one cannot.

    Args:
        program: of the tape.
        launches: those that it recorded.
        kept: its copies, see ``KeptElements.logged``.
        functions: see ``LaunchLog``.
    """
    of_launches, last, nbytes, bases = kept
    logged: list[LoggedLaunch] = []
    gradients: dict[object, NativeLaunch | None] = {}
    for number, (kernel, args, kwargs) in enumerate(launches):
        copies = of_launches.get(number, NOTHING_KEPT)
        found = None if kwargs else _logged(program, kernel, args, gradients, copies)
        if found is None:
            return None
        logged.append(found)
    copied = tuple(
        (weakref.ref(a), a._memory.serial) for a in (program.ndarrays if bases else ()) if memory_base(a._memory) in bases
    )
    return KnownTape(LaunchLog(logged, functions, last, nbytes), program.data.generation, copied)


def _logged(
    program: Any, kernel: Any, args: tuple[Any, ...], gradients: dict[object, NativeLaunch | None], kept: KeptRuns
) -> LoggedLaunch | None:
    """A launch as a log has it; None: it, or its gradient, must come through Python. ``gradients``: the native ones so far."""
    variant, bound = kernel.variant(args, {})
    executable, call = variant.executable, bound.call
    owner = executable, executable.compiled.address
    launch = next((x for x in program.native_launches.get(kernel.token, ()) if x.owner == owner), None)
    given = _given(variant, call)
    if launch is None or executable.returns or call.loans or call.after or given is None:
        return None
    gradient: NativeLaunch | None = None
    if variant.plans.sizing:
        reverse = variant.gradient
        if not (variant.native and reverse.native) or reverse.stores.asks or (variant.before() and not kept.early):
            return None
        if reverse not in gradients:
            gradients[reverse] = reverse.native_launch((), (reverse, reverse.compiled.address))
        gradient = gradients[reverse]
        if gradient is None:
            return None
    return LoggedLaunch(launch, gradient, executable.args, bytes(call.words[8:]), len(args), given, kept)


def _given(variant: Any, call: Any) -> dict[int, GivenArray] | None:
    """The arrays of others that a launch is given, which it only reads. None: it writes one, or has one that may be laid out anew."""
    again = read_again(variant) if len(call.own) < len(call.arrays) else {}
    found: dict[int, GivenArray] = {}
    for index, array in call.arrays.items():
        if not array.size or index in call.parts or index in call.sources:
            return None
        if index in call.own:
            continue
        if index in variant.executable.written:
            return None
        found[index] = GivenArray(array.nbytes, index in again)
    return found


__all__ = ["known_tape"]
