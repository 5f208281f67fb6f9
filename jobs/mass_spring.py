"""A walking robot of masses and springs: how far does it get, and how would other muscles or stiffer springs change that?

A truss of ``columns`` x 2 masses stands on the ground. Its vertical springs are muscles: each changes its rest length by an
activation that follows a travelling wave of excitation, through first-order muscle dynamics integrated in ``substeps`` inner steps.
Explicit integration, friction by damping the velocity of what touches the ground. The loss is minus the distance that the centre of
mass has moved, in m. The arrays hold a window of time steps, all of them unless a memory budget says less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


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
    senses = False
    """Whether the muscles are driven by what the robot does: then their activation has a gradient."""

    def build(self) -> None:
        """Fields over (slot, mass) and (slot, muscle), and the kernels of a step."""
        p = self.params
        if len(p.actuation) != p.columns:
            raise ValueError(f"actuation has {len(p.actuation)} amplitudes for {p.columns} muscles\n  do: give one a column")
        body = truss(p.columns)
        self.n_masses, self.n_springs = len(body.points), len(body.ends)
        self.stiffness, self.amplitude = self.input("stiffness"), self.input("actuation")
        self.dt, self.damping = self.input("dt"), self.input("damping")
        self.gravity, self.omega = self.input("gravity"), self.input("omega")
        self.loss, self.distance, self.height = self.objective(), self.output("walked_m"), self.output("height_m")
        real, w = qd.f64, self.window
        self.x = qd.Vector.field(2, dtype=real, shape=(w + 1, self.n_masses), needs_grad=True)
        self.v = qd.Vector.field(2, dtype=real, shape=(w + 1, self.n_masses), needs_grad=True)
        self.force = qd.Vector.field(2, dtype=real, shape=(w, self.n_masses), needs_grad=True)
        self.activation = qd.field(dtype=real, shape=(w + 1, p.columns), needs_grad=self.senses)
        self.slowed = qd.field(dtype=real, shape=())
        self.points, self.ends = self.constant(body.points, vectors=True), self.constant(body.ends, vectors=True)
        self.muscle, self.rest = self.constant(body.muscle), self.constant(body.lengths())
        self._muscle_kernels()
        self._body_kernels()

    def _muscle_kernels(self) -> None:
        p = self.params
        x, force, activation, stiffness, amplitude = self.x, self.force, self.activation, self.stiffness, self.amplitude
        dt, omega, ends, muscle, rest = self.dt, self.omega, self.ends, self.muscle, self.rest
        columns, substeps = p.columns, p.substeps

        @qd.kernel
        def excite(t: qd.i32, k: qd.i32):
            for m in range(columns):
                wanted = qd.sin(omega[None] * dt[None] * t + 6.283185307179586 * m / columns)
                rate = 4.0 * dt[None] * omega[None] / substeps
                a = activation[k, m]
                for _ in range(substeps):
                    a += rate * (wanted - a) / (1.0 + a * a)
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

        self.excite, self.pull = excite, pull

    def _body_kernels(self) -> None:
        x, v, force, points, slowed = self.x, self.v, self.force, self.points, self.slowed
        step_s, damping, gravity = self.dt, self.damping, self.gravity
        loss, distance, height, n_masses, end = self.loss, self.distance, self.height, self.n_masses, self.window

        @qd.kernel
        def stand():
            slowed[None] = qd.exp(-step_s[None] * damping[None])
            for i in range(n_masses):
                x[0, i] = points[i]

        @qd.kernel
        def advance(k: qd.i32):
            for i in range(n_masses):
                dt = step_s[None]
                speed = slowed[None] * (v[k, i] + dt * (force[k, i] + qd.Vector([0.0, gravity[None]])))
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
                loss[None] -= (x[end, i][0] - points[i][0]) / n_masses
            distance[None] = -loss[None]
            for _ in range(1):
                highest = x[end, 0][1]
                for i in range(1, n_masses):
                    highest = qd.max(highest, x[end, i][1])
                height[None] = highest

        self.stand, self.advance, self.walked = stand, advance, walked

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.x, self.v, self.activation]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.force]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        self.excite(t, k)
        self.pull(k)
        self.advance(k)

    def simulate(self) -> None:
        """Run all steps, and measure the distance at the end."""
        self.stand()
        self.time_loop(self.step)
        self.walked()


@dataclass(frozen=True)
class Truss:
    """``points``: (masses, 2), m. Of each spring the two ``ends``, and its ``muscle``, -1 for one that is passive."""

    points: np.ndarray
    ends: np.ndarray
    muscle: np.ndarray

    def lengths(self) -> np.ndarray:
        """The length of each spring at rest, m."""
        return np.linalg.norm(self.points[self.ends[:, 0]] - self.points[self.ends[:, 1]], axis=1)


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
