"""The jobs of ``benchmarks.sweep``: three simulations with gradients, and one job that is any of them, so that one sweep mixes them.

block: ``qdrun.jobs.mpm88`` with many particles: every kernel fills the device. robots: many trusses of ``qdrun.jobs.mass_spring`` side by
side, each with muscles that are integrated finely: long kernels of a few blocks. swing: coupled pendulums whose time steps are a loop in
the kernel: one launch, and a gradient that keeps states of the loop in the adstack heap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome
from qdrun.jobs.mass_spring import truss
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

if "SWEEP_SWITCH_S" in os.environ:  # how often threads of a worker take turns: to be compared with Python's default of 0.005
    sys.setswitchinterval(float(os.environ["SWEEP_SWITCH_S"]))

COLUMNS = 8
"""Of a robot."""
COMPRESSED = 0.9
"""Lengths in the block at its start, of those at rest."""


class MixedParams(JobParams):
    """One trial: which simulation, how large, how long, and the stiffness that its gradient is taken to."""

    scene: Literal["block", "robots", "swing"] = Field("robots", description="which simulation")
    size: int = Field(64, ge=1, description="particles, robots or pendulums")
    steps: int = Field(16, ge=1, description="time steps")
    detail: int = Field(16, ge=1, description="cells on a side of the block's box; inner steps of the robots' muscles")
    stiffness: float = Field(40.0, gt=0, description="of the material, the springs, the coupling")


class Block(Mpm88):
    """The block, compressed at the start, so that it springs apart. The loss is the mean squared distance of its particles from the target:
    within few steps, far from the walls, its centre moves as it was thrown, whatever the stiffness.
    """

    def build(self) -> None:
        """As the job, with another beginning and another end."""
        super().build()
        x, v, F, places, loss, target, end = self.x, self.v, self.F, self.places, self.loss, self.target, self.window
        particles = self.params.particles

        @qd.kernel
        def rest():
            for q in range(particles):
                x[0, q] = places[q]
                v[0, q] = [0.0, 0.0]
                F[0, q] = COMPRESSED * qd.Matrix.identity(qd.f64, 2)

        @qd.kernel
        def miss():
            for q in range(particles):
                off = x[end, q] - qd.Vector([target[0], target[1]])
                loss[None] += off.norm_sqr() / particles

        self.throw, self.miss = rest, miss


class Robots(Job[MixedParams]):
    """``size`` trusses of ``COLUMNS`` muscles, each with amplitudes of its own; the loss is minus how far they walk on average."""

    gradients = ("stiffness",)

    def build(self) -> None:
        """Fields over (slot, robot, mass) and (slot, robot, muscle)."""
        body = truss(COLUMNS)
        w, count, masses = self.window, self.params.size, len(body.points)
        self.x = qd.Vector.field(2, dtype=qd.f64, shape=(w + 1, count, masses), needs_grad=True)
        self.v = qd.Vector.field(2, dtype=qd.f64, shape=(w + 1, count, masses), needs_grad=True)
        self.force = qd.Vector.field(2, dtype=qd.f64, shape=(w, count, masses), needs_grad=True)
        self.activation = qd.field(dtype=qd.f64, shape=(w + 1, count, COLUMNS), needs_grad=True)
        self.stiffness = qd.field(dtype=qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(dtype=qd.f64, shape=(), needs_grad=True)
        self.points, self.ends = self.constant(body.points, vectors=True), self.constant(body.ends, vectors=True)
        self.muscle, self.length = self.constant(body.muscle), self.constant(body.lengths())
        self._muscles(count)
        self._springs(count, masses, len(body.ends))
        self._ends(count, masses)

    def fill(self) -> None:
        """The stiffness."""
        self.stiffness[None] = self.params.stiffness

    def _muscles(self, count: int) -> None:
        activation, substeps = self.activation, self.params.detail

        @qd.kernel
        def excite(t: qd.i32, k: qd.i32):
            for r, m in qd.ndrange(count, COLUMNS):
                wanted = qd.sin(0.08 * t + 6.283185307179586 * m / COLUMNS + 0.01 * r)
                a = activation[k, r, m]
                for _ in range(substeps):
                    a += 0.32 / substeps * (wanted - a) / (1.0 + a * a)
                activation[k + 1, r, m] = a

        self.excite = excite

    def _springs(self, count: int, masses: int, springs: int) -> None:
        x, v, force, activation, stiffness = self.x, self.v, self.force, self.activation, self.stiffness
        ends, muscle, rest_length = self.ends, self.muscle, self.length

        @qd.kernel
        def pull(k: qd.i32):
            for r, s in qd.ndrange(count, springs):
                a, b, m = ends[s][0], ends[s][1], muscle[s]
                length = rest_length[s]
                if m >= 0:
                    length *= 1.0 + (0.1 + 0.2 * r / count) * activation[k + 1, r, m]
                span = x[k, r, a] - x[k, r, b]
                distance = span.norm()
                f = stiffness[None] * (distance - length) / distance * span
                force[k, r, a] -= f
                force[k, r, b] += f

        @qd.kernel
        def advance(k: qd.i32):
            for r, i in qd.ndrange(count, masses):
                speed = 0.94 * (v[k, r, i] + 0.004 * (force[k, r, i] + qd.Vector([0.0, -4.8])))
                place = x[k, r, i] + 0.004 * speed
                if place[1] < 0.0:
                    place[1] = 0.0
                    speed[0] *= 0.5
                    speed[1] = 0.0
                x[k + 1, r, i] = place
                v[k + 1, r, i] = speed

        self.pull, self.advance = pull, advance

    def _ends(self, count: int, masses: int) -> None:
        x, v, activation, points, loss, end = self.x, self.v, self.activation, self.points, self.loss, self.window

        @qd.kernel
        def rest():
            for r, i in qd.ndrange(count, masses):
                x[0, r, i] = points[i]
                v[0, r, i] = [0.0, 0.0]
            for r, m in qd.ndrange(count, COLUMNS):
                activation[0, r, m] = 0.0

        @qd.kernel
        def walked():
            for r, i in qd.ndrange(count, masses):
                loss[None] -= (x[end, r, i][0] - points[i][0]) / (count * masses)

        self.rest, self.walked = rest, walked

    def launches(self) -> list[tuple[object, tuple[object, ...]]]:
        """See ``Job.launches``."""
        return [(self.rest, ()), (self.excite, (0, 0)), (self.pull, (0,)), (self.advance, (0,)), (self.walked, ())]

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """What a step hands to the next."""
        return [self.x, self.v, self.activation]

    def scratch(self) -> list[object]:
        """What a step leaves for its gradient."""
        return [self.force]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        self.excite(t, k)
        self.pull(k)
        self.advance(k)

    def run(self) -> Outcome:
        """Walk, and back."""
        self.rest()
        with qd.ad.Tape(loss=self.loss):
            qd.ad.checkpointed_steps(self.step, self.params.steps, self.state(), self.scratch(), budget=self.snapshot_bytes)
            self.walked()
        return Outcome(float(self.loss[None]), {"stiffness": float(self.stiffness.grad[None])})


class Swing(Job[MixedParams]):
    """``size`` pairs of coupled pendulums, ``steps`` long; the loss is how far from rest they end on average."""

    gradients = ("stiffness",)

    def build(self) -> None:
        """The angles at the start, and the kernel."""
        count = self.params.size
        self.start = qd.field(qd.f64, shape=count, needs_grad=True)
        self.stiffness = qd.field(dtype=qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(dtype=qd.f64, shape=(), needs_grad=True)
        self.start.from_numpy(np.linspace(0.01, 0.3, count))
        start, stiffness, loss = self.start, self.stiffness, self.loss

        @qd.kernel
        def swing(steps: qd.i32):
            for i in start:
                angle, lean, speed, spin = start[i], 0.0, 0.0, 0.0
                for _ in range(steps):
                    pull = stiffness[None] * (lean - angle)
                    speed += 1e-5 * (pull - qd.sin(angle))
                    spin -= 1e-5 * (pull + qd.sin(lean))
                    angle += 1e-5 * speed
                    lean += 1e-5 * spin
                loss[None] += (angle * angle + lean * lean) / count

        self.swing = swing

    def fill(self) -> None:
        """The coupling."""
        self.stiffness[None] = self.params.stiffness

    def launches(self) -> list[tuple[object, tuple[object, ...]]]:
        """See ``Job.launches``."""
        return [(self.swing, (self.params.steps,))]

    def run(self) -> Outcome:
        """Once there, once back."""
        self.checkpoint()
        with qd.ad.Tape(loss=self.loss):
            self.swing(self.params.steps)
        return Outcome(float(self.loss[None]), {"stiffness": float(self.stiffness.grad[None])})


class Mixed(Job[MixedParams]):
    """Any of the three: what a job is asked, its simulation answers."""

    gradients = ("stiffness",)

    @cached_property
    def inner(self) -> Job[Any]:
        """The simulation."""
        kind = {"block": Block, "robots": Robots, "swing": Swing}[self.params.scene]
        return kind(self._inner_params(), wanted=("stiffness",))

    def _inner_params(self) -> JobParams:
        """Those of the simulation, now."""
        p = self.params
        if p.scene != "block":
            return p
        return Mpm88Params(particles=p.size, grid=p.detail, steps=p.steps, dt=1e-4, stiffness=p.stiffness)

    def build(self) -> None:
        """Its simulation, in this job's program and window; a job may be built again, with another window."""
        self.__dict__.pop("inner", None)
        inner = self.inner
        inner.program, inner.watch = self.program, self.watch
        inner.window, inner.snapshot_bytes = self.window, self.snapshot_bytes
        inner.build()

    def fill(self) -> None:
        """See ``Job.fill``; the parameters may be others than when the simulation was built."""
        self.inner.params = self._inner_params()
        self.inner.fill()

    def launches(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """See ``Job.launches``."""
        return self.inner.launches()

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.inner.time_steps()

    def state(self) -> Any:
        """See ``Job.state``."""
        return self.inner.state()

    def scratch(self) -> Any:
        """See ``Job.scratch``."""
        return self.inner.scratch()

    def run(self) -> Outcome:
        """See ``Job.run``."""
        return self.inner.run()
