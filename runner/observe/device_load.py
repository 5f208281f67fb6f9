"""Computes the memory load of each device over time from the starts and ends in a journal. Pure: no clock, no files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.follower import Event
from .view import device_of, device_views, last_of


@dataclass
class Load:
    """A device over time; ``bytes[i]`` and ``running[i]`` hold from ``times[i]`` on, to the next one.

    Attributes:
        device: its id; the host of trials that ran on no device.
        capacity: bytes of its pool; None where no ``snapshot`` event says it.
        times: seconds since the run began.
        claimed: bytes claimed by what runs.
        running: attempts that run.
    """

    device: str
    capacity: int | None = None
    times: list[float] = field(default_factory=list)
    claimed: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)

    def mean(self) -> tuple[float, float]:
        """Bytes claimed and attempts running, on average from the first start to the last end."""
        spans = [after - before for before, after in zip(self.times, self.times[1:])]
        whole = sum(spans)
        if not whole:
            return 0.0, 0.0
        pairs = zip(spans, self.claimed, self.running)
        held = [(span * size, span * count) for span, size, count in pairs]
        return sum(size for size, _ in held) / whole, sum(count for _, count in held) / whole


@dataclass
class _Batch:
    """A lease that runs: the trials in it, and the bytes that they claim together."""

    trials: int = 0
    bytes: int = 0


class _DeviceLoad:
    """What runs on each device; a batch claims its bytes once, until its last trial has ended."""

    def __init__(self) -> None:
        self.loads: dict[str, Load] = {}
        self._live: dict[str, tuple[str, Hashable]] = {}
        self._batches: dict[tuple[str, Hashable], _Batch] = defaultdict(_Batch)
        self._sums: dict[str, _Batch] = defaultdict(_Batch)

    def start(self, trial: str, device: str, batch: Hashable, size: int, t: float) -> None:
        self.end(trial, t)
        held = self._batches[device, batch]
        self._add(device, 1, max(0, size - held.bytes), t)
        held.trials, held.bytes = held.trials + 1, max(held.bytes, size)
        self._live[trial] = device, batch

    def end(self, trial: str, t: float) -> None:
        where = self._live.pop(trial, None)
        if where is None:
            return
        held = self._batches[where]
        held.trials -= 1
        if not held.trials:
            del self._batches[where]
        self._add(where[0], -1, 0 if held.trials else -held.bytes, t)

    def end_all(self, t: float) -> None:
        for trial in list(self._live):
            self.end(trial, t)

    def _add(self, device: str, trials: int, size: int, t: float) -> None:
        now, load = self._sums[device], self.loads.setdefault(device, Load(device))
        now.trials, now.bytes = now.trials + trials, now.bytes + size
        if load.times and load.times[-1] == t:
            load.claimed[-1], load.running[-1] = now.bytes, now.trials
            return
        load.times.append(t)
        load.claimed.append(now.bytes)
        load.running.append(now.trials)


def _in_time(events: Iterable[Event], began: float) -> list[tuple[float, Event]]:
    """Events in the order of their times. Starts and ends are at the times of their worker where the row says them: the journal has them
    later, and the next trial of a lane may have begun before the end of the last one was written. What began and ended between two writes
    of the journal, with a ``place``, becomes a start and an end.
    """
    out: list[tuple[float, Event]] = []
    starts: dict[Any, int] = {}  # where the start of a trial's current attempt is
    last = floor = began
    for event in events:
        t = last = max(last, float(event.get("t", last)))  # clocks of two owners may differ: time does not run back here
        if event["event"] == "owner":  # what the one before ran ends here
            floor, starts = t, {}
        if event["event"] == "started":
            starts[event.get("trial")] = len(out)
        elif event["event"] == "ended":
            start, end = (min(max(float(event.get(name) or t), floor), t) for name in ("started_t", "ended_t"))
            place, at = event.get("place"), starts.pop(event.get("trial"), None)
            if place is not None:
                lease = {"launch": (event.get("pid"), event.get("lane"), start)}
                out.append((start, {**lease, **place, "event": "started", "trial": event.get("trial")}))
            elif at is not None and event.get("started_t"):
                out[at] = (start, out[at][1])
            t = max(start, end) if event.get("started_t") else end
        out.append((t, event))
    return sorted(out, key=lambda item: item[0])


def loads(events: Iterable[Event], began: float, planned: Mapping[str, int | None]) -> list[Load]:
    """The devices of a run over time, in the order of their names.

    Args:
        events: of the journal.
        began: when the run began, seconds since the epoch.
        planned: bytes by trial, for starts that do not say what they claim.
    """
    events, now = list(events), _DeviceLoad()
    for t, event in _in_time(events, began):
        trial, kind = str(event.get("trial")), event["event"]
        if kind == "started":
            claimed = event.get("bytes")
            size = int(claimed if claimed is not None else planned.get(trial) or 0)
            now.start(trial, device_of(event), event.get("launch", trial), size, t - began)
        elif kind in ("ended", "retry"):
            now.end(trial, t - began)
        elif kind == "owner":  # what the one before ran died with it
            now.end_all(t - began)
    known = {device.id: device.capacity for device in device_views(last_of(events, "snapshot"), ())}
    for load in now.loads.values():
        load.capacity = known.get(load.device)
    return sorted(now.loads.values(), key=lambda load: load.device)
