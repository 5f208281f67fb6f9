"""Smoke in a wind: which initial velocities carry it into a given shape?

The program of DiffTaichi (Hu et al. 2020, ``smoke``): semi-Lagrangian advection on a periodic grid, with the pressure of a few Jacobi
sweeps that begin at the sweeps of the step before, as in the original. The smoke starts as a disc; it should end as a ring. The loss is
the mean squared difference. The original reads two images; the shapes here are formulas, so that its losses are not ours.
"""

from __future__ import annotations

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class SmokeParams(JobParams):
    """Velocities are in cells per time step."""

    grid: int = Field(32, ge=8, description="cells on a side")
    steps: int = Field(10, ge=1, description="time steps")
    sweeps: int = Field(6, ge=1, description="Jacobi sweeps of the pressure in each time step")
    spin: float = Field(0.1, description="initial velocity around the centre, relative to the radius")
    push: list[float] = Field([0.0, 0.0], min_length=2, max_length=2, description="initial velocity of all cells")
    wind: list[float] = Field([], description="initial velocity of each cell beside these, 2 * grid^2 numbers; empty: none")
    radius: float = Field(0.25, gt=0, lt=0.5, description="of disc and ring, of the side")

    def model_post_init(self, context: object) -> None:
        """An empty wind is one of zeros; another has the grid's size."""
        del context
        count = 2 * self.grid**2
        if not self.wind:
            object.__setattr__(self, "wind", [0.0] * count)  # the model is frozen
        if len(self.wind) != count:
            raise ValueError(f"wind has {len(self.wind)} numbers for {self.grid} x {self.grid} cells\n  do: give {count}")


class Smoke(Job[SmokeParams]):
    """Gradients of the mean squared difference with respect to the initial velocities."""

    gradients = ("spin", "push", "wind")

    def build(self) -> None:
        """Fields over (step, cell, cell), and the kernels of a step."""
        p, real = self.params, qd.f64 if self.precision == "f64" else qd.f32
        n, steps, sweeps = p.grid, p.steps, p.sweeps
        self.spin, self.push, self.wind, self.radius = (self.input(name) for name in ("spin", "push", "wind", "radius"))
        self.loss = self.objective()
        self.v, self.carried = (qd.Vector.field(2, dtype=real, shape=(steps + 1, n, n), needs_grad=True) for _ in range(2))
        self.smoke, self.source = (qd.field(dtype=real, shape=(steps + 1, n, n), needs_grad=True) for _ in range(2))
        self.pressure = qd.field(dtype=real, shape=(steps * sweeps + 1, n, n), needs_grad=True)
        self.wanted_smoke = qd.field(dtype=real, shape=(n, n))
        self._fluid_kernels()
        self._end_kernels()

    def _fluid_kernels(self) -> None:
        v, carried, smoke, source, pressure = self.v, self.carried, self.smoke, self.source, self.pressure
        n, sweeps = self.params.grid, self.params.sweeps

        @qd.func
        def sample(field: qd.template, t: qd.i32, i: qd.i32, j: qd.i32, at: qd.i32):
            x, y = i - v[at, i, j][0], j - v[at, i, j][1]
            left, low = qd.cast(qd.floor(x), qd.i32), qd.cast(qd.floor(y), qd.i32)
            a, b = x - left, y - low
            i0, j0 = left % n, low % n
            i1, j1 = (i0 + 1) % n, (j0 + 1) % n
            upper = (1.0 - b) * field[t, i1, j0] + b * field[t, i1, j1]
            return (1.0 - a) * ((1.0 - b) * field[t, i0, j0] + b * field[t, i0, j1]) + a * upper

        @qd.kernel
        def carry_velocity(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                carried[t, i, j] = sample(v, t - 1, i, j, t - 1)

        @qd.kernel
        def diverge(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                across = carried[t, (i + 1) % n, j][0] - carried[t, (i - 1) % n, j][0]
                source[t, i, j] = -0.5 / n * (across + carried[t, i, (j + 1) % n][1] - carried[t, i, (j - 1) % n][1])

        @qd.kernel
        def sweep(t: qd.i32, k: qd.i32):
            for i, j in qd.ndrange(n, n):
                beside = pressure[k, (i - 1) % n, j] + pressure[k, (i + 1) % n, j]
                beside += pressure[k, i, (j - 1) % n] + pressure[k, i, (j + 1) % n]
                pressure[k + 1, i, j] = 0.25 * (source[t, i, j] + beside)

        @qd.kernel
        def project(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                k = t * sweeps
                rise = qd.Vector([pressure[k, (i + 1) % n, j] - pressure[k, (i - 1) % n, j], 0.0])
                rise[1] = pressure[k, i, (j + 1) % n] - pressure[k, i, (j - 1) % n]
                v[t, i, j] = carried[t, i, j] - 0.5 * n * rise

        @qd.kernel
        def carry_smoke(t: qd.i32):
            for i, j in qd.ndrange(n, n):
                smoke[t, i, j] = sample(smoke, t - 1, i, j, t)

        self.carry_velocity, self.diverge, self.sweep = carry_velocity, diverge, sweep
        self.project, self.carry_smoke = project, carry_smoke

    def _end_kernels(self) -> None:
        v, smoke, wanted, loss, n, end = self.v, self.smoke, self.wanted_smoke, self.loss, self.params.grid, self.params.steps
        spin, push, wind, radius = self.spin, self.push, self.wind, self.radius

        @qd.kernel
        def begin():
            for i, j in qd.ndrange(n, n):
                x, y = i + 0.5 - 0.5 * n, j + 0.5 - 0.5 * n
                out = qd.sqrt(x * x + y * y) / n - radius[None]
                smoke[0, i, j] = 1.0 / (1.0 + qd.exp(out * n))
                wanted[i, j] = qd.exp(-((0.25 * n * out) ** 2))
                k = 2 * (i * n + j)
                v[0, i, j] = qd.Vector([push[0] - spin[None] * y + wind[k], push[1] + spin[None] * x + wind[k + 1]])

        @qd.kernel
        def compare():
            for i, j in qd.ndrange(n, n):
                loss[None] += (smoke[end, i, j] - wanted[i, j]) ** 2 / (n * n)

        self.begin, self.compare = begin, compare

    def simulate(self) -> None:
        """All steps, and the difference at the end."""
        self.begin()
        for t in range(1, self.params.steps + 1):
            self.checkpoint()
            self.carry_velocity(t)
            self.diverge(t)
            for k in range(self.params.sweeps):
                self.sweep(t, (t - 1) * self.params.sweeps + k)
            self.project(t)
            self.carry_smoke(t)
        self.compare()


class SmokePicture(Smoke):
    """The same, with a picture of the smoke at the start and at the end."""

    def save(self) -> None:
        """Write ``smoke.png``."""
        from matplotlib.image import imsave  # optional: the extra `pictures`
        from numpy import hstack

        smoke = self.smoke.to_numpy()
        imsave(self.artifacts / "smoke.png", hstack([smoke[0].T, smoke[-1].T]), vmin=0.0, vmax=1.0, origin="lower")
