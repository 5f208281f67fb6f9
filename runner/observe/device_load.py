"""Computes the memory load of each device over time from the starts and ends in a journal. Pure: no clock, no files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..store.columns import BEGUN, ROWS, names_of
from ..store.follower import Event
from .view import device_of, device_views, last_of

STARTS, ENDS = ("started", BEGUN), ("ended", ROWS)


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

    def start(self, trials: Sequence[str], device: str, batch: Hashable, size: int, t: float) -> None:
        self.end(trials, t)
        held = self._batches[device, batch]
        self._add(device, len(trials), max(0, size - held.bytes), t)
        held.trials, held.bytes = held.trials + len(trials), max(held.bytes, size)
        self._live.update(dict.fromkeys(trials, (device, batch)))

    def end(self, trials: Iterable[str], t: float) -> None:
        for where, count in Counter(self._live.pop(trial) for trial in trials if trial in self._live).items():
            held = self._batches[where]
            held.trials -= count
            if not held.trials:
                del self._batches[where]
            self._add(where[0], -count, 0 if held.trials else -held.bytes, t)

    def end_all(self, t: float) -> None:
        self.end(list(self._live), t)

    def _add(self, device: str, trials: int, size: int, t: float) -> None:
        now, load = self._sums[device], self.loads.setdefault(device, Load(device))
        now.trials, now.bytes = now.trials + trials, now.bytes + size
        if load.times and load.times[-1] == t:
            load.claimed[-1], load.running[-1] = now.bytes, now.trials
            return
        load.times.append(t)
        load.claimed.append(now.bytes)
        load.running.append(now.trials)


class _Timed(NamedTuple):
    """An event of some trials, and its time."""

    t: float
    event: Event
    trials: Sequence[str]


def _in_time(events: Iterable[Event], began: float, ids: Sequence[str]) -> list[_Timed]:
    """Events in the order of their times. Starts and ends are at the times of their worker where the row says them: the journal has them
    later, and the next trial of a lane may have begun before the end of the last one was written. What began and ended between two writes
    of the journal, with a ``place``, becomes a start and an end. The line of a batch is one event.
    """
    out: list[_Timed] = []
    starts: dict[str, int] = {}  # where the start of a trial's current attempt is
    last = floor = began
    for event in events:
        t = last = max(last, float(event.get("t", last)))  # clocks of two owners may differ: time does not run back here
        trials = names_of(event, ids) if event["event"] in (BEGUN, ROWS) else [str(event.get("trial"))]
        if event["event"] == "owner":  # what the one before ran ends here
            floor, starts = t, {}
        if event["event"] in STARTS:
            starts |= dict.fromkeys(trials, len(out))
        elif event["event"] in ENDS:
            start, end = (min(max(float(event.get(name) or t), floor), t) for name in ("started_t", "ended_t"))
            place, found = event.get("place"), {starts.pop(trial, -1) for trial in trials}
            if place is not None:
                lease = {"launch": (event.get("pid"), event.get("lane"), start)}
                out.append(_Timed(start, {**lease, **place, "event": "started"}, trials))
            elif event.get("started_t"):
                for at in found - {-1}:
                    out[at] = out[at]._replace(t=start)
            t = max(start, end) if event.get("started_t") else end
        out.append(_Timed(t, event, trials))
    return sorted(out, key=lambda item: item.t)


def loads(events: Iterable[Event], began: float, planned: Mapping[str, int | None], ids: Sequence[str] = ()) -> list[Load]:
    """The devices of a run over time, in the order of their names.

    Args:
        events: of the journal.
        began: when the run began, seconds since the epoch.
        planned: bytes by trial, for starts that do not say what they claim.
        ids: of the trials of the run, for batches that say their places.
    """
    events, now = list(events), _DeviceLoad()
    for at, event, trials in _in_time(events, began, ids):
        t, kind = at - began, event["event"]
        if kind in STARTS:
            claimed = event.get("bytes")
            size = int(claimed if claimed is not None else planned.get(trials[0]) or 0)
            now.start(trials, device_of(event), event.get("launch", trials[0]), size, t)
        elif kind in ENDS or kind == "retry":
            now.end(trials, t)
        elif kind == "owner":  # what the one before ran died with it
            now.end_all(t)
    known = {device.id: device.capacity for device in device_views(last_of(events, "snapshot"), ())}
    for load in now.loads.values():
        load.capacity = known.get(load.device)
    return sorted(now.loads.values(), key=lambda load: load.device)
