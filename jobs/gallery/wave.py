"""A membrane at rest: which initial shape becomes a given one?

The wave equation v' = speed^2 laplace(u) - damping v, u' = v on a square membrane with fixed edges, by the leapfrog method, like ``wave``
of DiffTaichi (Hu et al. 2020). Lengths are in cells, times in steps. A step is linear in the shape: its gradient needs no adstack. The
modes of the discrete membrane are known in closed form: u(t) = u(0) cos((t + 1/2) w) / cos(w / 2). The arrays hold a window of time
steps, all of them unless a memory budget says less.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class WaveParams(JobParams):
    """Lengths are in cells, times in time steps."""

    grid: int = Field(64, ge=4, description="points on a side; those at the edges are fixed")
    steps: int = Field(64, ge=1, description="time steps")
    speed: float = Field(0.5, gt=0, lt=0.7071, description="of waves, cells per step; faster ones are unstable")
    damping: float = Field(0.0, ge=0, lt=1, description="share of the velocity that a step takes")
    height: list[float] = Field([], description="initial height of each point, grid^2 numbers; empty: a bump in the middle")
    target: list[float] = Field([], description="height that each point should end with; empty: a ring")

    @model_validator(mode="after")
    def _shaped(self) -> Self:
        i, j = np.meshgrid(*[np.linspace(-1.0, 1.0, self.grid)] * 2, indexing="ij")
        shapes = {"height": np.exp(-20.0 * (i**2 + j**2)), "target": np.exp(-40.0 * (np.hypot(i, j) - 0.5) ** 2)}
        for name, shape in shapes.items():
            if not getattr(self, name):
                object.__setattr__(self, name, shape.ravel().tolist())  # the model is frozen
            if len(getattr(self, name)) != self.grid**2:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} numbers for {self.grid} x {self.grid} points\n  do: give {self.grid**2}"
                )
        return self


class Wave(Job[WaveParams]):
    """Gradients of the mean squared difference with respect to the initial shape and to the speed of waves."""

    gradients = ("height", "speed")

    def build(self) -> None:
        """Fields over (slot, point, point), and the kernels of a step."""
        n, end, real = self.params.grid, self.window, qd.f32 if self.precision == "f32" else qd.f64
        height, target, speed, damping = (self.input(name) for name in ("height", "target", "speed", "damping"))
        loss = self.objective()
        self.u, self.v = (qd.field(dtype=real, shape=(end + 1, n, n), needs_grad=True) for _ in range(2))
        u, v = self.u, self.v

        @qd.kernel
        def begin():
            for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
                u[0, i, j] = height[i * n + j]

        @qd.kernel
        def move(k: qd.i32):
            for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
                bend = u[k, i - 1, j] + u[k, i + 1, j] + u[k, i, j - 1] + u[k, i, j + 1] - 4.0 * u[k, i, j]
                w = (1.0 - damping[None]) * v[k, i, j] + speed[None] ** 2 * bend
                v[k + 1, i, j] = w
                u[k + 1, i, j] = u[k, i, j] + w

        @qd.kernel
        def compare():
            for i, j in qd.ndrange(n, n):
                loss[None] += (u[end, i, j] - target[i * n + j]) ** 2 / (n * n)

        self.begin, self.move, self.compare = begin, move, compare

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.u, self.v]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.move(k)

    def simulate(self) -> None:
        """All steps, and the difference at the end."""
        self.begin()
        self.time_loop(self.step)
        self.compare()


class WavePicture(Wave):
    """The same, with a short video of the membrane."""

    def save(self) -> None:
        """Write ``wave.gif``, and ``wave.png`` of the start and the end; with a memory budget, of the last window."""
        from matplotlib.image import imsave  # optional: the extra `pictures`
        from PIL import Image  # comes with matplotlib

        u = self.u.to_numpy()
        imsave(self.artifacts / "wave.png", np.hstack([u[0].T, u[-1].T]), vmin=-1.0, vmax=1.0, origin="lower")
        shades = np.clip(127.5 * (u + 1.0), 0, 255).astype(np.uint8)
        first, *rest = (Image.fromarray(shade).resize((256, 256)) for shade in shades)
        first.save(self.artifacts / "wave.gif", save_all=True, append_images=rest, duration=40, loop=0)
