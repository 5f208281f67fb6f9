"""Parts of an emulated graph that run again, or not at all."""

from __future__ import annotations

import ctypes

from qdrun.compiler.codegen.abi import SCRATCH_PAUSED
from qdrun.compiler.runtime.gpu.driver import DeviceFlag

from .machine import EmulatedMachine, Work


class EmulatedConditions:
    """See ``gpu.driver.Conditions``. A condition that nothing has set since its graph was recorded is false."""

    def __init__(self, machine: EmulatedMachine) -> None:
        self._machine = machine
        self._true: dict[int, bool] = {}
        self._open: dict[int, list[tuple[list[Work], int, bool]]] = {}  # what was recorded before each open part

    def new(self, stream: int) -> int:
        """A number."""
        condition = next(self._machine.numbers)
        self._true[condition] = False
        return condition

    def _read(self, word: DeviceFlag) -> int:
        with self._machine.arena.open():
            if self._machine.arena.holds(word.address):  # else it is pinned memory of the host
                self._machine.arena.check(word.address, word.nbytes)
            return int.from_bytes(ctypes.string_at(word.address, word.nbytes), "little")

    def _is_set(self, word: DeviceFlag) -> bool:
        return word.nbytes == 0 or self._read(word) != 0

    def set(self, condition: int, word: DeviceFlag, scratch: int, stream: int) -> None:
        """In the stream."""

        def work() -> None:
            paused = self._read(DeviceFlag(scratch + 8 * SCRATCH_PAUSED, 4))
            self._true[condition] = self._is_set(word) and not paused

        self._put(stream, work)

    def pause(self, word: DeviceFlag, mark: int, scratch: int, stream: int) -> None:
        """In the stream."""

        def work() -> None:
            if self._is_set(word):
                self._machine.fill(scratch + 8 * SCRATCH_PAUSED, mark, 1, 4)

        self._put(stream, work)

    def _put(self, stream: int, work: Work) -> None:
        self._machine.guarded("condition", lambda: self._machine.put(stream, work))

    def begin(self, condition: int, again: bool, stream: int) -> None:
        """A recording of its own."""

        def call() -> None:
            s = self._machine.stream(stream)
            assert s.capture is not None
            self._open.setdefault(stream, []).append((s.capture, condition, again))
            s.capture = []

        self._machine.guarded("condition", call)

    def end(self, stream: int) -> None:
        """One piece of work of the recording around it."""

        def call() -> None:
            s = self._machine.stream(stream)
            body, (s.capture, condition, again) = s.capture or [], self._open[stream].pop()

            def work() -> None:
                while self._true[condition]:
                    for inner in body:
                        inner()
                    if not again:
                        break

            self._machine.put(stream, work)

        self._machine.guarded("condition", call)
