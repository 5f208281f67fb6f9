"""What the first launch and the first gradient of a kernel cost: Python calls, and milliseconds by stage.

    python -m benchmarks.first_calls [--cases elementwise recurrence loop matrices scatter] [--repeats 3] [--profile CASE [--by calls|time]]

Each case runs in a process of its own, after ``import qdrun`` and ``qd.init``, without the cache on disk. Calls are counted with
``sys.setprofile`` in a process that is not timed. ``--profile`` prints the functions that are called most, or that take longest.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import json
import pstats
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

STAGES = ("lower", "passes", "emit", "optimise", "generate code", "other")


def elementwise(qd: Any) -> tuple[Any, tuple[Any, ...]]:
    """One statement for each element."""
    x, y = (qd.field(qd.f32, shape=64, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(a: qd.f32):
        for i in x:
            y[i] = a * qd.sin(x[i]) + x[i] * x[i]

    return k, (2.0,)


def recurrence(qd: Any) -> tuple[Any, tuple[Any, ...]]:
    """The smallest kernel whose gradient keeps states: a loop whose length is known when it runs."""
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def k():
        for i in x:
            y = x[i]
            for _ in range(i + 2):
                y = qd.sin(y) * x[i]
            loss[None] += 3.0 * y

    return k, ()


def loop(qd: Any) -> tuple[Any, tuple[Any, ...]]:
    """A time loop with a branch, in which another loop runs as often as a field says."""
    x = qd.field(qd.f32, shape=64, needs_grad=True)
    count = qd.field(qd.i32, shape=64)
    loss = qd.field(qd.f32, shape=(), needs_grad=True)
    count.fill(3)

    @qd.kernel
    def k(steps: qd.i32):
        for i in x:
            place, speed = x[i], 0.0
            for _ in range(steps):
                force = -place
                for _ in range(count[i]):
                    force += 0.1 * qd.sin(force) * x[i]
                if place < 0.0:
                    force -= 10.0 * place * speed
                speed += 0.01 * force
                place += 0.01 * speed
            loss[None] += place * place

    return k, (5,)


def matrices(qd: Any) -> tuple[Any, tuple[Any, ...]]:
    """Rigid bodies: structs of vectors and matrices."""
    vec3, mat3 = qd.types.vector(3, qd.f32), qd.types.matrix(3, 3, qd.f32)
    body = qd.types.struct(place=vec3, speed=vec3, turn=mat3, spin=vec3, mass=qd.f32)
    now, then = (body.field(shape=16, needs_grad=True) for _ in range(2))

    @qd.kernel
    def k(dt: qd.f32):
        for i in now:
            b = now[i]
            b.speed += dt * qd.Vector([0.0, 0.0, -9.81]) / (1.0 + b.mass)
            b.place += dt * b.speed
            w = b.spin
            rate = qd.Matrix([[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]])
            b.turn += dt * (rate @ b.turn)
            b.spin = b.spin + dt * b.spin.cross(b.turn @ b.spin)
            then[i] = b

    return k, (0.01,)


def scatter(qd: Any) -> tuple[Any, tuple[Any, ...]]:
    """Particles to grid, as in the material point method."""
    n, cells = 64, 16
    x, v = (qd.Vector.field(2, dtype=qd.f32, shape=n, needs_grad=True) for _ in range(2))
    affine = qd.Matrix.field(2, 2, dtype=qd.f32, shape=n, needs_grad=True)
    stretch = qd.field(qd.f32, shape=n, needs_grad=True)
    momentum = qd.Vector.field(2, dtype=qd.f32, shape=(cells, cells), needs_grad=True)
    mass = qd.field(qd.f32, shape=(cells, cells), needs_grad=True)
    x.fill(0.4)

    @qd.kernel
    def k():
        for p in x:
            base = (x[p] * cells - 0.5).cast(qd.i32)
            fx = x[p] * cells - base.cast(qd.f32)
            w = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
            stress = -4e-4 * (stretch[p] - 1.0)
            push = qd.Matrix([[stress, 0.0], [0.0, stress]]) + affine[p]
            for i, j in qd.static(qd.ndrange(3, 3)):
                offset = qd.Vector([i, j])
                dpos = (offset.cast(qd.f32) - fx) / cells
                weight = w[i][0] * w[j][1]
                momentum[base + offset] += weight * (v[p] + push @ dpos)
                mass[base + offset] += weight

    return k, ()


CASES: dict[str, Callable[[Any], tuple[Any, tuple[Any, ...]]]] = {
    f.__name__: f for f in (elementwise, recurrence, loop, matrices, scatter)
}


def first_calls(case: str) -> dict[str, Callable[[], Any]]:
    """The first launch and the first gradient of a case, in a fresh program; call them in this order."""
    import qdrun as qd

    qd.init(arch=qd.cpu, offline_cache=False)
    kernel, args = CASES[case](qd)
    return {"launch": lambda: kernel(*args), "gradient": lambda: kernel.grad(*args)}


class Clock:
    """CPU seconds by stage; the time of a stage is without that of the stages inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open = ["other"]
        self._since = time.process_time()

    def _note(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def wrap(self, stage: str, f: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose time belongs to a stage."""

        @functools.wraps(f)
        def timed(*args: Any, **keywords: Any) -> Any:
            self._note()
            self._open.append(stage)
            try:
                return f(*args, **keywords)
            finally:
                self._note()
                self._open.pop()

        return timed

    def take(self) -> dict[str, float]:
        """Milliseconds by stage since the last call."""
        self._note()
        out = {stage: 1e3 * self.seconds[stage] for stage in STAGES}
        self.seconds.clear()
        return out


@contextlib.contextmanager
def clocked() -> Iterator[Clock]:
    """A clock that the functions of the stages report to."""
    from qdrun.compiler.compile import compiled_kernel, pipeline
    from qdrun.compiler.runtime import jit
    from qdrun.compiler.runtime.cpu import device

    clock = Clock()
    places = [
        (pipeline, "lower", "lower"),
        *((pipeline, name, "passes") for name in ("simplified", "gradient", "device_input", "reduced")),
        (compiled_kernel, "lanes_of", "passes"),
        (device, "emit_kernel", "emit"),
        (jit, "_optimise", "optimise"),
        (jit, "emit", "generate code"),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, stage in places:
        setattr(module, name, clock.wrap(stage, getattr(module, name)))
    try:
        yield clock
    finally:
        for module, name, f in before:
            setattr(module, name, f)


def milliseconds(case: str) -> dict[str, dict[str, float]]:
    """CPU milliseconds of both calls by stage."""
    with clocked() as clock:
        calls = first_calls(case)
        clock.take()
        out = {}
        for name, call in calls.items():
            call()
            out[name] = clock.take()
        return out


def counted(call: Callable[[], Any]) -> int:
    """How many Python functions a call calls in this thread; LLVM runs in another one."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def python_calls(case: str) -> dict[str, int]:
    """Python calls of the first launch and of the first gradient."""
    return {name: counted(call) for name, call in first_calls(case).items()}


def profile(case: str, by: str) -> None:
    """Print the functions that both calls spend most in."""
    for name, call in first_calls(case).items():
        profiler = cProfile.Profile(builtins=by == "time")
        profiler.runcall(call)
        print(f"==== {case}: {name}")
        pstats.Stats(profiler).strip_dirs().sort_stats("calls" if by == "calls" else "tottime").print_stats(45)


def in_process(*arguments: str) -> dict[str, Any]:
    """The figures of one process."""
    command = [sys.executable, "-m", "benchmarks.first_calls", "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(case: str, repeats: int) -> dict[str, dict[str, float]]:
    """Calls of a case, and the least milliseconds of each stage."""
    times = [in_process(case, "time") for _ in range(repeats)]
    calls = in_process(case, "calls")
    return {
        name: {"calls": calls[name], **{s: min(t[name][s] for t in times) for s in STAGES}} for name in ("launch", "gradient")
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", choices=list(CASES))
    parser.add_argument("--by", choices=["calls", "time"], default="time")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        case, what = options.one
        print(json.dumps(python_calls(case) if what == "calls" else milliseconds(case)))
        return
    if options.profile:
        profile(options.profile, options.by)
        return
    rows = {case: row(case, options.repeats) for case in options.cases}
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("case", "call", "Python calls", *(f"{s}, ms" for s in STAGES), "together, ms")
    for case, calls in rows.items():
        for name, figures in calls.items():
            stages = [figures[s] for s in STAGES]
            table.add_row(case, name, f"{figures['calls']:,.0f}", *(f"{s:.1f}" for s in stages), f"{sum(stages):.1f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
