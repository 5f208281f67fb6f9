"""Which mass, length and damping has a pendulum whose swing was recorded, with noise?

A motor with a known torque drives the pendulum: m l^2 a'' = torque sin(rate t) - m g l sin a - damping a'. Without the torque only the
length and the ratio of damping and mass could be known. The loss is half the sum of the squared differences from the recorded angles, so
that Levenberg-Marquardt can fit them. Without noise the parameters are found exactly. With noise their spread over recordings is that of
the Cramer-Rao bound, noise^2 (J^T J)^-1 with the Jacobian J of the angles.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class SysidPendulumParams(JobParams):
    """Mass, length and damping are where a fit begins; the recording is one of a pendulum with those of ``truth``."""

    steps: int = Field(200, ge=1, description="time steps, each with a recorded angle")
    dt: float = Field(0.025, gt=0, description="time step, s")
    mass: float = Field(0.8, gt=0, description="kg")
    length: float = Field(1.2, gt=0, description="m")
    damping: float = Field(0.3, ge=0, description="N m s")
    torque: float = Field(3.0, description="amplitude of the motor, N m")
    rate: float = Field(2.0, description="frequency of the motor, rad/s")
    angle: float = Field(0.5, description="first angle, rad")
    truth: list[float] = Field(
        [1.0, 1.0, 0.2], min_length=3, max_length=3, description="mass, length, damping of the recording"
    )
    noise: float = Field(0.0, ge=0, description="standard deviation of each recorded angle, rad")
    draw: float = Field(0.0, ge=0, description="seed of the noise, a whole number")
    recorded: list[float] = Field([], description="the angle after each step, rad; empty: a recording of `truth` with `noise`")

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if not self.draw.is_integer():
            raise ValueError(f"the draw {self.draw} is a seed: a whole number")
        if not self.recorded:
            noise = self.noise * np.random.default_rng(int(self.draw)).normal(size=self.steps)
            object.__setattr__(self, "recorded", (swing(self, *self.truth) + noise).tolist())  # the model is frozen
        if len(self.recorded) != self.steps:
            raise ValueError(f"{len(self.recorded)} angles are no recording of {self.steps} steps")
        return self


def swing(p: SysidPendulumParams, mass: complex, length: complex, damping: complex) -> np.ndarray:
    """The angle after each step, rad, (steps,), by the classical Runge-Kutta method; complex parameters give complex angles."""
    return np.array(_swing(p.steps, p.dt, p.angle, p.torque, p.rate, mass, length, damping))


@lru_cache(maxsize=16)  # trials of a sweep often have one recording
def _swing(
    steps: int, h: float, angle: float, torque: float, rate: float, mass: complex, length: complex, damping: complex
) -> list[complex]:
    inertia = mass * length**2

    def slope(state: np.ndarray, t: float) -> np.ndarray:
        pull = torque * np.sin(rate * t) - mass * 9.81 * length * np.sin(state[0]) - damping * state[1]
        return np.array([state[1], pull / inertia])

    state, angles = np.array([angle, 0.0]), []
    for k in range(steps):
        a = slope(state, k * h)
        b = slope(state + 0.5 * h * a, (k + 0.5) * h)
        c = slope(state + 0.5 * h * b, (k + 0.5) * h)
        state = state + h / 6.0 * (a + 2.0 * b + 2.0 * c + slope(state + h * c, (k + 1) * h))
        angles.append(state[0])
    return angles


class SysidPendulum(Job[SysidPendulumParams]):
    """Gradients of the loss with respect to mass, length and damping; ``out.angles`` are the angles of the fit."""

    gradients = ("mass", "length", "damping")

    def build(self) -> None:
        """The kernel of the swing, which leaves the residuals."""
        names = ("mass", "length", "damping", "torque", "rate", "angle", "dt", "recorded")
        mass, length, damping, torque, rate, first, step_s, recorded = (self.input(name) for name in names)
        for name in ("noise", "draw"):
            self.input(name)  # no kernel reads it: trials that differ in it run in one batch
        steps = self.params.steps
        residual, angles = self.residuals(steps), self.output("angles", steps)

        @qd.func
        def slope(state: qd.template, t: qd.f64):
            inertia = mass[None] * length[None] ** 2
            pull = torque[None] * qd.sin(rate[None] * t) - damping[None] * state[1]
            return qd.Vector([state[1], (pull - mass[None] * 9.81 * length[None] * qd.sin(state[0])) / inertia])

        @qd.kernel
        def play():
            for _ in range(1):
                h, state = step_s[None], qd.Vector([first[None], 0.0])
                for k in range(steps):
                    a = slope(state, k * h)
                    b = slope(state + 0.5 * h * a, (k + 0.5) * h)
                    c = slope(state + 0.5 * h * b, (k + 0.5) * h)
                    state += h / 6.0 * (a + 2.0 * b + 2.0 * c + slope(state + h * c, (k + 1) * h))
                    angles[k] = state[0]
                    residual[k] = state[0] - recorded[k]

        self.angles, self.play = angles, play

    def simulate(self) -> None:
        """The whole swing."""
        self.play()


class SysidPendulumPicture(SysidPendulum):
    """The same, with a picture of the recording and of the fit."""

    def save(self) -> None:
        """Write ``swing.png``."""
        p = self.params
        t = p.dt * np.arange(1, p.steps + 1)
        with self.picture("swing.png", size=(6, 3), xlabel="time, s", ylabel="angle, rad") as axes:
            axes.plot(t, p.recorded, ".", markersize=3, label="recorded")
            axes.plot(t, self.angles.to_numpy(), label="fitted")
            axes.legend()
