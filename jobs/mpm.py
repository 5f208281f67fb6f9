"""The material point method in two or three dimensions: what ``mpm88``, ``diffmpm2d`` and ``mpm3d_push`` share.

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
        """The places of the particles before the throw, (particles, 2 or 3), m."""
        raise NotImplementedError

    def volume(self) -> float:
        """Mass and volume of a particle, kg and m^2 or m^3."""
        return 1.0


P = TypeVar("P", bound=MpmParams)


class Mpm(Job[P]):
    """The loss is the squared distance of the centre from the target at the end, times ``scale``."""

    scale: ClassVar[float] = 1.0
    empty: ClassVar[float] = 0.0
    """A cell with no more mass has no velocity, kg."""
    least_mass: ClassVar[float] = 0.0
    """What the mass of a cell is increased by, where its velocity is computed, kg."""

    def stress(self) -> Any:
        """The ``qd.func`` that gives the Kirchhoff stress for a deformation gradient."""
        raise NotImplementedError

    def contact(self) -> Any:
        """The ``qd.func`` that gives the velocity of a cell after contact, for slot, cell and the velocity before; None: no contact."""
        return None

    def build(self) -> None:
        """Particle fields over (slot, particle), grid fields over (slot, cell ..), and the kernels of a step."""
        real, w, places = qd.f32 if self.precision == "f32" else qd.f64, self.window, self.params.block()
        self.real, (count, self.dim) = real, places.shape
        dim, cells = self.dim, (w, *[self.params.grid] * self.dim)
        self.x, self.v = (qd.Vector.field(dim, dtype=real, shape=(w + 1, count), needs_grad=True) for _ in range(2))
        self.C, self.F = (qd.Matrix.field(dim, dim, dtype=real, shape=(w + 1, count), needs_grad=True) for _ in range(2))
        self.momentum, self.moved = (qd.Vector.field(dim, dtype=real, shape=cells, needs_grad=True) for _ in range(2))
        self.mass = qd.field(dtype=real, shape=cells, needs_grad=True)
        self.start, self.target, self.dt, self.gravity = map(self.input, ("velocity", "target", "dt", "gravity"))
        self.loss, self.centre = self.objective(), self.output("centre", dim, needs_grad=True)
        self.places = self.constant(places, vectors=True)
        self._step_kernels(self.stress(), self.contact())
        self._end_kernels()

    def _step_kernels(self, stress: Any, contact: Any) -> None:
        x, v, C, F, momentum, mass, moved = self.x, self.v, self.C, self.F, self.momentum, self.mass, self.moved
        real, dim, grid, particles, step_s = self.real, self.dim, self.params.grid, self.places.shape[0], self.dt
        dx, inv_dx, gravity, volume = 1.0 / grid, float(grid), self.gravity, self.params.volume()
        empty, least_mass = self.empty, self.least_mass

        @qd.func
        def around(at: qd.template):  # the first cell around, the place from there in cells, three weights for each axis
            base = qd.cast(at * inv_dx - 0.5, qd.i32)
            fx = at * inv_dx - qd.cast(base, real)
            return base, fx, qd.Matrix.rows([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2])

        @qd.kernel
        def to_grid(t: qd.i32):
            for q in range(particles):
                base, fx, w = around(x[t, q])
                dt = step_s[None]
                new_F = (qd.Matrix.identity(real, dim) + dt * C[t, q]) @ F[t, q]
                F[t + 1, q] = new_F
                affine = -dt * volume * 4.0 * inv_dx * inv_dx * stress(new_F) + volume * C[t, q]
                for offset in qd.static(qd.grouped(qd.ndrange(*[3] * dim))):
                    weight = w[offset[0], 0] * w[offset[1], 1] * (w[offset[2], 2] if qd.static(dim == 3) else 1.0)
                    momentum[t, base + offset] += weight * (volume * v[t, q] + affine @ ((qd.cast(offset, real) - fx) * dx))
                    mass[t, base + offset] += weight * volume

        @qd.kernel
        def on_grid(t: qd.i32):
            for cell in qd.grouped(qd.ndrange(*[grid] * dim)):
                if mass[t, cell] > empty:
                    u = momentum[t, cell] / (mass[t, cell] + least_mass)
                    u[1] += step_s[None] * gravity[None]
                    if qd.static(contact is not None):
                        u = contact(t, cell, u)
                    for d in qd.static(range(dim)):
                        if (cell[d] < 3 and u[d] < 0.0) or (cell[d] > grid - 3 and u[d] > 0.0):
                            u[d] = 0.0
                    moved[t, cell] = u

        @qd.kernel
        def to_particles(t: qd.i32):
            for q in range(particles):
                base, fx, w = around(x[t, q])
                new_v, new_C = qd.Vector.zero(real, dim), qd.Matrix.zero(real, dim, dim)
                for offset in qd.static(qd.grouped(qd.ndrange(*[3] * dim))):
                    weight = w[offset[0], 0] * w[offset[1], 1] * (w[offset[2], 2] if qd.static(dim == 3) else 1.0)
                    carried = weight * moved[t, base + offset]
                    new_v += carried
                    new_C += 4.0 * inv_dx * carried.outer_product(qd.cast(offset, real) - fx)
                v[t + 1, q] = new_v
                x[t + 1, q] = x[t, q] + step_s[None] * new_v
                C[t + 1, q] = new_C

        self.to_grid, self.on_grid, self.to_particles = to_grid, on_grid, to_particles

    def _end_kernels(self) -> None:
        x, v, F, start, centre, loss, target = self.x, self.v, self.F, self.start, self.centre, self.loss, self.target
        real, dim, end, scale, places = self.real, self.dim, self.window, self.scale, self.places
        particles = places.shape[0]

        @qd.kernel
        def throw():
            for q in range(particles):
                x[0, q] = places[q]
                v[0, q] = qd.Vector([start[d] for d in qd.static(range(dim))])
                F[0, q] = qd.Matrix.identity(real, dim)

        @qd.kernel
        def miss():
            for q in range(particles):
                for d in qd.static(range(dim)):
                    centre[d] += x[end, q][d] / particles
            for d in range(dim):
                loss[None] += scale * (centre[d] - target[d]) ** 2

        self.throw, self.miss = throw, miss

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
        self.miss()
