"""The programs of ``benchmarks.cuda``, written once for both packages: ``lib`` is ``qdrun`` or ``quadrants``.

Sizes are those for an H200; ``small`` ones, for a try on the CPU, are in ``CASES``. Nothing in a timed function waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import cases, references


@dataclass
class Case:
    """What to time and what to compare.

    Attributes:
        timed: functions of launches, by name; the first call of each compiles.
        values: numbers that both packages must agree in, computed anew.
        errors: the largest relative errors against f64 on the host, by name.
        reverse: gradient kernels with their arguments: their plans give the bytes.
        moved: bytes that a timed function must move through device memory.
        launches: kernel launches of a timed function.
        load: puts data into large arrays. It runs after the first call of each timed function: on Vulkan the peer's sizing of adstacks
            fails in a process that has copied much to the device before, because a word that it reads there was never set.
    """

    timed: dict[str, Callable[[], None]]
    values: Callable[[], list[float]] = list
    errors: Callable[[], dict[str, float]] = dict
    reverse: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    load: Callable[[], None] = lambda: None


# ---- the sin recurrence
def sin_recurrence(lib: Any, steps: int, n: int = 1 << 22, fp: str = "f32") -> Case:
    """v = sin(v) + 0.1, ``steps`` times (a number in a field) in each of ``n`` iterations."""
    real = getattr(lib, fp)
    x = lib.field(real, shape=n, needs_grad=True)
    loss = lib.field(real, shape=(), needs_grad=True)
    count = lib.field(lib.i32, shape=())
    start = np.random.default_rng(1).uniform(-1, 1, n).astype(f"f{real_bytes(fp)}")
    count[None] = steps
    loss.grad.fill(1.0)
    run, check = _sin_kernel(lib, x, count, loss, 0.1), _sin_kernel(lib, x, count, loss, 0.0)

    def errors() -> dict[str, float]:
        # without the 0.1 gradients do not vanish: with it they are 0.66 to the power of ``steps``
        x.grad.fill(0.0)
        check.grad()
        some = np.random.default_rng(2).choice(n, min(n, 4096), replace=False)
        v, slope = start[some].astype(float), np.ones(len(some))
        for _ in range(steps):
            v, slope = np.sin(v), slope * np.cos(v)
        return {"gradient": float(np.max(np.abs(x.grad.to_numpy()[some] / slope - 1)))}

    def values() -> list[float]:
        loss.fill(0.0)
        run()
        return [float(loss[None]) / n]

    return Case(
        {"forward": run, "gradient": run.grad},
        values,
        errors,
        [(run, ())],
        {"forward": real_bytes(fp) * n, "gradient": 3 * real_bytes(fp) * n},
        {"forward": 1, "gradient": 1},
        lambda: x.from_numpy(start),
    )


def real_bytes(fp: str) -> int:
    """Bytes of a number of the type ``f32`` or ``f64``."""
    return int(fp[1:]) // 8


def _sin_kernel(lib: Any, x: Any, count: Any, loss: Any, c: float) -> Any:
    @lib.kernel
    def sin_steps():
        for i in x:
            v = x[i]
            for _ in range(count[None]):
                v = lib.sin(v) + c
            loss[None] += v

    return sin_steps


# ---- bandwidth and launches
def saxpy(lib: Any, n: int = 1 << 28) -> Case:
    """y = a x + y: 12 bytes an element."""
    x, y = lib.field(lib.f32, shape=n), lib.field(lib.f32, shape=n)
    x.fill(0.5)
    y.fill(1.0)

    @lib.kernel
    def run(a: lib.f32):
        for i in x:
            y[i] = a * x[i] + y[i]

    def values() -> list[float]:
        y.fill(1.0)
        run(0.25)
        return [float(y[0]), float(y[n // 3]), float(y[n - 1])]

    return Case({"saxpy": lambda: run(0.001)}, values, moved={"saxpy": 12 * n}, launches={"saxpy": 1})


def launch(lib: Any, many: int = 1000) -> Case:
    """Host time of a launch: nothing, an ndarray and a number, and the gradients of many launches through a tape."""
    a = lib.ndarray(lib.f32, (128,))
    x = lib.field(lib.f32, shape=(many + 1, 128), needs_grad=True)
    loss = lib.field(lib.f32, shape=(), needs_grad=True)

    @lib.kernel
    def empty():
        pass

    @lib.kernel
    def touch(a: lib.types.ndarray(dtype=lib.f32, ndim=1), s: lib.f32):
        for i in range(128):
            a[i] = s

    @lib.kernel
    def step(t: lib.i32):
        for i in range(128):
            x[t + 1, i] = 0.999 * lib.sin(x[t, i]) + 0.01

    @lib.kernel
    def measure():
        for i in range(128):
            loss[None] += x[many, i]

    def times(kernel: Any, *args: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(many):
                kernel(*args)

        return run

    def forward() -> None:
        for t in range(many):
            step(t)
        measure()

    def tape() -> None:
        with lib.ad.Tape(loss):
            forward()

    def values() -> list[float]:
        x.fill(0.5)
        tape()
        return [float(loss[None]), float(x.grad[0, 3])]

    timed = {"empty": times(empty), "ndarray_scalar": times(touch, a, 1.0), "forward": forward, "tape": tape}
    launches = {"empty": many, "ndarray_scalar": many, "forward": many + 1, "tape": 2 * (many + 1)}
    return Case(timed, values, launches=launches)


# ---- gradients with large stacks
def gated_grid(
    lib: Any, shape: tuple[int, int, int] = (151, 80, 50), box: tuple[int, int, int] = (47, 40, 25), steps: int = 64
) -> Case:
    """Of 604,000 cells 47,000 pass a gate; in each, 40 floats go around a loop 64 times."""
    mass = lib.field(lib.f32, shape=shape)
    first = lib.Vector.field(4, dtype=lib.f32, shape=shape, needs_grad=True)
    loss = lib.field(lib.f32, shape=(), needs_grad=True)
    low = [(s - b) // 2 for s, b in zip(shape, box, strict=True)]
    held = np.zeros(shape, np.float32)
    held[tuple(slice(a, a + b) for a, b in zip(low, box, strict=True))] = 1.0
    mass.from_numpy(held)
    first.from_numpy(np.random.default_rng(4).uniform(-1, 1, (*shape, 4)).astype(np.float32))
    loss.grad.fill(1.0)

    @lib.kernel
    def run():
        for i, j, k in mass:
            if mass[i, j, k] > 0.0:
                v = first[i, j, k]
                a0, a1, a2, a3 = v[0], v[1], v[2], v[3]
                b0, b1, b2, b3 = 0.9 * v[0], 0.9 * v[1], 0.9 * v[2], 0.9 * v[3]
                c0, c1, c2, c3 = 0.8 * v[0], 0.8 * v[1], 0.8 * v[2], 0.8 * v[3]
                d0, d1, d2, d3 = 0.7 * v[0], 0.7 * v[1], 0.7 * v[2], 0.7 * v[3]
                e0, e1, e2, e3 = 0.6 * v[0], 0.6 * v[1], 0.6 * v[2], 0.6 * v[3]
                f0, f1, f2, f3 = -0.5 * v[0], -0.5 * v[1], -0.5 * v[2], -0.5 * v[3]
                g0, g1, g2, g3 = -0.6 * v[0], -0.6 * v[1], -0.6 * v[2], -0.6 * v[3]
                h0, h1, h2, h3 = -0.7 * v[0], -0.7 * v[1], -0.7 * v[2], -0.7 * v[3]
                m0, m1, m2, m3 = -0.8 * v[0], -0.8 * v[1], -0.8 * v[2], -0.8 * v[3]
                n0, n1, n2, n3 = -0.9 * v[0], -0.9 * v[1], -0.9 * v[2], -0.9 * v[3]
                for _ in range(steps):
                    a0, a1 = lib.sin(a0 + 0.1 * a1), lib.sin(a1 + 0.1 * a2)
                    a2, a3 = lib.sin(a2 + 0.1 * a3), lib.sin(a3 + 0.1 * b0)
                    b0, b1 = lib.sin(b0 + 0.1 * b1), lib.sin(b1 + 0.1 * b2)
                    b2, b3 = lib.sin(b2 + 0.1 * b3), lib.sin(b3 + 0.1 * c0)
                    c0, c1 = lib.sin(c0 + 0.1 * c1), lib.sin(c1 + 0.1 * c2)
                    c2, c3 = lib.sin(c2 + 0.1 * c3), lib.sin(c3 + 0.1 * d0)
                    d0, d1 = lib.sin(d0 + 0.1 * d1), lib.sin(d1 + 0.1 * d2)
                    d2, d3 = lib.sin(d2 + 0.1 * d3), lib.sin(d3 + 0.1 * e0)
                    e0, e1 = lib.sin(e0 + 0.1 * e1), lib.sin(e1 + 0.1 * e2)
                    e2, e3 = lib.sin(e2 + 0.1 * e3), lib.sin(e3 + 0.1 * f0)
                    f0, f1 = lib.sin(f0 + 0.1 * f1), lib.sin(f1 + 0.1 * f2)
                    f2, f3 = lib.sin(f2 + 0.1 * f3), lib.sin(f3 + 0.1 * g0)
                    g0, g1 = lib.sin(g0 + 0.1 * g1), lib.sin(g1 + 0.1 * g2)
                    g2, g3 = lib.sin(g2 + 0.1 * g3), lib.sin(g3 + 0.1 * h0)
                    h0, h1 = lib.sin(h0 + 0.1 * h1), lib.sin(h1 + 0.1 * h2)
                    h2, h3 = lib.sin(h2 + 0.1 * h3), lib.sin(h3 + 0.1 * m0)
                    m0, m1 = lib.sin(m0 + 0.1 * m1), lib.sin(m1 + 0.1 * m2)
                    m2, m3 = lib.sin(m2 + 0.1 * m3), lib.sin(m3 + 0.1 * n0)
                    n0, n1 = lib.sin(n0 + 0.1 * n1), lib.sin(n1 + 0.1 * n2)
                    n2, n3 = lib.sin(n2 + 0.1 * n3), lib.sin(n3 + 0.1 * a0)
                total = a0 + a1 + a2 + a3 + b0 + b1 + b2 + b3 + c0 + c1 + c2 + c3 + d0 + d1 + d2 + d3 + e0 + e1 + e2 + e3
                total += f0 + f1 + f2 + f3 + g0 + g1 + g2 + g3 + h0 + h1 + h2 + h3 + m0 + m1 + m2 + m3 + n0 + n1 + n2 + n3
                loss[None] += total

    def values() -> list[float]:
        first.grad.fill(0.0)
        loss.fill(0.0)
        run()
        run.grad()
        g, cells = first.grad.to_numpy(), float(held.sum())
        inside = g[low[0] + 1, low[1] + 2, low[2] + 3]
        return [float(loss[None]) / cells, float(np.abs(g).sum()) / cells, *map(float, inside)]

    return Case({"forward": run, "gradient": run.grad}, values, reverse=[(run, ())], launches={"forward": 1, "gradient": 1})


def volume(lib: Any, pixels: int = 512, steps: int = 1000, grid: int = 128) -> Case:
    """Rays through a density, front to back: each sample adds what it emits times what is left of the light, and absorbs."""
    density = lib.field(lib.f32, shape=(grid, grid, grid), needs_grad=True)
    loss = lib.field(lib.f32, shape=(), needs_grad=True)
    density.from_numpy(np.random.default_rng(5).uniform(0.0, 2.0, (grid,) * 3).astype(np.float32))
    loss.grad.fill(1.0)
    ds, tilt = 1.5 / steps, 0.25

    @lib.kernel
    def render():
        for i, j in lib.ndrange(pixels, pixels):
            left, light = 1.0, 0.0
            px, py = 1.2 * (i + 0.5) / pixels - 0.1, 1.2 * (j + 0.5) / pixels - 0.1
            for s in range(steps):
                z = s * ds - 0.25
                x, y = px + tilt * (z - 0.5), py - tilt * (z - 0.5)
                if x >= 0.0 and x < 1.0 and y >= 0.0 and y < 1.0 and z >= 0.0 and z < 1.0:
                    d = density[lib.cast(x * grid, lib.i32), lib.cast(y * grid, lib.i32), lib.cast(z * grid, lib.i32)]
                    seen = 1.0 - lib.exp(-d * ds)
                    light += left * seen * (0.5 + 0.5 * z)
                    left *= 1.0 - seen
            loss[None] += light / (pixels * pixels)

    def values() -> list[float]:
        density.grad.fill(0.0)
        loss.fill(0.0)
        render()
        render.grad()
        g = density.grad.to_numpy()
        return [float(loss[None]), float(g.sum()), float(np.abs(g).max()), float(g[grid // 2, grid // 2].sum())]

    return Case(
        {"forward": render, "gradient": render.grad}, values, reverse=[(render, ())], launches={"forward": 1, "gradient": 1}
    )


# ---- programs of many launches
def mass_spring(lib: Any, masses: int = 20, steps: int = 1000) -> Case:
    """``cases.mass_spring``, checked against f64."""

    def exact() -> list[float]:
        def loss(stiffness: np.ndarray) -> float:
            return references.mass_spring(masses, steps, stiffness[0])

        start = np.array([200.0])
        return [loss(start), *references.slopes(loss, start, 1e-4)]  # a longer step would meet the ground at other times

    return _steps(cases.mass_spring(lib, masses, steps), 2 * steps + 3, 2 * steps + 6, exact)


def mpm88(lib: Any, particles: int = 8192, steps: int = 1024, grid: int = 64) -> Case:
    """``cases.mpm88``, checked against f64 where that takes less than a few seconds."""

    def exact() -> list[float]:
        def loss(push: np.ndarray) -> float:
            return references.mpm88(particles, steps, grid, push)

        start = np.array([1.0, -0.5])
        return [loss(start), *references.slopes(loss, start, 1e-5)]

    return _steps(cases.mpm88(lib, particles, steps, grid), 3 * steps + 4, 3 * steps + 10, exact if steps <= 128 else None)


def diffmpm(lib: Any, particles: int = 6400, steps: int = 1024, grid: int = 120) -> Case:
    """``cases.diffmpm``: the elastic block of DiffTaichi."""
    return _steps(cases.diffmpm(lib, particles, steps, grid), 5 * steps + 4, 10 * steps + 10)


def _steps(case: cases.Case, forward: int, gradient: int, exact: Callable[[], list[float]] | None = None) -> Case:
    """``exact``: the loss and the gradient in f64."""

    def values() -> list[float]:
        case.forward()
        case.gradient()
        loss, grad = case.result()
        return [float(loss), *np.asarray(grad, float).reshape(-1)[:4].tolist()]

    def errors() -> dict[str, float]:
        if exact is None:
            return {}
        found, wanted = np.array(values()), np.array(exact())
        off = np.abs(found / wanted - 1.0)
        return {"loss": float(off[0]), "gradient": float(off[1:].max())}

    timed = {"forward": case.forward, "gradient": case.gradient}
    return Case(timed, values, errors, case.reverse, launches={"forward": forward, "gradient": gradient})


CASES: dict[str, tuple[Callable[..., Case], dict[str, Any], dict[str, Any]]] = {
    "sin64": (sin_recurrence, {"steps": 64}, {"steps": 64, "n": 1 << 12}),
    "sin256": (sin_recurrence, {"steps": 256}, {"steps": 256, "n": 1 << 12}),
    "sin1024": (sin_recurrence, {"steps": 1024}, {"steps": 1024, "n": 1 << 12}),
    "sin1024_accurate": (sin_recurrence, {"steps": 1024}, {"steps": 1024, "n": 1 << 12}),
    "sin1024_f64": (sin_recurrence, {"steps": 1024, "fp": "f64"}, {"steps": 1024, "n": 1 << 12, "fp": "f64"}),
    "saxpy": (saxpy, {}, {"n": 1 << 20}),
    "launch": (launch, {}, {"many": 50}),
    "gated_grid": (gated_grid, {}, {"shape": (16, 16, 16), "box": (7, 6, 5)}),
    "volume": (volume, {}, {"pixels": 16, "steps": 100, "grid": 16}),
    "diffmpm": (diffmpm, {}, {"particles": 256, "steps": 4, "grid": 40}),
    "mpm88": (mpm88, {}, {"particles": 256, "steps": 4, "grid": 32}),
    "mass_spring": (mass_spring, {}, {"steps": 20}),
}
"""Name -> how to make it, arguments for an H200, arguments for a try."""
