"""An elastic block thrown at a target: how fast must it start?

The benchmark of DiffTaichi (Hu et al. 2020, ``diffmpm_benchmark``): MLS-MPM with a corotated elastic material, whose polar decomposition is
differentiated, and a box with walls that things leave freely. The loss is half the squared distance of the mean of the particles from
the target. The arrays hold a window of time steps, all of them unless a memory budget says less.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class Diffmpm2dParams(JobParams):
    """The box has a side of 1 m; each particle has a mass and a volume of 1, as in the original."""

    side: int = Field(80, ge=2, description="particles on a side of the block, half a cell apart")
    grid: int = Field(120, ge=16, description="cells on a side of the box")
    steps: int = Field(1023, ge=1, description="time steps")
    dt: float = Field(3e-4, gt=0, description="time step, s")
    stiffness: float = Field(100.0, gt=0, description="both Lame parameters")
    gravity: float = Field(9.8, description="downward acceleration, m/s^2")
    velocity: list[float] = Field([0.0, 0.0], min_length=2, max_length=2, description="initial velocity, m/s")
    target: list[float] = Field([0.3, 0.6], min_length=2, max_length=2, description="where the mean should end, m")


class Diffmpm2d(Job[Diffmpm2dParams]):
    """Gradients of the miss with respect to the initial velocity and the stiffness; in f32, as the original."""

    gradients = ("velocity", "stiffness")
    precision = "f32"

    def build(self) -> None:
        """Particle fields over (slot, particle), grid fields over (slot, cell, cell), and the kernels of a step."""
        p, w = self.params, self.window
        real, n, g = qd.f32 if self.precision == "f32" else qd.f64, p.side * p.side, p.grid
        self.real, self.particles = real, n
        self.x, self.v = (qd.Vector.field(2, dtype=real, shape=(w + 1, n), needs_grad=True) for _ in range(2))
        self.C, self.F = (qd.Matrix.field(2, 2, dtype=real, shape=(w + 1, n), needs_grad=True) for _ in range(2))
        self.momentum, self.moved = (qd.Vector.field(2, dtype=real, shape=(w, g, g), needs_grad=True) for _ in range(2))
        self.mass = qd.field(dtype=real, shape=(w, g, g), needs_grad=True)
        names = ("velocity", "stiffness", "target", "dt", "gravity")
        self.start, self.stiffness, self.target, self.dt, self.gravity = (self.input(name) for name in names)
        self.loss, self.mean = self.objective(), self.output("mean", 2, needs_grad=True)
        self._step_kernels()
        self._end_kernels()

    def _step_kernels(self) -> None:
        x, v, C, F, momentum, mass, moved = self.x, self.v, self.C, self.F, self.momentum, self.mass, self.moved
        stiffness, step_s, gravity = self.stiffness, self.dt, self.gravity
        real, particles, grid, dx, inv_dx = (
            self.real,
            self.particles,
            self.params.grid,
            1.0 / self.params.grid,
            self.params.grid,
        )

        @qd.kernel
        def to_grid(t: qd.i32):
            for q in range(particles):
                base = qd.cast(x[t, q] * inv_dx - 0.5, qd.i32)
                fx = x[t, q] * inv_dx - qd.cast(base, real)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_F = (qd.Matrix.identity(real, 2) + step_s[None] * C[t, q]) @ F[t, q]
                F[t + 1, q] = new_F
                J = new_F.determinant()
                r, _ = qd.polar_decompose(new_F)
                cauchy = 2.0 * stiffness[None] * (new_F - r) @ new_F.transpose()
                cauchy += stiffness[None] * (J - 1.0) * J * qd.Matrix.identity(real, 2)
                affine = C[t, q] - step_s[None] * 4.0 * inv_dx * inv_dx * cauchy
                for i, j in qd.static(qd.ndrange(3, 3)):
                    offset = qd.Vector([i, j])
                    weight = w[i][0] * w[j][1]
                    momentum[t, base + offset] += weight * (v[t, q] + affine @ ((qd.cast(offset, real) - fx) * dx))
                    mass[t, base + offset] += weight

        @qd.kernel
        def on_grid(t: qd.i32):
            for i, j in qd.ndrange(grid, grid):
                u = momentum[t, i, j] / (mass[t, i, j] + 1e-10)
                u[1] -= step_s[None] * gravity[None]
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
        x, v, F, start, target, loss, mean = self.x, self.v, self.F, self.start, self.target, self.loss, self.mean
        real, side, dx, particles, end = self.real, self.params.side, 1.0 / self.params.grid, self.particles, self.window

        @qd.kernel
        def throw():
            for q in range(particles):
                x[0, q] = qd.Vector([dx * ((q // side) * 0.5 + 10.0), dx * ((q % side) * 0.5 + 25.0)])
                v[0, q] = qd.Vector([start[0], start[1]])
                F[0, q] = qd.Matrix.identity(real, 2)

        @qd.kernel
        def find_mean():
            for q in range(particles):
                for d in qd.static(range(2)):
                    mean[d] += x[end, q][d] / particles

        @qd.kernel
        def miss():
            for d in range(2):
                loss[None] += 0.5 * (mean[d] - target[d]) ** 2

        self.throw, self.find_mean, self.miss = throw, find_mean, miss

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
        self.find_mean()
        self.miss()


class Diffmpm2dPicture(Diffmpm2d):
    """The same, with a picture of the block at four times, and of its target."""

    def save(self) -> None:
        """Write ``block.png``."""
        from matplotlib.figure import Figure  # optional: the extra `pictures`

        x = self.x.to_numpy()
        figure = Figure(figsize=(4, 4), layout="constrained")
        axes = figure.subplots()
        for at in np.linspace(0, self.window, 4).astype(int):
            axes.plot(*x[at].T, ".", markersize=1)
        axes.plot(*self.params.target, "k+", markersize=12)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="x, m", ylabel="y, m", aspect="equal")
        figure.savefig(self.artifacts / "block.png")
