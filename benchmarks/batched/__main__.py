"""``python -m benchmarks.batched --model robot``: trials a second of a sweep, ours beside JAX, by the number of trials at once."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batched import billiards, jax_side, mpm88, our_side, robot
from benchmarks.batched.check import Found, disagreements
from benchmarks.batched.clock import Measured, measure
from benchmarks.batched.model import Columns, Model

MODELS = {model.name: model for model in (robot.MODEL, robot.MODEL_ALL, billiards.MODEL, mpm88.MODEL)}
SIDES = ("ours", "jax")


def main() -> int:
    """Measure, compare, print and save."""
    args = _arguments()
    if args.load:
        rows = [row for file in args.load for row in json.loads(Path(file).read_text(encoding="utf-8"))["rows"]]
        return _plot(args.plot, rows)
    model = MODELS[args.model]
    batches = [int(b) for b in args.batches.split(",")] if args.batches else list(model.default_batches)
    sides = (args.only,) if args.only else SIDES
    if "jax" in sides:
        jax_side.start(args.arch, args.cores)
    begin, rows, wrong = os.getloadavg(), list[Measured](), list[str]()
    for batch in batches:
        columns = model.sample(np.random.default_rng(batch), batch)
        found: dict[str, Found] = {}
        for side in sides:
            for row, values in _runs(side, model, args, columns):
                rows.append(row)
                print(_line(row), flush=True)
                wrong += disagreements(model, found.setdefault("first", values), values)
        _print_ratio(rows, batch)
    _print_best(rows)
    about = {
        "model": model.name, "arch": args.arch, "cores": args.cores, "processor": _processor(), "python": platform.python_version(),
        "load_before": begin, "load_after": os.getloadavg(), "disagreements": wrong, "versions": _versions(sides),
    }  # fmt: skip
    if max(begin[0], 0.0) > 0.5:
        print(f"note: other programs had kept {begin[0]:.1f} cores busy in the minute before this run")
    saved = [{"model": model.name, "arch": args.arch, "rate": row.rate, **row.__dict__} for row in rows]
    if args.json:
        Path(args.json).write_text(json.dumps({"about": about, "rows": saved}, indent=1), encoding="utf-8")
    if args.plot:
        _plot(args.plot, saved)
    print("\n".join(wrong) or "losses and gradients of all ways agree")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batched", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="robot")
    parser.add_argument("--arch", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--device", help="which GPU ours uses; emulated: the imitation that runs on the CPU")
    parser.add_argument("--batches", default="", help="numbers of trials, as in 1,8,32; default: the model's")
    parser.add_argument("--only", choices=SIDES, help="measure one side")
    parser.add_argument("--ours", default="batch", help="how ours runs: batch, alone, or batch,alone")
    parser.add_argument("--variant", default="", help="only JAX's variants whose names hold this text")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads of ours, devices of JAX's")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to measure each way of each batch")
    parser.add_argument("--json", help="save all figures to this file")
    parser.add_argument("--plot", help="draw trials a second over the number of trials to this file")
    parser.add_argument("--load", nargs="*", help="measure nothing; draw what was saved to these files")
    args = parser.parse_args()
    unknown = set(args.ours.split(",")) - set(our_side.WAYS)
    if unknown:
        parser.error(f"--ours {args.ours}: the ways are {', '.join(our_side.WAYS)}")
    if args.load and not args.plot:
        parser.error("--load needs --plot")
    return args


def _runs(side: str, model: Model, args: argparse.Namespace, columns: Columns) -> Iterator[tuple[Measured, Found]]:
    """The measured ways of one side for one batch, and the results of each."""
    if side == "jax":
        for way, make in jax_side.sweeps(model, len(next(iter(columns.values()))), args.variant):
            yield measure(side, way, columns, make(), args.seconds)
        return
    for way in args.ours.split(","):
        with our_side.opened(model, way, columns, args.arch, args.cores, args.device) as sweep:
            yield measure(side, way, columns, sweep, args.seconds)


def _line(row: Measured) -> str:
    cpu = 1e6 * row.cpu / row.batch
    return f"  {row.side:4} {row.batch:7,} {row.rate:12,.0f} trials/s {cpu:10,.1f} us of CPU   {row.way}, first run {row.first:.2f} s"


def _fastest(rows: list[Measured], side: str) -> Measured | None:
    return max((row for row in rows if row.side == side), key=lambda row: row.rate, default=None)


def _print_ratio(rows: list[Measured], batch: int) -> None:
    these = [row for row in rows if row.batch == batch]
    ours, theirs = _fastest(these, "ours"), _fastest(these, "jax")
    if ours and theirs:
        print(
            f"B = {batch:,}: ours {ours.rate:,.0f}, JAX {theirs.rate:,.0f} trials/s, {ours.rate / theirs.rate:.2f}x", flush=True
        )


def _print_best(rows: list[Measured]) -> None:
    best = [row for side in SIDES if (row := _fastest(rows, side))]
    for row in best:
        print(f"best of {row.side}: {row.rate:,.0f} trials/s at B = {row.batch:,} ({row.way})")
    if len(best) == 2:
        print(f"ratio of the bests: {best[0].rate / best[1].rate:.2f}x")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions(sides: tuple[str, ...]) -> dict[str, str]:
    return {"jax": sys.modules["jax"].__version__} if "jax" in sides else {}


def _plot(file: str, rows: list[dict[str, Any]]) -> int:
    from benchmarks.batched.plot import draw

    draw(Path(file), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
