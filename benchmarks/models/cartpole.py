"""A cart that balances a pole by a network of 4, 32 and 1 neurons, 200 steps: mean deviation; gradients of all 193 weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

import qdrun as qd
from benchmarks.models.model import Columns, Cost, Model, gradient_cost, time_steps
from qdrun.jobs.base import Job, JobParams

DT, GRAVITY, MASS, POLE_MASS, LENGTH = 0.02, 9.8, 1.1, 0.1, 0.5


class CartParams(JobParams):
    hidden: int = 32
    steps: int = 200
    w1: list[float] = Field([])
    b1: list[float] = Field([])
    w2: list[float] = Field([])
    b2: float = 0.0
    angle: float = 0.1


class Cart(Job[CartParams]):
    gradients = ("w1", "b1", "w2", "b2")

    def build(self) -> None:
        w1, b1, w2, b2, first = (self.input(name) for name in ("w1", "b1", "w2", "b2", "angle"))
        loss, hidden, steps = self.objective(), self.params.hidden, self.params.steps

        @qd.kernel
        def play():
            for _ in range(1):
                x, speed, angle, turn, total = 0.0, 0.0, first[None], 0.0, 0.0
                for _t in range(steps):
                    push = b2[None]
                    for h in range(hidden):
                        inside = w1[4 * h] * x + w1[4 * h + 1] * speed + w1[4 * h + 2] * angle + w1[4 * h + 3] * turn
                        push += w2[h] * qd.tanh(inside + b1[h])
                    s, c = qd.sin(angle), qd.cos(angle)
                    drive = (10.0 * push + POLE_MASS * LENGTH * turn * turn * s) / MASS
                    spin = (GRAVITY * s - c * drive) / (LENGTH * (4.0 / 3.0 - POLE_MASS * c * c / MASS))
                    speed += DT * (drive - POLE_MASS * LENGTH * spin * c / MASS)
                    x += DT * speed
                    turn += DT * spin
                    angle += DT * turn
                    total += angle * angle + 0.1 * x * x
                loss[None] += total / steps

        self.play = play

    def simulate(self) -> None:
        self.play()


def loss(p: CartParams, inputs: Mapping[str, Any], every: int) -> Any:
    import jax.numpy as jnp

    w1 = inputs["w1"].reshape(p.hidden, 4)

    def step(state: Any, _: Any) -> Any:
        x, speed, angle, turn, total = state
        push = inputs["b2"] + inputs["w2"] @ jnp.tanh(w1 @ jnp.stack([x, speed, angle, turn]) + inputs["b1"])
        s, c = jnp.sin(angle), jnp.cos(angle)
        drive = (10.0 * push + POLE_MASS * LENGTH * turn * turn * s) / MASS
        spin = (GRAVITY * s - c * drive) / (LENGTH * (4.0 / 3.0 - POLE_MASS * c * c / MASS))
        speed = speed + DT * (drive - POLE_MASS * LENGTH * spin * c / MASS)
        x = x + DT * speed
        turn = turn + DT * spin
        angle = angle + DT * turn
        return x, speed, angle, turn, total + angle * angle + 0.1 * x * x

    zero = jnp.zeros_like(inputs["angle"])
    return time_steps(step, (zero, zero, inputs["angle"], zero, zero), p.steps, every)[4] / p.steps


def sample(rng: np.random.Generator, count: int, p: CartParams) -> Columns:
    return {
        "w1": 0.5 * rng.normal(size=(count, 4 * p.hidden)),
        "b1": 0.1 * rng.normal(size=(count, p.hidden)),
        "w2": 0.1 * rng.normal(size=(count, p.hidden)),
        "b2": 0.1 * rng.normal(size=count),
        "angle": rng.uniform(-0.3, 0.3, count),
    }


def cost(p: CartParams) -> Cost:
    return gradient_cost(6 * p.hidden + 1, 4 * p.steps, p.steps * (11 * p.hidden + 35))


MODEL = Model(Cart, sample, loss, cost, {"hidden": 2, "steps": 4})
