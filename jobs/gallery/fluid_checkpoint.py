"""Smoke that a wind shapes over many time steps, in a budget of memory: Warp's demonstration of checkpoints.

The program of Warp's ``example_fluid_checkpoint``: stable fluids (Stam 1999) on a periodic grid, with 50 Jacobi sweeps of the pressure in
each time step, from zero on. At 512 x 512 cells and 1,000 steps the sweeps alone fill 105 GB with their gradients. The arrays hold a window
of time steps, as many as ``memory_budget`` allows. The loss is the mean squared difference from a ring; the original has a picture.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class FluidCheckpointParams(JobParams):
    """Velocities are in cells per time step."""

    grid: int = Field(48, ge=8, description="cells on a side")
    steps: int = Field(36, ge=1, description="time steps")
    sweeps: int = Field(50, ge=1, description="Jacobi sweeps of the pressure in each time step")
    push: list[float] = Field([0.1, 0.05], min_length=2, max_length=2, description="initial velocity of all cells")
    wind: list[float] = Field([], description="initial velocity of each cell beside it, 2 * grid^2 numbers; empty: waves")

    @model_validator(mode="after")
    def _blown(self) -> Self:
        count = 2 * self.grid**2
        if not self.wind:
            sine = 0.4 * np.sin(2.0 * np.pi * np.arange(self.grid) / self.grid)
            across = np.stack(np.broadcast_arrays(sine[None, :], sine[:, None]), axis=2)
            object.__setattr__(self, "wind", across.ravel().tolist())  # the model is frozen
        if len(self.wind) != count:
            raise ValueError(f"wind has {len(self.wind)} numbers for {self.grid} x {self.grid} cells\n  do: give {count}")
        return self


class FluidCheckpoint(Job[FluidCheckpointParams]):
    """Gradients of the mean squared difference with respect to the initial velocities; in f32, as the original."""

    gradients = ("push", "wind")
    precision = "f32"

    def build(self) -> None:
        """Fields over (slot, cell, cell), of the pressure over (slot, sweep, cell, cell), and the kernels of a step."""
        n, w, sweeps = self.params.grid, self.window, self.params.sweeps
        real = qd.f32 if self.precision == "f32" else qd.f64
        self.push, self.wind, self.loss = self.input("push"), self.input("wind"), self.objective()
        self.v = qd.Vector.field(2, dtype=real, shape=(w + 1, n, n), needs_grad=True)
        self.smoke = qd.field(dtype=real, shape=(w + 1, n, n), needs_grad=True)
        self.carried = qd.Vector.field(2, dtype=real, shape=(w, n, n), needs_grad=True)
        self.pressure = qd.field(dtype=real, shape=(w, sweeps + 1, n, n), needs_grad=True)
        self._step_kernels()
        self._end_kernels()

    def _step_kernels(self) -> None:
        v, smoke, carried, pressure = self.v, self.smoke, self.carried, self.pressure
        n, sweeps = self.params.grid, self.params.sweeps

        @qd.func
        def origin(k: qd.i32, i: qd.i32, j: qd.i32):
            x, y = i - v[k, i, j][0], j - v[k, i, j][1]
            left, low = qd.floor(x), qd.floor(y)
            corner = qd.Vector([qd.cast(left, qd.i32) % n, qd.cast(low, qd.i32) % n])
            return corner, x - left, y - low

        @qd.kernel
        def carry(k: qd.i32):
            for i, j in qd.ndrange(n, n):
                c, a, b = origin(k, i, j)
                for p, q in qd.static(qd.ndrange(2, 2)):
                    weight = (a if p else 1.0 - a) * (b if q else 1.0 - b)
                    carried[k, i, j] += weight * v[k, (c[0] + p) % n, (c[1] + q) % n]
                    smoke[k + 1, i, j] += weight * smoke[k, (c[0] + p) % n, (c[1] + q) % n]

        @qd.kernel
        def sweep(k: qd.i32, s: qd.i32):
            for i, j in qd.ndrange(n, n):
                spread = carried[k, (i + 1) % n, j][0] - carried[k, (i - 1) % n, j][0]
                spread += carried[k, i, (j + 1) % n][1] - carried[k, i, (j - 1) % n][1]
                beside = pressure[k, s, (i - 1) % n, j] + pressure[k, s, (i + 1) % n, j]
                beside += pressure[k, s, i, (j - 1) % n] + pressure[k, s, i, (j + 1) % n]
                pressure[k, s + 1, i, j] = 0.25 * (beside - 0.5 * spread)

        @qd.kernel
        def project(k: qd.i32):
            for i, j in qd.ndrange(n, n):
                across = pressure[k, sweeps, (i + 1) % n, j] - pressure[k, sweeps, (i - 1) % n, j]
                along = pressure[k, sweeps, i, (j + 1) % n] - pressure[k, sweeps, i, (j - 1) % n]
                v[k + 1, i, j] = carried[k, i, j] - 0.5 * qd.Vector([across, along])

        self.carry, self.sweep, self.project = carry, sweep, project

    def _end_kernels(self) -> None:
        v, smoke, push, wind, loss, n, end = self.v, self.smoke, self.push, self.wind, self.loss, self.params.grid, self.window

        @qd.kernel
        def begin():
            for i, j in qd.ndrange(n, n):
                m = 2 * (i * n + j)
                v[0, i, j] = qd.Vector([push[0] + wind[m], push[1] + wind[m + 1]])
                smoke[0, i, j] = qd.exp(-((20.0 * (i + 0.5) / n - 10.0) ** 2) / 2.0)  # a column, as in the original

        @qd.kernel
        def compare():
            for i, j in qd.ndrange(n, n):
                x, y = (i + 0.5) / n - 0.5, (j + 0.5) / n - 0.5
                ring = qd.exp(-((16.0 * (qd.sqrt(x * x + y * y) - 0.25)) ** 2))
                loss[None] += (smoke[end, i, j] - ring) ** 2 / (n * n)

        self.begin, self.compare = begin, compare

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.v, self.smoke]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.carried, self.pressure]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.carry(k)
        for s in range(self.params.sweeps):
            self.sweep(k, s)
        self.project(k)

    def simulate(self) -> None:
        """All steps, and the difference at the end."""
        self.begin()
        self.time_loop(self.step)
        self.compare()


class FluidCheckpointPicture(FluidCheckpoint):
    """The same, with a picture of the smoke at the end."""

    def save(self) -> None:
        """Write ``smoke.png``."""
        from matplotlib.image import imsave  # optional: the extra `pictures`

        imsave(self.artifacts / "smoke.png", self.smoke.to_numpy()[-1].T, vmin=0.0, vmax=1.0, origin="lower")
