"""``qd.perf_dispatch``: the fastest of several functions that do the same, found by timing them."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...errors import QdrunRuntimeError, QdrunSyntaxError
from ...program.program import current_program

F = TypeVar("F", bound=Callable[..., Any])

REPEAT_AFTER = 300
"""Calls after which the functions are timed again, where neither a count nor seconds are given."""


@dataclass(eq=False)
class _Candidate:
    """A registered function."""

    fn: Callable[..., Any]
    is_compatible: Callable[..., bool] | None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", repr(self.fn))


@dataclass
class _Geometry:
    """What is known for the calls of one geometry.

    Attributes:
        calls, seconds: of each candidate since the last choice: calls, and the time of those that were timed.
        chosen: the fastest; None while they are timed.
        warm: the number of the program in which they were timed: everything is compiled there; 0: of none.
        since: calls since the choice.
        at: when it was made.
    """

    calls: dict[_Candidate, int] = field(default_factory=dict)
    seconds: dict[_Candidate, list[float]] = field(default_factory=dict)
    chosen: _Candidate | None = None
    warm: int = 0
    since: int = 0
    at: float = 0.0

    def choose(self, candidate: _Candidate) -> None:
        """End the timing."""
        self.calls.clear()
        self.seconds.clear()
        self.chosen, self.since, self.at = candidate, 0, time.monotonic()


class PerfDispatcher:
    """A function with several implementations, of which each call runs one. Made by ``qd.perf_dispatch``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        geometry_of: Callable[..., Hashable],
        warmups: tuple[int, int],
        active: int,
        repeat_after_count: int | None,
        repeat_after_seconds: float | None,
    ) -> None:
        self.__name__, self.__doc__ = fn.__name__, fn.__doc__
        self._parameters = tuple(inspect.signature(fn).parameters)
        self._geometry_of, self._warmups, self._active = geometry_of, warmups, max(1, active)
        neither = repeat_after_count is None and repeat_after_seconds is None
        self._count = REPEAT_AFTER if neither else repeat_after_count or 0
        self._seconds = repeat_after_seconds or 0.0
        self._candidates: list[_Candidate] = []
        self._geometries: dict[tuple[str, Hashable], _Geometry] = {}  # of each backend

    def register(
        self, implementation: Callable[..., Any] | None = None, *, is_compatible: Callable[..., bool] | None = None
    ) -> Any:
        """Add a function, as a decorator; the function is returned as it is.

        Args:
            implementation: a kernel, or a Python function that launches kernels; its parameters have the names of the dispatcher's.
            is_compatible: gets the arguments of a call; whether the function can run with them. None: with all.

        Raises:
            QdrunSyntaxError: the parameters have other names.
        """

        def added(fn: F) -> F:
            names = tuple(inspect.signature(fn).parameters)
            if sorted(names) != sorted(self._parameters):
                raise QdrunSyntaxError(
                    f"`{getattr(fn, '__name__', fn)}({', '.join(names)})` is registered with"
                    f" `{self.__name__}({', '.join(self._parameters)})`",
                    hint="give it the same parameters",
                )
            self._candidates.append(_Candidate(fn, is_compatible))
            return fn

        return added if implementation is None else added(implementation)

    @property
    def choices(self) -> dict[Hashable, str]:
        """The name of the function that was chosen for each geometry on the backend of the current program; of those that are being
        timed there is none.
        """
        here = current_program().arch.value
        found = ((geometry, g.chosen) for (arch, geometry), g in self._geometries.items() if arch == here)
        return {geometry: chosen.name for geometry, chosen in found if chosen is not None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one of the functions, and return its result: the next one to be timed, or the fastest.

        Raises:
            QdrunRuntimeError: none can run with these arguments.
        """
        program = current_program()
        geometry = self._geometries.setdefault((program.arch.value, self._geometry_of(*args, **kwargs)), _Geometry())
        repeats = program.replay.running or (
            program.recorders.tape is not None and program.recorders.tape.in_steps
        )  # a step does the same each time
        if geometry.chosen is not None and (repeats or not self._is_due(geometry)):
            return geometry.chosen.fn(*args, **kwargs)
        able = [c for c in self._candidates if c.is_compatible is None or c.is_compatible(*args, **kwargs)]
        if not able:
            raise QdrunRuntimeError(
                f"`{self.__name__}` has no implementation for these arguments\n"
                f"  do: register one whose is_compatible accepts them; there are {[c.name for c in self._candidates]}"
            )
        if (
            repeats or program.recorders.recording is not None or program.recorders.rehearsal is not None
        ):  # or nothing runs that can be timed
            return (geometry.chosen or able[0]).fn(*args, **kwargs)
        geometry.chosen = None
        if len(able) == 1:
            geometry.choose(able[0])
            return able[0].fn(*args, **kwargs)
        return self._timed(geometry, able, args, kwargs)

    def _is_due(self, geometry: _Geometry) -> bool:
        """Whether the functions are to be timed again."""
        geometry.since += 1
        late = 0 < self._seconds <= time.monotonic() - geometry.at
        return late or 0 < self._count <= geometry.since

    def _timed(self, geometry: _Geometry, able: list[_Candidate], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function with the fewest calls so far; time it unless it is warming up."""
        program = current_program()
        warmups, calls = self._warmups[geometry.warm == program.number], geometry.calls
        candidate = min(able, key=lambda c: calls.get(c, 0))
        number = calls.get(candidate, 0)
        if number < warmups:
            result = candidate.fn(*args, **kwargs)
            calls[candidate] = number + 1
            return result
        program.synchronize()  # what was launched before is none of its time
        begin = time.perf_counter()
        result = candidate.fn(*args, **kwargs)
        program.synchronize()
        geometry.seconds.setdefault(candidate, []).append(time.perf_counter() - begin)
        calls[candidate] = number + 1
        if all(calls.get(c, 0) >= warmups + self._active for c in able):
            geometry.warm = program.number
            geometry.choose(min(able, key=lambda c: sum(geometry.seconds[c]) / len(geometry.seconds[c])))
        return result


def perf_dispatch(
    *,
    get_geometry_hash: Callable[..., Hashable],
    first_warmup: int = 1,
    warmup: int = 0,
    active: int = 1,
    repeat_after_count: int | None = None,
    repeat_after_seconds: float | None = None,
) -> Callable[[Callable[..., Any]], PerfDispatcher]:
    """Decorate a function whose calls run the fastest of the functions that are registered with it; its own body never runs.

    Each call runs one of them, so that they need not be repeatable, only equal in what they do. Each backend has its own choices, which
    later programs keep.

    Args:
        get_geometry_hash: gets the arguments of a call; calls with equal results share a choice.
        first_warmup: calls of each function before the first timing, which compile it.
        warmup: the same before later timings in the same program.
        active: timed calls of each; the mean counts.
        repeat_after_count: time them again after so many calls of a geometry; 0 or less: never. None: after 300, unless
            ``repeat_after_seconds`` is given.
        repeat_after_seconds: the same after so many seconds; None, 0 or less: never.
    """

    def decorated(fn: Callable[..., Any]) -> PerfDispatcher:
        how = (first_warmup, warmup), active, repeat_after_count, repeat_after_seconds
        return PerfDispatcher(fn, get_geometry_hash, *how)

    return decorated
