"""Whole jobs, planning and random kernels for ``benchmarks.memory``: each function runs in a process of its own and prints JSON."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
import timeit
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import time_steps
from qdrun.jobs.base import Job, execute

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "mass_spring": ("MassSpring", {"steps": 1000, "columns": 4}),
    "mpm88": ("Mpm88", {"steps": 128, "particles": 2048, "grid": 48}),
}
"""Class and parameters of each job of ``qdrun.jobs``."""

SWEEP = """
version: 1
name: planning
job:
  target: qdrun.jobs.mass_spring:MassSpring
  params: {{steps: 100}}
gradients: [stiffness, actuation]
device: {{backend: cpu, threads: 1}}
sweep:
  method: grid
  seed: 7
  params:
    {values}
output: runs
"""
STEPS = ", ".join(map(str, range(50, 70)))
SWEEPS = {
    "1,000 trials of a sweep over a float": "stiffness: {linspace: [100, 900, 1000]}",
    "1,000 trials of a sweep over 50 floats and 20 numbers of steps": (
        f"stiffness: {{linspace: [100, 900, 50]}}\n    steps: {{grid: [{STEPS}]}}"
    ),
}


def made(name: str) -> Job[Any]:
    """A job of ``JOBS``."""
    cls, params = JOBS[name]
    job = getattr(importlib.import_module(f"qdrun.jobs.{name}"), cls)
    return job(job.Params.model_validate(params))


def run(name: str) -> dict[str, Any]:
    """One job without a budget: planned and used bytes by kind."""
    done = execute(made(name), backend="cpu", threads=1, memory_limit_bytes=None)
    return {"planned": done.plan.by_kind(), "used": dict(done.used)}


def budgets(name: str) -> list[dict[str, Any]]:
    """One job under budgets, see ``time_steps``."""
    time_steps.JOBS = {name: made(name)}
    return time_steps.measure(name, 8)


def planning() -> list[dict[str, Any]]:
    """Seconds of a plan whose inputs did not change, and of all plans of a sweep."""
    out = []
    for name in ("sin_recurrence", "narrow_gate_field_bound", "csr_rows"):
        out.append({"what": f"{name}: a launch whose inputs did not change", "seconds": unchanged(name)})
    out.append({"what": "range(start[i], start[i + 1]) for 10^8 rows, after start has changed", "seconds": many_rows()})
    for what, values in SWEEPS.items():
        seconds, shapes = sweep(values)
        out.append({"what": f"{what} ({shapes} shapes)", "seconds": seconds})
    return out


def unchanged(name: str) -> float:
    """Seconds of ``GradientPlans.plan``, the one way to a plan, when nothing changed since the last one."""
    import qdrun as qd
    from benchmarks.memory_cases import CASES, THREADS

    qd.init(arch=qd.cpu, cpu_max_num_threads=THREADS, offline_cache=False)
    case = CASES[name](qd)
    case.gradient()
    variant, bound = case.kernel.grad._ready(case.args, {})
    return min(timeit.repeat(lambda: variant.gradient.plan(bound.call), number=2000, repeat=7)) / 2000


def many_rows() -> float:
    """Seconds of an exact plan over 10^8 ragged rows."""
    import qdrun as qd

    n = 10**8
    program = qd.init(arch=qd.cpu, offline_cache=False)
    x, start = qd.field(qd.f32, shape=(), needs_grad=True), qd.field(qd.i32, shape=n + 1)
    y = qd.field(qd.f32, shape=(), needs_grad=True)
    start.from_numpy(np.arange(n + 1, dtype=np.int32) // 2 * 3)

    @qd.kernel
    def run():
        for i in range(n):
            v = x[None]
            for _ in range(start[i], start[i + 1]):
                v += 0.01 * qd.sin(v)
            y[None] += v

    run.grad.plan()
    start[n] += 500
    before = time.perf_counter()
    bound = run.grad.plan().rows()[0]["bound"]
    seconds = time.perf_counter() - before
    program.close()
    assert bound == 503, bound
    return seconds


def sweep(values: str) -> tuple[float, int]:
    """Processor seconds to plan every trial of a sweep of a thousand, and how many shapes they have."""
    from qdrun.runner.study.plan import make_plan
    from qdrun.runner.study.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.yaml"
        path.write_text(SWEEP.format(values=values))
        before = time.process_time()
        prepared, job = prepare(path)
        groups = make_plan(prepared, job)
        seconds = time.process_time() - before
    assert len(prepared.trials) == 1000, len(prepared.trials)
    assert not any(group.error for group in groups), groups[0].error
    return seconds, len(groups)


def random(kernels: int) -> dict[str, Any]:
    """Random kernels at levels 1 to 3: allocated against planned bytes; in a guarded heap, words touched against planned ones."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "gradients"))
    from heap_guard import guarded  # type: ignore[import-not-found]
    from plan_kernels import PlanCase, plan_kernel  # type: ignore[import-not-found]

    counts: Counter[str] = Counter()
    ratios = []
    for number in range(kernels):
        options = {"cpu_max_num_threads": 1 + number % 2, "ad_checkpoint_levels": 1 + number % 3}
        case = PlanCase(plan_kernel(number), number, **options)
        planned = case.k.grad.plan(*case.args).bytes
        case.gradient()
        used = case.program.usage().get("adstack", 0)
        case.close()
        counts["with a heap"] += planned > 0
        ratios.append(used / planned if planned else float(used == 0))
        with guarded() as guard:
            case = PlanCase(plan_kernel(number), number, **options)
            case.gradient()
            touched = guard.check(case.program, case.k.grad.plan(*case.args))
            counts["with every planned word touched"] += 0 < planned == sum(touched.values())
            case.close()
    exact = sum(r == 1.0 for r in ratios)
    return {"kernels": kernels, **counts, "used / planned, least": min(ratios), "most": max(ratios), "exactly 1.00": exact,
            "touching a word beyond the plan": 0}  # fmt: skip


def main() -> None:
    """``python -m benchmarks.memory_jobs FUNCTION ARGUMENTS``, the arguments as a JSON list."""
    print(
        json.dumps(
            {"run": run, "budgets": budgets, "planning": planning, "random": random}[sys.argv[1]](*json.loads(sys.argv[2]))
        )
    )


if __name__ == "__main__":
    main()
