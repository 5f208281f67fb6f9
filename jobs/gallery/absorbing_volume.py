"""Which fog makes these pictures? Inverse rendering of a volume that absorbs and emits light.

A cube of 2 m around the origin holds extinctions on a grid, interpolated linearly. Views from all sides, with parallel rays, march from
front to back: a step of length ds has the transmittance exp(-extinction ds) (Beer and Lambert) and emits what it absorbs. The loss is the
mean squared difference from pictures of a ball of constant extinction, which are known in closed form.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class AbsorbingVolumeParams(JobParams):
    """Lengths are in m."""

    cells: int = Field(12, ge=2, description="on a side of the cube")
    pixels: int = Field(16, ge=1, description="on a side of a picture")
    views: int = Field(5, ge=1, description="around the vertical axis, over half a turn")
    steps: int = Field(32, ge=1, description="of a ray between its ends in the cube")
    radius: float = Field(0.6, gt=0, le=1, description="of the ball in the pictures, m")
    ball: float = Field(2.0, ge=0, description="extinction of the ball in the pictures, 1/m")
    extinction: list[float] = Field([], description="of each cell, cells^3 numbers, 1/m; empty: 0.1 everywhere")

    @model_validator(mode="after")
    def _shaped(self) -> Self:
        if not self.extinction:
            object.__setattr__(self, "extinction", [0.1] * self.cells**3)  # the model is frozen
        if len(self.extinction) != self.cells**3:
            raise ValueError(
                f"extinction has {len(self.extinction)} numbers for {self.cells}^3 cells\n  do: give {self.cells**3}"
            )
        return self


class AbsorbingVolume(Job[AbsorbingVolumeParams]):
    """Gradients of the mean squared difference with respect to the extinction of each cell."""

    gradients = ("extinction",)

    def build(self) -> None:
        """Pictures over (view, pixel across, pixel up), and the kernel of all rays."""
        p, real = self.params, qd.f64 if self.precision == "f64" else qd.f32
        n, pixels, views, steps = p.cells, p.pixels, p.views, p.steps
        extinction, radius, ball = (self.input(name) for name in ("extinction", "radius", "ball"))
        loss = self.objective()
        self.picture = qd.field(dtype=real, shape=(views, pixels, pixels), needs_grad=True)
        self.goal = qd.field(dtype=real, shape=(pixels, pixels))
        picture, wanted = self.picture, self.goal

        @qd.func
        def sample(x: qd.template, y: qd.template, z: qd.template):
            at = qd.Vector([qd.min(qd.max(0.5 * n * (c + 1.0) - 0.5, 0.0), n - 1.0) for c in (x, y, z)])
            low = qd.Vector([qd.min(qd.cast(at[d], qd.i32), n - 2) for d in range(3)])
            total = 0.0
            for a, b, c in qd.static(qd.ndrange(2, 2, 2)):
                weight = 1.0
                for d in qd.static(range(3)):
                    share = at[d] - low[d]
                    weight *= share if qd.static((a, b, c)[d] == 1) else 1.0 - share
                total += weight * extinction[((low[0] + a) * n + low[1] + b) * n + low[2] + c]
            return total

        @qd.kernel
        def render():
            for v, i, j in qd.ndrange(views, pixels, pixels):
                angle = qd.math.pi * (v + 0.5) / views
                dx, dz = qd.cos(angle), qd.sin(angle)
                across, up = 2.0 * (i + 0.5) / pixels - 1.0, 2.0 * (j + 0.5) / pixels - 1.0
                x, z = -dz * across, dx * across
                first = qd.max((-qd.abs(dx) - x * dx) / dx**2, (-qd.abs(dz) - z * dz) / dz**2)
                last = qd.min((qd.abs(dx) - x * dx) / dx**2, (qd.abs(dz) - z * dz) / dz**2)
                ds = qd.max(last - first, 0.0) / steps
                passed, light = 1.0, 0.0
                for k in range(steps):
                    s = first + (k + 0.5) * ds
                    through = qd.exp(-ds * sample(x + s * dx, up, z + s * dz))
                    light += passed * (1.0 - through)
                    passed *= through
                picture[v, i, j] = light

        @qd.kernel
        def compare():
            for i, j in wanted:
                across, up = 2.0 * (i + 0.5) / pixels - 1.0, 2.0 * (j + 0.5) / pixels - 1.0
                chord = 2.0 * qd.sqrt(qd.max(radius[None] ** 2 - across**2 - up**2, 0.0))
                wanted[i, j] = 1.0 - qd.exp(-ball[None] * chord)
            for v, i, j in picture:
                loss[None] += (picture[v, i, j] - wanted[i, j]) ** 2 / (views * pixels * pixels)

        self.render, self.compare = render, compare

    def simulate(self) -> None:
        """All rays, and the difference."""
        self.render()
        self.compare()


class AbsorbingVolumePicture(AbsorbingVolume):
    """The same, with a picture of each view, and the wanted one at the right."""

    def save(self) -> None:
        """Write ``views.png``."""
        from matplotlib.image import imsave  # optional: the extra `pictures`
        from numpy import hstack

        images = [image.T for image in (*self.picture.to_numpy(), self.goal.to_numpy())]
        imsave(self.artifacts / "views.png", hstack(images), vmin=0.0, vmax=1.0, cmap="gray", origin="lower")
