"""Balls push an elastic block to a target: how must they move?

The case of Genesis' ``test_differentiable_push``, told again: MLS-MPM (Hu et al. 2018) in three dimensions with a neo-Hookean material,
on a grid of which the block fills a small part. Only cells with mass have a velocity; in these a loop over the balls takes what goes into
them. Each ball has a constant velocity in each of ``phases`` equal parts of the time. The loss is the squared distance of the block's mean
from the target. The arrays hold a window of time steps, all of them unless a memory budget says less.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class Mpm3dPushParams(JobParams):
    """The box has a side of 1 m; each particle has a mass and a volume of 1. The block starts on the floor."""

    side: int = Field(10, ge=2, description="particles on a side of the block, half a cell apart")
    grid: int = Field(24, ge=12, description="cells on a side of the box")
    steps: int = Field(60, ge=1, description="time steps")
    dt: float = Field(1e-3, gt=0, description="time step, s")
    stiffness: float = Field(50.0, gt=0, description="both Lame parameters")
    gravity: float = Field(9.8, description="downward acceleration, m/s^2")
    velocity: list[float] = Field([0.0] * 3, min_length=3, max_length=3, description="initial velocity of the block, m/s")
    target: list[float] = Field([0.58, 0.24, 0.52], min_length=3, max_length=3, description="where the mean should end, m")
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


class Mpm3dPush(Job[Mpm3dPushParams]):
    """Gradients of the squared miss with respect to the velocities of the balls, and to the block's velocity and stiffness."""

    gradients = ("push", "velocity", "stiffness")

    def build(self) -> None:
        """Particle fields over (slot, particle), grid fields over (slot, cell, cell, cell), and the kernels of a step."""
        p, w, g = self.params, self.window, self.params.grid
        self.real = real = qd.f32 if self.precision == "f32" else qd.f64
        self.particles, self.balls = p.side**3, len(p.places) // 3
        self.x, self.v = (qd.Vector.field(3, dtype=real, shape=(w + 1, self.particles), needs_grad=True) for _ in range(2))
        self.C, self.F = (qd.Matrix.field(3, 3, dtype=real, shape=(w + 1, self.particles), needs_grad=True) for _ in range(2))
        self.ball = qd.Vector.field(3, dtype=real, shape=(w + 1, self.balls), needs_grad=True)
        self.momentum, self.moved = (qd.Vector.field(3, dtype=real, shape=(w, g, g, g), needs_grad=True) for _ in range(2))
        self.mass = qd.field(dtype=real, shape=(w, g, g, g), needs_grad=True)
        self.push, self.dt = self.input("push"), self.input("dt")
        self._particle_kernels()
        self._grid_kernel()
        self._end_kernels()

    def _particle_kernels(self) -> None:
        x, v, C, F, momentum, mass, moved = self.x, self.v, self.C, self.F, self.momentum, self.mass, self.moved
        stiffness, step_s, real, particles, n = (
            self.input("stiffness"),
            self.dt,
            self.real,
            self.particles,
            float(self.params.grid),
        )

        @qd.kernel
        def to_grid(k: qd.i32):
            for q in range(particles):
                base = qd.cast(x[k, q] * n - 0.5, qd.i32)
                fx = x[k, q] * n - qd.cast(base, real)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                unit = qd.Matrix.identity(real, 3)
                new_F = (unit + step_s[None] * C[k, q]) @ F[k, q]
                F[k + 1, q] = new_F
                stress = stiffness[None] * (new_F @ new_F.transpose() - unit + qd.log(new_F.determinant()) * unit)
                affine = C[k, q] - step_s[None] * 4.0 * n * n * stress
                for i, j, h in qd.static(qd.ndrange(3, 3, 3)):
                    offset = qd.Vector([i, j, h])
                    weight = w[i][0] * w[j][1] * w[h][2]
                    momentum[k, base + offset] += weight * (v[k, q] + affine @ ((qd.cast(offset, real) - fx) / n))
                    mass[k, base + offset] += weight

        @qd.kernel
        def to_particles(k: qd.i32):
            for q in range(particles):
                base = qd.cast(x[k, q] * n - 0.5, qd.i32)
                fx = x[k, q] * n - qd.cast(base, real)
                w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
                new_v, new_C = qd.Vector.zero(real, 3), qd.Matrix.zero(real, 3, 3)
                for i, j, h in qd.static(qd.ndrange(3, 3, 3)):
                    offset = qd.Vector([i, j, h])
                    carried = w[i][0] * w[j][1] * w[h][2] * moved[k, base + offset]
                    new_v += carried
                    new_C += 4.0 * n * carried.outer_product(qd.cast(offset, real) - fx)
                v[k + 1, q] = new_v
                x[k + 1, q] = x[k, q] + step_s[None] * new_v
                C[k + 1, q] = new_C

        self.to_grid, self.to_particles = to_grid, to_particles

    def _grid_kernel(self) -> None:
        momentum, mass, moved, ball, push, step_s = self.momentum, self.mass, self.moved, self.ball, self.push, self.dt
        gravity, radius, grip = (self.input(name) for name in ("gravity", "radius", "grip"))
        n, balls = self.params.grid, self.balls

        @qd.kernel
        def on_grid(k: qd.i32, phase: qd.i32):
            for i, j, h in qd.ndrange(n, n, n):
                if mass[k, i, j, h] > 1e-10:
                    cell = qd.Vector([i, j, h])
                    u = momentum[k, i, j, h] / mass[k, i, j, h]
                    u[1] -= step_s[None] * gravity[None]
                    for b in range(balls):
                        apart, m = cell / n - ball[k, b], 3 * (phase * balls + b)
                        distance = apart.norm(1e-12)
                        into = (u - qd.Vector([push[m], push[m + 1], push[m + 2]])).dot(apart) / distance
                        near = qd.exp(2.0 * n * qd.min(0.0, radius[None] - distance))  # 1 inside, soft over a cell
                        u -= grip[None] * near * qd.min(into, 0.0) * apart / distance
                    for d in qd.static(range(3)):
                        if (cell[d] < 3 and u[d] < 0.0) or (cell[d] > n - 3 and u[d] > 0.0):
                            u[d] = 0.0
                    moved[k, i, j, h] = u
            for b in range(balls):
                m = 3 * (phase * balls + b)
                ball[k + 1, b] = ball[k, b] + step_s[None] * qd.Vector([push[m], push[m + 1], push[m + 2]])

        self.on_grid = on_grid

    def _end_kernels(self) -> None:
        x, v, F, ball, particles, n, end = self.x, self.v, self.F, self.ball, self.particles, self.params.grid, self.window
        start, target, places = (self.input(name) for name in ("velocity", "target", "places"))
        loss, mean, side, balls, real = self.objective(), self.output("mean", 3), self.params.side, self.balls, self.real

        @qd.kernel
        def begin():
            for q in range(particles):
                at = qd.Vector([q // (side * side) + 0.5 - 0.5 * side, q // side % side + 0.5, q % side + 0.5 - 0.5 * side])
                x[0, q] = qd.Vector([0.5, 3.0 / n, 0.5]) + at / (2.0 * n)
                v[0, q] = qd.Vector([start[0], start[1], start[2]])
                F[0, q] = qd.Matrix.identity(real, 3)
            for b in range(balls):
                ball[0, b] = qd.Vector([places[3 * b], places[3 * b + 1], places[3 * b + 2]])

        @qd.kernel
        def miss():
            for _ in range(1):
                middle = qd.Vector.zero(real, 3)
                for q in range(particles):
                    middle += x[end, q] / particles
                for d in qd.static(range(3)):
                    mean[d] = middle[d]
                    loss[None] += (middle[d] - target[d]) ** 2

        self.begin, self.miss = begin, miss

    def time_steps(self) -> int:
        """See ``Job.time_steps``."""
        return self.params.steps

    def state(self) -> list[object]:
        """The state arrays, which a step passes to the next."""
        return [self.x, self.v, self.C, self.F, self.ball]

    def scratch(self) -> list[object]:
        """The scratch arrays, which a step leaves for its gradient."""
        return [self.momentum, self.mass, self.moved]

    def step(self, t: int, k: int) -> None:
        """Time step t: from slot k to slot k + 1."""
        self.checkpoint()
        self.to_grid(k)
        self.on_grid(k, t * self.params.phases // self.params.steps)
        self.to_particles(k)

    def simulate(self) -> None:
        """All steps and the loss."""
        self.begin()
        self.time_loop(self.step)
        self.miss()


class Mpm3dPushPicture(Mpm3dPush):
    """The same, with a picture of the block and the balls at the start and at the end."""

    def save(self) -> None:
        """Write ``push.png``."""
        from matplotlib.figure import Figure  # optional: the extra `pictures`

        figure = Figure(figsize=(4, 4), layout="constrained")
        axes = figure.subplots()
        for at, colour in ((0, "0.7"), (self.window, "C0")):
            for field, mark in ((self.x, ","), (self.ball, "o")):
                axes.plot(*field.to_numpy()[at, :, :2].T, mark, color=colour)
        axes.plot(*self.params.target[:2], "k+", markersize=12)
        axes.set(xlabel="x, m", ylabel="y, m", aspect="equal")
        figure.savefig(self.artifacts / "push.png")
