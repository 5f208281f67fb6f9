"""The material point method in two dimensions: what ``mpm88`` and ``diffmpm2d`` share.

MLS-MPM (Hu et al. 2018) with quadratic weights, in a box whose walls particles leave freely. A job gives the place of each particle and
the stress of its material. The arrays hold a window of time steps, all of them unless a memory budget says less; then the gradient runs
steps again.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class MpmParams(JobParams):
    """The box has a side of 1 m."""

    grid: int = Field(24, ge=8, description="cells on a side of the box")
    steps: int = Field(64, ge=1, description="time steps")
    dt: float = Field(1e-3, gt=0, description="time step, s")
    gravity: float = Field(-3.0, description="vertical acceleration, m/s^2")
    velocity: list[float] = Field([3.0, -1.0], min_length=2, max_length=2, description="initial velocity, m/s")
    target: list[float] = Field([0.5, 0.4], min_length=2, max_length=2, description="where the centre should end, m")

    def block(self) -> np.ndarray:
        """The places of the particles before the throw, (particles, 2), m."""
        raise NotImplementedError

    def volume(self) -> float:
        """Mass and volume of a particle, kg and m^2."""
        return 1.0


P = TypeVar("P", bound=MpmParams)


class Mpm(Job[P]):
    """The loss is the squared distance of the centre from the target at the end, times ``scale``."""

    scale: ClassVar[float] = 1.0
    least_mass: ClassVar[float] = 0.0
    """What the mass of a cell is increased by, where its velocity is computed, kg."""

    def stress(self) -> Any:
        """The ``qd.func`` that gives the Kirchhoff stress for a deformation gradient."""
        raise NotImplementedError

    def build(self) -> None:
        """Particle fields over (slot, particle), grid fields over (slot, cell, cell), and the kernels of a step."""
        real, w, g, places = qd.f32 if self.precision == "f32" else qd.f64, self.window, self.params.grid, self.params.block()
        self.real, self.particles = real, len(places)
        self.x, self.v = (qd.Vector.field(2, dtype=real, shape=(w + 1, len(places)), needs_grad=True) for _ in range(2))
        self.C, self.F = (qd.Matrix.field(2, 2, dtype=real, shape=(w + 1, len(places)), needs_grad=True) for _ in range(2))
        self.momentum, self.moved = (qd.Vector.field(2, dtype=real, shape=(w, g, g), needs_grad=True) for _ in range(2))
        self.mass = qd.field(dtype=real, shape=(w, g, g), needs_grad=True)
        self.start, self.target, self.dt, self.gravity = map(self.input, ("velocity", "target", "dt", "gravity"))
        self.loss, self.centre = self.objective(), self.output("centre", 2, needs_grad=True)
        self.places = qd.Vector.field(2, dtype=real, shape=len(places), per_trial=False)
        self.places.from_numpy(places.astype(np.float32 if self.precision == "f32" else np.float64))
        self._step_kernels(self.stress())
        self._end_kernels()

    def _step_kernels(self, stress: Any) -> None:
        x, v, C, F, momentum, mass, moved = self.x, self.v, self.C, self.F, self.momentum, self.mass, self.moved
        real, particles, grid, step_s, gravity = self.real, self.particles, self.params.grid, self.dt, self.gravity
        dx, inv_dx, volume, least_mass = 1.0 / grid, float(grid), self.params.volume(), self.least_mass

        @qd.kernel
        def to_grid(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, real)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                dt = step_s[None]
                new_F = (qd.Matrix.identity(real, 2) + dt * C[t, q]) @ F[t, q]
                F[t + 1, q] = new_F
                affine = -dt * volume * 4.0 * inv_dx * inv_dx * stress(new_F) + volume * C[t, q]
                for i, j in qd.static(qd.ndrange(3, 3)):
                    offset = qd.Vector([i, j])
                    weight = w[i][0] * w[j][1]
                    momentum[t, base + offset] += weight * (volume * v[t, q] + affine @ ((qd.cast(offset, real) - fx) * dx))
                    mass[t, base + offset] += weight * volume

        @qd.kernel
        def on_grid(t: qd.i32):
            for i, j in qd.ndrange(grid, grid):
                if mass[t, i, j] > 0.0:
                    u = momentum[t, i, j] / (mass[t, i, j] + least_mass)
                    u[1] += step_s[None] * gravity[None]
                    if (i < 3 and u[0] < 0.0) or (i > grid - 3 and u[0] > 0.0):
                        u[0] = 0.0
                    if (j < 3 and u[1] < 0.0) or (j > grid - 3 and u[1] > 0.0):
                        u[1] = 0.0
                    moved[t, i, j] = u

        @qd.kernel
        def to_particles(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, real)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v = qd.Vector([0.0, 0.0], dt=real)
                new_C = qd.Matrix([[0.0, 0.0], [0.0, 0.0]], dt=real)
                for i, j in qd.static(qd.ndrange(3, 3)):
                    offset = qd.Vector([i, j])
                    carried = w[i][0] * w[j][1] * moved[t, base + offset]
                    new_v += carried
                    new_C += 4.0 * inv_dx * carried.outer_product(qd.cast(offset, real) - fx)
                v[t + 1, q] = new_v
                x[t + 1, q] = x[t, q] + step_s[None] * new_v
                C[t + 1, q] = new_C

        self.to_grid, self.on_grid, self.to_particles = to_grid, on_grid, to_particles

    def _end_kernels(self) -> None:
        x, v, F, start, centre, loss, target = self.x, self.v, self.F, self.start, self.centre, self.loss, self.target
        real, particles, end, places, scale = self.real, self.particles, self.window, self.places, self.scale

        @qd.kernel
        def throw():
            for q in range(particles):
                x[0, q] = places[q]
                v[0, q] = qd.Vector([start[0], start[1]])
                F[0, q] = qd.Matrix.identity(real, 2)

        @qd.kernel
        def find_centre():
            for q in range(particles):
                for d in qd.static(range(2)):
                    centre[d] += x[end, q][d] / particles

        @qd.kernel
        def miss():
            for d in range(2):
                loss[None] += scale * (centre[d] - target[d]) ** 2

        self.throw, self.find_centre, self.miss = throw, find_centre, miss

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.x, self.v, self.C, self.F]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.momentum, self.mass, self.moved]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.to_grid(k)
        self.on_grid(k)
        self.to_particles(k)

    def simulate(self) -> None:
        """All steps and the loss."""
        self.throw()
        self.time_loop(self.step)
        self.find_centre()
        self.miss()
