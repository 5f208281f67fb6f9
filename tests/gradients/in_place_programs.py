"""Random programs of launches that overwrite what earlier ones read: state in place, buffers in turn, cleared grids, Python's writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd

N = 5


class InPlace:
    """Fields, and launches over them by name; each launch takes a number between 0 and 1."""

    def __init__(self, **options: Any) -> None:
        self.program = qd.init(default_fp=qd.f64, **options)
        field = lambda name, shape=N: qd.field(qd.f64, shape, needs_grad=True, name=name)
        self.x, self.v, self.grid, self.total, self.turns = (
            field("x"),
            field("v"),
            field("grid"),
            field("total", ()),
            field("turns", (2, N)),
        )
        self.points = qd.Vector.field(3, qd.f64, N, needs_grad=True, name="points")
        self.bodies = qd.Struct.field({"at": qd.f64, "by": qd.f64, "mass": qd.f64}, shape=N, needs_grad=True)
        self.array = qd.ndarray(qd.f64, N, needs_grad=True)
        self.trips = qd.field(qd.i32, N, name="trips")
        self.shifted = qd.field(qd.f64, N, offset=(-2,), needs_grad=True, name="shifted")
        self.loss = field("loss", ())
        self.current = 0
        self.inputs = [
            self.x,
            self.v,
            self.total,
            self.turns,
            self.points,
            self.bodies.at,
            self.bodies.by,
            self.array,
            self.shifted,
        ]
        self.launches = {**self._dense(), **self._within(), **self._between(), **self._others(), **self._from_python()}
        self._ends()

    def _dense(self) -> dict[str, Callable[[float], None]]:
        """Launches over fields of numbers."""
        x, v, grid, total, turns = self.x, self.v, self.grid, self.total, self.turns

        @qd.kernel
        def euler(dt: qd.f64):
            for i in x:
                v[i] += -dt * x[i] * x[i]
                x[i] += dt * v[i]

        @qd.kernel
        def nonlinear(c: qd.f64):
            for i in x:
                x[i] = qd.sin(x[i] + c) * v[i] + 0.3 * x[i]

        @qd.kernel
        def springs(c: qd.f64):
            for i in x:
                v[i] -= c * (x[i] - x[(i + 1) % N]) ** 3

        @qd.kernel
        def square_total(c: qd.f64):
            total[None] = 0.5 * total[None] * total[None] + c

        @qd.kernel
        def add_total(c: qd.f64):
            for i in x:
                total[None] += c * x[i] * v[i] * 0.1

        @qd.kernel
        def swing(now: qd.i32, c: qd.f64):
            for i in range(N):
                turns[1 - now, i] = qd.sin(turns[now, i]) * (c + x[i])

        @qd.kernel
        def clear():
            for i in grid:
                grid[i] = 0.0

        @qd.kernel
        def normalize():
            for i in grid:
                grid[i] = grid[i] / (1.0 + grid[i] * grid[i])

        @qd.kernel
        def gather(c: qd.f64):
            for i in x:
                x[i] = 0.5 * x[i] + c * grid[i] * v[(i + 1) % N]

        @qd.kernel
        def one(k: qd.i32, c: qd.f64):
            x[k] = x[k] * v[k] + c

        @qd.kernel
        def largest():
            for i in x:
                qd.atomic_max(total[None], 0.7 * x[i] * x[i])

        def swing_on(c: float) -> None:
            swing(self.current, c)
            self.current = 1 - self.current

        return {
            "euler": euler,
            "nonlinear": nonlinear,
            "springs": springs,
            "total": square_total,
            "add total": add_total,
            "turns": swing_on,
            "clear": lambda c: clear(),
            "normalize": lambda c: normalize(),
            "gather": gather,
            "one": lambda c: one(int(c * N), c),
            "largest": lambda c: largest(),
        }

    def _within(self) -> dict[str, Callable[[float], None]]:
        """Launches that read elements between two of their own writes."""
        x, v, points = self.x, self.v, self.points

        @qd.kernel
        def bounce(c: qd.f64):
            for i in x:
                v[i] -= 0.3 * c
                x[i] += v[i] * x[i]
                if x[i] < 0.4:
                    x[i] *= 1.5 * x[i] + c
                    v[i] *= -0.8

        @qd.kernel
        def substeps(n: qd.i32, c: qd.f64):
            for i in x:
                for _ in range(n):
                    x[i] += 0.2 * c * qd.sin(x[i]) * v[i]
                    v[i] -= 0.2 * c * x[i] * x[i]

        @qd.kernel
        def squares_within(p: qd.types.ndarray(dtype=qd.f64, ndim=1), c: qd.f64):
            for i in range(N):
                p[i] *= 0.5 * p[i] + c
                if p[i] > 0.4:
                    p[i] = qd.sin(p[i]) * p[i]

        @qd.kernel
        def turn_within(c: qd.f64):
            for i in points:
                for _ in range(2):
                    points[i] += c * points[i].norm_sqr() * qd.Vector([-0.2, 0.1 * points[i][2], 0.1])

        return {
            "bounce": bounce,
            "substeps": lambda c: substeps(int(4 * c), c),
            "array within": lambda c: squares_within(self.array, c),
            "points within": turn_within,
        }

    def _between(self) -> dict[str, Callable[[float], None]]:
        """Launches of several loops, between two of which elements hold what a gradient needs."""
        x, v, total, points = self.x, self.v, self.total, self.points

        @qd.kernel
        def symplectic(c: qd.f64):
            for i in v:
                v[i] -= 0.3 * c * qd.sin(x[i])
            for i in x:
                x[i] += 0.3 * c * v[i] * x[i]
            for i in v:
                v[i] *= 1.0 / (1.0 + 0.2 * x[i] * x[i])

        @qd.kernel
        def scaled(c: qd.f64):
            m = 0.1
            for i in x:
                m += x[i] * x[i]
            s = qd.sqrt(m)
            for i in x:
                x[i] = x[i] / s + 0.1 * m * c
            for i in points:
                points[i] += c * s * v[i] * points[i].norm_sqr()
            m *= 0.5 * m
            total[None] = 0.3 * total[None] ** 2 + 0.1 * m
            for i in x:
                x[i] *= v[i] + qd.sin(total[None])

        @qd.kernel
        def lattice(p: qd.types.ndarray(dtype=qd.f64, ndim=1), n: qd.i32, c: qd.f64):
            for i in range(N):
                z = p[i]
                for _ in range(n):
                    z = qd.sin(z) + c * 0.3
                p[i] = z
            for i in range(N):
                v[i] += 0.2 * p[(i + 1) % N] * p[i]
            for i in range(N):
                p[i] *= v[i] * x[i]

        return {
            "symplectic": symplectic,
            "scaled": scaled,
            "lattice": lambda c: lattice(self.array, int(4 * c), c),
        }

    def _others(self) -> dict[str, Callable[[float], None]]:
        """Launches over vectors, structs, ndarrays, integers, and fields with an offset."""
        x, v, grid, points = self.x, self.v, self.grid, self.points
        bodies, trips, shifted = self.bodies, self.trips, self.shifted

        @qd.kernel
        def turn_points(c: qd.f64):
            for i in points:
                points[i] += c * points[i].norm_sqr() * qd.Vector([x[i], 0.2, -0.1])

        @qd.kernel
        def squares(p: qd.types.ndarray(dtype=qd.f64, ndim=1), c: qd.f64):
            for i in range(N):
                p[i] = 0.4 * p[i] * p[i] + c * x[i]

        @qd.kernel
        def scatter(c: qd.f64):
            for i in x:
                grid[(2 * i) % N] += c * x[i] * v[i]
                grid[i] += points[i][1] * v[i]

        @qd.kernel
        def iterate(c: qd.f64):
            for i in x:
                z = x[i]
                for _ in range(trips[i]):
                    z = qd.sin(z) + c * v[i]
                x[i] = z

        @qd.kernel
        def more_trips():
            for i in trips:
                trips[i] = (trips[i] + 1) % 3

        @qd.kernel
        def drift(c: qd.f64):
            for i in bodies:
                bodies[i].at += c * bodies[i].by
                bodies[i].by = qd.cos(bodies[i].at) * bodies[i].mass

        @qd.kernel
        def pull(c: qd.f64):
            for i in bodies:
                bodies[i].by -= c * bodies[i].at * bodies[i].at * x[i]

        @qd.kernel
        def slide(c: qd.f64):
            for i in shifted:
                shifted[i] = shifted[i] * (1.0 - c * shifted[i])

        return {
            "points": turn_points,
            "array": lambda c: squares(self.array, c),
            "scatter": scatter,
            "iterate": iterate,
            "trips": lambda c: more_trips(),
            "drift": drift,
            "pull": pull,
            "slide": slide,
        }

    def _from_python(self) -> dict[str, Callable[[float], None]]:
        """Assignments."""

        def set_one(c: float) -> None:
            self.x[int(c * N)] = c

        return {
            "Python: one": set_one,
            "Python: fill": self.v.fill,
            "Python: copy": lambda c: self.grid.copy_from(self.x),
            "Python: number": lambda c: self.total.__setitem__(None, c),
        }

    def _ends(self) -> None:
        """What comes first and last: all inputs are read, and all fields are added up."""
        x, v, grid, total, turns, points = self.x, self.v, self.grid, self.total, self.turns, self.points
        bodies, shifted, loss = self.bodies, self.shifted, self.loss

        @qd.kernel
        def add_up():
            for i in range(N):
                loss[None] += x[i] * v[i] + 0.3 * turns[0, i] * turns[1, i] + grid[i] ** 2 + shifted[i - 2] ** 2
                loss[None] += points[i].norm_sqr() + bodies[i].at * bodies[i].by + total[None] * x[i]

        @qd.kernel
        def add_array(p: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for i in range(N):
                loss[None] += p[i] * p[i]

        @qd.kernel
        def touch(p: qd.types.ndarray(dtype=qd.f64, ndim=1)):
            for i in range(N):
                loss[None] += 0.1 * (x[i] + v[i] + turns[0, i] + turns[1, i] + shifted[i - 2] + total[None] + p[i])
                loss[None] += 0.1 * (points[i].sum() + bodies[i].at + bodies[i].by)

        self.touch = lambda: touch(self.array)  # else a number that Python assigns is what the gradient is taken at
        self.add_up = lambda: (add_up(), add_array(self.array))

    def draw(self, rng: np.random.Generator, length: int) -> list[tuple[str, float]]:
        """Launches of a program."""
        names = list(self.launches)
        return [(names[k], float(c)) for k, c in zip(rng.integers(0, len(names), length), rng.uniform(0.1, 0.9, length))]

    def start(self, values: list[np.ndarray]) -> None:
        """Set all fields."""
        for tensor, value in zip(self.inputs, values, strict=True):
            tensor.from_numpy(value)
        self.grid.fill(0.2)
        self.bodies.mass.fill(0.8)
        self.trips.from_numpy(np.broadcast_to(np.arange(N, dtype=np.int32) % 3, self.trips.to_numpy().shape).copy())
        self.loss.fill(0.0)
        self.current = 0

    def run(self, calls: list[tuple[str, float]]) -> None:
        """Launch."""
        self.touch()
        for name, c in calls:
            self.launches[name](c)
        self.add_up()

    def values(self) -> list[np.ndarray]:
        """What all fields hold."""
        return [t.to_numpy() for t in (*self.inputs, self.grid, self.bodies.mass, self.trips, self.loss)]

    def gradient(self, calls: list[tuple[str, float]], values: list[np.ndarray], **tape: Any) -> list[np.ndarray]:
        """The gradients of the inputs."""
        self.start(values)
        with qd.ad.Tape(loss=self.loss, **tape):
            self.run(calls)
        return [t.grad.to_numpy() for t in self.inputs]

    def loss_at(self, calls: list[tuple[str, float]], values: list[np.ndarray]) -> Any:
        """The loss, without a tape."""
        self.start(values)
        self.run(calls)
        return self.loss.to_numpy()


def random_values(rng: np.random.Generator, case: InPlace) -> list[np.ndarray]:
    """Values of all inputs."""
    return [rng.uniform(0.3, 0.9, t.to_numpy().shape) for t in case.inputs]
