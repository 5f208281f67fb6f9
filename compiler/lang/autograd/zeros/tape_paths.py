"""Whether a gradient can reach the fields of a tape, and the warning where it cannot although a program asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....errors import QdrunRuntimeError, warn_user
from ....program.memory.memory_regions import MemoryRegion, tensor_regions
from ....program.plans.gradient_paths import GradientPath, PathSearch, traced
from ...data.field import Field
from ...data.ndarray import Ndarray
from ..custom import Replaced
from ..gradient_arrays import has_grad, unwrapped_loss
from ..overwrites import HostWrite, Overwrites, Timed, _Group
from ..time_steps.steps_check import Composite
from .python_reads import PythonReads

if TYPE_CHECKING:
    from ....program.program import Program
    from ..tape_log import TapeLog

NOT_TOLD = frozenset(("stop_grad", "no_grad", "array"))
"""Cuts that a tape does not warn of: they were asked for, or are told as lost gradients."""


@dataclass
class TapeRecord:
    """What a tape has recorded.

    Attributes:
        program: of the tape.
        loss: its loss.
        timed: the launches, with those that a function with a gradient of its own hides.
        host_writes: what Python wrote.
        host_reads: what Python read, each with the number of launches before.
        steps: time steps and fixed points, with their numbers.
        constant: names of functions that are decorated with ``no_grad``.
        groups: the launches in groups, see ``Overwrites``.
    """

    program: Program
    loss: Any
    timed: list[Timed]
    host_writes: list[HostWrite]
    host_reads: list[tuple[int, Any]]
    steps: list[tuple[int, Composite]]
    constant: frozenset[str]
    groups: list[_Group] = field(default_factory=list)

    def key(self) -> object:
        """Equal for tapes with the same kernels and the same loss."""
        return "paths", id(self.loss), len(self.host_writes), *(id(group.variant) for group in self.groups)

    def paths(self, inputs: Sequence[Any]) -> tuple[GradientPath, ...]:
        """The path of each input to the loss."""
        search = PathSearch([(_name(one), one) for one in inputs], self.loss, _name(self.loss))
        for _, happens in sorted(self._events(search), key=lambda event: event[0]):
            happens()
        return search.result()

    def leaves(self) -> list[Any]:
        """The tensors with a gradient that a launch or Python reads and nothing in the tape writes; not the loss."""
        reads, writes = set[MemoryRegion](), set[MemoryRegion]()
        sampled = [group for _, steps in self.steps for group in _groups(steps)]
        for group in (*self.groups, *sampled):
            reads.update(part.spot for part in group.effects.reads)
            writes.update(part.spot for part in group.effects.writes)
        tensors = [write.tensor for write in self.host_writes]
        tensors += [write.tensor for _, steps in self.steps for write in steps.host_writes()]
        writes |= {spot for tensor in tensors for spot, _ in tensor_regions(tensor)}
        reads |= {spot for _, tensor in self.host_reads for spot, _ in tensor_regions(tensor)}
        return [
            tensor
            for tensor in self.program.tensors()
            if tensor is not self.loss
            and (not isinstance(tensor, Field) or tensor.placed)
            and has_grad(tensor)
            and tensor.dtype.is_real
            and not reads.isdisjoint(spots := {spot for spot, _ in tensor_regions(tensor)})
            and writes.isdisjoint(spots)
        ]

    def _events(self, search: PathSearch) -> Iterable[tuple[float, Callable[[], None]]]:
        for group in self.groups:
            hidden = "" if not group.hidden else "cut" if group.cut else "own"
            launch = traced(group.variant, group.bound.call)
            for when in group.when:
                yield when, lambda launch=launch, hidden=hidden, by=group.hidden: search.launch(launch, hidden, by)
        for write in self.host_writes:
            yield write.before - 0.5 / (1 + write.number), lambda write=write: self._write(search, write)
        for when, tensor in self.host_reads:
            yield when - 0.75, lambda tensor=tensor: search.shown([s for s, _ in tensor_regions(tensor)], _name(tensor))
        for when, steps in self.steps:
            yield when, lambda steps=steps: self._repeat(search, steps)

    def _repeat(self, search: PathSearch, steps: Composite) -> None:
        launches = [
            (traced(group.variant, group.bound.call), group.cut, group.hidden)
            for group in _groups(steps)
            for _ in group.when[:1]
        ]

        def once() -> None:
            for launch, cut, hidden in launches:
                search.launch(launch, "" if not hidden else "cut" if cut else "own", hidden)
            for write in steps.host_writes():
                self._write(search, write)

        search.repeat(once)

    def _write(self, search: PathSearch, write: HostWrite) -> None:
        source = None if write.source is None else [spot for spot, _ in tensor_regions(write.source)]
        own = bool(write.hidden) and write.hidden not in self.constant
        whole = write.index is None and not write.parts
        search.wrote([spot for spot, _ in tensor_regions(write.tensor)], source, whole=whole, hidden=own)


class PathsOfTape:
    """The part of a tape that knows how gradients reach its inputs. The attributes are those of ``Tape``."""

    loss: Any
    _program: Program | None
    log: TapeLog
    _host_reads: dict[int, tuple[int, Any]]
    _python: PythonReads

    @property
    def inside(self) -> bool:
        """Whether a function with a gradient of its own runs."""
        raise NotImplementedError

    def looked_at(self, tensor: Any) -> None:
        """Remember that Python reads a field or an ndarray between two launches."""
        self._host_reads.setdefault(id(tensor), (len(self.log), tensor))

    def saw(self, tensor: Any, value: Any, index: Any) -> None:
        """Remember what Python has read: all of a field or an ndarray, or the element at an index."""
        if not self.inside:
            self._python.read(tensor, value, index)

    def returned(self, kernel: Any, args: tuple[Any, ...], result: Any) -> None:
        """Remember what a kernel has returned."""
        if not self.inside:
            self._python.returned(kernel, args, result)

    def gradient_paths(self, *inputs: Any) -> tuple[GradientPath, ...]:
        """Say for each input whether a gradient can reach it from the loss, and where the path is cut. For a tape that has ended.

        Args:
            inputs: fields and ndarrays with gradients; none: all that the recorded launches read, and nothing in the tape writes.

        Raises:
            QdrunRuntimeError: the tape has no loss, or was not entered.
        """
        if self._program is None or not isinstance(self.loss, (Field, Ndarray)):
            raise QdrunRuntimeError("gradient_paths() needs a tape that has run, with a field or an ndarray as its loss")
        recorded = recorded_by(self, self._program, Overwrites.of(self.log.timed(), []).groups)
        return recorded.paths([unwrapped_loss(one) for one in inputs] or recorded.leaves())


def recorded_by(tape: Any, program: Program, groups: list[_Group]) -> TapeRecord:
    """What a ``Tape`` has recorded. ``groups``: of its launches."""
    constant = frozenset(call[0].name for call in tape.log.launches if isinstance(call[0], Replaced) and call[0].cuts)
    reads = list(tape._host_reads.values())
    return TapeRecord(program, tape.loss, tape.log.timed(), tape.log.writes, reads, tape.log.composites(), constant, groups)


def warn_of_zeros(recorded: TapeRecord) -> None:
    """Warn where the gradient of a tape is zero whatever the values. Once for each loss and list of kernels."""
    loss, program = recorded.loss, recorded.program
    if not isinstance(loss, (Field, Ndarray)):
        return
    key = recorded.key()
    if key in program.state.warned:
        return
    program.state.warned.add(key)  # type: ignore[arg-type]
    paths = recorded.paths(recorded.leaves())
    for path in told(paths):
        program.state.told.append(str(path))
        warn_user(str(path))


def told(paths: Sequence[GradientPath]) -> list[GradientPath]:
    """The paths that a tape warns of: those that some statement cuts; or if no gradient goes anywhere, one path."""
    cut = [path for path in paths if not path.connected and not (path.cuts and path.cuts[0].kind in NOT_TOLD)]
    found = [path for path in cut if path.cuts]
    return found or (cut[:1] if len(cut) == len(paths) else [])


def _groups(steps: Composite) -> list[_Group]:
    return Overwrites.of([t for t in steps.sample() if isinstance(t, Timed)], []).groups


def _name(tensor: Any) -> str:
    return str(getattr(tensor, "name", "") or "a field")


__all__ = ["GradientPath", "PathsOfTape", "TapeRecord", "recorded_by", "told", "warn_of_zeros"]
