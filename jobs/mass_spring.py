"""A walking robot of masses and springs: how far does it get, and how would other muscles or stiffer springs change that?

A truss of ``columns`` x 2 masses stands on the ground. Its vertical springs are muscles: each changes its rest length by an
activation that follows a travelling wave of excitation, through first-order muscle dynamics integrated in ``substeps`` inner steps.
Explicit integration, friction by damping the velocity of what touches the ground. The loss is minus the distance that the centre of
mass has moved, in m. The arrays hold a window of time steps, all of them unless a memory budget says less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class MassSpringParams(JobParams):
    """Parameters of the robot; lengths in m, masses of 1 kg."""

    columns: int = Field(4, ge=2, le=64, description="columns of the truss; two masses and one muscle each")
    steps: int = Field(200, ge=1, description="time steps")
    substeps: int = Field(8, ge=1, description="inner steps of the muscle dynamics in a time step")
    dt: float = Field(0.004, gt=0, description="time step, s")
    stiffness: float = Field(1000.0, gt=0, description="stiffness of every spring, N/m")
    damping: float = Field(15.0, ge=0, description="drag on the masses, 1/s")
    gravity: float = Field(-4.8, description="vertical acceleration, m/s^2")
    omega: float = Field(20.0, gt=0, description="frequency of the excitation, rad/s")
    actuation: list[float] = Field(
        [0.30, 0.25, 0.30, 0.25], description="amplitude of each muscle, relative to its rest length"
    )


class MassSpring(Job[MassSpringParams]):
    """Gradients of the distance walked with respect to stiffness and to the amplitude of each muscle."""

    gradients = ("stiffness", "actuation")
    live = ("stiffness", "actuation")

    def build(self) -> None:
        """Fields over (slot, mass) and (slot, muscle), and the kernels of a step."""
        p = self.params
        if len(p.actuation) != p.columns:
            raise ValueError(f"actuation has {len(p.actuation)} amplitudes for {p.columns} muscles\n  do: give one a column")
        body = truss(p.columns)
        self.n_masses, self.n_springs = len(body.points), len(body.ends)
        real, w = qd.f64, self.window
        self.x = qd.Vector.field(2, dtype=real, shape=(w + 1, self.n_masses), needs_grad=True)
        self.v = qd.Vector.field(2, dtype=real, shape=(w + 1, self.n_masses), needs_grad=True)
        self.force = qd.Vector.field(2, dtype=real, shape=(w, self.n_masses), needs_grad=True)
        self.activation = qd.field(dtype=real, shape=(w + 1, p.columns), needs_grad=True)
        self.stiffness = qd.field(dtype=real, shape=(), needs_grad=True)
        self.amplitude = qd.field(dtype=real, shape=(p.columns,), needs_grad=True)
        self.loss = qd.field(dtype=real, shape=(), needs_grad=True)
        self.ends, self.muscle, self.rest = body.fields()
        self.start = self.x  # slot 0: of one window, where all began
        if w < p.steps:
            self.start = qd.Vector.field(2, dtype=real, shape=(1, self.n_masses))
        body.write(self.ends, self.muscle, self.rest)
        self._kernels()

    def fill(self) -> None:
        """The robot at rest, with its stiffness and its amplitudes. The speeds are zeros, as nobody has written them yet."""
        points = truss(self.params.columns).points
        self.x.from_numpy(np.concatenate([points[None], np.zeros((self.window, self.n_masses, 2))]))
        if self.start is not self.x:
            self.start.from_numpy(points[None])
        self.stiffness[None] = self.params.stiffness
        self.amplitude.from_numpy(np.array(self.params.actuation))

    def _kernels(self) -> None:
        p = self.params
        x, v, force, activation, loss, start = self.x, self.v, self.force, self.activation, self.loss, self.start
        stiffness, amplitude, ends, muscle, rest = self.stiffness, self.amplitude, self.ends, self.muscle, self.rest
        n_masses, columns, substeps, end = self.n_masses, p.columns, p.substeps, self.window
        dt, omega, gravity, drag = p.dt, p.omega, p.gravity, math.exp(-p.dt * p.damping)

        @qd.kernel
        def excite(t: qd.i32, k: qd.i32):
            for m in range(columns):
                wanted = qd.sin(omega * dt * t + 6.283185307179586 * m / columns)
                a = activation[k, m]
                for _ in range(substeps):
                    a += 4.0 * dt * omega / substeps * (wanted - a) / (1.0 + a * a)
                activation[k + 1, m] = a

        @qd.kernel
        def pull(k: qd.i32):
            for s in range(ends.shape[0]):
                a, b, m = ends[s][0], ends[s][1], muscle[s]
                length = rest[s]
                if m >= 0:
                    length *= 1.0 + amplitude[m] * activation[k + 1, m]
                span = x[k, a] - x[k, b]
                distance = span.norm()
                f = stiffness[None] * (distance - length) / distance * span
                force[k, a] -= f
                force[k, b] += f

        @qd.kernel
        def advance(k: qd.i32):
            for i in range(n_masses):
                speed = drag * (v[k, i] + dt * (force[k, i] + qd.Vector([0.0, gravity])))
                place = x[k, i]
                until_ground = dt
                if place[1] + dt * speed[1] < 0.0 and speed[1] < -1e-6:
                    until_ground = qd.max(0.0, -place[1] / speed[1])
                    speed_after = qd.Vector([0.0, 0.0])
                    x[k + 1, i] = place + until_ground * speed + (dt - until_ground) * speed_after
                    v[k + 1, i] = speed_after
                else:
                    x[k + 1, i] = place + dt * speed
                    v[k + 1, i] = speed

        @qd.kernel
        def walked():
            for i in range(n_masses):
                loss[None] -= (x[end, i][0] - start[0, i][0]) / n_masses

        self.excite, self.pull, self.advance, self.walked = excite, pull, advance, walked

    def launches(self) -> list[tuple[object, tuple[object, ...]]]:
        """Every kernel of a step; all steps are alike."""
        return [(self.excite, (0, 0)), (self.pull, (0,)), (self.advance, (0,)), (self.walked, ())]

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

    def forward(self) -> None:
        """All steps and the loss."""
        qd.ad.checkpointed_steps(self.step, self.params.steps, self.state(), self.scratch(), budget=self.snapshot_bytes)
        self.walked()

    def run(self) -> Outcome:
        """Simulate, and walk back if gradients are wanted."""
        if self.wanted:
            with qd.ad.Tape(loss=self.loss):
                self.forward()
        else:
            self.loss[None] = 0.0
            self.forward()
        found = {
            "stiffness": lambda: float(self.stiffness.grad[None]),
            "actuation": self.amplitude.grad.to_numpy,
        }
        end = self.x.to_numpy()[-1]
        outputs = {"walked_m": -float(self.loss[None]), "height_m": float(end[:, 1].max())}
        return Outcome(float(self.loss[None]), {name: found[name]() for name in self.wanted}, outputs)


@dataclass(frozen=True)
class Truss:
    """``points``: (masses, 2), m. Of each spring the two ``ends``, and its ``muscle``, -1 for one that is passive."""

    points: np.ndarray
    ends: np.ndarray
    muscle: np.ndarray

    def fields(self) -> tuple[Any, Any, Any]:
        """For ``write``: of each spring its ends, its muscle, and its length at rest."""
        count = (len(self.ends),)
        ends = qd.Vector.field(2, dtype=qd.i32, shape=count)
        return ends, qd.field(dtype=qd.i32, shape=count), qd.field(dtype=qd.f64, shape=count)

    def write(self, ends: Any, muscle: Any, rest: Any) -> None:
        """Into ``fields``."""
        ends.from_numpy(self.ends)
        muscle.from_numpy(self.muscle)
        rest.from_numpy(np.linalg.norm(self.points[self.ends[:, 0]] - self.points[self.ends[:, 1]], axis=1))


def truss(columns: int) -> Truss:
    """The body of a robot: 2 * columns masses; vertical springs are muscles, the rest is passive."""
    points = np.array([(0.1 * c, 0.02 + 0.1 * row) for c in range(columns) for row in range(2)])
    springs: list[tuple[int, int, int]] = []
    for c in range(columns):
        low, high = 2 * c, 2 * c + 1
        springs.append((low, high, c))
        if c + 1 < columns:
            springs += [(low, low + 2, -1), (high, high + 2, -1), (low, high + 2, -1), (high, low + 2, -1)]
    table = np.array(springs, dtype=np.int32)
    return Truss(points, table[:, :2].copy(), table[:, 2].copy())
