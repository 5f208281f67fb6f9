"""A cloth thrown into the wind: how fast must it start so that its centre meets a target?

Springs hold a square of masses together: along the threads, across them against shear, over two of them against bending. The air pushes
each triangle along its normal, by area and velocity. The question is that of Newton's ``example_diffsim_cloth``, whose cloth consists of
finite elements. The loss is the squared distance of the centre from the target. The arrays hold a window of time steps.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class ClothParams(JobParams):
    """The cloth is a square with a side and a mass of 1; it starts around the origin, tilted by 45 degrees."""

    side: int = Field(10, ge=3, description="masses on a side")
    steps: int = Field(400, ge=1, description="time steps")
    dt: float = Field(0.002, gt=0, description="time step, s")
    stiffness: float = Field(200.0, gt=0, description="of every spring, N/m")
    damping: float = Field(0.05, ge=0, description="of every spring, N s/m")
    drag: float = Field(2.0, ge=0, description="force of the air for each area and velocity, N s/m^3")
    wind: list[float] = Field([1.0, 0.0, 0.5], min_length=3, max_length=3, description="velocity of the air, m/s")
    gravity: float = Field(9.81, description="downward acceleration, m/s^2")
    velocity: list[float] = Field([2.0, 3.0, 0.0], min_length=3, max_length=3, description="initial velocity, m/s")
    target: list[float] = Field([2.0, 0.5, 0.0], min_length=3, max_length=3, description="where the centre should end, m")


class Cloth(Job[ClothParams]):
    """Gradients of the squared miss with respect to the initial velocity, the wind and the stiffness."""

    gradients = ("velocity", "wind", "stiffness")

    def build(self) -> None:
        """Fields over (slot, mass), the table of springs and triangles, and the kernels of a step."""
        n, w, real = self.params.side, self.window, qd.f32 if self.precision == "f32" else qd.f64
        self.masses = n * n
        self.x, self.v = (qd.Vector.field(3, dtype=real, shape=(w + 1, n * n), needs_grad=True) for _ in range(2))
        self.force = qd.Vector.field(3, dtype=real, shape=(w, n * n), needs_grad=True)
        self.points, self.springs, self.triangles = (self.constant(table, vectors=True) for table in sheet(n))
        self._force_kernels()
        self._motion_kernels()

    def _force_kernels(self) -> None:
        x, v, force, points, springs, triangles = self.x, self.v, self.force, self.points, self.springs, self.triangles
        stiffness, damping, drag, wind = (self.input(name) for name in ("stiffness", "damping", "drag", "wind"))

        @qd.kernel
        def pull(k: qd.i32):
            for s in range(springs.shape[0]):
                a, b = springs[s][0], springs[s][1]
                apart, length = (points[a] - points[b]).norm(), (x[k, a] - x[k, b]).norm()
                along = (x[k, a] - x[k, b]) / length
                f = (stiffness[None] * (length - apart) + damping[None] * along.dot(v[k, a] - v[k, b])) * along
                force[k, a] -= f
                force[k, b] += f

        @qd.kernel
        def blow(k: qd.i32):
            for s in range(triangles.shape[0]):
                a, b, c = triangles[s][0], triangles[s][1], triangles[s][2]
                normal = (x[k, b] - x[k, a]).cross(x[k, c] - x[k, a])  # of the length of two areas
                air = (v[k, a] + v[k, b] + v[k, c]) / 3.0 - qd.Vector([wind[0], wind[1], wind[2]])
                f = drag[None] * 0.5 * normal.dot(air) / normal.norm() * normal
                for corner in qd.static(range(3)):
                    force[k, triangles[s][corner]] -= f / 3.0

        self.pull, self.blow = pull, blow

    def _motion_kernels(self) -> None:
        x, v, force, points, masses, end = self.x, self.v, self.force, self.points, self.masses, self.window
        start, target, step_s, gravity = (self.input(name) for name in ("velocity", "target", "dt", "gravity"))
        loss, centre = self.objective(), self.output("centre", 3)

        @qd.kernel
        def throw():
            for i in range(masses):
                x[0, i] = points[i]
                v[0, i] = qd.Vector([start[0], start[1], start[2]])

        @qd.kernel
        def advance(k: qd.i32):
            for i in range(masses):
                v[k + 1, i] = v[k, i] + step_s[None] * (masses * force[k, i] - qd.Vector([0.0, gravity[None], 0.0]))
                x[k + 1, i] = x[k, i] + step_s[None] * v[k + 1, i]

        @qd.kernel
        def miss():
            for _ in range(1):
                middle = qd.Vector([0.0, 0.0, 0.0])
                for i in range(masses):
                    middle += x[end, i] / masses
                for d in qd.static(range(3)):
                    centre[d] = middle[d]
                    loss[None] += (middle[d] - target[d]) ** 2

        self.throw, self.advance, self.miss = throw, advance, miss

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.x, self.v]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.force]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        del t
        self.pull(k)
        self.blow(k)
        self.advance(k)

    def simulate(self) -> None:
        """The whole flight, and the loss."""
        self.throw()
        self.time_loop(self.step)
        self.miss()


def sheet(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cloth at rest: points (n^2, 3), m; the ends of springs (.., 2), and the corners of triangles (.., 3), as numbers of points."""
    i, j = np.divmod(np.arange(n * n), n)
    across, along = i / (n - 1) - 0.5, (j / (n - 1) - 0.5) * np.sqrt(0.5)
    ways = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0))
    pairs = [(a, b, a + p, b + q) for p, q in ways for a in range(n - p) for b in range(n) if 0 <= b + q < n]
    springs = np.array([(a * n + b, c * n + d) for a, b, c, d in pairs], dtype=np.int32)
    corner = np.array([a * n + b for a in range(n - 1) for b in range(n - 1)], dtype=np.int32)[:, None]
    triangles = np.concatenate([np.add(corner, ends) for ends in ((0, 1, n), (n + 1, n, 1))]).astype(np.int32)
    return np.stack([across, along, along], axis=1), springs, triangles


class ClothPicture(Cloth):
    """The same, with a picture of the cloth at four times, and of its target."""

    def save(self) -> None:
        """Write ``cloth.png``."""
        x, n = self.x.to_numpy().astype(float), self.params.side
        with self.picture("cloth.png", size=(5, 4), projection="3d", xlabel="x, m", ylabel="z, m", zlabel="y, m") as axes:
            for at in np.linspace(0, self.window, 4).astype(int):
                axes.plot_wireframe(*(x[at].reshape(n, n, 3)[..., d] for d in (0, 2, 1)), linewidth=0.5)
            axes.plot(*([self.params.target[d]] for d in (0, 2, 1)), "k+", markersize=12)
