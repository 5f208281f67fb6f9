"""Makes the log of a tape that was recorded, checked and reversed (``runtime.native.log``)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...program.memory.effects import Effect, Kind, accesses_of, spot_of
from ...program.memory.given_arrays import read_again
from ...program.memory.known_tapes import KnownTape, Launches
from ...program.memory.memory_regions import MemoryRegion, RegionTable, memory_base
from ...runtime.native.launch import NativeLaunch
from ...runtime.native.log import NOTHING_KEPT, GivenArray, LaunchLog, LoggedLaunch, TapeCopies

if TYPE_CHECKING:
    from ...program.call import Call


def known_tape(
    program: Any, launches: Launches, kept: TapeCopies, functions: Mapping[str, int], reverses: bool = True
) -> KnownTape | None:
    """A tape whose launches, and their gradients, can all be launched natively; None: one cannot.

    Args:
        program: of the tape.
        launches: those that it recorded.
        kept: its copies, see ``KeptElements.logged``.
        functions: see ``LaunchLog``.
        reverses: its gradients will run; else they need not be native.
    """
    of_launches, last, nbytes, bases = kept
    if any(kwargs for *_, kwargs in launches):
        return None
    bound = [kernel.variant(args, {}) for kernel, args, _ in launches]
    accesses = _Accesses([(variant, found.call) for variant, found in bound])
    natives = _NativeLaunches(program)
    logged: list[LoggedLaunch] = []
    for number, ((kernel, args, _), (variant, found)) in enumerate(zip(launches, bound)):
        call, copies = found.call, of_launches.get(number, NOTHING_KEPT)
        given, launch = _given(variant, call), natives.launch(kernel, variant, call)
        if given is None or launch is None or (reverses and not natives.has_gradient(variant, copies.early)):
            return None
        gradient, decls = natives.gradient(variant) if reverses else None, variant.executable.args
        free = given.keys() | {d.index for d in decls if d.kind == "scalar"} - accesses.deciding(variant, call)
        logged.append(LoggedLaunch(launch, gradient, decls, bytes(call.words[8:]), len(args), given, free, copies))
    copied = tuple(
        (weakref.ref(a), a._memory.serial) for a in (program.arrays.alive if bases else ()) if memory_base(a._memory) in bases
    )
    copier = program.device.native_copy() if nbytes else (0, 0)
    return KnownTape(LaunchLog(logged, functions, last, nbytes, copier), program.data.generation, copied)


class _Accesses:
    """What decides which elements the launches of a tape overwrite while a gradient needs them."""

    def __init__(self, launches: list[tuple[Any, Call]]) -> None:
        self._known: dict[object, frozenset[int]] = {}
        self._written = RegionTable[bool]()
        for variant, call in launches:
            for spot, _ in self._spots("writes", variant, call):
                self._written.put(spot, True)

    def deciding(self, variant: Any, call: Call) -> frozenset[int]:
        """The scalar arguments that decide indices in memory that a launch writes to, by ``ArgDecl.index``."""
        key = id(variant), *map(id, call.arrays.values())
        found = self._known.get(key)
        if found is None:
            spots = [*self._spots("writes", variant, call), *self._spots("repeats", variant, call)]
            forms = [form for spot, effect in spots if any(self._written.overlapping(spot)) for form in effect.forms if form]
            found = self._known[key] = frozenset(arg for form in forms for arg in form.arguments)
        return found

    @staticmethod
    def _spots(kind: Kind, variant: Any, call: Call) -> Iterator[tuple[MemoryRegion, Effect]]:
        for effect in accesses_of(variant, kind):
            spot = spot_of(variant, call, effect.place)
            if spot is not None:
                yield spot, effect


class _NativeLaunches:
    """The native launches of a program."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._gradients: dict[object, NativeLaunch | None] = {}

    def launch(self, kernel: Any, variant: Any, call: Call) -> NativeLaunch | None:
        """That of a launch; None: it comes through Python, or gives numbers to Python."""
        executable = variant.executable
        if executable.returns or call.loans or call.after:
            return None
        owner = executable, executable.compiled.address
        return next((x for x in self._program.native_launches.get(kernel.token, ()) if x.owner == owner), None)

    def has_gradient(self, variant: Any, early: bool) -> bool:
        """Whether the gradient can be launched natively, or there is nothing to differentiate. ``early``: see ``KeptRuns``."""
        if not variant.plans.sizing:
            return True
        reverse = variant.gradient
        native = variant.native and reverse.native and not reverse.stores.asks and (early or not variant.before())
        return native and self.gradient(variant) is not None

    def gradient(self, variant: Any) -> NativeLaunch | None:
        """That of the gradient, without arguments; None: there is none."""
        if not variant.plans.sizing:
            return None
        reverse = variant.gradient
        if reverse not in self._gradients:
            self._gradients[reverse] = reverse.native_launch((), (reverse, reverse.compiled.address))
        return self._gradients[reverse]


def _given(variant: Any, call: Call) -> dict[int, GivenArray] | None:
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
