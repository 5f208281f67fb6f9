"""Which initial velocities become a given shock? An inverse problem of Burgers' equation in one dimension.

u' + u u_x = viscosity u_xx on a periodic line of 2 m: explicit diffusion, then semi-Lagrangian advection with linear interpolation (Thuerey
et al., Physics-based Deep Learning, ``diffphys-code-burgers``). The loss is the mean squared difference from the target at the end. The
default target is the book's, at 0.5 s; its numbers are in ``jobs/references/burgers_inverse.json``.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class BurgersInverseParams(JobParams):
    """A line of 2 m that is periodic."""

    cells: int = Field(128, ge=4, description="on the line")
    steps: int = Field(16, ge=1, description="time steps")
    duration: float = Field(0.5, gt=0, description="simulated time, s")
    viscosity: float = Field(0.01 / (128 * np.pi), ge=0, description="m^2/s")
    amplitude: float = Field(0.0, description="of a sine added to the initial velocities, which steepens in the middle, m/s")
    initial: list[float] = Field([], description="velocity of each cell at the start, m/s; empty: zeros")
    target: list[float] = Field([], description="velocity that each cell should end with, m/s; empty: the book's shock")

    @model_validator(mode="after")
    def _shaped(self) -> Self:
        if not self.initial:
            object.__setattr__(self, "initial", [0.0] * self.cells)  # the model is frozen
        if not self.target:
            object.__setattr__(self, "target", book_shock(self.cells))
        for name in ("initial", "target"):
            if len(getattr(self, name)) != self.cells:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} numbers for {self.cells} cells\n  do: give {self.cells}"
                )
        return self


def book_shock(cells: int) -> list[float]:
    """The velocities of the book's shock in m/s: its 128 numbers, interpolated where ``cells`` differs."""
    known = json.loads((files("qdrun.jobs.references") / "burgers_inverse.json").read_text("utf-8"))["target"]
    return np.interp((np.arange(cells) + 0.5) / cells, (np.arange(128) + 0.5) / 128, known, period=1.0).tolist()


class BurgersInverse(Job[BurgersInverseParams]):
    """Gradients of the mean squared difference with respect to the initial velocities, the sine and the viscosity."""

    gradients = ("initial", "amplitude", "viscosity")

    def build(self) -> None:
        """Fields over (step, cell), and the kernels of a step."""
        p, real = self.params, qd.f64 if self.precision == "f64" else qd.f32
        n, end, dt, dx = p.cells, p.steps, p.duration / p.steps, 2.0 / p.cells
        names = ("initial", "amplitude", "target", "viscosity")
        initial, amplitude, target, viscosity = (self.input(name) for name in names)
        loss = self.objective()
        u, spread = (qd.field(dtype=real, shape=(end + 1, n), needs_grad=True) for _ in range(2))

        @qd.kernel
        def begin():
            for i in range(n):
                u[0, i] = initial[i] + amplitude[None] * qd.sin(np.pi * (i + 0.5) * dx)

        @qd.kernel
        def diffuse(t: qd.i32):
            for i in range(n):
                curvature = (u[t, (i + 1) % n] - 2.0 * u[t, i] + u[t, (i - 1) % n]) / dx**2
                spread[t, i] = u[t, i] + dt * viscosity[None] * curvature

        @qd.kernel
        def advect(t: qd.i32):
            for i in range(n):
                origin = i - spread[t, i] * dt / dx
                left = qd.cast(qd.floor(origin), qd.i32)
                share = origin - left
                u[t + 1, i] = (1.0 - share) * spread[t, left % n] + share * spread[t, (left + 1) % n]

        @qd.kernel
        def compare():
            for i in range(n):
                loss[None] += (u[end, i] - target[i]) ** 2 / n

        self.u = u
        self.begin, self.diffuse, self.advect, self.compare = begin, diffuse, advect, compare

    def simulate(self) -> None:
        """All steps, and the difference at the end."""
        self.begin()
        for t in range(self.params.steps):
            self.checkpoint()
            self.diffuse(t)
            self.advect(t)
        self.compare()


class BurgersInversePicture(BurgersInverse):
    """The same, with a picture of the velocities at the start and at the end, and of the target."""

    def save(self) -> None:
        """Write ``shock.png``."""
        u, x = self.u.to_numpy(), (np.arange(self.params.cells) + 0.5) * 2.0 / self.params.cells - 1.0
        with self.picture("shock.png", size=(6, 3), xlabel="x, m", ylabel="u, m/s") as axes:
            axes.plot(x, u[0], "C7", label="start")
            axes.plot(x, self.params.target, "k:", label="target")
            axes.plot(x, u[-1], "C0", label="end")
            axes.legend()
