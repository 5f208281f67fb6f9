"""An elastic block thrown at a target: the material point method in two dimensions.

A square block of particles of a neo-Hookean material, near a corner, flies into wall and floor of a box of ``grid`` x ``grid`` cells.
The loss is the squared distance of its centre from the target at the end; gradients with respect to the initial velocity and to the
stiffness. MLS-MPM (Hu et al. 2018) with quadratic weights. The arrays hold a window of time steps, all of them unless a memory budget
says less; then the gradient runs steps again.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams

SIDE = 0.2
"""Size of the block in m."""


class Mpm88Params(JobParams):
    """The box has a side of 1 m; the block's density is 1 kg/m^2."""

    particles: int = Field(256, ge=4, description="particles of the block")
    grid: int = Field(24, ge=8, description="cells on a side of the box")
    steps: int = Field(64, ge=1, description="time steps")
    dt: float = Field(1e-3, gt=0, description="time step, s")
    stiffness: float = Field(40.0, gt=0, description="Young's modulus, N/m")
    poisson: float = Field(0.2, ge=0, lt=0.5, description="Poisson's ratio")
    gravity: float = Field(-3.0, description="vertical acceleration, m/s^2")
    velocity: list[float] = Field([3.0, -1.0], min_length=2, max_length=2, description="initial velocity, m/s")
    target: list[float] = Field([0.5, 0.4], min_length=2, max_length=2, description="where the centre should end, m")


class Mpm88(Job[Mpm88Params]):
    """Gradients of the squared miss with respect to the initial velocity and the stiffness."""

    gradients = ("velocity", "stiffness")

    def build(self) -> None:
        """Particle fields over (slot, particle), grid fields over (slot, cell, cell), and the kernels of a step."""
        p = self.params
        real, t, n, g = qd.f64, self.window + 1, p.particles, p.grid
        self.x = qd.Vector.field(2, dtype=real, shape=(t, n), needs_grad=True)
        self.v = qd.Vector.field(2, dtype=real, shape=(t, n), needs_grad=True)
        self.C = qd.Matrix.field(2, 2, dtype=real, shape=(t, n), needs_grad=True)
        self.F = qd.Matrix.field(2, 2, dtype=real, shape=(t, n), needs_grad=True)
        self.momentum = qd.Vector.field(2, dtype=real, shape=(self.window, g, g), needs_grad=True)
        self.mass = qd.field(dtype=real, shape=(self.window, g, g), needs_grad=True)
        self.moved = qd.Vector.field(2, dtype=real, shape=(self.window, g, g), needs_grad=True)
        self.centre = qd.Vector.field(2, dtype=real, shape=(), needs_grad=True)
        self.start, self.stiffness, self.target = self.input("velocity"), self.input("stiffness"), self.input("target")
        self.dt, self.gravity, self.poisson = self.input("dt"), self.input("gravity"), self.input("poisson")
        self.loss, self.centre_x, self.centre_y = self.objective(), self.output("centre_x_m"), self.output("centre_y_m")
        self.block = qd.Vector.field(2, dtype=real, shape=(n,), per_trial=False)
        self.block.from_numpy(block(n))
        self.volume = SIDE * SIDE / n
        self._step_kernels()
        self._end_kernels()

    def _step_kernels(self) -> None:
        p = self.params
        x, v, C, F, moved = self.x, self.v, self.C, self.F, self.moved
        momentum, mass, stiffness, volume = self.momentum, self.mass, self.stiffness, self.volume
        particles, grid, step_s, gravity, poisson = p.particles, p.grid, self.dt, self.gravity, self.poisson
        dx, inv_dx = 1.0 / grid, float(grid)

        @qd.kernel
        def to_grid(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, qd.f64)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                dt, nu = step_s[None], poisson[None]
                new_F = (qd.Matrix.identity(qd.f64, 2) + dt * C[t, q]) @ F[t, q]
                F[t + 1, q] = new_F
                J = new_F.determinant()
                E = stiffness[None]
                mu, lame = E / (2.0 * (1.0 + nu)), E * nu / ((1.0 + nu) * (1.0 - 2.0 * nu))
                cauchy = mu * (new_F @ new_F.transpose() - qd.Matrix.identity(qd.f64, 2))
                cauchy += lame * qd.log(J) * qd.Matrix.identity(qd.f64, 2)
                affine = -dt * volume * 4.0 * inv_dx * inv_dx * cauchy + volume * C[t, q]
                for i, j in qd.static(qd.ndrange(3, 3)):
                    offset = qd.Vector([i, j])
                    dpos = (qd.cast(offset, qd.f64) - fx) * dx
                    weight = w[i][0] * w[j][1]
                    momentum[t, base + offset] += weight * (volume * v[t, q] + affine @ dpos)
                    mass[t, base + offset] += weight * volume

        @qd.kernel
        def on_grid(t: qd.i32):
            for i, j in qd.ndrange(grid, grid):
                if mass[t, i, j] > 0.0:
                    u = momentum[t, i, j] / mass[t, i, j]
                    u[1] += step_s[None] * gravity[None]
                    if i < 3 and u[0] < 0.0:
                        u[0] = 0.0
                    if i > grid - 3 and u[0] > 0.0:
                        u[0] = 0.0
                    if j < 3 and u[1] < 0.0:
                        u[1] = 0.0
                    if j > grid - 3 and u[1] > 0.0:
                        u[1] = 0.0
                    moved[t, i, j] = u

        @qd.kernel
        def to_particles(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, qd.f64)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v = qd.Vector([0.0, 0.0], dt=qd.f64)
                new_C = qd.Matrix([[0.0, 0.0], [0.0, 0.0]], dt=qd.f64)
                for i, j in qd.static(qd.ndrange(3, 3)):
                    offset = qd.Vector([i, j])
                    dpos = qd.cast(offset, qd.f64) - fx
                    g = moved[t, base + offset]
                    weight = w[i][0] * w[j][1]
                    new_v += weight * g
                    new_C += 4.0 * inv_dx * weight * g.outer_product(dpos)
                v[t + 1, q] = new_v
                x[t + 1, q] = x[t, q] + step_s[None] * new_v
                C[t + 1, q] = new_C

        self.to_grid, self.on_grid, self.to_particles = to_grid, on_grid, to_particles

    def _end_kernels(self) -> None:
        x, v, F, start, centre, loss, target = self.x, self.v, self.F, self.start, self.centre, self.loss, self.target
        particles, end, block, centre_x, centre_y = self.params.particles, self.window, self.block, self.centre_x, self.centre_y

        @qd.kernel
        def throw():
            for q in range(particles):
                x[0, q] = block[q]
                v[0, q] = qd.Vector([start[0], start[1]])
                F[0, q] = qd.Matrix.identity(qd.f64, 2)

        @qd.kernel
        def find_centre():
            for q in range(particles):
                centre[None] += x[end, q] / particles

        @qd.kernel
        def miss():
            off = centre[None] - qd.Vector([target[0], target[1]])
            loss[None] += off.norm_sqr()
            centre_x[None] = centre[None][0]
            centre_y[None] = centre[None][1]

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


def block(particles: int) -> np.ndarray:
    """The places of the particles before the throw, (particles, 2), m."""
    per_row = int(np.ceil(np.sqrt(particles)))
    k = np.arange(particles)
    return np.stack([0.6 + SIDE * (k % per_row) / per_row, 0.2 + SIDE * (k // per_row) / per_row], axis=1)
