"""The curves of a report: values by step, and devices over time, with no more points than can be seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...packing.claims import amount
from ..device_load import Load
from .material import Material
from .page import clean
from .thinning import envelope, picked

NAMES, CURVES, DEVICES, BUCKETS = 6, 40, 16, 150
"""Maximum number of logged names, of curves for each name, of devices. A curve has two points for each bucket."""
DIGITS = 6
THINNED = (
    f"A curve of more than {2 * BUCKETS} points shows the smallest and the largest value of each of {BUCKETS} equal parts"
    " of its range."
)


@dataclass(frozen=True)
class Curve:
    """A value of one trial by step; ``x`` and ``y`` are (points,)."""

    trial: int
    x: np.ndarray
    y: np.ndarray

    @property
    def smallest(self) -> float:
        """Its smallest finite value, or infinity."""
        return float(np.min(self.y[np.isfinite(self.y)], initial=np.inf))


def by_step(run: Material, place_of: Callable[[int], int | None]) -> list[dict[str, Any]]:
    """For each logged name its curves, the trial with the smallest value first, and of how many trials these are some.

    Of a descent that is over the loss is the whole history; else what was logged. ``place_of``: of a trial in the page's data, by its
    index in the run.
    """
    histories = run.rows.column("out.opt.history")
    logged = dict.fromkeys(name for series in run.live.values() for name in series.values)
    names = dict.fromkeys([*(["loss"] * any(isinstance(own, list) for own in histories)), *logged])
    out = []
    for name in names:
        curves = list[Curve]()
        for place, trial in enumerate(run.trials.ids):
            own, series = histories[place] if name == "loss" else None, run.live.get(trial)
            if isinstance(own, list):
                curves.append(Curve(place, np.arange(len(own)), np.asarray(own, np.float64)))
            elif series is not None and name in series.values:
                curves.append(Curve(place, series.step, series[name]))
        curves.sort(key=lambda curve: curve.smallest)
        shown = [curves[i] for i in picked(len(curves), CURVES)]
        out.append({"name": clean(name, 60), "of": len(curves), "curves": [_points(curve, place_of) for curve in shown]})
    return out


def _points(curve: Curve, place_of: Callable[[int], int | None]) -> dict[str, Any]:
    kept = envelope(curve.x, curve.y, BUCKETS)
    return {"trial": place_of(curve.trial), "x": curve.x[kept].tolist(), "y": rounded(curve.y[kept])}


def rounded(values: np.ndarray) -> list[float]:
    """Numbers with as many digits as a chart can show."""
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]


def together(parts: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The curves of several runs, see ``by_step``."""
    found: dict[str, dict[str, Any]] = {}
    for one in chain.from_iterable(parts):
        known = found.setdefault(one["name"], {"name": one["name"], "of": 0, "curves": []})
        known["of"] += one["of"]
        known["curves"] += one["curves"]
    return list(found.values())


def devices(loads: Sequence[Load]) -> list[dict[str, Any]]:
    """The curves of each device: bytes claimed in a unit that fits, and trials that ran at once."""
    return [_device(load) for load in loads[:DEVICES]]


def _device(load: Load) -> dict[str, Any]:
    top = max([*load.claimed, load.capacity or 0, 1])
    units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))
    unit, size = next((unit, size) for unit, size in units if top >= size)
    times, claimed, running = (np.asarray(values, np.float64) for values in (load.times, load.claimed, load.running))
    some, many = envelope(times, claimed, BUCKETS), envelope(times, running, BUCKETS)
    return {
        "device": clean(load.device, 60),
        "unit": unit,
        "capacity": None if load.capacity is None else load.capacity / size,
        "claimed": {"x": rounded(times[some]), "y": rounded(claimed[some] / size)},
        "running": {"x": rounded(times[many]), "y": rounded(running[many])},
        "said": load_said(load),
    }


def load_said(load: Load) -> str:
    """A device in one sentence: the bytes that were claimed, and how many trials ran at once, on average."""
    size, count = load.mean()
    share = f", {100 * size / load.capacity:.0f} % of {amount(load.capacity)}" if load.capacity else ""
    return f"{clean(load.device)}: {amount(round(size))} claimed on average{share}; {count:.1f} trials at once, {max(load.running)} at most"


__all__ = ["THINNED", "by_step", "devices", "load_said", "rounded", "together"]
