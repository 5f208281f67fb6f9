"""One model of a run for people: counts, speed, devices with their bytes, lanes, failures, and why trials wait.

Made by the runner from what it knows (``board.py``), or by anybody from the journal alone (``view_of``), with what the packer says of
its devices where that is at hand. Never imports ray.

Beside the events that ``store/replay.py`` knows, a journal may have ``snapshot`` events, which only views read: ``pools`` and
``devices`` as ``Packer.snapshot()`` has them, ``waiting``, a list of ``{"count": trials, "example": request, "why": text}``, and, where
it is known, ``used``: bytes in use by the id of a device or of a pool. The runner writes one when it changes, and not too often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import PlainSerializer

from ..fields import Data, about
from ..optimize.results import best_at
from ..store.attempts import Failure
from ..store.follower import Event
from ..store.layout import RunFolder
from ..store.replay import CODES, Replay, Replayer, record_of, run_state
from ..store.trial_state import FINAL
from ..study.trial_list import Trial, Trials
from ..visible import visible

RECENT_S = 120.0
"""The rate is that of this many seconds before now."""
SHOWN = 5
REPEATED = "repeated"
Snapshot = Mapping[str, Any]


@dataclass(frozen=True)
class RunningTrial:
    """A trial that runs, or a batch by its first trial."""

    trial: Annotated[str, about("its id")]
    label: Annotated[str, about("the swept values")]
    device: Annotated[str, about("name of the device")]
    seconds: Annotated[float, about("since it started")]
    bytes: Annotated[int | None, about("claimed bytes")] = None
    step: Annotated[
        str, about("progress: phase, time step, step of an optimisation, latest values; empty if not reported yet")
    ] = ""
    values: Annotated[
        Mapping[str, float],
        about("the values that it has logged last, by name; of a batch those of the trial with the smallest loss"),
    ] = field(default_factory=dict)
    at: Annotated[int | None, about("the step at which they were logged; null: nothing was logged")] = None

    @classmethod
    def seen(cls, said: Mapping[str, Any] | None, *head: Any) -> RunningTrial:
        """With what its worker said of it, see ``LaneState.seen``. ``head``: the attributes up to ``bytes``."""
        said = said or {}
        values = {printable(str(name)): float(value) for name, value in dict(said.get("values", {})).items()}
        return cls(*head, step=printable(str(said.get("text", ""))), values=values, at=said.get("step"))


@dataclass(frozen=True)
class DeviceView:
    """A device and the memory it runs on. A lease that covers several trials, one after the other, is one running trial."""

    id: Annotated[str, about("name of the device")]
    pool: Annotated[str, about("its memory pool")]
    kind: Annotated[str, about("device class")] = ""
    capacity: Annotated[int | None, about("bytes of the pool for trials")] = None
    claimed: Annotated[int, about("claimed bytes")] = 0
    used: Annotated[int | None, about("bytes in use, reported by the driver")] = None
    lanes: Annotated[int | None, about("number of trials that may run at once")] = None
    running: Annotated[int, about("number of running trials")] = 0


@dataclass(frozen=True)
class FailureView:
    """A failed trial in one line."""

    trial: Annotated[str, about("its id")]
    label: Annotated[str, about("the swept values")]
    kind: Annotated[str, about("type of its error")]
    message: Annotated[str, about("first line of its error")]


@dataclass(frozen=True)
class WaitCount:
    """Why some trials wait."""

    count: Annotated[int, about("number of trials")]
    text: Annotated[str, about("the reason, with the numbers")]


@dataclass(frozen=True)
class RunView:
    """The state of a run at one moment."""

    run: Annotated[str, about("its id")]
    state: Annotated[str, about("as in status")]  # of a runner also what it does just now
    total: Annotated[int, about("number of trials in the sweep")]
    counts: Annotated[Mapping[str, int], about("number of trials by status")]  # waiting, too: they add up to ``total``
    seconds: Annotated[float, about("since the start of the run")]
    rate: Annotated[float | None, about("recent rate, in trials per second")] = None
    eta_s: Annotated[float | None, about("estimated seconds to the end")] = None
    best: Annotated[
        tuple[float, str] | None,
        PlainSerializer(lambda best: best and {"loss": best[0], "at": best[1]}, return_type=Data | None),
        about("trial and loss of the smallest loss so far"),
    ] = None
    devices: Annotated[tuple[DeviceView, ...], about("devices of the run")] = ()
    lanes: Annotated[tuple[RunningTrial, ...], about("running trials")] = ()
    failures: Annotated[tuple[FailureView, ...], about("latest failures, the newest last")] = ()
    reasons: Annotated[tuple[WaitCount, ...], about("why trials wait")] = ()
    retries: Annotated[
        Mapping[str, int],
        about("attempts that ended without a row, by failure class; `repeated`: lost with their worker"),
    ] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """Trials that have their row."""
        return sum(self.counts.get(status, 0) for status in FINAL)

    @property
    def over(self) -> bool:
        """Whether the run goes on no more."""
        return self.state in ("done", "failed", "cancelled", "interrupted", "lost", "finished")


class RunWatch:
    """Looks at a run again and again, by its journal. Each line of that is read once.

    Args:
        folder: the run.
        trials: of the run, where they were read already.
        reader: of its journal; None: one of its own.
    """

    def __init__(self, folder: RunFolder, trials: Sequence[Trial] | None = None, reader: Replayer | None = None) -> None:
        ids = None if trials is None else Trials.of(trials).ids
        self.folder, self._trials, self._reader = folder, trials, reader or Replayer(folder, ids=ids)
        self._created, self._optimizes = float(folder.info()["created"]), None
        self._labels = dict[int, str]()

    def view(self) -> RunView:
        """The run as its journal has it now."""
        found = self._reader.look()
        state = run_state(self.folder, found)
        running = state == "running"
        now = self.folder.clock() if running else found.last_t or self._created
        beat = self.folder.last_beat() if running else None
        lanes = self._lanes(found, {} if beat is None else beat["steps"], now) if running else ()
        counts = _counts(found, state)
        speed = rate(found.ended_t[found.ended_t >= now - RECENT_S], found.began_t, now)
        left = len(found.ids) - sum(counts.get(status, 0) for status in FINAL)
        said = found.latest.get("snapshot")
        return RunView(
            run=self.folder.name,
            state=state,
            total=len(found.ids),
            counts=counts,
            seconds=max(0.0, now - self._created),
            rate=speed,
            eta_s=left / speed if speed and left and running else None,
            best=self.best(found),
            devices=device_views(said, lanes) if running else (),
            lanes=lanes,
            failures=self._failures(found),
            reasons=reasons(said, counts.get("waiting", 0)) if running else (),
            retries=Counter(
                retry_kind(a.failure or "infrastructure", a.charged)
                for t in found.odd
                for a in t.attempts
                if a.status == "retried"
            ),
        )

    def _label(self, found: Replay, place: int) -> str:
        if place not in self._labels:
            name = found.ids[place]
            known = self.folder.trial(name) if self._trials is None else self._trials[place]
            self._labels[place] = name if known is None else printable(known.label)
        return self._labels[place]

    def _lanes(self, found: Replay, steps: Mapping[str, Mapping[str, Any]], now: float) -> tuple[RunningTrial, ...]:
        """What runs; the trials of a batch have one launch."""
        lanes = []
        for first, places in found.launches():
            said = next((steps[name] for at in places if (name := found.ids[at]) in steps), None) if steps else None
            trial, place, began = first.attempt.trial, first.place, first.started_t or now
            label = self._label(found, places[0])
            label = label if len(places) == 1 else batch_label(len(places), label)
            lanes.append(RunningTrial.seen(said, trial, label, device_of(place), max(0.0, now - began), place.get("bytes")))
        return tuple(lanes)

    def best(self, found: Replay) -> tuple[float, str] | None:
        """The smallest loss and where it is; what an optimisation run has found is read from its line of the journal."""
        best = found.best()
        if best is None:
            return None
        place, loss = best
        outputs: Mapping[str, Any] = {}
        with suppress(OSError, ValueError):  # what is damaged is said elsewhere
            if self._optimizes is None:
                self._optimizes = bool(self.folder.config().get("optimize"))
            if self._optimizes:
                outputs = (record_of(self.folder, found.state_at(place)) or {}).get("outputs") or {}
        return loss, best_at(self._label(found, place), outputs)

    def _failures(self, found: Replay) -> tuple[FailureView, ...]:
        failed = np.flatnonzero(np.isin(found.status, (CODES["failed"], CODES["poisoned"])))
        failed = failed[np.argsort(found.ended_t[failed], kind="stable")][-SHOWN:]
        shown = [(found.state_at(place), self._label(found, place)) for place in failed.tolist()]
        return tuple(failure_view(state.id, label, state.entry.event) for state, label in shown if state.entry)


def view_of(folder: RunFolder) -> RunView:
    """A run as its journal has it; one pass over the journal."""
    return RunWatch(folder).view()


def retry_kind(failure: str, charged: bool) -> str:
    """The class of failure of an attempt that ended without a row; ``repeated`` where it was lost with its worker, by no fault of its
    trial.
    """
    return failure if charged or failure != Failure.infrastructure else REPEATED


def retries_text(retries: Mapping[str, int], *, kinds: bool = True) -> list[str]:
    """Attempts that ended without a row, for people. ``kinds``: by class of failure."""
    own = {name: count for name, count in sorted(retries.items()) if name != REPEATED}
    said = f"tried again: {', '.join(f'{count} {name}' for name, count in own.items())}"
    parts = [said if kinds else f"{sum(own.values())} tried again"] if own else []
    return parts + ([f"{retries[REPEATED]} repeated, lost with their worker"] if retries.get(REPEATED) else [])


def last_of(events: Iterable[Event], kind: str) -> Event | None:
    """The latest event of a kind."""
    found = None
    for event in events:
        if event["event"] == kind:
            found = event
    return found


def rate(ends: Iterable[float], began: float | None, now: float) -> float | None:
    """Trials per second: of the last ``RECENT_S`` seconds, or since the first start when that is later. None when none ended."""
    if began is None:
        return None
    since = max(began, now - RECENT_S)
    recent = int(np.count_nonzero(np.fromiter(ends, float) >= since))
    return recent / max(now - since, 1e-3) if recent else None


def _counts(found: Replay, state: str) -> dict[str, int]:
    counts = dict(found.counts())
    if state != "running" and counts.get("running"):  # its owner is gone: nothing runs any more
        counts["waiting"] = counts.get("waiting", 0) + counts.pop("running")
    return counts


def device_of(place: Mapping[str, Any]) -> str:
    """Where an attempt runs: its device; the host of one that was given no device."""
    return str(place.get("device") or place.get("host") or "not said")


def batch_label(trials: int, first: str) -> str:
    """A batch of so many trials by the label of its first one."""
    return f"{trials} trials from {first} on"


def device_views(snapshot: Snapshot | None, lanes: Sequence[RunningTrial]) -> tuple[DeviceView, ...]:
    """The devices of a snapshot with what runs there; without a snapshot, the devices that lanes name.

    What the processes of a pool take is claimed too, shared out between the devices that have a worker.

    Args:
        snapshot: see the module.
        lanes: what runs.
    """
    claimed: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for lane in lanes:
        claimed[lane.device] += lane.bytes or 0
        running[lane.device] += 1
    said = snapshot or {}
    pools = {pool["id"]: pool for pool in said.get("pools", ())}
    workers = Counter(device["pool"] for device in said.get("devices", ()) if device.get("worker"))
    used = said.get("used") or {}
    found: dict[str, DeviceView] = {}
    for device in said.get("devices", ()):
        name, pool, own = str(device["id"]), pools.get(device["pool"], {}), device.get("running") or ()
        process = int(pool.get("process") or 0) // workers[device["pool"]] if device.get("worker") else 0
        found[name] = DeviceView(
            name,
            str(device["pool"]),
            str(device["kind"]),
            pool.get("capacity"),
            claimed=(sum(int(run["bytes"]) for run in own) or claimed[name]) + process,
            used=used.get(name, used.get(device["pool"])),
            lanes=device.get("lanes"),
            running=len(own) or running[name],
        )
    for name in sorted(set(claimed) - set(found)):
        found[name] = DeviceView(name, name, claimed=claimed[name], running=running[name])
    return tuple(found.values())


def reasons(snapshot: Snapshot | None, waiting: int | None = None) -> tuple[WaitCount, ...]:
    """Why trials wait, as a snapshot says it, and the reservation there is.

    ``waiting``: trials that wait now, where that is known: a reason that stands alone is that of all of them.
    """
    if snapshot is None or waiting == 0:
        return ()
    found = [WaitCount(int(group["count"]), str(group["why"])) for group in snapshot.get("waiting") or () if group.get("why")]
    reserved = snapshot.get("reservation")
    if reserved and not found:
        found.append(WaitCount(1, f"{reserved['device']} is reserved for {reserved['request']}: {reserved['why']}"))
    return (WaitCount(waiting, found[0].text),) if waiting and len(found) == 1 else tuple(found)


def printable(text: str) -> str:
    """Text that does nothing to a terminal."""
    return visible(text).replace("\n", "\ufffd").replace("\t", "\ufffd")


def failure_view(trial: str, label: str, record: Mapping[str, Any]) -> FailureView:
    """A record of a failed trial in one line."""
    error = record.get("error") or {}
    first = printable((str(error.get("message") or "").splitlines() or [""])[0])
    kind = str(error.get("type") or record.get("failure") or "failed")
    return FailureView(trial, printable(label), printable(kind), first)
