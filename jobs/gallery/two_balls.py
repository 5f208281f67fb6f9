"""A ball is pushed so that it hits another one, which should end at a goal: which pushes do that with the least effort?

The control is an acceleration of the first ball in each time step. The loss is the squared distance of the second ball from the goal at
the end, plus ``effort`` times the integral of the squared control. The optimum is known in closed form: 1.396542 (Zhong, Han and Brikis
2022, arXiv 2207.05060, task 3). Descents find it where positions are corrected by the time of impact, and stay at 2.0 where they are not.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class TwoBallsParams(JobParams):
    """Two balls of 1 kg on a plane without friction; they start at (-2, -2) and (-1, -1) at rest."""

    steps: int = Field(480, ge=1, description="time steps")
    duration: float = Field(1.0, gt=0, description="simulated time, s")
    radius: float = Field(0.2, gt=0, description="of both balls, m")
    elasticity: float = Field(1.0, ge=0, le=1, description="of the collision: 1 loses no energy")
    effort: float = Field(0.1, ge=0, description="weight of the squared control, s^3")
    goal: list[float] = Field([0.0, 0.0], min_length=2, max_length=2, description="of the second ball, m")
    time_of_impact: bool = Field(True, description="correct positions by the time of impact within its step")
    control: list[float] = Field([], description="x and y of the acceleration in each step, m/s^2; empty: 3 everywhere")

    @model_validator(mode="after")
    def _controlled(self) -> Self:
        if not self.control:
            object.__setattr__(self, "control", [3.0] * (2 * self.steps))  # the model is frozen
        if len(self.control) != 2 * self.steps:
            raise ValueError(f"{len(self.control)} numbers are no control of {self.steps} steps: each has x and y")
        return self


class TwoBalls(Job[TwoBallsParams]):
    """Gradients of the loss with respect to the control; ``out.miss`` is the distance from the goal, m."""

    gradients = ("control",)

    def build(self) -> None:
        """The kernels of the motion and of the effort."""
        names = ("control", "goal", "radius", "elasticity", "duration", "effort")
        control, goal, radius, elasticity, duration, effort = (self.input(name) for name in names)
        loss, miss, steps, corrected = self.objective(), self.output("miss"), self.params.steps, self.params.time_of_impact
        path = self.output("path", (steps + 1, 2, 2))

        @qd.kernel
        def play():
            for _ in range(1):
                dt = duration[None] / steps
                x, y = qd.Vector([-2.0, -2.0]), qd.Vector([-1.0, -1.0])
                v, w = qd.Vector([0.0, 0.0]), qd.Vector([0.0, 0.0])
                for t in range(steps):
                    for k in qd.static(range(2)):
                        path[t, 0, k] = x[k]
                        path[t, 1, k] = y[k]
                    impulse, shift = qd.Vector([0.0, 0.0]), qd.Vector([0.0, 0.0])
                    apart = x + dt * v - (y + dt * w)
                    distance = apart.norm()
                    if distance < 2.0 * radius[None]:
                        along = apart / distance
                        speed = along.dot(v - w)
                        if speed < 0.0:
                            impulse = -(1.0 + elasticity[None]) * 0.5 * speed * along
                            if qd.static(corrected):
                                since = (distance - 2.0 * radius[None]) / qd.min(-1e-3, speed)
                                shift = qd.min(since - dt, 0.0) * impulse
                    v += impulse + dt * qd.Vector([control[2 * t], control[2 * t + 1]])
                    w -= impulse
                    x += dt * v + shift
                    y += dt * w - shift
                for k in qd.static(range(2)):
                    path[steps, 0, k] = x[k]
                    path[steps, 1, k] = y[k]
                off = y - qd.Vector([goal[0], goal[1]])
                loss[None] += off.norm_sqr()
                miss[None] = qd.sqrt(off.norm_sqr())

        @qd.kernel
        def add_effort():
            for i in range(2 * steps):
                loss[None] += effort[None] * control[i] ** 2 * duration[None] / steps

        self.path, self.play, self.add_effort = path, play, add_effort

    def simulate(self) -> None:
        """The motion, and the effort."""
        self.play()
        self.add_effort()


class TwoBallsPicture(TwoBalls):
    """The same, with a picture of the paths."""

    def save(self) -> None:
        """Write ``paths.png``."""
        path = self.path.to_numpy()
        with self.picture("paths.png", xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            axes.plot(path[:, 0, 0], path[:, 0, 1], label="pushed")
            axes.plot(path[:, 1, 0], path[:, 1, 1], label="hit")
            axes.plot(*self.params.goal, "kx", label="goal")
            axes.legend()
