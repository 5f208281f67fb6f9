"""An elastic block thrown at a target: the material point method in two dimensions.

A square block of particles of a neo-Hookean material, near a corner, flies into wall and floor of a box of ``grid`` x ``grid`` cells.
The loss is the squared distance of its centre from the target at the end; gradients with respect to the initial velocity and to the
stiffness. The method is in ``mpm.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.mpm import Mpm, MpmParams

SIDE = 0.2
"""Size of the block in m."""


class Mpm88Params(MpmParams):
    """The box has a side of 1 m; the block's density is 1 kg/m^2."""

    particles: int = Field(256, ge=4, description="particles of the block")
    stiffness: float = Field(40.0, gt=0, description="Young's modulus, N/m")
    poisson: float = Field(0.2, ge=0, lt=0.5, description="Poisson's ratio")

    def block(self) -> np.ndarray:
        """The places of the particles before the throw, (particles, 2), m."""
        per_row = int(np.ceil(np.sqrt(self.particles)))
        k = np.arange(self.particles)
        return np.stack([0.6 + SIDE * (k % per_row) / per_row, 0.2 + SIDE * (k // per_row) / per_row], axis=1)

    def volume(self) -> float:
        """Mass and volume of a particle, kg and m^2."""
        return SIDE * SIDE / self.particles


class Mpm88(Mpm[Mpm88Params]):
    """Gradients of the squared miss with respect to the initial velocity and the stiffness."""

    gradients = ("velocity", "stiffness")

    def stress(self) -> Any:
        """The ``qd.func`` of the neo-Hookean material."""
        stiffness, poisson, real = self.input("stiffness"), self.input("poisson"), self.real

        @qd.func
        def neo_hookean(F: qd.template):
            E, nu = stiffness[None], poisson[None]
            mu, lame = E / (2.0 * (1.0 + nu)), E * nu / ((1.0 + nu) * (1.0 - 2.0 * nu))
            elastic = mu * (F @ F.transpose() - qd.Matrix.identity(real, 2))
            return elastic + lame * qd.log(F.determinant()) * qd.Matrix.identity(real, 2)

        return neo_hookean
