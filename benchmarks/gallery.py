"""The jobs of the gallery beside their references: reference, ours, difference, seconds, bytes planned and used, trials a second.

``python -m benchmarks.gallery [--backend cpu] [--threads 1] [--jobs wave,cloth] [--batches 1,16,64] [--json]`` prints a row of Markdown for
each quantity of ``jobs/references``, or with ``--json`` a line for each job, of which ``docs/tables.py`` makes the table of the gallery:
append it to ``docs/gallery.jsonl``. Seconds are those of one run with gradients, compiled before, best of 3: those of the processor on one
thread of a CPU, as other programs hardly change them, else those of the clock. Trials a second are those of the best of the batches,
gradients included. A batch that would take more than ``--batch-bytes`` or ``--longest`` seconds is left out, and so is a descent; jobs
whose turn comes after ``--total`` seconds are named.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from qdrun.compiler.errors import OutOfMemory
from qdrun.jobs.base import BatchSession, Finished, Job, Outcome, Session, execute, why_not_batched
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of, descend_batch


@dataclass(frozen=True)
class Case:
    """What is compared with one reference.

    Attributes:
        target: module and class of the job.
        quantities: names of the numbers, as many as ``found`` gives; empty: the steps of the descent that the reference is about.
        found: the numbers, of a run or, where ``rule`` is given, of a descent.
        params: beside the ``size`` of the reference.
        rule: options of the descent.
        precision: of the program, where it is not the job's.
        body: a descent of its own, in place of ``rule``.
        runs: of the job in this descent, about.
        known: the part of the reference that is compared, where it has several.
    """

    target: str
    quantities: tuple[str, ...] = ()
    found: Callable[[Finished, dict[str, Any]], Any] = field(default=lambda done, known: history(done)[known["at"]])
    params: dict[str, Any] = field(default_factory=dict)
    rule: dict[str, Any] | None = None
    precision: str = ""
    body: Callable[[Session], Outcome] | None = None
    runs: int = 1
    known: str = ""

    @property
    def evaluations(self) -> int:
        """How often the job runs until its numbers are found, at most."""
        return self.rule["steps"] + 1 if self.rule else self.runs


def history(done: Finished) -> np.ndarray:
    """The losses of a descent, by step."""
    return np.asarray(done.outcome.outputs["opt.history"])


def sgd(steps: int, rate: float, *params: str) -> dict[str, Any]:
    """A section of plain gradient descent."""
    return {"rule": "sgd", "steps": steps, "learning_rate": rate, "params": list(params)}


def fwi(session: Session) -> Outcome:
    """Five iterations of Devito's tutorial: steps along the gradient by 1 / velocity^2, of 0.05 km/s at its largest."""
    params, losses = session.job.params, []
    velocity = np.array(params.velocity)
    for _ in range(5):
        outcome = session.run(params.model_copy(update={"velocity": velocity.tolist()}))
        losses.append(outcome.loss)
        slope = -0.5 * velocity**3 * outcome.gradients["velocity"]
        velocity = np.clip(velocity + 0.05 * slope / slope.max(), 2.0, 3.5)
    return Outcome(loss=losses[-1], gradients=outcome.gradients, outputs={"opt.history": losses})


def seeds(session: Session) -> Outcome:
    """The median distance that 32 seeds of the first weights have walked after the descent of the reference, in one batch."""
    cls, params, options = type(session.job), session.job.params, session.job.opened_with
    walkers = [
        type(params)(**{"columns": params.columns, "hidden": params.hidden, "steps": params.steps, "start": k})
        for k in range(32)
    ]
    rule = {"rule": "adam", "steps": 60, "learning_rate": 0.05, "params": ["first", "bias", "second"]}
    section = OptimizeSection.model_validate(rule)
    with BatchSession.open(cls, walkers[0], 32, backend=options["backend"], threads=options["threads"]) as batch:
        ends = descend_batch(batch, walkers, section)
    median = -float(np.median([end.loss for end in ends if isinstance(end, Outcome)]))
    return Outcome(median, session.run().gradients)


def near(params: Any, radius: float) -> np.ndarray:
    """The weights of the filters of topology optimisation, (elements, elements)."""
    i, j = np.divmod(np.arange(params.columns * params.rows), params.rows)
    return np.maximum(0.0, radius - np.hypot(i[:, None] - i, j[:, None] - j))


def optimality_criteria(session: Session, sensitivity_radius: float = 2.4) -> Outcome:
    """The descent of Andreassen et al. 2011 with the filter of sensitivities; with that of densities where the job has one."""
    params, losses, change = session.job.params, [], 1.0
    density = np.array(params.density)
    own, weights = near(params, max(params.radius, 0.5)), near(params, sensitivity_radius)
    shares = (own / own.sum(axis=1, keepdims=True)).sum(axis=0)  # of each density in the volume
    while change > 0.01:
        outcome = session.run(params.model_copy(update={"density": density.tolist()}))
        losses.append(outcome.loss)
        slope = outcome.gradients["density"]
        if params.radius <= 1.0:
            slope = weights @ (density * slope) / weights.sum(axis=1) / np.maximum(1e-3, density)
        low, high = 0.0, 1e9
        while (high - low) / (high + low) > 1e-3:
            middle = 0.5 * (low + high)
            wanted = density * np.sqrt(-slope / shares / middle)
            new = np.clip(np.clip(wanted, density - 0.2, density + 0.2), 0.0, 1.0)
            low, high = (middle, high) if shares @ new > params.fraction * density.size else (low, middle)
        density, change = new, float(np.abs(new - density).max())
    return Outcome(loss=losses[-1], gradients=outcome.gradients, outputs={"opt.history": losses})


CASES = {
    "mass_spring_simple": Case("mass_spring_simple:MassSpringSimple", rule=sgd(24, 5.0, "lengths")),
    "bounce_once": Case(
        "gallery.bounce_once:BounceOnce",
        ("d height / d y", "d height / d v", "d height / d push"),
        lambda done, known: [done.outcome.gradients[name][1] for name in ("position", "velocity", "push")],
    ),
    "two_balls": Case(
        "gallery.two_balls:TwoBalls",
        ("loss, step 999",),
        lambda done, known: history(done)[999],
        rule=sgd(999, 10.0, "control"),
    ),
    "diffmpm2d": Case("gallery.diffmpm2d:Diffmpm2d", rule=sgd(29, 10.0, "velocity"), precision="f64"),
    "burgers_inverse": Case("gallery.burgers_inverse:BurgersInverse", rule=sgd(45, 5.0, "initial")),
    "fwi_circle": Case(
        "gallery.fwi_circle:FwiCircle",
        tuple(f"objective {k}" for k in range(1, 6)),
        lambda done, known: history(done),
        body=fwi,
        runs=5,
    ),
    "topology_mbb": Case(
        "gallery.topology_mbb:TopologyMbb",
        ("compliance",),
        lambda done, known: done.outcome.loss,
        {"radius": 1.0},
        body=optimality_criteria,
        runs=106,
    ),
    "absorbing_volume": Case(
        "gallery.absorbing_volume:AbsorbingVolume",
        ("mean squared light", "d light / d extinction"),
        lambda done, known: [done.outcome.loss, done.outcome.gradients["extinction"].sum()],
        {"ball": 0.0, "extinction": [0.7] * 12**3},
    ),
    "cloth": Case(
        "gallery.cloth:Cloth",
        ("centre x", "centre y", "centre z"),
        lambda done, known: done.outcome.outputs["centre"],
        {"drag": 0.0, "velocity": [2.0, 3.0, 0.5]},
    ),
    "wave": Case(
        "gallery.wave:Wave",
        ("loss of a mode",),
        lambda done, known: done.outcome.loss,
        {
            "height": np.outer(*(np.sin(np.pi * m * np.arange(64) / 63) for m in (3, 2))).ravel().tolist(),
            "target": [0.0] * 4096,
        },
    ),
    "smoke": Case("gallery.smoke:Smoke", ("loss",), lambda done, known: done.outcome.loss),
    "fluid_checkpoint": Case(
        "gallery.fluid_checkpoint:FluidCheckpoint", ("loss, small size",), lambda done, known: done.outcome.loss, known="small"
    ),
    "policy_walker": Case(
        "gallery.policy_walker:PolicyWalker",
        ("median distance",),
        lambda done, known: done.outcome.loss,
        body=seeds,
        runs=61 * 32,
    ),
    "mpm3d_push": Case(
        "gallery.mpm3d_push:Mpm3dPush",
        ("centre x", "centre y", "centre z"),
        lambda done, known: done.outcome.outputs["centre"],
        {"grip": 0.0},
    ),
    "sysid_pendulum": Case(
        "gallery.sysid_pendulum:SysidPendulum",
        ("mass", "length", "damping"),
        lambda done, known: [done.outcome.outputs[f"opt.{name}"] for name in ("mass", "length", "damping")],
        {"mass": 1.5, "length": 0.85, "damping": 0.4},
        {"rule": "levenberg_marquardt", "steps": 60, "params": ["mass", "length", "damping"], "keep": "best"},
    ),
    "billiards": Case("billiards:Billiards", rule=sgd(24, 0.01, "position", "velocity")),
    "lj_cluster": Case(
        "lj_cluster:LjCluster",
        ("energy",),
        lambda done, known: done.outcome.loss,
        {"start": 5.0},
        {"rule": "lbfgs", "steps": 400, "params": ["positions"], "keep": "best", "stop": {"gradient_norm": 1e-9}},
    ),
}
"""Every job with a reference."""


def reference(name: str) -> dict[str, Any]:
    """``jobs/references/<name>.json``, or the part of it that is compared."""
    known = json.loads((files("qdrun.jobs.references") / f"{name}.json").read_text(encoding="utf-8"))
    return known[CASES[name].known] if CASES[name].known else known


def class_of(case: Case) -> type[Job[Any]]:
    """The class of a job, in the precision of the case."""
    module, name = case.target.split(":")
    cls = getattr(importlib.import_module(f"qdrun.jobs.{module}"), name)
    return type(name, (cls,), {"precision": case.precision, "__module__": cls.__module__}) if case.precision else cls


@dataclass(frozen=True)
class Limits:
    """What a measurement may take: bytes of a batch, and seconds of one batch or descent."""

    batch_bytes: int
    longest: float


def measured(name: str, backend: str, threads: int | None, batches: list[int], limits: Limits) -> dict[str, Any]:
    """The figures of one job, as its line of JSON has them."""
    case, known = CASES[name], reference(name)
    cls = class_of(case)
    params = cls.Params(**known["size"], **case.params)
    how = {"backend": backend, "threads": threads, "memory_limit_bytes": None}
    took, done = one_run(cls, params, how)
    numbers: list[list[Any]] = []
    if case.evaluations * took <= limits.longest or case.evaluations == 1:
        if case.evaluations > 1:
            done = execute(cls(params), **how, body=case.body or body_of(section_of(case)))
        names = case.quantities or tuple(f"loss, step {at}" for at in known["at"])
        values, ours = np.atleast_1d(known["value"])[: len(names)].tolist(), np.atleast_1d(case.found(done, known)).tolist()
        numbers = [list(row) for row in zip(names, values, ours, strict=True)]
    sides = {
        "job": name,
        "backend": backend,
        "threads": threads,
        "device": done.device,
        "numbers": numbers,
    }
    sides |= {"precision": cls.precision, "seconds": took, "planned": done.plan.bytes, "used": done.peak_bytes}
    return sides | {"rates": rates(cls, params, how, batches, limits), "why": why_not_batched(cls, params)}


def section_of(case: Case) -> dict[str, Any]:
    """The options of a case's descent, as plain data."""
    return OptimizeSection.model_validate({"keep": "last", **(case.rule or {})}).model_dump(mode="json", exclude_unset=True)


def one_run(cls: type[Job[Any]], params: Any, how: dict[str, Any]) -> tuple[float, Finished]:
    """Wall seconds of one run with all gradients, the best of 3, and what it gave."""
    times: list[float] = []

    def again(session: Session) -> Outcome:
        times.append(best_of(session.run, how))
        return session.run()

    done = execute(cls(params), **how, body=again)
    return times[0], done


def best_of(run: Callable[[], Any], how: dict[str, Any], longest: float = float("inf")) -> float:
    """The least seconds of 3 runs, after two that compile and record; of one run if three would take longer than so many seconds."""
    clock = time.process_time if how["backend"] == "cpu" and how["threads"] == 1 else time.perf_counter
    for _ in range(2):
        run()
    times = [clock()]
    while len(times) < 4 and times[-1] - times[0] <= longest / 3.0:
        run()
        times.append(clock())
    return float(np.diff(times).min())


def rates(cls: type[Job[Any]], params: Any, how: dict[str, Any], batches: list[int], limits: Limits) -> dict[int, float]:
    """Trials a second by the size of the batch, as a sweep runs it: the parameters that have gradients differ, by 1e-4 at most."""
    found: dict[int, float] = {}
    if why_not_batched(cls, params):
        return found
    for trials in batches:
        if found and trials / found[max(found)] > limits.longest:
            break
        try:
            with BatchSession.open(cls, params, trials, **how | {"memory_limit_bytes": limits.batch_bytes}) as batch:
                columns = {name: spread(getattr(params, name), trials) for name in cls.gradients}
                found[trials] = trials / best_of(partial(batch.run_columns, columns), how, limits.longest)
        except OutOfMemory:
            break
    return found


def spread(value: Any, trials: int) -> np.ndarray:
    """A column: a parameter with something else added in each trial."""
    own = np.asarray(value, np.float64)
    return own + 1e-4 * np.random.default_rng(1).random((trials, *[1] * own.ndim))


def rows(line: dict[str, Any]) -> Iterator[list[str]]:
    """The lines of one job, as cells of Markdown."""
    best = max(line["rates"], key=line["rates"].__getitem__, default=0)
    rate = f"{line['rates'][best]:,.3g} (B = {best:,})" if best else line["why"] or "no memory"
    name, shared = line["job"], [f"{line['seconds']:.3g}", f"{line['planned']:,}", f"{line['used']:,}", rate]
    for quantity, value, ours in line["numbers"] or [["left out", float("nan"), float("nan")]]:
        yield [name, quantity, f"{value:.9g}", f"{ours:.9g}", f"{abs(ours - value):.1e}", *shared]
        name, shared = "", [""] * len(shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; default: all cores")
    parser.add_argument("--jobs", default=",".join(CASES))
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--batch-bytes", type=float, default=8e9)
    parser.add_argument("--longest", type=float, default=120.0, help="seconds of one batch, or of one descent")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds after which no job begins")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    batches, limits = [int(size) for size in options.batches.split(",")], Limits(int(options.batch_bytes), options.longest)
    head, start = (
        ["job", "quantity", "reference", "ours", "difference", "seconds", "bytes planned", "bytes used", "trials/s"],
        time.time(),
    )
    if not options.json:
        print("|", " | ".join(head), "|\n|", " | ".join(["---"] * len(head)), "|")
    for name in options.jobs.split(","):
        if time.time() - start > options.total:
            print(f"{name}: no time left", file=sys.stderr, flush=True)
            continue
        try:
            line = measured(name, options.backend, options.threads, batches, limits)
        except Exception as error:  # of a device that lacks something: the other jobs have their turns
            print(f"{name}: {error!r}", file=sys.stderr, flush=True)
            continue
        for text in [json.dumps(line)] if options.json else [f"| {' | '.join(cells)} |" for cells in rows(line)]:
            print(text, flush=True)


if __name__ == "__main__":
    main()
