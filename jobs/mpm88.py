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
from qdrun.jobs.base import Job, JobParams, Outcome

SIDE = 0.2
"""Of the block, m."""


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
    live = ("velocity", "stiffness")

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
        self.start = qd.Vector.field(2, dtype=real, shape=(), needs_grad=True)
        self.stiffness = qd.field(dtype=real, shape=(), needs_grad=True)
        self.centre = qd.Vector.field(2, dtype=real, shape=(), needs_grad=True)
        self.loss = qd.field(dtype=real, shape=(), needs_grad=True)
        self.volume = SIDE * SIDE / n
        self._step_kernels()
        self._end_kernels()

    def fill(self) -> None:
        """The block in its corner, not deformed, what it is thrown with, and its stiffness."""
        t, n = self.window + 1, self.params.particles
        first = np.zeros((t, n, 2))
        per_row = int(np.ceil(np.sqrt(n)))
        k = np.arange(n)
        first[0] = np.stack([0.6 + SIDE * (k % per_row) / per_row, 0.2 + SIDE * (k // per_row) / per_row], axis=1)
        self.x.from_numpy(first)
        identity = np.zeros((t, n, 2, 2))
        identity[0] = np.eye(2)
        self.F.from_numpy(identity)
        self.start[None] = self.params.velocity
        self.stiffness[None] = self.params.stiffness

    def _step_kernels(self) -> None:
        p = self.params
        x, v, C, F, moved = self.x, self.v, self.C, self.F, self.moved
        momentum, mass, stiffness, volume = self.momentum, self.mass, self.stiffness, self.volume
        particles, grid, dt, gravity = p.particles, p.grid, p.dt, p.gravity
        dx, inv_dx = 1.0 / grid, float(grid)
        mu_of_E = 1.0 / (2 * (1 + p.poisson))
        lambda_of_E = p.poisson / ((1 + p.poisson) * (1 - 2 * p.poisson))

        @qd.kernel
        def to_grid(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, qd.f64)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_F = (qd.Matrix.identity(qd.f64, 2) + dt * C[t, q]) @ F[t, q]
                F[t + 1, q] = new_F
                J = new_F.determinant()
                E = stiffness[None]
                cauchy = E * mu_of_E * (new_F @ new_F.transpose() - qd.Matrix.identity(qd.f64, 2))
                cauchy += E * lambda_of_E * qd.log(J) * qd.Matrix.identity(qd.f64, 2)
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
                    u[1] += dt * gravity
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
                x[t + 1, q] = x[t, q] + dt * new_v
                C[t + 1, q] = new_C

        self.to_grid, self.on_grid, self.to_particles = to_grid, on_grid, to_particles

    def _end_kernels(self) -> None:
        x, v, start, centre, loss = self.x, self.v, self.start, self.centre, self.loss
        particles, end = self.params.particles, self.window
        target_x, target_y = self.params.target

        @qd.kernel
        def throw():
            for q in range(particles):
                v[0, q] = start[None]

        @qd.kernel
        def find_centre():
            for q in range(particles):
                centre[None] += x[end, q] / particles

        @qd.kernel
        def miss():
            off = centre[None] - qd.Vector([target_x, target_y])
            loss[None] += off.norm_sqr()

        self.throw, self.find_centre, self.miss = throw, find_centre, miss

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """What a step hands to the next."""
        return [self.x, self.v, self.C, self.F]

    def scratch(self) -> list[object]:
        """What a step leaves for its gradient."""
        return [self.momentum, self.mass, self.moved]

    def launches(self) -> list[tuple[object, tuple[object, ...]]]:
        """Every kernel; all steps are alike."""
        steps = [(k, (0,)) for k in (self.to_grid, self.on_grid, self.to_particles)]
        return [*steps, (self.throw, ()), (self.find_centre, ()), (self.miss, ())]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.to_grid(k)
        self.on_grid(k)
        self.to_particles(k)

    def forward(self) -> None:
        """All steps and the loss."""
        self.throw()
        qd.ad.checkpointed_steps(self.step, self.params.steps, self.state(), self.scratch(), budget=self.snapshot_bytes)
        self.find_centre()
        self.miss()

    def run(self) -> Outcome:
        """Simulate, and go back if gradients are wanted."""
        self.centre.fill(0.0)
        if self.wanted:
            with qd.ad.Tape(loss=self.loss):
                self.forward()
        else:
            self.loss[None] = 0.0
            self.forward()
        found = {
            "velocity": self.start.grad.to_numpy,
            "stiffness": lambda: float(self.stiffness.grad[None]),
        }
        centre = self.centre.to_numpy()
        outputs = {"centre_x_m": float(centre[0]), "centre_y_m": float(centre[1])}
        return Outcome(float(self.loss[None]), {name: found[name]() for name in self.wanted}, outputs)
