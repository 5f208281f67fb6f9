"""What a plan costs: when its inputs are what they were, when they were written, and when a bound is looked for over many indices.

    python -m benchmarks.planning [--repeats 5] [--outer 100000000] [--json]

CPU times of one thread, the least of some repeats.
"""

from __future__ import annotations

import argparse
import json
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import qdrun as qd
from qdrun.compiler.ir.nodes import ArgDecl, Buffer, Op, Place
from qdrun.compiler.ir.types import i32
from qdrun.compiler.tape.bounds.bounds import Trips, max_trips
from qdrun.compiler.tape.bounds.sizeexpr import Bin, ElementRead, Index, Lit, Range, SizeExpr

Row = dict[str, object]


def launches(repeats: int) -> Iterator[Row]:
    """Plans of one gradient, microseconds each: ``GradientPlans.plan``, and around it ``kernel.grad.plan`` with its arguments."""
    with qd.init(default_fp=qd.f64, cpu_max_num_threads=1):
        x, y = (qd.field(qd.f64, shape=1000, needs_grad=True) for _ in range(2))
        start = qd.field(qd.i32, shape=1001)
        start.from_numpy(np.arange(1001, dtype=np.int32))

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(start[i], start[i + 1] + n):
                    v = qd.sin(v)
                y[i] = v

        @qd.kernel
        def write(n: qd.i32):
            start[0] = n

        gradient: Any = k.grad  # type: ignore[attr-defined]
        gradient(3)
        variant, bound = gradient._ready((3,), {})
        plan, call = variant.gradient.plan, bound.call
        yield _micro("a plan, inputs unchanged", lambda: plan(call), 20_000, repeats)
        yield _micro("the same through k.grad.plan(3)", lambda: gradient.plan(3), 2_000, repeats)
        write(0)
        yield _micro("a launch that writes the bounds", lambda: write(0), 2_000, repeats)
        yield _micro("that launch, and a plan with equal contents", lambda: (write(0), plan(call)), 2_000, repeats)
        numbers = iter(range(10**9))
        yield _micro(
            "that launch, and a plan with new contents", lambda: (write(-1 - next(numbers) % 1000), plan(call)), 500, repeats
        )


def _micro(what: str, f: Callable[[], object], number: int, repeats: int) -> Row:
    return {"what": what, "us": min(timeit.repeat(f, timer=time.thread_time, number=number, repeat=repeats)) / number * 1e6}


class Arrays:
    """A launch of which only the content of arrays is known."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays

    def scalar(self, arg: ArgDecl) -> int:
        """There are none."""
        raise LookupError(arg.name)

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """There are none."""
        raise LookupError(arg.name)

    def array(self, place: Place) -> np.ndarray:
        """By the name of the place."""
        return self.arrays[place.name]


def bounds(outer: int, repeats: int) -> Iterator[Row]:
    """Largest counts over ``outer`` enclosing indices, seconds each."""
    lengths = np.random.default_rng(1).integers(0, 20, outer, dtype=np.int32)
    lengths[outer // 2] = 0
    host = Arrays(start=np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths % 20, dtype=np.int32)]), lengths=lengths)
    rows = _loop(Lit(0, i32), Lit(outer, i32))
    i = Index(rows.index)
    cases: dict[str, tuple[SizeExpr, SizeExpr]] = {
        "range(n - i)": (Lit(0, i32), Bin("sub", (Lit(outer, i32), i), i32)),
        "range(i % 1000)": (Lit(0, i32), Bin("mod", (i, Lit(1000, i32)), i32)),
        "range((i * 7919) % 9973)": (Lit(0, i32), Bin("mod", (Bin("mul", (i, Lit(7919, i32)), i32), Lit(9973, i32)), i32)),
        "range(lengths[i])": (Lit(0, i32), _read("lengths", i, outer)),
        "range(start[i], start[i + 1])": (
            _read("start", i, outer + 1),
            _read("start", Bin("add", (i, Lit(1, i32)), i32), outer + 1),
        ),
    }
    for name, ends in cases.items():
        best, found = float("inf"), Trips(0, "")
        for _ in range(repeats):
            begin = time.thread_time()
            found = max_trips(_loop(*ends), (rows,), host)
            best = min(best, time.thread_time() - begin)
        yield {"what": f"{name} over {outer:,} i", "us": best * 1e6, "count": found.count, "source": found.source}


def _loop(begin: SizeExpr, end: SizeExpr) -> Range:
    return Range(Op("index", (), i32), begin, end, 1)


def _read(name: str, index: SizeExpr, size: int) -> ElementRead:
    return ElementRead(Place(name, i32, Buffer("field"), 1, (size,), (4,)), (index,))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--outer", type=int, default=10**8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [*launches(options.repeats), *bounds(options.outer, max(1, options.repeats // 2))]
    if options.json:
        print(json.dumps(rows))
        return
    table = Table("plan", "time", "count", "source", title="Planning")
    for row in rows:
        us = float(str(row["us"]))
        shown = f"{us:,.2f} us" if us < 1000 else f"{us / 1e6:.3f} s"
        table.add_row(escape(str(row["what"])), shown, str(row.get("count", "")), str(row.get("source", "")))
    Console().print(table)


if __name__ == "__main__":
    main()
