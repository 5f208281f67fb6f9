"""Gradients that are lost: a differentiable value goes through an array without a gradient on its way to the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...passes.dependence.array_flow import VARIED
from ...passes.dependence.paths import Broken
from ...program.memory.effects import access_region
from ...program.memory.memory_regions import IndexPattern, MemoryRegion, patterns_meet, tensor_regions
from .overwrites import HostWrite, Timed
from .time_steps.steps_check import Moved

if TYPE_CHECKING:
    from ...passes.dependence.access import Access
    from ...program.variant import Variant
    from ..args.binding import Bound


def check_broken(launches: list[tuple[int, Timed | Moved]], host_writes: list[HostWrite], *, strict: bool) -> None:
    """Follow the values of a tape through arrays without a gradient, and say where a gradient is lost.

    Warns once for each kernel and array. ``launches``: in their order, each with its number on the tape.

    Raises:
        DifferentiationError: ``strict`` (validation), instead of the warning.
    """
    lost = _Lost(strict)
    writes = [w for w in host_writes if w.index is None]
    for when, timed in launches:
        while writes and writes[0].before <= when:
            lost.assigned(writes.pop(0))
        if isinstance(timed, Moved):
            lost.moved(timed)
        elif not timed.hidden:  # a gradient of its own answers for what happens inside
            kernel, args, kwargs = timed.launch
            lost.launched(*kernel.variant(args, kwargs))


@dataclass
class _Lost:
    """The arrays without a gradient that hold differentiable values, and which kernel stored them."""

    strict: bool
    spots: dict[MemoryRegion, list[tuple[IndexPattern, str, Access]]] = field(default_factory=dict)

    def assigned(self, write: HostWrite) -> None:
        """Python overwrites all of a tensor: constants."""
        for spot, _ in tensor_regions(write.tensor):
            self.spots.pop(spot, None)

    def moved(self, move: Moved) -> None:
        """The last slot of time steps became the first."""
        for spot in move.spots:
            found = self.spots.get(spot, [])
            last = [(region, by, access) for region, by, access in found if region and region[0] == move.length]
            found += [((0, *region[1:]), by, access) for region, by, access in last]

    def launched(self, variant: Variant, bound: Bound) -> None:
        """A kernel has run."""
        flows = variant.flows
        name = variant.head.name
        for broken in variant.broken():
            variant.report_lost(broken, name, strict=self.strict)
        found = {n: self._origin(variant, bound, loads) for n, loads in enumerate(map(flows.loads.__getitem__, flows.places))}
        hits = {2 << n: origin for n, origin in found.items() if origin is not None}
        for access, mask in flows.writes:
            origin = next((o for bit, o in hits.items() if mask & bit), None)
            if access[0].differentiable:
                if origin is not None:
                    load, (_, by, store) = origin
                    broken = Broken(load[0].name, getattr(load[2], "loc", None), getattr(store[2], "loc", None))
                    variant.report_lost(broken, by, strict=self.strict)
            elif mask & VARIED or origin is not None:
                spot, region = access_region(variant, bound.call, access)
                if spot is not None and (region, name, access) not in self.spots.setdefault(spot, []):
                    self.spots[spot].append((region, name, access))

    def _origin(
        self, variant: Variant, bound: Bound, loads: list[Access]
    ) -> tuple[Access, tuple[IndexPattern, str, Access]] | None:
        for load in loads:
            spot, region = access_region(variant, bound.call, load)
            for stored in self.spots.get(spot, ()) if spot is not None else ():
                if patterns_meet(region, stored[0]):
                    return load, stored
        return None
