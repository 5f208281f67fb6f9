"""The jobs of the gallery beside their references: reference, ours, difference, seconds, bytes planned and used, trials a second.

``python -m benchmarks.gallery [--backend cpu] [--threads 1] [--jobs wave,cloth] [--batches 1,16,64]`` prints a row of Markdown for each
quantity of ``jobs/references``. Seconds are those of one run with gradients, compiled before, best of 3. Trials a second are those of the
best of the batches, gradients included; a batch of more than ``BATCH_BYTES`` is left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from qdrun.compiler.errors import OutOfMemory
from qdrun.jobs.base import BatchSession, Finished, Job, Outcome, Session, execute, why_not_batched
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of

BATCH_BYTES = 8_000_000_000


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
    """

    target: str
    quantities: tuple[str, ...] = ()
    found: Callable[[Finished, dict[str, Any]], Any] = field(default=lambda done, known: history(done)[known["at"]])
    params: dict[str, Any] = field(default_factory=dict)
    rule: dict[str, Any] | None = None
    precision: str = ""
    body: Callable[[Session], Outcome] | None = None


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
    ),
    "topology_mbb": Case(
        "gallery.topology_mbb:TopologyMbb",
        ("compliance",),
        lambda done, known: done.outcome.loss,
        {"radius": 1.0},
        body=optimality_criteria,
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
    "mpm3d_push": Case(
        "gallery.mpm3d_push:Mpm3dPush",
        ("mean x", "mean y", "mean z"),
        lambda done, known: done.outcome.outputs["mean"],
        {"grip": 0.0},
    ),
    "sysid_pendulum": Case(
        "gallery.sysid_pendulum:SysidPendulum",
        ("mass", "length", "damping"),
        lambda done, known: [done.outcome.outputs[f"opt.{name}"] for name in ("mass", "length", "damping")],
        {"mass": 1.5, "length": 0.85, "damping": 0.4},
        {"rule": "levenberg_marquardt", "steps": 60, "params": ["mass", "length", "damping"], "keep": "best"},
    ),
    "billiards": Case("billiards:Billiards", ("loss",), lambda done, known: done.outcome.loss),
    "lj_cluster": Case(
        "lj_cluster:LjCluster",
        ("energy",),
        lambda done, known: done.outcome.loss,
        {"start": 5.0},
        {"rule": "lbfgs", "steps": 400, "params": ["positions"], "keep": "best", "stop": {"gradient_norm": 1e-9}},
    ),
}
"""The jobs with a reference that one run or one descent meets. The others (``fluid_checkpoint``, ``policy_walker``) have tests."""


def reference(name: str) -> dict[str, Any]:
    """``jobs/references/<name>.json``."""
    return json.loads((files("qdrun.jobs.references") / f"{name}.json").read_text(encoding="utf-8"))


def class_of(case: Case) -> type[Job[Any]]:
    """The class of a job, in the precision of the case."""
    module, name = case.target.split(":")
    cls = getattr(importlib.import_module(f"qdrun.jobs.{module}"), name)
    return type(name, (cls,), {"precision": case.precision, "__module__": cls.__module__}) if case.precision else cls


def rows(name: str, backend: str, threads: int | None, batches: list[int]) -> Iterator[list[str]]:
    """The lines of one job, as cells."""
    case, known = CASES[name], reference(name)
    cls = class_of(case)
    params = cls.Params(**known["size"], **case.params)
    section = case.rule and OptimizeSection.model_validate({"keep": "last", **case.rule}).model_dump(
        mode="json", exclude_unset=True
    )
    done = execute(cls(params), backend=backend, threads=threads, memory_limit_bytes=None, body=case.body or body_of(section))
    shared = [f"{seconds(cls, params, backend, threads):.3g}", f"{done.plan.bytes:,}", f"{done.peak_bytes:,}"]
    shared.append(best_rate(cls, params, backend, threads, batches))
    names = case.quantities or tuple(f"loss, step {at}" for at in known["at"])
    values = np.atleast_1d(known["value"])[: len(names)]
    for quantity, value, ours in zip(names, values, np.atleast_1d(case.found(done, known)), strict=True):
        yield [name, quantity, f"{value:.9g}", f"{ours:.9g}", f"{abs(ours - value):.1e}", *shared]
        name, shared = "", [""] * len(shared)


def seconds(cls: type[Job[Any]], params: Any, backend: str, threads: int | None) -> float:
    """Wall seconds of one run with all gradients, the best of 3."""
    with Session(cls(params), backend=backend, threads=threads, memory_limit_bytes=None) as session:
        for _ in range(2):  # the second one records its launches
            session.run()
        times = [time.perf_counter()]
        for _ in range(3):
            session.run()
            times.append(time.perf_counter())
    return float(np.diff(times).min())


def best_rate(cls: type[Job[Any]], params: Any, backend: str, threads: int | None, batches: list[int]) -> str:
    """Trials a second in the best batch, and its size."""
    if why := why_not_batched(cls, params):
        return why
    rates = {}
    for trials in batches:
        try:
            with BatchSession.open(
                cls, params, trials, backend=backend, threads=threads, memory_limit_bytes=BATCH_BYTES
            ) as batch:
                for _ in range(2):
                    batch.run([params] * trials)
                start = time.perf_counter()
                batch.run([params] * trials)
                rates[trials] = trials / (time.perf_counter() - start)
        except OutOfMemory:
            break
    best = max(rates, key=lambda trials: rates[trials], default=0)
    return f"{rates[best]:,.3g} (B = {best:,})" if rates else "no memory"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; default: all cores")
    parser.add_argument("--jobs", default=",".join(CASES))
    parser.add_argument("--batches", default="1,16,64")
    options = parser.parse_args()
    head = ["job", "quantity", "reference", "ours", "difference", "seconds", "bytes planned", "bytes used", "trials/s"]
    print("|", " | ".join(head), "|\n|", " | ".join(["---"] * len(head)), "|")
    for name in options.jobs.split(","):
        for cells in rows(name, options.backend, options.threads, [int(size) for size in options.batches.split(",")]):
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
