"""A robot with a small network for its muscles: which weights make it walk?

The truss of ``jobs/mass_spring.py``. A network drives the muscles, as in DiffTaichi's ``mass_spring`` (Hu et al. 2020): it reads some
waves of the clock, and where the masses are and how fast, and gives the excitation of each muscle. The loss is minus the distance walked.
Contacts make the landscape rough, and where a descent ends depends on its first weights, which come from a seed: the result is the
distribution over seeds.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

WAVES = 4
"""Waves of the clock that the network reads, each a quarter of a turn after the last."""


class PolicyWalkerParams(MassSpringParams):
    """The robot's parameters, and the weights of the network: hidden = tanh(first s + bias), excitation = tanh(second hidden)."""

    hidden: int = Field(16, ge=1, description="hidden units of the network")
    start: float = Field(0.0, ge=0, description="seed of the first weights, a whole number; not used where weights are given")
    first: list[float] = Field([], description="weights of each hidden unit, row by row; empty: drawn from `start`")
    bias: list[float] = Field([], description="of each hidden unit; empty: 0")
    second: list[float] = Field([], description="weights of each muscle, row by row; empty: drawn from `start`")

    @model_validator(mode="after")
    def _weighted(self) -> Self:
        if not self.start.is_integer():
            raise ValueError(f"the start {self.start} is a seed: a whole number")
        random, senses = np.random.default_rng(int(self.start)), WAVES + 8 * self.columns
        shapes = {"first": (self.hidden, senses), "bias": (self.hidden,), "second": (self.columns, self.hidden)}
        for name, shape in shapes.items():
            drawn = random.normal(size=shape) * (np.sqrt(1.0 / shape[-1]) if len(shape) == 2 else 0.0)
            if not getattr(self, name):
                object.__setattr__(self, name, drawn.ravel().tolist())  # the model is frozen
            if len(getattr(self, name)) != drawn.size:
                raise ValueError(f"{name} has {len(getattr(self, name))} weights, the network {drawn.size}")
        return self


class PolicyWalker(MassSpring):
    """Gradients of minus the distance walked with respect to all weights."""

    Params = PolicyWalkerParams
    params: PolicyWalkerParams
    gradients = ("first", "bias", "second")
    senses = True

    def build(self) -> None:
        """The robot, and fields over (slot, sense) and (slot, hidden unit)."""
        p, w = self.params, self.window
        self.input("start")  # no kernel reads it: trials that differ in it run in one batch
        self.inner = qd.field(dtype=qd.f64, shape=(w, p.hidden), needs_grad=True)
        self.seen = qd.field(dtype=qd.f64, shape=(w, WAVES + 8 * p.columns), needs_grad=True)
        self.first, self.bias, self.second = (self.input(name) for name in ("first", "bias", "second"))
        super().build()

    def _muscle_kernels(self) -> None:
        super()._muscle_kernels()
        x, v, activation, seen, inner = self.x, self.v, self.activation, self.seen, self.inner
        first, bias, second, dt, omega, points = self.first, self.bias, self.second, self.dt, self.omega, self.points
        masses, hidden, columns, substeps = self.n_masses, self.params.hidden, self.params.columns, self.params.substeps

        @qd.kernel
        def sense(t: qd.i32, k: qd.i32):
            for m in range(WAVES):
                seen[k, m] = qd.sin(omega[None] * dt[None] * t + 1.5707963267948966 * m)
            for i in range(masses):
                shift = x[k, i] - x[k, 0] - (points[i] - points[0])
                for d in qd.static(range(2)):
                    seen[k, WAVES + 4 * i + d] = 10.0 * shift[d]  # a tenth of a metre counts as 1
                    seen[k, WAVES + 4 * i + 2 + d] = v[k, i][d]

        @qd.kernel
        def think(k: qd.i32):
            for h in range(hidden):
                total = bias[h]
                for s in range(seen.shape[1]):
                    total += first[h * seen.shape[1] + s] * seen[k, s]
                inner[k, h] = qd.tanh(total)

        @qd.kernel
        def act(k: qd.i32):
            for m in range(columns):
                total = 0.0
                for h in range(hidden):
                    total += second[m * hidden + h] * inner[k, h]
                wanted, a = qd.tanh(total), activation[k, m]
                for _ in range(substeps):
                    a += 4.0 * dt[None] * omega[None] / substeps * (wanted - a) / (1.0 + a * a)
                activation[k + 1, m] = a

        self.sense, self.think, self.act = sense, think, act

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.force, self.seen, self.inner]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        self.sense(t, k)
        self.think(k)
        self.act(k)
        self.pull(k)
        self.advance(k)


class PolicyWalkerPicture(PolicyWalker):
    """The same, with a picture of the robot at five times."""

    def save(self) -> None:
        """Write ``walk.png``."""
        x, ends = self.x.to_numpy(), self.ends.to_numpy()
        with self.picture("walk.png", size=(8, 2), xlabel="x, m", ylabel="y, m", aspect="equal") as axes:
            for n, at in enumerate(np.linspace(0, self.window, 5).astype(int)):
                for a, b in ends:
                    axes.plot(*x[at, [a, b]].T, color=str(0.8 - 0.2 * n), linewidth=1)
            axes.axhline(0.0, color="black")
