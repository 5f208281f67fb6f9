"""A stencil and its gradient on one thread of a CPU: adjoints gathered, and added to neighbours in the order of the iterations.

``python -m benchmarks.stencils [--sizes 64,512,2048]``. Nanoseconds of processor time a cell and step, the least of several: 20 steps of a
five-point stencil, their reverse kernels, and a whole tape. ``+ c``: with the gradient of the coefficient, a sum over all cells. JAX, if it
is installed, as one compiled scan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.options import Options

STEPS = 20
Step = Callable[[int], Any]


def inner(u: Any, c: Any, n: int) -> Step:
    """The rim stays as it is."""

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
            v = u[t, i, j]
            u[t + 1, i, j] = v + c[None] * (u[t, i + 1, j] + u[t, i - 1, j] + u[t, i, j + 1] + u[t, i, j - 1] - 4.0 * v)

    return step


def periodic(u: Any, c: Any, n: int) -> Step:
    """Indices wrap."""

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, n):
            v = u[t, i, j]
            rows = u[t, (i + 1) % n, j] + u[t, (i + n - 1) % n, j]
            u[t + 1, i, j] = v + c[None] * (rows + u[t, i, (j + 1) % n] + u[t, i, (j + n - 1) % n] - 4.0 * v)

    return step


def clamped(u: Any, c: Any, n: int) -> Step:
    """Indices end at the rim."""

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, n):
            v = u[t, i, j]
            rows = u[t, qd.min(i + 1, n - 1), j] + u[t, qd.max(i - 1, 0), j]
            u[t + 1, i, j] = v + c[None] * (rows + u[t, i, qd.min(j + 1, n - 1)] + u[t, i, qd.max(j - 1, 0)] - 4.0 * v)

    return step


def guarded(u: Any, c: Any, n: int) -> Step:
    """An ``if`` leaves out the rim."""

    @qd.kernel
    def step(t: qd.i32):
        for i, j in qd.ndrange(n, n):
            if 0 < i < n - 1 and 0 < j < n - 1:
                v = u[t, i, j]
                u[t + 1, i, j] = v + c[None] * (u[t, i + 1, j] + u[t, i - 1, j] + u[t, i, j + 1] + u[t, i, j - 1] - 4.0 * v)

    return step


def measure(
    make: Callable[[Any, Any, int], Step], n: int, by_coefficient: bool, gathers: Callable[[Options], bool]
) -> list[float]:
    """Forward, reverse kernels and tape."""
    pipeline.gathers_on_host = gathers
    CACHE.clear()
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, cpu_max_num_threads=1):
        u = qd.field(qd.f64, shape=(STEPS + 1, n, n), needs_grad=True)
        c, loss = qd.field(qd.f64, shape=(), needs_grad=by_coefficient), qd.field(qd.f64, shape=(), needs_grad=True)
        step = make(u, c, n)

        @qd.kernel
        def total():
            for i, j in qd.ndrange(n, n):
                loss[None] += u[STEPS, i, j] ** 2

        u.from_numpy(np.random.default_rng(0).random((STEPS + 1, n, n)))
        c[None] = 0.2
        u.grad.fill(1.0)  # a gradient of zeros is warned of

        def forward() -> None:
            for t in range(STEPS):
                step(t)

        def backward() -> None:
            for t in reversed(range(STEPS)):
                step.grad(t)  # type: ignore[attr-defined]

        def tape() -> None:
            with qd.ad.Tape(loss):
                forward()
                total()

        return [least(run, n) for run in (forward, backward, tape)]


def least(run: Callable[[], object], n: int, times: int = 8) -> float:
    """Nanoseconds of processor time a cell and step."""
    many = max(1, 200_000 // n**2)
    run()
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        for _ in range(many):
            run()
        best = min(best, (time.process_time() - began) / many)
    return 1e9 * best / STEPS / n**2


def jax_times(n: int) -> str:
    """The periodic stencil by JAX, on one thread if its environment says so."""
    try:
        import jax
        import jax.numpy as jnp
    except ModuleNotFoundError:
        return "not installed"
    jax.config.update("jax_enable_x64", True)

    def step(u: Any, c: Any) -> Any:
        return u + c * (jnp.roll(u, -1, 0) + jnp.roll(u, 1, 0) + jnp.roll(u, -1, 1) + jnp.roll(u, 1, 1) - 4.0 * u)

    def loss(u: Any, c: Any) -> Any:
        return (jax.lax.scan(lambda v, _: (step(v, c), None), u, None, length=STEPS)[0] ** 2).sum()

    u = jnp.asarray(np.random.default_rng(0).random((n, n)))
    value, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    times = [least(lambda f=f: jax.block_until_ready(f(u, 0.2)), n) for f in (value, both)]
    return f"forward {times[0]:.2f}, with gradient {times[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="64,512,2048", help="cells along each axis")
    args = parser.parse_args()
    gathers = pipeline.gathers_on_host
    print(
        "| stencil | n | forward | reverse: atomics | gathered | tape: atomics | gathered | reverse / forward | tape / forward |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for n in map(int, args.sizes.split(",")):
        for make in (inner, periodic, clamped, guarded):
            for by_coefficient in (False, True):
                before = measure(make, n, by_coefficient, lambda _: False)
                after = measure(make, n, by_coefficient, gathers)
                forward = min(before[0], after[0])
                name = f"{make.__name__}{' + c' if by_coefficient else ''}"
                figures = f"{before[1]:.2f} | {after[1]:.2f} | {before[2]:.2f} | {after[2]:.2f}"
                print(
                    f"| {name} | {n} | {forward:.2f} | {figures} | {after[1] / forward:.1f} | {after[2] / forward:.1f} |",
                    flush=True,
                )
        print(f"JAX, periodic + c, n = {n}: {jax_times(n)}", flush=True)


if __name__ == "__main__":
    main()
