"""Batches of the quickstart robot on a GPU: right, and how many trials a second, for batches of several sizes and lanes.

``python -m benchmarks.batch_gpu [--device emulated] [--steps 200] [--batches 1,32,1024] [--lanes 0,1,16]``: prints a line for each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

import qdrun as qd
from qdrun.compiler.codegen.gpu.trials.task import TrialShape
from qdrun.compiler.runtime.gpu import trial_graphs
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

WANTED = ("stiffness", "actuation")


def inputs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Stiffness and amplitudes of each trial; trial b has the same in every batch."""
    b = np.arange(count)
    return 1000.0 * (1.0 + 0.1 * np.sin(b)), 0.25 + 0.05 * np.cos(b[:, None] * np.arange(1, 5))


@dataclass(frozen=True)
class Measured:
    """Loss and gradients by trial, and what it took."""

    loss: np.ndarray
    stiffness: np.ndarray
    actuation: np.ndarray
    seconds: float = 0.0
    capture: float = 0.0
    note: str = ""


def batch(count: int | None, steps: int, repeats: int, **options: Any) -> Measured:
    """Run a batch, or with None the first trial alone in a program that is not batched."""
    job = MassSpring(MassSpringParams(steps=steps), wanted=WANTED)
    job.window = steps
    arch = options.pop("arch")
    with job._in_program(arch, options if count is None else options | {"batch": count}):
        program = job.program
        k, a = inputs(count or 1)
        fill(job, k, a, count is not None)

        def sweep() -> None:
            launch(job)

        sweep()
        begin = time.perf_counter()
        run: Callable[[], Any] = sweep if count is None else qd.capture(sweep)
        capture = time.perf_counter() - begin
        best = float("inf")
        for _ in range(repeats):
            qd.sync()
            begin = time.perf_counter()
            run()
            qd.sync()
            best = min(best, time.perf_counter() - begin)
        note = ""
        if count is not None and not program.device.on_host:
            (walk,) = program.device._walks.values()
            f = walk.code.function
            note = f"{walk.launches} rows, {walk.blocks} x {walk.code.shape.block} threads, {f.registers} regs, {f.local_bytes} B local"
            note += f", {walk.shared} B shared, {sum(program.usage().values()):,} B planned, peak {program.peak_bytes:,}"
            note += f", pool {program.device.driver.pool_bytes()[0]:,}"
        loss, k_grad = (np.atleast_1d(f.to_numpy()) for f in (job.loss, job.stiffness.grad))
        a_grad = np.atleast_2d(job.amplitude.grad.to_numpy())
        return Measured(loss, k_grad, a_grad, best, capture, note)


def tune(count: int, steps: int, variants: list[tuple[int, int, int]], **options: Any) -> None:
    """Time other shapes of the same recorded launches: lanes, threads of a block, threads of a multiprocessor that have registers."""
    job = MassSpring(MassSpringParams(steps=steps), wanted=WANTED)
    job.window = steps
    with job._in_program(options.pop("arch"), options | {"batch": count}):
        device = job.program.device
        fill(job, *inputs(count), True)

        def sweep() -> None:
            launch(job)

        sweep()
        for lanes, block, resident in variants:
            shape = TrialShape(max(1, block // lanes), lanes, resident)
            try:
                with patch.object(trial_graphs, "shape_of", lambda *_, shape=shape: shape):
                    graph = qd.capture(sweep)
                best = float("inf")
                for _ in range(3):
                    qd.sync()
                    begin = time.perf_counter()
                    graph()
                    qd.sync()
                    best = min(best, time.perf_counter() - begin)
                f = device._walks[max(device._walks)].code.function
                what = f"{best * 1e3:.3f} ms, {count / best:,.0f} trials/s; {f.registers} regs, {f.local_bytes} B local"
                graph.close()
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
            print(f"B={count} lanes={lanes} block={block} resident={resident}: {what}", flush=True)


def launch(job: MassSpring) -> None:
    """Put back what the time steps read before they write it, and run them and the gradients."""
    job.force.fill(0.0)
    job.activation.fill(0.0)
    with qd.ad.Tape(loss=job.loss):
        job.simulate()


def fill(job: MassSpring, k: np.ndarray, a: np.ndarray, batched: bool) -> None:
    """Give the trials their inputs."""
    job.stiffness.from_numpy(k if batched else k[0])
    job.amplitude.from_numpy(a if batched else a[0])
    if batched:
        job.program.batch.same = [field for name, field in job.declared.inputs.items() if name not in WANTED]


def alone(trial: int, steps: int) -> Measured:
    """One trial on the CPU, not batched."""
    job = MassSpring(MassSpringParams(steps=steps), wanted=WANTED)
    with job.opened(threads=1):
        k, a = inputs(trial + 1)
        fill(job, k[trial:], a[trial:], False)
        with qd.ad.Tape(loss=job.loss):
            job.simulate()
        return Measured(*(f.to_numpy() for f in (job.loss, job.stiffness.grad, job.amplitude.grad)))


def worst(got: Measured, trial: int, want: Measured) -> float:
    """The largest relative difference of a trial."""
    pairs = ((getattr(got, n)[trial], getattr(want, n)) for n in ("loss", "stiffness", "actuation"))
    return max(float(np.abs(np.asarray(x - y)).max() / max(np.abs(y).max(), 1e-300)) for x, y in pairs)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="0")
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", default="1,32,1024,8192,131072")
    parser.add_argument("--lanes", default="0,1")
    parser.add_argument("--tune", default="", help="lanes:block:resident, ..")
    given = parser.parse_args()
    device = int(given.device) if given.device.isdigit() else given.device
    if given.tune:
        rows = [tuple(map(int, v.split(":"))) for v in given.tune.split(",")]
        for count in map(int, given.batches.split(",")):
            tune(count, given.steps, [(a, b, c) for a, b, c in rows], arch=given.arch, device=device)
        return
    known: dict[int, Measured] = {}
    for count in map(int, given.batches.split(",")):
        for lanes in map(int, given.lanes.split(",")):
            try:
                got = batch(count, given.steps, given.repeats, arch=given.arch, device=device, gpu_lanes=lanes)
            except Exception as error:
                print(f"B={count} lanes={lanes}: {type(error).__name__}: {error}", flush=True)
                continue
            off = 0.0
            for trial in sorted({0, 1 % count, count // 2, count - 1}):
                if trial not in known:
                    known[trial] = alone(trial, given.steps)
                off = max(off, worst(got, trial, known[trial]))
            rate = count / got.seconds
            print(
                f"B={count} lanes={lanes}: {got.seconds * 1e3:.3f} ms, {rate:,.0f} trials/s, off {off:.1e}, capture {got.capture:.2f} s;"
                f" {got.note}",
                flush=True,
            )


if __name__ == "__main__":
    main()
