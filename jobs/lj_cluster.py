"""The energy of a cluster of atoms that attract and repel each other, from many starts: which arrangement has the least?

Each pair of atoms at a distance r has the Lennard-Jones energy 4 (r^-12 - r^-6), in units of its depth and of the distance at which it is
zero. A descent ends in a minimum near its start, and the number of minima grows exponentially with the number of atoms: 13 atoms have more
than a thousand. The least energies are known (Wales and Doye 1997; ``KNOWN``).
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams

KNOWN = {2: -1.0, 3: -3.0, 4: -6.0, 7: -16.505384, 13: -44.326801, 19: -72.659782, 38: -173.928427}
"""Least known energy by number of atoms: Hoare and Pal 1971; Wales and Doye, J. Phys. Chem. A 101, 5111 (1997)."""
CLOSE = 0.8
"""No two atoms start nearer to each other: the energy of a pair at 0.5 is 16,128."""
DENSITY = 0.6
"""Atoms for each unit of volume of the ball in which they start."""


class LjClusterParams(JobParams):
    """Lengths are in units of the distance at which a pair has no energy, energies in those of the depth of a pair."""

    atoms: int = Field(13, ge=2, le=256, description="number of atoms")
    start: float = Field(
        0.0, ge=0, description="seed of the first positions, a whole number; not used where positions are given"
    )
    positions: list[float] = Field([], description="x, y, z of each atom; empty: drawn from `start`")

    @model_validator(mode="after")
    def _placed(self) -> Self:
        if not self.start.is_integer():
            raise ValueError(f"the start {self.start} is a seed: a whole number")
        if not self.positions:
            object.__setattr__(self, "positions", drawn(self.atoms, int(self.start)))  # the model is frozen
        if len(self.positions) != 3 * self.atoms:
            raise ValueError(f"{len(self.positions)} numbers are no positions of {self.atoms} atoms: each has x, y and z")
        return self


def drawn(atoms: int, start: int) -> list[float]:
    """Random positions in a ball, each at least ``CLOSE`` from the others: x, y, z of each atom.

    The ball grows by a percent for each atom that was drawn in vain a hundred times.
    """
    random, radius = np.random.default_rng(start), (3.0 * atoms / (4.0 * np.pi * DENSITY)) ** (1.0 / 3.0)
    placed, tries = np.zeros((0, 3)), 0
    while len(placed) < atoms:
        direction = random.normal(size=3)
        one = radius * random.random() ** (1.0 / 3.0) * direction / np.linalg.norm(direction)
        tries += 1
        radius *= 1.01 if tries % 100 == 0 else 1.0
        if (np.linalg.norm(placed - one, axis=1) >= CLOSE).all():
            placed = np.vstack([placed, one])
    return placed.ravel().tolist()


class LjCluster(Job[LjClusterParams]):
    """Gradients of the energy with respect to the positions of all atoms; ``out.size`` is their largest distance from the centre."""

    gradients = ("positions",)

    def build(self) -> None:
        """The kernels of the energy and of the size."""
        atoms = self.params.atoms
        x, energy, size = self.input("positions"), self.objective(), self.output("size")
        self.input("start")  # no kernel reads it: trials that differ in it run in one batch

        @qd.kernel
        def add_pairs():
            for i in range(atoms):
                own = 0.0
                for j in range(i):
                    apart = qd.Vector([x[3 * i] - x[3 * j], x[3 * i + 1] - x[3 * j + 1], x[3 * i + 2] - x[3 * j + 2]])
                    inverse = 1.0 / apart.norm_sqr()
                    sixth = inverse * inverse * inverse
                    own += 4.0 * (sixth * sixth - sixth)
                energy[None] += own

        @qd.kernel
        def measure():
            for i in range(atoms):
                centre = qd.Vector([0.0, 0.0, 0.0])
                for j in range(atoms):
                    centre += qd.Vector([x[3 * j], x[3 * j + 1], x[3 * j + 2]]) / atoms
                qd.atomic_max(size[None], (qd.Vector([x[3 * i], x[3 * i + 1], x[3 * i + 2]]) - centre).norm())

        self.positions, self.add_pairs, self.measure = x, add_pairs, measure

    def simulate(self) -> None:
        """The energy, and the size."""
        self.add_pairs()
        self.measure()


class LjClusterPicture(LjCluster):
    """The same, with a picture of the atoms, and of the pairs that are not much farther apart than those of least energy."""

    def save(self) -> None:
        """Write ``cluster.png``."""
        x = self.positions.to_numpy().reshape(-1, 3)
        near = np.linalg.norm(x[:, None] - x, axis=2) < 1.25 * 2.0 ** (1.0 / 6.0)
        with self.picture("cluster.png", projection="3d") as axes:
            axes.set_axis_off()
            axes.scatter(*x.T, s=300, depthshade=True)
            for i, j in np.argwhere(np.triu(near, 1)):
                axes.plot(*x[[i, j]].T, color="0.5", linewidth=1)
