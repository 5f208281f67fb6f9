"""Memory of a process that makes and drops the same thing 10,000 times: megabytes after each tenth. They are level after the first.

python -m benchmarks.leaks [--kinds objects,trees] [--count 10000]
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import qdrun as qd
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.runtime.cpu import device
from qdrun.jobs.core.batch import BatchSession
from qdrun.jobs.core.session import Session
from qdrun.jobs.mass_spring_simple import MassSpringSimple, MassSpringSimpleParams
from qdrun.jobs.planning import groups

Once = Callable[[int], None]


@qd.data_oriented
class Simulation:
    def __init__(self) -> None:
        self.x = qd.ndarray(qd.f32, 64)

    @qd.kernel
    def step(self):
        for i in range(64):
            self.x[i] += 1.0


@qd.kernel
def _scaled(x: qd.types.ndarray(), a: qd.template()):
    for i in x:
        x[i] += a


@qd.kernel
def _added(x: qd.types.ndarray()):
    for i in x:
        x[i] += 1.0


def _programs(close: bool) -> Once:
    def once(n: int) -> None:
        program = qd.init(arch=qd.cpu)
        x = qd.field(qd.f32, shape=16)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        fill()
        if close:
            program.close()

    return once


def _objects(n: int) -> None:
    Simulation().step()


def _trees(n: int) -> None:
    builder = qd.FieldsBuilder()
    x = qd.field(qd.f32)
    builder.dense(qd.i, 100).place(x)
    tree = builder.finalize()

    @qd.kernel
    def fill():
        for i in x:
            x[i] += 1.0

    fill()
    tree.destroy()


def _floats(n: int) -> None:
    _scaled(qd.ndarray(qd.f32, 8), n + 0.5)


def _arrays(n: int) -> None:
    x = qd.ndarray(qd.f32, 1000)
    x.fill(1.0)
    _added(x)


def _closures(n: int) -> None:
    x = qd.ndarray(qd.f32, 64)

    @qd.kernel
    def fill(a: qd.f32):
        for i in range(64):
            x[i] += a

    fill(2.0)


def _tapes() -> Once:
    x = qd.field(qd.f64, shape=8, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def energy():
        for i in x:
            loss[None] += x[i] * x[i]

    def once(n: int) -> None:
        loss[None] = 0.0
        with qd.ad.Tape(loss=loss):
            energy()

    return once


def _graphs() -> Once:
    x = qd.field(qd.f32, shape=8)

    @qd.kernel
    def fill():
        for i in x:
            x[i] += 1.0

    fill()

    def once(n: int) -> None:
        qd.capture(fill)()

    return once


def _numpy(n: int) -> None:
    _added(np.zeros(1000, np.float32))


def _sessions(n: int) -> None:
    params = MassSpringSimpleParams(steps=8, area=0.1 + n / 1e6, stiffness=10.0 + n % 7)
    with Session(MassSpringSimple(params)) as session:
        session.run(params)


def _batch_sessions(n: int) -> None:
    params = MassSpringSimpleParams(steps=8, area=0.1 + n / 1e6, stiffness=10.0 + n % 7)
    with BatchSession.open(MassSpringSimple, params, 4) as batch:
        batch.run([params] * 3)


def _runs() -> Once:
    session = Session(MassSpringSimple(MassSpringSimpleParams(steps=8))).__enter__()

    def once(n: int) -> None:
        session.run(MassSpringSimpleParams(steps=8, area=0.1 + n / 1e6))

    return once


KINDS: dict[str, Callable[[], Once]] = {
    "programs closed": lambda: _programs(True),
    "programs not closed": lambda: _programs(False),
    "objects": lambda: _objects,
    "trees": lambda: _trees,
    "floats": lambda: _floats,
    "arrays": lambda: _arrays,
    "closures": lambda: _closures,
    "tapes": _tapes,
    "graphs": _graphs,
    "numpy arrays": lambda: _numpy,
    "sessions": lambda: _sessions,
    "batch sessions": lambda: _batch_sessions,
    "runs of a session": _runs,
}


def counts() -> dict[str, int]:
    """What the process keeps of programs and kernels."""
    program = qd.get_runtime() if hasattr(qd, "get_runtime") else None
    found = {"groups": sum(len(t) for x in groups._texts.values() for t in x.values())}
    found |= {"contexts": len(device._contexts), "entries": len(CACHE._entries), "lists": len(CACHE._lists)}
    if program is not None and hasattr(program, "variants"):
        found |= {
            "variants": sum(map(len, program.variants.values())),
            "kernels": len(program.data.kernels),
            "launches": sum(map(len, program.native_launches.values())),
            "counters": sum(map(len, program.data.from_python.values())),
        }
    return found


def megabytes() -> float:
    """Memory of this process that lies in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def measure(kind: str, count: int) -> None:
    qd.init(arch=qd.cpu)
    once = KINDS[kind]()
    row = []
    for n in range(count):
        once(n)
        if (n + 1) % (count // 10) == 0:
            gc.collect()
            row.append(f"{megabytes():6.0f}")
    print(f"{kind:20}", *row, "  ", counts(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    for kind in options.kinds.split(","):
        if options.here:
            measure(kind, options.count)
        else:
            command = [sys.executable, "-m", "benchmarks.leaks", "--here", "--kinds", kind, "--count", str(options.count)]
            subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
