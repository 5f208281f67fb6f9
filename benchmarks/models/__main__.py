"""``python -m benchmarks.models --arch cpu --batches 1,8,64``: trials with gradients a second of models that nobody tuned, ours beside JAX.

Both sides get the same random inputs, new ones in each round, and take turns. Ours runs from NumPy's arrays to NumPy's arrays:
``Session.run`` for one trial, else ``BatchSession.run_columns``. JAX's arrays are on its device before the clock starts and stay there:
``jit`` of ``value_and_grad`` over ``scan``, for several trials with ``vmap``, and on a CPU one after the other, too. It keeps all
intermediate results, the state of each step, or of each square root of the steps: the best of these counts.

All losses and gradients of each round are compared; a difference ends with exit code 1. The fastest round counts. With ``--threads 1`` the
process has one core, and times are CPU times: they hardly depend on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import math
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.batched.check import difference
from benchmarks.models import NAMES
from benchmarks.models.model import Columns, Model

Found = tuple[np.ndarray, Columns]
"""Losses and gradients of all trials."""
LOOPED = 64
"""More trials than these, JAX does not run one after the other."""


@dataclass
class Side:
    """A way to run a batch: ``prepare`` takes columns to what ``run`` takes, ``read`` its result to arrays; both off the clock."""

    name: str
    prepare: Callable[[Columns], Any]
    run: Callable[[Any], Any]
    read: Callable[[Any], Found]
    first: float = 0.0
    best: float = math.inf


@dataclass(frozen=True)
class Ratio:
    model: str
    batch: int
    ours: float
    jax: float

    @property
    def value(self) -> float:
        return self.ours / self.jax


def main() -> int:
    args = arguments()
    if not importlib.util.find_spec("jax"):
        raise SystemExit("there is no jax in this environment\n  do: pip install -e .[bench]")
    if args.threads and args.arch == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    jax = start_jax(args)
    roof = measure_roof(args)
    print(f"{args.arch}, {args.dtype}, {jax.devices()[0].device_kind}, jax {jax.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"roof: {roof[0] / 1e9:,.1f} GB/s (a copy), {roof[1] / 1e9:,.0f} Gflop/s (a product of matrices), by JAX", flush=True)
    ratios, wrong = list[Ratio](), list[str]()
    for name in args.only.split(",") if args.only else NAMES:
        model: Model = importlib.import_module(f"benchmarks.models.{name}").MODEL
        for batch in map(int, args.batches.split(",")):
            try:
                ratios.append(compare(name, model, batch, args, roof))
            except Exception as error:
                traceback.print_exc()
                wrong.append(f"{name}, B = {batch}: {type(error).__name__}: {error}")
    print_summary(ratios)
    print("\n".join(f"WRONG: {line}" for line in wrong) or "losses and gradients agree everywhere")
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--arch", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batches", default="1,8", help="numbers of trials, as in 1,8,64")
    parser.add_argument("--only", default="", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--dtype", choices=("f64", "f32"), default="f64")
    parser.add_argument("--threads", type=int, default=0, help="cores of a CPU for each side; 1: CPU times; default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long to measure each model and batch")
    return parser.parse_args()


def start_jax(args: argparse.Namespace) -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["JAX_PLATFORMS"] = args.arch
    import jax

    jax.config.update("jax_enable_x64", args.dtype == "f64")
    jax.devices()
    return jax


def clock(args: argparse.Namespace) -> Callable[[], float]:
    return time.process_time if args.threads == 1 and args.arch == "cpu" else time.perf_counter


def measure_roof(args: argparse.Namespace) -> tuple[float, float]:
    """Bytes a second of a copy, and operations a second of a product of matrices."""
    import jax
    import jax.numpy as jnp

    size, side = (2**28, 8192) if args.arch == "cuda" else (2**25, 1024)
    kind, now = jnp.dtype(args.dtype.replace("f", "float")), clock(args)
    vector, square = jnp.ones(size, kind), jnp.ones((side, side), kind)
    times = []
    for f, x in ((lambda x: x + 1.0, vector), (lambda x: 1e-3 * (x @ x), square)):
        g, spent = jax.jit(f, donate_argnums=0), []  # in place: memory that is new costs more
        for _ in range(8):
            begin = now()
            x = jax.block_until_ready(g(x))
            spent.append(now() - begin)
        times.append(min(spent))
    return 2 * size * kind.itemsize / times[0], 2 * side**3 / times[1]


def compare(name: str, model: Model, batch: int, args: argparse.Namespace, roof: tuple[float, float]) -> Ratio:
    """Measure both sides in turns, and print a line.

    Raises:
        ValueError: losses or gradients differ.
    """
    sizes, rng, now = model.job.Params(), np.random.default_rng(), clock(args)
    kind = np.dtype(args.dtype.replace("f", "float"))

    def fresh() -> Columns:
        return {key: column.astype(kind) for key, column in model.sample(rng, batch, sizes).items()}

    with open_ours(model, fresh(), batch, args) as ours:
        theirs = jax_sides(model, sizes, batch, args)
        for side in theirs:
            columns = side.prepare(fresh())
            begin = now()
            side.run(columns)
            side.first = now() - begin
        ours.run(ours.prepare(fresh()))  # the second run records the launches
        sides, until, rounds, off = [ours, *theirs], time.perf_counter() + args.seconds, 0, 0.0
        while rounds < 3 or time.perf_counter() < until:
            columns, found = fresh(), dict[str, Found]()
            for side in sides:
                given = side.prepare(columns)
                begin = now()
                result = side.run(given)
                side.best = min(side.best, now() - begin)
                found[side.name] = side.read(result)
            off = max(off, *(check(model, found["ours"], found[side.name], args.dtype) for side in sides[1:]))
            rounds += 1
            if rounds == 1:  # the others are slower
                sides = [ours, min(theirs, key=lambda side: side.best)]
    fastest = min(theirs, key=lambda side: side.best)
    ratio = Ratio(name, batch, batch / ours.best, batch / fastest.best)
    print_line(ratio, ours, fastest, off, rounds)
    print_floor(model.cost(sizes), kind.itemsize, ratio, roof)
    return ratio


def check(model: Model, ours: Found, theirs: Found, dtype: str) -> float:
    """The largest relative difference.

    Raises:
        ValueError: it is too large.
    """
    columns = {"loss": (ours[0], theirs[0])} | {key: (ours[1][key], theirs[1][key]) for key in model.job.gradients}
    off = {key: difference(np.asarray(a, float), np.asarray(b, float)) for key, (a, b) in columns.items()}
    wrong = {key: value for key, value in off.items() if not value <= model.tolerance[dtype]}  # NaN, too
    if wrong:
        raise ValueError(f"ours and JAX's differ by {wrong}, allowed are {model.tolerance[dtype]:.0e}")
    return max(off.values())


@contextlib.contextmanager
def open_ours(model: Model, columns: Columns, batch: int, args: argparse.Namespace) -> Iterator[Side]:
    """An open session that has run once, with empty caches."""
    from qdrun.jobs.base import Session
    from qdrun.jobs.core.batch import BatchSession

    names = model.job.gradients
    job = type(model.job.__name__, (model.job,), {"precision": args.dtype, "__module__": model.job.__module__})
    cores, now = len(os.sched_getaffinity(0)) if args.arch == "cpu" else None, clock(args)
    with tempfile.TemporaryDirectory() as caches:
        os.environ["QDRUN_CACHE_DIR"] = caches
        begin, row = now(), model.rows(columns)[0]
        if batch == 1:
            session: Any = Session(job(row), backend=args.arch, threads=cores)
            side = Side("ours", lambda columns: model.rows(columns)[0], session.run, lambda o: one_row(o, names))
        else:
            session = BatchSession.open(job, row, batch, backend=args.arch, threads=cores)
            side = Side("ours", lambda columns: columns, session.run_columns, of_batch)
        with session:
            side.run(side.prepare(columns))
            side.first = now() - begin
            yield side


def one_row(outcome: Any, names: tuple[str, ...]) -> Found:
    return np.array([outcome.loss]), {name: np.asarray(outcome.gradients[name])[None] for name in names}


def of_batch(outcome: Any) -> Found:
    for row, error in outcome.errors.items():
        raise RuntimeError(f"{len(outcome.errors)} trials failed, the first in row {row}") from error
    return outcome.losses, dict(outcome.gradients)


def jax_sides(model: Model, sizes: Any, batch: int, args: argparse.Namespace) -> list[Side]:
    """The ways of JAX, without compiling them."""
    import jax
    import jax.numpy as jnp

    steps = sizes.steps
    names = model.job.gradients

    def prepare(columns: Columns) -> Any:
        return jax.block_until_ready({key: jnp.asarray(column) for key, column in columns.items()})

    def one_by_one(columns: Columns) -> Any:
        return [{key: column[i] for key, column in columns.items()} for i in range(batch)]

    def read(result: Any) -> Found:
        results = result if isinstance(result, list) else [result]
        loss, gradients = jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *results)
        if not isinstance(result, list):
            loss, gradients = loss[0], {key: value[0] for key, value in gradients.items()}
        return loss, gradients

    sides = []
    for label, every in {"plain": 0, "each step": 1, "segments": max(2, math.isqrt(steps))}.items():

        def gradient(wanted: Any, others: Any, every: int = every) -> Any:
            return jax.value_and_grad(lambda wanted: model.loss(sizes, wanted | others, every))(wanted)

        def split(f: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
            return jax.jit(lambda c: f({k: c[k] for k in names}, {k: v for k, v in c.items() if k not in names}))

        if batch > 1:
            many = split(jax.vmap(gradient))
            sides.append(Side(f"vmap, {label}", prepare, lambda c, f=many: jax.block_until_ready(f(c)), read))
        if batch == 1 or (args.arch == "cpu" and batch <= LOOPED):
            one = split(gradient)

            def loop(rows: Any, f: Any = one) -> Any:
                return jax.block_until_ready([f(row) for row in rows])

            way = label if batch == 1 else f"one by one, {label}"
            sides.append(Side(way, lambda c: one_by_one(prepare(c)), loop, read))
    return sides


def print_line(ratio: Ratio, ours: Side, theirs: Side, off: float, rounds: int) -> None:
    print(
        f"{ratio.model:10} B = {ratio.batch:<6,} ours {ratio.ours:12,.1f}  JAX {ratio.jax:12,.1f} trials/s  ratio {ratio.value:7.2f}"
        f"   first {ours.first:5.2f} s, JAX {theirs.first:5.2f} s   ({theirs.name}; {rounds} rounds, difference {off:.0e})",
        flush=True,
    )


def print_floor(cost: Any, itemsize: int, ratio: Ratio, roof: tuple[float, float]) -> None:
    memory, arithmetic = cost.numbers * itemsize / roof[0], cost.flops / roof[1]
    floor, by = max((memory, "memory"), (arithmetic, "arithmetic"))
    print(
        f"           a trial: {cost.numbers * itemsize / 1e6:.3g} MB, {cost.flops / 1e6:.3g} Mflop, floor {1e6 * floor:.3g} us by {by}; "
        f"ours {1 / ratio.ours / floor:,.1f} times it, JAX {1 / ratio.jax / floor:,.1f}",
        flush=True,
    )


def print_summary(ratios: list[Ratio]) -> None:
    batches = list(dict.fromkeys(ratio.batch for ratio in ratios))
    print("\n| model | " + " | ".join(f"B = {batch:,}" for batch in batches) + " |\n" + "| --- " * (len(batches) + 1) + "|")
    for name in dict.fromkeys(ratio.model for ratio in ratios):
        found = {ratio.batch: f"{ratio.value:.2f}" for ratio in ratios if ratio.model == name}
        print(f"| {name} | " + " | ".join(found.get(batch, "") for batch in batches) + " |")
    for label, choose in (("WORST RATIO", min), ("BEST RATIO ", max)):
        if ratios:
            found = choose(ratios, key=lambda ratio: ratio.value)
            print(f"{label} {found.value:6.2f}   {found.model}, B = {found.batch:,}")


if __name__ == "__main__":
    sys.exit(main())
