"""Balls push an elastic block to a target: how must they move?

The case of Genesis' ``test_differentiable_push``, told again: MLS-MPM (``mpm.py``) in three dimensions with a neo-Hookean material, on a
grid of which the block fills a small part. Only cells with mass have a velocity; in these a loop over the balls takes what goes into them.
Each ball has a constant velocity in each of ``phases`` equal parts of the time. The loss is the squared distance of the block's centre from
the target.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.mpm import Mpm, MpmParams


class Mpm3dPushParams(MpmParams):
    """The box has a side of 1 m; each particle has a mass and a volume of 1. The block starts on the floor."""

    side: int = Field(10, ge=2, description="particles on a side of the block, half a cell apart")
    grid: int = Field(24, ge=12, description="cells on a side of the box")
    steps: int = Field(60, ge=1, description="time steps")
    stiffness: float = Field(50.0, gt=0, description="both Lame parameters")
    gravity: float = Field(-9.8, description="vertical acceleration, m/s^2")
    velocity: list[float] = Field([0.0] * 3, min_length=3, max_length=3, description="initial velocity of the block, m/s")
    target: list[float] = Field([0.58, 0.24, 0.52], min_length=3, max_length=3, description="where the centre should end, m")
    radius: float = Field(0.06, gt=0, description="of the balls, m")
    grip: float = Field(1.0, ge=0, le=1, description="share of the velocity into a ball that its surface takes")
    places: list[float] = Field([0.32, 0.2, 0.44, 0.32, 0.2, 0.56], description="where the balls start, x, y, z of each, m")
    phases: int = Field(4, ge=1, description="parts of the time")
    push: list[float] = Field([], description="velocity of each ball in each phase, m/s; empty: 1 along x")

    @model_validator(mode="after")
    def _pushed(self) -> Self:
        count = self.phases * len(self.places)
        if not self.places or len(self.places) % 3:
            raise ValueError(f"{len(self.places)} numbers are no places of balls: each has x, y and z")
        if not self.push:
            object.__setattr__(self, "push", [1.0, 0.0, 0.0] * (count // 3))  # the model is frozen
        if len(self.push) != count:
            raise ValueError(f"push has {len(self.push)} numbers, the balls have {count} in all phases")
        return self

    def block(self) -> np.ndarray:
        """The places of the particles before the throw, (particles, 3), m."""
        at = np.indices([self.side] * 3).reshape(3, -1).T + 0.5
        return np.array([0.5, 3.0 / self.grid, 0.5]) + (at - [0.5 * self.side, 0.0, 0.5 * self.side]) / (2.0 * self.grid)


class Mpm3dPush(Mpm[Mpm3dPushParams]):
    """Gradients of the squared miss with respect to the velocities of the balls, and to the block's velocity and stiffness."""

    gradients = ("push", "velocity", "stiffness")
    empty = 1e-10

    def build(self) -> None:
        """The fields of the balls over (slot, ball), and what the method needs."""
        real, balls = qd.f32 if self.precision == "f32" else qd.f64, len(self.params.places) // 3
        self.ball = qd.Vector.field(3, dtype=real, shape=(self.window + 1, balls), needs_grad=True)
        self.speed = qd.Vector.field(3, dtype=real, shape=(self.window, balls), needs_grad=True)
        super().build()
        self._ball_kernels()

    def _ball_kernels(self) -> None:
        ball, speed, push, places, step_s = self.ball, self.speed, self.input("push"), self.input("places"), self.dt
        balls = ball.shape[1]

        @qd.kernel
        def place():
            for b in range(balls):
                ball[0, b] = qd.Vector([places[3 * b], places[3 * b + 1], places[3 * b + 2]])

        @qd.kernel
        def roll(k: qd.i32, phase: qd.i32):
            for b in range(balls):
                m = 3 * (phase * balls + b)
                speed[k, b] = qd.Vector([push[m], push[m + 1], push[m + 2]])
                ball[k + 1, b] = ball[k, b] + step_s[None] * speed[k, b]

        self.place, self.roll = place, roll

    def stress(self) -> Any:
        """The ``qd.func`` of the neo-Hookean material, both of whose Lame parameters are the stiffness."""
        stiffness, real = self.input("stiffness"), self.real

        @qd.func
        def neo_hookean(F: qd.template):
            unit = qd.Matrix.identity(real, 3)
            return stiffness[None] * (F @ F.transpose() - unit + qd.log(F.determinant()) * unit)

        return neo_hookean

    def contact(self) -> Any:
        """The ``qd.func`` of the balls: their surface takes the velocity into them."""
        ball, speed, radius, grip, n = self.ball, self.speed, self.input("radius"), self.input("grip"), self.params.grid
        balls = ball.shape[1]

        @qd.func
        def pushed(k: qd.i32, cell: qd.template, u: qd.template):
            new = u
            for b in range(balls):
                apart = cell / n - ball[k, b]
                distance = apart.norm(1e-12)
                into = (new - speed[k, b]).dot(apart) / distance
                near = qd.exp(2.0 * n * qd.min(0.0, radius[None] - distance))  # 1 inside, soft over a cell
                new -= grip[None] * near * qd.min(into, 0.0) * apart / distance
            return new

        return pushed

    def state(self) -> list[object]:
        """See ``Mpm.state``; and the balls."""
        return [*super().state(), self.ball]

    def scratch(self) -> list[object]:
        """See ``Mpm.scratch``; and the velocity of each ball."""
        return [*super().scratch(), self.speed]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.roll(k, t * self.params.phases // self.params.steps)
        super().step(t, k)

    def simulate(self) -> None:
        """All steps and the loss."""
        self.place()
        super().simulate()


class Mpm3dPushPicture(Mpm3dPush):
    """The same, with a picture of the block and the balls at the start and at the end."""

    def save(self) -> None:
        """Write ``push.png``."""
        with self.picture("push.png", xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            for at, colour in ((0, "0.7"), (self.window, "C0")):
                for field, mark in ((self.x, ","), (self.ball, "o")):
                    axes.plot(*field.to_numpy()[at, :, :2].T, mark, color=colour)
            axes.plot(*self.params.target[:2], "k+", markersize=12)
