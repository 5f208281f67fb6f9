"""Where should a beam have material? The compliance of the half MBB beam, with respect to the density of each element.

Square elements with stiffness density^power (Andreassen et al. 2011, doi 10.1007/s00158-010-0594-7). A kernel factorises the stiffness
matrix K in its band. The compliance is taken as 2 f u - u K u, which is stationary in u: its gradient is exact with u kept constant. The
loss adds ``volume_weight`` times the squared miss of the volume.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams

VOID = 1e-9  # stiffness of an element of density 0


class TopologyMbbParams(JobParams):
    """Elements of size 1 and Young's modulus 1; the load of 1 is at the upper left, the support at the lower right."""

    columns: int = Field(60, ge=1, description="elements along the beam")
    rows: int = Field(20, ge=1, description="elements across it")
    poisson: float = Field(0.3, ge=0, lt=0.5, description="Poisson's ratio")
    power: float = Field(
        3.0, ge=1, description="of the density in the stiffness: above 1, densities between 0 and 1 do not pay"
    )
    radius: float = Field(2.4, ge=0, description="of the density filter, elements; 1 or less: none")
    fraction: float = Field(0.5, gt=0, le=1, description="wanted mean density")
    volume_weight: float = Field(0.0, ge=0, description="of its squared miss in the loss")
    density: list[float] = Field([], description="of each element, column by column; empty: the fraction everywhere")

    @model_validator(mode="after")
    def _shaped(self) -> Self:
        count = self.columns * self.rows
        if not self.density:
            object.__setattr__(self, "density", [self.fraction] * count)  # the model is frozen
        if len(self.density) != count:
            raise ValueError(f"density has {len(self.density)} numbers for {count} elements\n  do: give {count}")
        return self


def element_stiffness(poisson: float) -> np.ndarray:
    """The stiffness matrix (8, 8) of a square element in plane stress, bilinear; nodes from the lower left against the clock."""
    matrix, corners = np.zeros((8, 8)), np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    law = np.array([[1, poisson, 0], [poisson, 1, 0], [0, 0, (1 - poisson) / 2]]) / (1 - poisson**2)
    for point in corners / np.sqrt(3):
        x, y = (corners * (1 + corners[:, ::-1] * point[::-1]) / 2).T  # slopes of the shape functions
        strain = np.stack([np.outer(x, [1, 0]), np.outer(y, [0, 1]), np.stack([y, x], axis=1)]).reshape(3, 8)
        matrix += strain.T @ law @ strain / 4
    return matrix


class TopologyMbb(Job[TopologyMbbParams]):
    """Gradients of compliance and missed volume with respect to the densities; ``out.volume`` is the mean density."""

    gradients = ("density",)

    def build(self) -> None:
        """Fields of elements and unknowns, and the kernels."""
        p, count = self.params, 2 * (self.params.columns + 1) * (self.params.rows + 1)
        self.filtered = qd.field(dtype=qd.f64, shape=(p.columns, p.rows), needs_grad=True)
        self.band = qd.field(dtype=qd.f64, shape=(count, 2 * p.rows + 6))  # band[i, k] is the entry (i, i - k)
        self.u = qd.field(dtype=qd.f64, shape=count)  # displacements
        self.element = self.constant(element_stiffness(p.poisson))
        self._kernels()

    def _kernels(self) -> None:
        band, u, element, filtered = self.band, self.u, self.element, self.filtered
        columns, rows, radius, reach = self.params.columns, self.params.rows, self.params.radius, int(self.params.radius)
        density, power, fraction, weight = map(self.input, ("density", "power", "fraction", "volume_weight"))
        loss, volume, (count, width) = self.objective(), self.output("volume", needs_grad=True), band.shape

        @qd.func
        def unknown(i: int, j: int, a: int):  # of the element (i, j), j counts from the top
            return 2 * ((i + (a // 2 % 3 > 0)) * (rows + 1) + j + (a < 4)) + a % 2

        @qd.func
        def held(k: int):  # the left side slides, the lower right corner rests
            return (k < 2 * (rows + 1) and k % 2 == 0) or k == count - 1

        @qd.kernel
        def assemble():
            for i, j in qd.ndrange(columns, rows):
                for a, b in qd.ndrange(8, 8):
                    k, m = unknown(i, j, a), unknown(i, j, b)
                    if k >= m and not held(k) and not held(m):
                        band[k, k - m] += (VOID + filtered[i, j] ** power[None] * (1.0 - VOID)) * element[a, b]

        @qd.kernel
        def solve():
            for _ in range(1):
                u[1] = -1.0
                for i in range(count):  # the rows of L, L L^T = K, and of L y = f
                    if held(i):
                        band[i, 0] = 1.0
                    for j in range(qd.max(0, i - width + 1), i + 1):
                        total = band[i, i - j]
                        for k in range(qd.max(0, i - width + 1), j):
                            total -= band[i, i - k] * band[j, j - k]
                        band[i, i - j] = qd.sqrt(total) if i == j else total / band[j, 0]
                        u[i] = u[i] / band[i, 0] if i == j else u[i] - band[i, i - j] * u[j]
                for back in range(count):
                    i = count - 1 - back
                    u[i] /= band[i, 0]
                    for j in range(qd.max(0, i - width + 1), i):
                        u[j] -= band[i, i - j] * u[i]

        @qd.kernel
        def smooth():
            for i, j in qd.ndrange(columns, rows):
                total, weights = 0.0, 0.0
                for a, b in qd.static(qd.ndrange((-reach, reach + 1), (-reach, reach + 1))):
                    near = qd.static(max(radius - (a * a + b * b) ** 0.5, 1e-300 if a == b == 0 else 0.0))
                    if 0 <= i + a < columns and 0 <= j + b < rows:
                        total += near * density[(i + a) * rows + j + b]
                        weights += near
                filtered[i, j] = total / weights
                volume[None] += filtered[i, j] / (columns * rows)

        @qd.kernel
        def measure():
            qd.stop_grad(u)
            for i, j in qd.ndrange(columns, rows):
                energy = 0.0
                for a, b in qd.ndrange(8, 8):
                    energy += element[a, b] * u[unknown(i, j, a)] * u[unknown(i, j, b)]
                loss[None] -= (VOID + filtered[i, j] ** power[None] * (1.0 - VOID)) * energy
            for _ in range(1):
                loss[None] += -2.0 * u[1] + weight[None] * (volume[None] - fraction[None]) ** 2

        self.smooth, self.assemble, self.solve, self.measure = smooth, assemble, solve, measure

    def simulate(self) -> None:
        """Filter, solve, and measure."""
        for kernel in (self.smooth, self.assemble, self.solve, self.measure):
            kernel()


class TopologyMbbPicture(TopologyMbb):
    """The same, with a picture of the beam."""

    def save(self) -> None:
        """Write ``beam.png``."""
        from matplotlib.image import imsave  # optional: the extra `pictures`

        imsave(self.artifacts / "beam.png", self.filtered.to_numpy().T, cmap="gray_r", vmin=0.0, vmax=1.0)
