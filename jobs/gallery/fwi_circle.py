"""Where do waves travel faster? Full-waveform inversion of a circle in a square of rock.

The acoustic wave equation m u'' + d u' = laplace(u) + q, m = 1 / velocity^2, with an absorbing layer d around a square; space order 4, time
order 2 (Devito's tutorial ``03_fwi``). Receivers record the waves of a few shots. The loss is half the squared difference from the
recordings of a circle in a background. A step of the job is two time steps, which need two states; arrays hold a window of steps.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class FwiCircleParams(JobParams):
    """A square of cells of 10 m; sources are 3 cells below its first row, receivers 3 cells above its last."""

    cells: int = Field(101, ge=8, description="on a side of the square")
    layer: int = Field(40, ge=1, description="absorbing cells on each side beyond the square")
    shots: int = Field(9, ge=2, description="from one end of the row of sources to the other")
    steps: int = Field(490, ge=2, description="time steps")
    dt: float = Field(2.041, gt=0, description="time step, ms")
    frequency: float = Field(0.01, gt=0, description="peak of the Ricker wavelet, kHz")
    background: float = Field(2.5, gt=0, description="true velocity around the circle, km/s")
    circle: float = Field(3.0, gt=0, description="true velocity in the circle, km/s")
    radius: float = Field(15.0, ge=0, description="of the circle in the middle, cells")
    velocity: list[float] = Field(
        [], description="assumed velocity of each cell, the layer included, km/s; empty: the background"
    )
    wavelet: list[float] = Field([], description="assumed source in each time step; empty: the true one")

    @model_validator(mode="after")
    def _shaped(self) -> Self:
        phase = (np.pi * self.frequency * (np.arange(self.steps) * self.dt - 1.0 / self.frequency)) ** 2
        count = (self.cells + 2 * self.layer) ** 2
        for name, first in (("velocity", [self.background] * count), ("wavelet", ((1 - 2 * phase) * np.exp(-phase)).tolist())):
            if not getattr(self, name):
                object.__setattr__(self, name, first)  # the model is frozen
            if len(getattr(self, name)) != len(first):
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} numbers instead of {len(first)}\n  do: give {len(first)}"
                )
        return self


class FwiCircle(Job[FwiCircleParams]):
    """Gradients of the misfit with respect to the velocity of each cell and to the source."""

    gradients = ("velocity", "wavelet")

    def build(self) -> None:
        """Wave fields ``even`` and ``odd`` over (slot, shot, cell, cell) with two cells of zeros around, and the recordings."""
        p, w, real = self.params, self.window, qd.f64 if self.precision == "f64" else qd.f32
        self.size = p.cells + 2 * p.layer
        shape = (p.shots, self.size + 4, self.size + 4)
        self.even, self.odd = (qd.field(dtype=real, shape=(w + 1, *shape), needs_grad=True) for _ in range(2))
        self.true_waves = qd.field(dtype=real, shape=(3, *shape))
        self.recorded = qd.field(dtype=real, shape=(p.steps, p.shots, p.cells))
        depth = np.maximum(np.abs(np.arange(self.size) - (self.size - 1) / 2) - (p.cells - 1) / 2, 0.0)
        share = (depth + (depth > 0)) / p.layer
        absorbed = 1.5 * np.log(1000.0) / p.layer * (share - np.sin(2 * np.pi * share) / (2 * np.pi)) / 10.0
        self.damping = self.constant(absorbed)
        self.loss, self.velocity, self.wavelet = self.objective(), self.input("velocity"), self.input("wavelet")
        self._kernels()

    def _kernels(self) -> None:
        p, n, velocity, wavelet, damping, loss = self.params, self.size, self.velocity, self.wavelet, self.damping, self.loss
        layer, cells, shots, dt, recorded, true = p.layer, p.cells, p.shots, p.dt, self.recorded, self.true_waves
        background, circle, radius, frequency = map(self.input, ("background", "circle", "radius", "frequency"))

        @qd.func
        def following(now: qd.template, a: int, old: qd.template, b: int, s: int, i: int, j: int, m: qd.template):
            x, y = i + 2, j + 2
            beside = now[a, s, x - 1, y] + now[a, s, x + 1, y] + now[a, s, x, y - 1] + now[a, s, x, y + 1]
            beyond = now[a, s, x - 2, y] + now[a, s, x + 2, y] + now[a, s, x, y - 2] + now[a, s, x, y + 2]
            bend = (4.0 / 3.0 * beside - beyond / 12.0 - 5.0 * now[a, s, x, y]) / 100.0
            d = dt * (damping[i] + damping[j])
            return (m * (2.0 * now[a, s, x, y] - old[b, s, x, y]) + d * now[a, s, x, y] + dt * dt * bend) / (m + d)

        @qd.func
        def share(s: int, j: int):  # of the source of a shot in column j
            return qd.max(0.0, 1.0 - qd.abs(s * (cells - 1.0) / (shots - 1.0) + layer - j))

        @qd.kernel
        def advance(now: qd.template, a: qd.i32, old: qd.template, b: qd.i32):
            for s, i, j in qd.ndrange(shots, n, n):
                old[b + 1, s, i + 2, j + 2] = following(now, a, old, b, s, i, j, 1.0 / velocity[i * n + j] ** 2)

        @qd.kernel
        def fire(waves: qd.template, a: qd.i32, t: qd.i32):
            for s, j in qd.ndrange(shots, n):
                waves[a, s, layer + 5, j + 2] += (dt * velocity[(layer + 3) * n + j]) ** 2 * share(s, j) * wavelet[t]

        @qd.kernel
        def compare(waves: qd.template, a: qd.i32, t: qd.i32):
            for s, r in qd.ndrange(shots, cells):
                loss[None] += 0.5 * (waves[a, s, layer + cells - 1, layer + r + 2] - recorded[t, s, r]) ** 2

        @qd.kernel
        def record(t: qd.i32):
            for s, i, j in qd.ndrange(shots, n, n):
                square = (i - layer - 0.5 * cells) ** 2 + (j - layer - 0.5 * cells) ** 2
                v = qd.select(square <= radius[None] ** 2, circle[None], background[None])
                u = following(true, t % 3, true, (t + 2) % 3, s, i, j, 1.0 / v**2)
                if i == layer + 3:
                    phase = (np.pi * (t * dt * frequency[None] - 1.0)) ** 2
                    u += (dt * v) ** 2 * share(s, j) * (1.0 - 2.0 * phase) * qd.exp(-phase)
                true[(t + 1) % 3, s, i + 2, j + 2] = u
            for s, r in qd.ndrange(shots, cells):
                recorded[t, s, r] = true[t % 3, s, layer + cells - 1, layer + r + 2]

        self.advance, self.fire, self.compare, self.record = advance, fire, compare, record

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return (self.params.steps + 1) // 2

    def state(self) -> list[object]:
        """The wave fields, which a step passes to the next."""
        return [self.even, self.odd]

    def step(self, t: int, k: int) -> None:
        """Two time steps, from slot k to slot k + 1."""
        self.checkpoint()
        for now, a, old, at in ((self.odd, k, self.even, 2 * t + 1), (self.even, k + 1, self.odd, 2 * t + 2)):
            self.advance(now, a, old, k)
            if at < self.params.steps:
                self.fire(old, k + 1, at)
                self.compare(now, a, at)

    def simulate(self) -> None:
        """The recordings, then the waves of the assumed velocities."""
        for t in range(1, self.params.steps):  # at 0 all waves are 0
            self.record(t)
        self.time_loop(self.step)


class FwiCirclePicture(FwiCircle):
    """The same, with a picture of the velocities."""

    def save(self) -> None:
        """Write ``velocity.png``."""
        from matplotlib.image import imsave  # optional: the extra `pictures`

        imsave(self.artifacts / "velocity.png", self.velocity.to_numpy().reshape(self.size, self.size))
