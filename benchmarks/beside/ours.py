"""Our side: jobs of the gallery. The other sides read sizes and inputs from here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from qdrun.jobs.base import BatchSession, Job
from qdrun.jobs.gallery.burgers_inverse import BurgersInverse, BurgersInverseParams
from qdrun.jobs.gallery.cloth import Cloth, ClothParams
from qdrun.jobs.gallery.diffmpm2d import Diffmpm2d, Diffmpm2dParams
from qdrun.jobs.gallery.smoke import Smoke, SmokeParams
from qdrun.jobs.gallery.sysid_pendulum import SysidPendulum, SysidPendulumParams
from qdrun.jobs.mpm import Mpm

from .measure import Run

TRIALS = 256
"""Pendulums that run at once."""


class ClothF32(Cloth):
    """The type of Warp's side."""

    precision = "f32"


def smoke() -> SmokeParams:
    """DiffTaichi's size of its smoke, with half as many time steps."""
    return SmokeParams(grid=64, steps=50, sweeps=10)


def burgers() -> BurgersInverseParams:
    """The book's size; at a velocity of 0 its interpolation has a kink, and a gradient is one-sided."""
    return BurgersInverseParams(initial=(0.5 * np.sin(np.pi * np.arange(0.5, 128.0) / 64.0)).tolist())


def cloth() -> ClothParams:
    """1,024 masses."""
    return ClothParams(side=32, stiffness=100.0, dt=0.0005, steps=200)


def diffmpm() -> Diffmpm2dParams:
    """400 particles on DiffTaichi's grid, which do not reach a wall."""
    return Diffmpm2dParams(side=20, grid=60, steps=128)


def pendulums() -> dict[str, np.ndarray]:
    """The parameters of each pendulum, (TRIALS,)."""
    r = np.random.default_rng(1)
    return {
        "mass": r.uniform(0.7, 1.5, TRIALS),
        "length": r.uniform(0.8, 1.3, TRIALS),
        "damping": r.uniform(0.05, 0.4, TRIALS),
    }


def alone(job: Job[Any], gradient: str, keep: ExitStack) -> Run:
    """Runs of one trial."""
    opened = keep.enter_context(job.opened(threads=1))

    def run() -> tuple[Any, Any]:
        outcome = opened.run()
        return outcome.loss, outcome.gradients[gradient]

    return run


def batch(keep: ExitStack) -> Run:
    """Runs of all pendulums."""
    columns, session = pendulums(), BatchSession.open(SysidPendulum, SysidPendulumParams(), TRIALS, threads=1)
    keep.enter_context(session)

    def run() -> tuple[Any, Any]:
        found = session.run_columns(columns)
        return found.losses, np.stack([found.gradients[name] for name in columns])

    return run


SIDES: dict[str, tuple[Callable[[ExitStack], Run], list[Any]]] = {
    "smoke": (lambda keep: alone(Smoke(smoke(), wanted=["wind"]), "wind", keep), [Smoke]),
    "burgers": (lambda keep: alone(BurgersInverse(burgers(), wanted=["initial"]), "initial", keep), [BurgersInverse]),
    "cloth": (lambda keep: alone(ClothF32(cloth(), wanted=["velocity"]), "velocity", keep), [Cloth]),
    "diffmpm": (lambda keep: alone(Diffmpm2d(diffmpm(), wanted=["velocity"]), "velocity", keep), [Mpm, Diffmpm2d]),
    "pendulum": (batch, [SysidPendulum]),
}
"""How to make each case, and the classes that a user writes for it."""
