"""Computes the memory load of each device over time from the starts and ends in a journal. Pure: no clock, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.journal import Event
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

    def thinned(self, most: int) -> Load:
        """At most about ``most`` moments; each stands for the fullest of those within a step of time, so that short gaps close."""
        if len(self.times) < 3:
            return self
        step = (self.times[-1] - self.times[0]) / most
        out = Load(self.device, self.capacity)
        for t, size, count in zip(self.times[:-1], self.claimed, self.running):
            if out.times and t < out.times[-1] + step:
                out.claimed[-1], out.running[-1] = max(out.claimed[-1], size), max(out.running[-1], count)
            else:
                out.times.append(t)
                out.claimed.append(size)
                out.running.append(count)
        out.times.append(self.times[-1])
        out.claimed.append(self.claimed[-1])
        out.running.append(self.running[-1])
        return out


@dataclass(frozen=True)
class _Held:
    device: str
    batch: str
    bytes: int


class _Devices:
    """The held bytes; a batch counts once, with the largest bytes of its attempts."""

    def __init__(self) -> None:
        self.loads: dict[str, Load] = {}
        self._live: dict[str, _Held] = {}
        self._batches: dict[str, dict[str, Counter[str]]] = {}

    def start(self, trial: str, held: _Held, t: float) -> None:
        self.end(trial, t)
        self._live[trial] = held
        self._batches.setdefault(held.device, {}).setdefault(held.batch, Counter())[trial] = held.bytes
        self._note(held.device, t)

    def end(self, trial: str, t: float) -> None:
        held = self._live.pop(trial, None)
        if held is None:
            return
        batches = self._batches[held.device]
        del batches[held.batch][trial]
        if not batches[held.batch]:
            del batches[held.batch]
        self._note(held.device, t)

    def end_all(self, t: float) -> None:
        for trial in list(self._live):
            self.end(trial, t)

    def _note(self, device: str, t: float) -> None:
        load = self.loads.setdefault(device, Load(device))
        batches = self._batches[device].values()
        values = (sum(max(batch.values()) for batch in batches), sum(len(batch) for batch in batches))
        if load.times and load.times[-1] == t:
            load.claimed[-1], load.running[-1] = values
            return
        load.times.append(t)
        load.claimed.append(values[0])
        load.running.append(values[1])


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
                out.append((start, {**place, "event": "started", "trial": event.get("trial")}))
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
    events, now = list(events), _Devices()
    for t, event in _in_time(events, began):
        trial, kind = str(event.get("trial")), event["event"]
        if kind == "started":
            claimed = event.get("bytes")
            size = int(claimed if claimed is not None else planned.get(trial) or 0)
            now.start(trial, _Held(device_of(event), str(event.get("batch") or trial), size), t - began)
        elif kind in ("ended", "retry"):
            now.end(trial, t - began)
        elif kind == "owner":  # what the one before ran died with it
            now.end_all(t - began)
    known = {device.id: device.capacity for device in device_views(last_of(events, "snapshot"), ())}
    for load in now.loads.values():
        load.capacity = known.get(load.device)
    return sorted(now.loads.values(), key=lambda load: load.device)
