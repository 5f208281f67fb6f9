"""A ball bounces once on an elastic floor: how does its height at the end depend on its start, its speed and a first push?

Time steps do not fall on the moment of impact. Where the position is corrected by the time of impact within its step, the height at the
end is 2 r - (y + T v) + .., and its derivatives are -1, -T and -T dt. Without that correction the height has the right value up to a
step, and derivatives of the wrong sign (Zhong, Han and Brikis 2022, arXiv 2207.05060, task 1).
"""

from __future__ import annotations

from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class BounceOnceParams(JobParams):
    """A ball of 1 kg without gravity; the floor is y = 0."""

    steps: int = Field(480, ge=1, description="time steps")
    duration: float = Field(1.0, gt=0, description="simulated time, s")
    radius: float = Field(0.1, gt=0, description="of the ball, m")
    elasticity: float = Field(1.0, ge=0, le=1, description="of the impact: 1 loses no energy")
    time_of_impact: bool = Field(True, description="correct the position by the time of impact within its step")
    position: list[float] = Field([-1.0, 1.0], min_length=2, max_length=2, description="at the start, m")
    velocity: list[float] = Field([2.0, -2.0], min_length=2, max_length=2, description="at the start, m/s")
    push: list[float] = Field([0.0, 0.0], min_length=2, max_length=2, description="acceleration in the first step, m/s^2")


class BounceOnce(Job[BounceOnceParams]):
    """The loss is the height at the end, in m."""

    gradients = ("position", "velocity", "push")

    def build(self) -> None:
        """One kernel for all steps, and an output with the path."""
        names = ("position", "velocity", "push", "radius", "elasticity", "duration")
        position, velocity, push, radius, elasticity, duration = (self.input(name) for name in names)
        height, steps, corrected = self.objective(), self.params.steps, self.params.time_of_impact
        path = self.output("path", (steps + 1, 2))

        @qd.kernel
        def fly():
            for _ in range(1):
                dt = duration[None] / steps
                x, y, u, v = position[0], position[1], velocity[0], velocity[1]
                path[0, 0] = x
                path[0, 1] = y
                for t in range(steps):
                    impulse, shift = 0.0, 0.0
                    depth = radius[None] - (y + dt * v)
                    if depth > 0.0 and v < 0.0:
                        impulse = -(1.0 + elasticity[None]) * v
                        if qd.static(corrected):
                            shift = qd.min(depth / qd.max(1e-3, -v) - dt, 0.0) * impulse
                    if t == 0:
                        u += dt * push[0]
                        v += dt * push[1]
                    v += impulse
                    x += dt * u
                    y += dt * v + shift
                    path[t + 1, 0] = x
                    path[t + 1, 1] = y
                height[None] += y

        self.path, self.fly = path, fly

    def simulate(self) -> None:
        """The whole flight."""
        self.fly()


class BounceOncePicture(BounceOnce):
    """The same, with a picture of the path."""

    def save(self) -> None:
        """Write ``path.png``."""
        path = self.path.to_numpy()
        with self.picture("path.png", size=(6, 3), xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            axes.plot(path[:, 0], path[:, 1])
            axes.axhline(0.0, color="black")
