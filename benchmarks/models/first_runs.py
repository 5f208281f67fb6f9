"""``python -m benchmarks.models.first_runs``: seconds to the first loss and gradient of each model, ours beside JAX.

Each run is a process of its own, one after the other, in turns: ours with an empty code cache, ours with a full one, and JAX without a
cache, as ``jit`` of ``value_and_grad`` over ``scan`` that keeps all intermediate results, for several trials with ``vmap``. The clock
starts after the imports, and with JAX's device and its input arrays ready; the table has the imports, too. The least of ``--rounds``
runs counts.

With ``--threads 1`` the process has one core, and the CPU times hardly depend on what else runs on the machine. ``--stages`` prints where
ours goes, ``--profile MODEL`` the functions of Python that take longest.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import importlib.util
import json
import math
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import NAMES

SIDES = ("empty", "full", "jax")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Seconds:
    """CPU and wall seconds of a process: of its start with the imports, and from there to the first gradient.

    Attributes:
        stages: milliseconds of ours.
    """

    imports: float
    imports_wall: float
    first: float
    first_wall: float
    stages: dict[str, float]


@dataclass(frozen=True)
class Row:
    """The least seconds of each side for a model and a batch."""

    model: str
    batch: int
    sides: dict[str, Seconds]

    @property
    def ratio(self) -> float:
        """Ours with an empty cache / JAX, CPU seconds without imports."""
        return self.sides["empty"].first / self.sides["jax"].first


def main() -> int:
    args = arguments()
    if args.one:
        side, name, batch = args.one
        print(json.dumps(vars(one(side, name, int(batch), args))))
        return 0
    if args.profile:
        profile(args)
        return 0
    sides = [s for s in args.sides.split(",") if s != "jax" or importlib.util.find_spec("jax")]
    rows = []
    for name in args.only.split(",") if args.only else NAMES:
        for batch in map(int, args.batches.split(",")):
            rows.append(Row(name, batch, measure(name, batch, sides, args)))
            print_row(rows[-1], args)
    if {"empty", "jax"} <= set(sides):
        print_summary(rows)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models.first_runs", description=__doc__)
    parser.add_argument("--arch", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batches", default="1,8", help="numbers of trials, as in 1,8,64")
    parser.add_argument("--only", default="", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"some of {', '.join(SIDES)}")
    parser.add_argument("--dtype", choices=("f64", "f32"), default="f64")
    parser.add_argument("--threads", type=int, default=0, help="cores of a CPU for each side; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stages", action="store_true", help="print milliseconds of ours by stage")
    parser.add_argument("--profile", default="", help="a model: print its functions that take longest, with an empty cache")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    return parser.parse_args()


# -- one process


def one(side: str, name: str, batch: int, args: argparse.Namespace) -> Seconds:
    """The seconds of this process, which has run nothing else."""
    from benchmarks.first_calls import clocked

    if args.threads and args.arch == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    run = prepare(side == "jax", name, batch, args)
    imports, imports_wall = time.process_time(), time.time() - args.since
    stages = {}
    begin_cpu, begin = time.process_time(), time.perf_counter()
    if side != "jax" and args.stages:
        with clocked() as clock:
            run()
            stages = clock.take()
    else:
        run()
    first, first_wall = time.process_time() - begin_cpu, time.perf_counter() - begin
    return Seconds(imports, imports_wall, first, first_wall, stages)


def prepare(jax: bool, name: str, batch: int, args: argparse.Namespace) -> Callable[[], Any]:
    """What runs a model for the first time, after the imports."""
    return prepare_jax(name, batch, args) if jax else prepare_ours(name, batch, args)


def prepare_ours(name: str, batch: int, args: argparse.Namespace) -> Callable[[], Any]:
    import qdrun as qd
    from qdrun.jobs.base import Session
    from qdrun.jobs.core.batch import BatchSession

    qd.field  # noqa: B018  # the package imports the compiler with its first name
    model, columns = sampled(name, batch, args)
    job = type(model.job.__name__, (model.job,), {"precision": args.dtype, "__module__": model.job.__module__})
    cores, row = len(os.sched_getaffinity(0)) if args.arch == "cpu" else None, model.rows(columns)[0]

    def run() -> Any:
        if batch == 1:
            with Session(job(row), backend=args.arch, threads=cores) as session:
                return session.run(row)
        with BatchSession.open(job, row, batch, backend=args.arch, threads=cores) as batches:
            return batches.run_columns(columns)

    return run


def prepare_jax(name: str, batch: int, args: argparse.Namespace) -> Callable[[], Any]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ["JAX_PLATFORMS"] = args.arch
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", args.dtype == "f64")
    model, columns = sampled(name, batch, args)
    names, sizes = model.job.gradients, model.job.Params()
    given = jax.block_until_ready({key: jnp.asarray(c if batch > 1 else c[0]) for key, c in columns.items()})

    def gradient(wanted: Any, others: Any) -> Any:
        return jax.value_and_grad(lambda wanted: model.loss(sizes, wanted | others, 0))(wanted)

    wanted, others = {k: given[k] for k in names}, {k: v for k, v in given.items() if k not in names}
    return lambda: jax.block_until_ready(jax.jit(jax.vmap(gradient) if batch > 1 else gradient)(wanted, others))


def sampled(name: str, batch: int, args: argparse.Namespace) -> tuple[Any, dict[str, np.ndarray]]:
    """A model and random inputs."""
    model = importlib.import_module(f"benchmarks.models.{name}").MODEL
    kind = np.dtype(args.dtype.replace("f", "float"))
    found = model.sample(np.random.default_rng(), batch, model.job.Params())
    return model, {key: column.astype(kind) for key, column in found.items()}


def profile(args: argparse.Namespace) -> None:
    """Print the functions that take longest in a first run of ours. LLVM runs in another thread, as a wait."""
    for batch in map(int, args.batches.split(",")):
        with tempfile.TemporaryDirectory() as caches:
            os.environ["QDRUN_CACHE_DIR"] = caches
            run, profiler = prepare(False, args.profile, batch, args), cProfile.Profile()
            profiler.runcall(run)
            print(f"==== {args.profile}, B = {batch}")
            pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(45)


# -- all processes


def measure(name: str, batch: int, sides: list[str], args: argparse.Namespace) -> dict[str, Seconds]:
    """The least seconds of each side."""
    found: dict[str, list[Seconds]] = {side: [] for side in sides}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as caches:
            for side in sides:  # the first run of ours fills the cache
                found[side].append(in_process(side, name, batch, caches, args))
    return {side: min(runs, key=lambda run: run.first) for side, runs in found.items()}


def in_process(side: str, name: str, batch: int, caches: str, args: argparse.Namespace) -> Seconds:
    command = [sys.executable, "-m", "benchmarks.models.first_runs", "--one", side, name, str(batch)]
    command += ["--arch", args.arch, "--dtype", args.dtype, "--threads", str(args.threads), "--since", str(time.time())]
    command += ["--stages"] if args.stages else []
    env = os.environ | {"QDRUN_CACHE_DIR": caches}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=env)
    if done.returncode:
        raise SystemExit(f"{name}, B = {batch}, {side} failed:\n{done.stderr[-3000:]}")
    return Seconds(**json.loads(done.stdout.strip().splitlines()[-1]))


def print_row(row: Row, args: argparse.Namespace) -> None:
    texts = [f"{row.model:10} B = {row.batch:<4}"]
    for side, s in row.sides.items():
        texts.append(f"{side} {s.first:5.2f} ({s.first_wall:5.2f} wall, imports {s.imports:4.2f})")
    if {"empty", "jax"} <= set(row.sides):
        texts.append(f"ratio {row.ratio:5.2f}")
    print("  ".join(texts), flush=True)
    if args.stages and "empty" in row.sides:
        print(
            "           " + ", ".join(f"{stage} {ms:.0f}" for stage, ms in row.sides["empty"].stages.items()) + " ms",
            flush=True,
        )


def print_summary(rows: list[Row]) -> None:
    print("\nCPU seconds after the imports: ours with an empty cache, with a full one, JAX; ratio of the first to the last")
    batches = list(dict.fromkeys(row.batch for row in rows))
    print("\n| model | " + " | ".join(f"B = {b}: empty | full | JAX | ratio" for b in batches) + " |")
    print("| --- " * (4 * len(batches) + 1) + "|")
    for name in dict.fromkeys(row.model for row in rows):
        cells = [name]
        for row in rows:
            if row.model == name:
                cells += [f"{row.sides[side].first:.2f}" if side in row.sides else "" for side in SIDES] + [f"{row.ratio:.2f}"]
        print("| " + " | ".join(cells) + " |")
    ratios = sorted(rows, key=lambda row: row.ratio)
    mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
    for label, row in (("WORST RATIO", ratios[-1]), ("BEST RATIO ", ratios[0])):
        print(f"{label} {row.ratio:6.2f}   {row.model}, B = {row.batch}")
    slower = sum(row.ratio >= 1.0 for row in rows)
    print(f"geometric mean {mean:.2f}; JAX is first in {slower} of {len(rows)}")


if __name__ == "__main__":
    sys.exit(main())
