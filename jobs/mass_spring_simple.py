"""A triangle of springs: at which rest lengths does it span a given area after a second?

Three masses, three springs, no gravity (Hu et al. 2020, DiffTaichi, ``mass_spring_simple``). Masses that move beyond x = 0.4 m meet a wall
with friction. The loss is the squared difference between the area of the triangle at the end and 0.1 m^2. It is the smallest complete
job: its loss curve under gradient descent is known to six digits (``jobs/references/mass_spring_simple.json``).
"""

from __future__ import annotations

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams

CORNERS = ((0.3, 0.5), (0.3, 0.4), (0.4, 0.4))
"""Where the masses start, m."""


class MassSpringSimpleParams(JobParams):
    """Masses of 1 kg; lengths in m."""

    steps: int = Field(1024, ge=2, description="states, the first one included: steps - 1 time steps")
    dt: float = Field(0.001, gt=0, description="time step, s")
    stiffness: float = Field(10.0, gt=0, description="of each spring, N/m")
    damping: float = Field(20.0, ge=0, description="drag on the masses, 1/s")
    friction: float = Field(0.01, ge=0, description="coefficient of friction at the wall")
    area: float = Field(0.1, gt=0, description="wanted area, m^2")
    lengths: list[float] = Field(
        [0.1, 0.1, 0.1 * 2**0.5], min_length=3, max_length=3, description="rest lengths of the springs, m"
    )


class MassSpringSimple(Job[MassSpringSimpleParams]):
    """Gradients of the squared error of the area with respect to the rest lengths."""

    gradients = ("lengths", "stiffness")

    def build(self) -> None:
        """Fields over (state, mass), and the kernels of a step."""
        steps, real = self.params.steps, qd.f32 if self.precision == "f32" else qd.f64
        names = ("dt", "stiffness", "damping", "friction", "area", "lengths")
        dt, stiffness, damping, friction, area, lengths = (self.input(name) for name in names)
        loss, end_area = self.objective(), self.output("area_m2")
        x, v, force = (qd.Vector.field(2, dtype=real, shape=(steps, 3), needs_grad=True) for _ in range(3))

        @qd.kernel
        def begin():
            for i in qd.static(range(3)):
                x[0, i] = qd.Vector([CORNERS[i][0], CORNERS[i][1]])

        @qd.kernel
        def pull(t: qd.i32):
            for s in range(3):
                a, b = s, (s + 1) % 3
                span = x[t, a] - x[t, b]
                length = span.norm() + 1e-4
                f = (length - lengths[s]) * stiffness[None] * span / length
                force[t + 1, a] -= f
                force[t + 1, b] += f

        @qd.kernel
        def advance(t: qd.i32):
            for i in range(3):
                speed = qd.exp(-dt[None] * damping[None]) * v[t, i] + dt[None] * force[t + 1, i]
                x[t + 1, i] = x[t, i] + dt[None] * speed
                if x[t, i][0] + dt[None] * speed[0] > 0.4 and speed[0] > 0.0:
                    if speed[1] > 0.0:
                        speed[1] -= qd.min(speed[1], friction[None] * speed[0])
                    if speed[1] < 0.0:
                        speed[1] += qd.min(-speed[1], friction[None] * speed[0])
                    speed[0] = 0.0
                v[t + 1, i] = speed

        @qd.kernel
        def measure():
            for _ in range(1):
                p, q = x[steps - 1, 0] - x[steps - 1, 1], x[steps - 1, 0] - x[steps - 1, 2]
                spanned = qd.abs(0.5 * (p[0] * q[1] - p[1] * q[0]))
                loss[None] += (spanned - area[None]) ** 2
                end_area[None] = spanned

        self.x = x
        self.begin, self.pull, self.advance, self.measure = begin, pull, advance, measure

    def simulate(self) -> None:
        """All steps, and the area at the end."""
        self.begin()
        for t in range(self.params.steps - 1):
            self.checkpoint()
            self.pull(t)
            self.advance(t)
        self.measure()


class MassSpringSimplePicture(MassSpringSimple):
    """The same, with a picture of the paths of the masses."""

    def save(self) -> None:
        """Write ``paths.png``."""
        x = self.x.to_numpy()
        with self.picture("paths.png", xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            axes.plot(x[:, :, 0], x[:, :, 1])
            for at, style in ((0, "k:"), (-1, "k-")):
                axes.plot(*x[at, [0, 1, 2, 0]].T, style)
