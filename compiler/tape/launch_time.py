"""How long a launch takes on a backend, predicted from counts alone: nothing runs, no device is there, no machine code is made.

    CPU  task = start + max(iterations * alone / (threads in use * SIMD), bytes / bandwidth)
    GPU  task = start + max(rounds * alone, iterations * share, bytes / bandwidth)

``alone`` is what one iteration takes on a thread that has the processor to itself, ``share`` what it takes of a GPU that is full,
``rounds`` how many iterations follow one another on the busiest thread. The prediction ranks backends (docs/packing.md says how far off it
is); nothing else rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from .bounds.evaluable import Unknowable, known_nest
from .bounds.evaluate import Points
from .bounds.queries import Host, shape_of
from .bounds.sizeexpr import Range
from .cost import FEATURES, GUESSED_TRIPS, GUESSED_WHILE, NANOSECONDS, SIMD
from .work import CLASSES, Inner, TaskWork, Work

SAMPLES = 64
"""Tuples of the indices around a loop at which its count is looked at, where it depends on them."""
STRIDES = (1.0 / SAMPLES, 0.6180339887, 0.7548776662, 0.8191725134)
"""From one tuple to the next, as parts of the range of each index: they fill the box evenly."""

PLAIN_STEP = 0.5
"""A loop that keeps nothing takes less to count its iterations than one with a tape."""
STRAIGHT_BYTES = 32
"""Of a vector of a CPU, where it runs iterations side by side that do nothing but arithmetic."""
Five = tuple[float, float, float, float, float]


def _prices(wait: Five, forward: Five, back: Five, body: Five, ticks: Five, atomic: float) -> dict[str, float]:
    """Those of ``cost.FEATURES``, of the classes of operations in the body of a parallel loop, and of an atomic beside other threads."""
    own = {f"body {name}": price for name, price in zip(CLASSES, body, strict=True)} | {"atomic": atomic}
    return dict(zip(FEATURES, (*wait, *forward, *back, *ticks), strict=True)) | own


@dataclass(frozen=True)
class Chip:
    """What a prediction knows of a backend. Times in nanoseconds.

    Attributes:
        name: of the backend.
        start: of a task, whatever it does.
        hand: work for which another thread of a CPU is woken.
        alone: prices by ``cost.FEATURES`` of one iteration on a thread of its own.
        share: the same of a device that is full; empty: it has as many threads as iterations run at once.
        resident: threads that run at once; 0: as many as the program has.
        fast: what becomes of the price of sin, exp and their like with ``fast_math``.
        wide: how many times as long arithmetic in 8 bytes takes of a device that is full.
        simd: what each further lane of a CPU thread brings, beside the first.
        memory: bytes a nanosecond, of what does not fit ``cache`` bytes.
        cache: see above.
        measured: all of it was fitted to measurements; else some was guessed.
    """

    name: str
    start: float
    alone: Mapping[str, float] = field(repr=False)
    share: Mapping[str, float] = field(default_factory=dict, repr=False)
    hand: float = 0.0
    resident: int = 0
    fast: float = 1.0
    wide: float = 1.0
    simd: float = 0.0
    memory: float = 10.0
    cache: int = 16 << 20
    measured: bool = False

    def approximate(self) -> Chip:
        """With ``fast_math``."""

        def changed(prices: Mapping[str, float]) -> dict[str, float]:
            return {name: price * (self.fast if name.endswith("function") else 1.0) for name, price in prices.items()}

        return replace(self, alone=changed(self.alone), share=changed(self.share))


_BODY = dict(zip((f"body {name}" for name in CLASSES), (0.12, 1.2, 4.5, 0.10, 0.5), strict=True)) | {"atomic": 2.5}
# Fitted by hand to ``benchmarks.launch_time``.
CPU = Chip("cpu", 120.0, NANOSECONDS | _BODY, hand=5_000.0, simd=SIMD, memory=16.0, cache=24 << 20, measured=True)
# Measured on an H200 (docs/benchmarks.md): the start of a task, bytes a nanosecond, what a sine takes of a full device with ``fast_math``.
# The rest are guesses by the clock (1.8 GHz), its latencies in cycles, and instructions of 132 multiprocessors.
_GPU_ALONE = _prices(
    wait=(2.3, 20.0, 30.0, 60.0, 60.0),
    forward=(1.0, 10.0, 20.0, 40.0, 20.0),
    back=(1.5, 15.0, 30.0, 60.0, 30.0),
    body=(1.0, 10.0, 20.0, 60.0, 20.0),
    ticks=(8.0, 8.0, 8.0, 0.1, 0.1),
    atomic=20.0,
)
_GPU_SHARE = _prices(
    wait=(0.0, 0.0, 0.0, 0.0, 0.0),
    forward=(5e-5, 6e-4, 1e-3, 2e-4, 3e-4),
    back=(5e-5, 6e-4, 1e-3, 2e-4, 4e-4),
    body=(5e-5, 6e-4, 1e-3, 2e-4, 3e-4),
    ticks=(5e-5, 5e-5, 5e-5, 5e-6, 5e-6),
    atomic=0.02,
)
CUDA = Chip("cuda", 4_000.0, _GPU_ALONE, _GPU_SHARE, resident=270_336, fast=0.27, wide=2.0, memory=4200.0, cache=0)
CHIPS = {"cpu": CPU, "cuda": CUDA, "amdgpu": CUDA, "vulkan": CUDA, "metal": CUDA}
"""By backend. One of the GPUs stands for all of them."""


@dataclass(frozen=True)
class Load:
    """One task of a launch, as a backend meets it.

    Attributes:
        name: of the task.
        iterations: of its parallel loop; 1: it is serial.
        alone, share: nanoseconds of one iteration by the two prices of a ``Chip``.
        moved: bytes of memory that an iteration reads and writes.
        footprint: bytes of the memory that it touches.
        threads: that it may use; None: all there are.
        lanes: iterations that a CPU thread runs side by side.
        wide: the part of its arithmetic that is in 8 bytes.
    """

    name: str
    iterations: float
    alone: float
    share: float
    moved: float = 0.0
    footprint: float = 0.0
    threads: int | None = None
    lanes: int = 1
    wide: float = 0.0


@dataclass(frozen=True)
class TaskTime:
    """The prediction for one task.

    Attributes:
        name: of the task.
        iterations: of its parallel loop.
        nanoseconds: of the task alone on the device, its start included.
        start: the part of it that does not depend on what it does.
        by: what it follows from: "work", "chain" (one iteration after the other) or "memory".
        load: what it was made from.
    """

    name: str
    iterations: float
    nanoseconds: float
    start: float = 0.0
    by: str = "work"
    load: Load | None = None


@dataclass(frozen=True)
class LaunchTime:
    """The prediction for a launch: its tasks, one after the other."""

    tasks: tuple[TaskTime, ...] = ()

    @property
    def seconds(self) -> float:
        """Of the launch, alone on the device."""
        return sum(t.nanoseconds for t in self.tasks) * 1e-9

    def beside(self, others: float, most: float, resident: int) -> float:
        """Seconds that a launch takes of the device when so many programs run on it side by side.

        Args:
            others: programs at once, this one included.
            most: what running side by side brings at the most.
            resident: threads of the device: tasks that fill it gain nothing.
        """
        gain = (max(1.0, min(others, most, resident / max(1.0, t.iterations))) for t in self.tasks)
        return sum(t.nanoseconds / g for t, g in zip(self.tasks, gain)) * 1e-9


def task_time(load: Load, chip: Chip, threads: int = 1) -> TaskTime:
    """The prediction for one task.

    Args:
        load: what it does.
        chip: where.
        threads: of the program, on a CPU.
    """
    moved = min(load.iterations * load.moved, load.footprint)
    memory = moved / chip.memory if moved > chip.cache else 0.0
    most = min(x for x in (chip.resident or threads, load.threads) if x is not None)
    if chip.share:
        rounds = -(-load.iterations // max(1, most))
        chain = rounds * load.alone
        work = load.iterations * load.share * (1.0 + load.wide * (chip.wide - 1.0))
    else:
        whole = load.iterations * load.alone / (1.0 + chip.simd * (load.lanes - 1))
        used = min(most, load.iterations, max(1.0, whole / chip.hand))
        chain, work = 0.0, whole / max(1.0, used)
    longest = max(work, chain, memory)
    by = "work" if longest == work else "chain" if longest == chain else "memory"
    return TaskTime(load.name, load.iterations, chip.start + longest, chip.start, by, load)


def load_of(task: TaskWork, host: Host, chip: Chip, lanes: int = 1) -> Load:
    """What a launch makes of a task that keeps no states.

    Args:
        task: its work.
        host: the launch.
        chip: where it runs.
        lanes: of its code on a CPU.
    """
    trips = _Trips(task, host)
    alone, share = (_thread(task.work, trips, prices) if prices else 0.0 for prices in (chip.alone, chip.share))
    footprint = sum(float(np.prod(shape_of(host, p), dtype=float)) * p.dtype.size for p in task.places)
    own = {} if task.parallel else {"threads": 1}
    if task.straight:
        lanes = max(lanes, STRAIGHT_BYTES // max((p.dtype.size for p in task.places), default=STRAIGHT_BYTES))
    return Load(
        task.name,
        trips.iterations if task.parallel else 1.0,
        alone if task.parallel else alone * trips.iterations,
        share if task.parallel else share * trips.iterations,
        _moved(task.work, trips),
        footprint,
        lanes=lanes if task.parallel else 1,
        wide=task.wide,
        **own,
    )


def _thread(work: Work, trips: Callable[[Inner], float], prices: Mapping[str, float], phase: str = "body") -> float:
    """Nanoseconds of an iteration of a parallel loop: unlike those of a loop inside it ("forward"), it does not wait for the one before."""
    total = sum(n * prices[f"{phase} {name}"] for n, name in zip(work.counts, CLASSES)) + work.atomics * prices["atomic"]
    if phase == "forward":
        total += sum(n * prices[f"wait {name}"] for n, name in zip(work.path, CLASSES)) + PLAIN_STEP * prices["step"]
    return total + sum(weight * trips(inner) * _thread(body, trips, prices, "forward") for inner, weight, body in work.loops)


def _moved(work: Work, trips: Callable[[Inner], float]) -> float:
    return work.moved + sum(weight * trips(inner) * _moved(body, trips) for inner, weight, body in work.loops)


class _Trips:
    """Iterations of the loops of a task in one launch, by their ranges: the mean where they depend on the indices around them."""

    def __init__(self, task: TaskWork, host: Host) -> None:
        self._host, self._known = host, {}
        self.iterations = 1.0
        for k, axis in enumerate(task.axes):
            count = mean_trips(axis, task.axes[:k], host)
            self.iterations *= GUESSED_WHILE if count is None else count
        self._visit(task.work, task.axes)

    def _visit(self, work: Work, nest: tuple[Range, ...]) -> None:
        for inner, _, body in work.loops:
            assert isinstance(inner, Range)
            count = mean_trips(inner, nest, self._host)
            guess = GUESSED_WHILE if inner.end is None else GUESSED_TRIPS
            self._known[id(inner)] = float(guess) if count is None else count
            self._visit(body, (*nest, inner))

    def __call__(self, inner: Inner) -> float:
        return self._known[id(inner)]


def mean_trips(loop: Range, nest: tuple[Range, ...], host: Host) -> float | None:
    """The iterations of a loop: exact where nothing around it counts, else the mean of some of its runs. None: only running can tell.

    Args:
        loop: its range.
        nest: the ranges of the indices around it, outermost first.
        host: the launch.
    """
    try:
        loop, used = known_nest(loop, nest)
    except Unknowable:
        return None
    points = Points(host, SAMPLES if used else 1)
    for depth, r in enumerate(used):
        begin, count = points.trips(r)
        spread = (np.arange(SAMPLES) + 0.5) * STRIDES[depth % len(STRIDES)] % 1.0
        at = np.minimum((spread * count).astype(np.int64), np.maximum(np.asarray(count) - 1, 0))
        points.values[r.index] = (begin + at * r.step).astype(r.index.dtype.numpy)
    return float(np.mean(points.trips(loop)[1]))


__all__ = ["CHIPS", "Chip", "LaunchTime", "Load", "TaskTime", "load_of", "mean_trips", "task_time"]
