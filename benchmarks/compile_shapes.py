"""CPU seconds of compilation by the length of the code, for many shapes of code: growth is close to linear, batched or not.

    python -m benchmarks.compile_shapes [--kinds sin,pow] [--sizes 50,100,200,400,800] [--arch cpu] [--batch 0,5] [--limit 30]

Each measurement runs in a process of its own, with nothing cached. Sizes above one that takes longer than the limit are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import qdrun as qd

Builder = Callable[[int, Any, Any], Any]


def _chain(step: Callable[[Any, Any], Any]) -> Builder:
    """A kernel of n steps that follow one another in one block."""

    def build(n: int, x: Any, loss: Any) -> Any:
        one = qd.func(step)

        @qd.kernel
        def chain():
            for _ in range(1):
                v = x[0]
                for i in qd.static(range(n)):
                    v = one(v, x[i % 10])
                loss[None] = v

        return chain

    return build


def _sin(v, a):
    return qd.sin(v) * a + 0.3


def _tan(v, a):
    return qd.tan(v * 0.1) * a + 0.3


def _exp(v, a):
    return qd.exp(-v * v) * a + 0.3


def _log(v, a):
    return qd.log(v * v + 1.0) * a + 0.3


def _tanh(v, a):
    return qd.tanh(v) * a + 0.3


def _pow(v, a):
    return qd.pow(v * v + 1.0, a) * 0.3


def _atan2(v, a):
    return qd.atan2(v, a) * 0.3 + a


def _sqrt(v, a):
    return qd.sqrt(v * v + a)


def _div(v, a):
    return a / (v + 1.5) + 0.3


def _arith(v, a):
    return v * a + (v - a) * 0.5 - v * v * 0.1


def _branch(v, a):
    if v > a:
        v = v * 0.5 + a
    else:
        v = v * a + 0.1
    return v


def _matrix(v, a):
    m = qd.Matrix([[v, a, 0.1], [0.2, v, a], [a, 0.3, v]])
    return (m @ m.transpose()).trace() * 0.01 + (m.inverse() @ m).determinant() * 0.01


def _loop(v, a):
    for _ in range(3):
        v = v * a + 0.1
    return v


def _svd(v, a):
    m = qd.Matrix([[v, a, 0.1], [0.2, v + 1.0, a], [a, 0.3, v + 2.0]])
    _, s, _ = qd.svd(m)
    return s[0, 0] * 0.1 + s[2, 2] * 0.2


def _loops(n: int, x: Any, loss: Any) -> Any:
    """Parallel loops, one after the other."""

    @qd.kernel
    def loops():
        for k in qd.static(range(n)):
            for i in range(10):
                loss[None] += qd.sin(x[i]) * (k + 1)

    return loops


KINDS: dict[str, Builder] = {
    "sin": _chain(_sin),
    "tan": _chain(_tan),
    "exp": _chain(_exp),
    "log": _chain(_log),
    "tanh": _chain(_tanh),
    "pow": _chain(_pow),
    "atan2": _chain(_atan2),
    "sqrt": _chain(_sqrt),
    "div": _chain(_div),
    "arith": _chain(_arith),
    "branch": _chain(_branch),
    "matrix": _chain(_matrix),
    "loop": _chain(_loop),
    "svd": _chain(_svd),
    "loops": _loops,
}


def measure(kind: str, n: int, arch: str, batch: int) -> dict[str, float]:
    """CPU seconds of the first launch and of the first gradient."""
    options = {"batch": batch} if batch else {}
    qd.init(arch=getattr(qd, arch), default_fp=qd.f64, offline_cache=False, **options)
    x = qd.field(qd.f64, shape=16, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    kernel = KINDS[kind](n, x, loss)
    x.fill(0.85)
    loss.grad.fill(1.0)
    times = [time.process_time()]
    for call in (kernel, kernel.grad):
        call()
        times.append(time.process_time())
    return {"forward": times[1] - times[0], "gradient": times[2] - times[1]}


def _measured(kind: str, n: int, arch: str, batch: int, limit: float) -> dict[str, float] | str:
    command = [sys.executable, "-m", "benchmarks.compile_shapes", "--one", kind, str(n), arch, str(batch)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit * 8, check=False)
    except subprocess.TimeoutExpired:
        return "too long"
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", default="50,100,200,400,800")
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--batch", default="0,5")
    parser.add_argument("--limit", type=float, default=30.0, help="CPU seconds after which larger sizes are left out")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, n, arch, batch = options.one
        print(json.dumps(measure(kind, int(n), arch, int(batch))))
        return
    sizes = [int(n) for n in options.sizes.split(",")]
    print("kind".ljust(10), "batch", *(f"{n:>13}" for n in sizes), "   forward / gradient, CPU seconds")
    for kind in options.kinds.split(","):
        for batch in map(int, options.batch.split(",")):
            print(kind.ljust(10), f"{batch:5}", end=" ", flush=True)
            for n in sizes:
                found = _measured(kind, n, options.arch, batch, options.limit)
                text = found if isinstance(found, str) else f"{found['forward']:.2f} / {found['gradient']:.2f}"
                print(f"{text:>13}", end=" ", flush=True)
                if isinstance(found, str) or sum(found.values()) > options.limit:
                    break
            print()


if __name__ == "__main__":
    main()
