"""An elastic block thrown at a target: how fast must it start?

The benchmark of DiffTaichi (Hu et al. 2020, ``diffmpm_benchmark``): MLS-MPM (``mpm.py``) with a corotated elastic material, whose polar
decomposition is differentiated. The loss is half the squared distance of the mean of the particles from the target.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.mpm import Mpm, MpmParams


class Diffmpm2dParams(MpmParams):
    """The box has a side of 1 m; each particle has a mass and a volume of 1, as in the original."""

    side: int = Field(80, ge=2, description="particles on a side of the block, half a cell apart")
    grid: int = Field(120, ge=16, description="cells on a side of the box")
    steps: int = Field(1023, ge=1, description="time steps")
    dt: float = Field(3e-4, gt=0, description="time step, s")
    stiffness: float = Field(100.0, gt=0, description="both Lame parameters")
    gravity: float = Field(-9.8, description="vertical acceleration, m/s^2")
    velocity: list[float] = Field([0.0, 0.0], min_length=2, max_length=2, description="initial velocity, m/s")
    target: list[float] = Field([0.3, 0.6], min_length=2, max_length=2, description="where the mean should end, m")

    def block(self) -> np.ndarray:
        """The places of the particles before the throw, (particles, 2), m."""
        q = np.arange(self.side * self.side)
        return np.stack([q // self.side * 0.5 + 10.0, q % self.side * 0.5 + 25.0], axis=1) / self.grid


class Diffmpm2d(Mpm[Diffmpm2dParams]):
    """Gradients of the miss with respect to the initial velocity and the stiffness; in f32, as the original."""

    gradients = ("velocity", "stiffness")
    precision = "f32"
    scale = 0.5
    least_mass = 1e-10

    def stress(self) -> Any:
        """The ``qd.func`` of the corotated material."""
        stiffness, real = self.input("stiffness"), self.real

        @qd.func
        def corotated(F: qd.template):
            J = F.determinant()
            r, _ = qd.polar_decompose(F)
            elastic = 2.0 * stiffness[None] * (F - r) @ F.transpose()
            return elastic + stiffness[None] * (J - 1.0) * J * qd.Matrix.identity(real, 2)

        return corotated


class Diffmpm2dPicture(Diffmpm2d):
    """The same, with a picture of the block at four times, and of its target."""

    def save(self) -> None:
        """Write ``block.png``."""
        x = self.x.to_numpy()
        with self.picture("block.png", xlim=(0, 1), ylim=(0, 1), xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            for at in np.linspace(0, self.window, 4).astype(int):
                axes.plot(*x[at].T, ".", markersize=1)
            axes.plot(*self.params.target, "k+", markersize=12)
