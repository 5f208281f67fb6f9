"""What the tests of the gallery's jobs share: reference numbers, descents, checks of gradients and batches, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qdrun.jobs.base import BatchSession, Job, check_gradients, execute
from qdrun.jobs.core.batch import group_key
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of

REFERENCES = Path(__file__).parents[2] / "jobs" / "references"


def reference(name: str) -> dict[str, Any]:
    """The number that a job has to meet: ``jobs/references/<name>.json``."""
    return json.loads((REFERENCES / f"{name}.json").read_text(encoding="utf-8"))


def meets(ours: Any, expected: dict[str, Any]) -> None:
    """Require that ours are the values of a reference, within its tolerance (relative, and absolute where it has one)."""
    np.testing.assert_allclose(ours, expected["value"], rtol=expected["tolerance"], atol=expected.get("absolute", 0.0))


def run(job: Job[Any], threads: int = 1) -> Any:
    """The job's outcome; its plan must be what it used."""
    done = execute(job, backend="cpu", threads=threads, memory_limit_bytes=None)
    assert done.plan.bytes == done.peak_bytes
    return done.outcome


def descend(job: Job[Any], rule: str, steps: int, threads: int = 1, **section: Any) -> np.ndarray:
    """The losses at the start of a descent, and after each step."""
    options = OptimizeSection.model_validate({"rule": rule, "steps": steps, "keep": "last", **section})
    body = body_of(options.model_dump(mode="json", exclude_unset=True))
    done = execute(job, backend="cpu", threads=threads, memory_limit_bytes=None, body=body)
    return np.asarray(done.outcome.outputs["opt.history"])


def gradients_are_differences(job: type[Job[Any]], params: Any, tolerance: float = 1e-6, most: int | None = None) -> None:
    """Require central differences in f64 for gradients. Those far below the largest are compared with it: differences cannot see them."""
    both = zip(*(check_gradients(job, params, step=h, most=most) for h in (1e-4, 1e-5, 1e-6)), strict=True)
    rows = [min(several, key=lambda row: row.relative_error) for several in both]
    names = {row.name.split("[")[0].split(".")[0] for row in rows}
    for name in job.gradients:
        assert any(row.given != 0.0 for row in rows if row.name.startswith(name)), f"{name} has no influence: {names}"
    largest = max(abs(row.given) for row in rows)
    for row in rows:
        assert abs(row.given - row.difference) <= tolerance * max(abs(row.given), 1e-3 * largest), row


def gradients_are_tangents(job: type[Job[Any]], params: Any, tolerance: float = 1e-10) -> None:
    """Require along random directions what forward mode gives, which has no step whose rounding it would share."""
    count, rng = 4, np.random.default_rng()
    back = run(job(params))
    made = job(params, wanted=[])
    made.jacobian = "forward"
    options = {"backend": "cpu", "device": None, "threads": 1, "debug": None, "memory_limit_bytes": None, "batch": count}
    session = BatchSession(made, count, group_key(job, params, wanted=[]), options)
    session.build()
    with session:
        made.declared.residuals = made.declared.loss
        made.tangents = {name: rng.standard_normal((count, *np.shape(g))) for name, g in back.gradients.items()}
        values = {name: np.asarray(getattr(params, name), np.float64) for name in made.declared.inputs}
        found = session.run_columns(
            {name: np.repeat(v[None], count, axis=0) for name, v in values.items()}, [made.seed] * count
        )
        assert not dict(found.errors)
        forward = made.declared.read(made.declared.loss.dual, made.program)[:count].ravel()
    along = [(made.tangents[name] * g).reshape(count, -1) for name, g in back.gradients.items()]
    np.testing.assert_allclose(
        forward, sum(a.sum(1) for a in along), atol=tolerance * max(np.abs(a).sum(1).max() for a in along), rtol=0
    )


def batch_is_alone(job: type[Job[Any]], params: list[Any], tolerance: float = 1e-11) -> None:
    """Require of a batch the losses and gradients that the trials have alone."""
    with BatchSession.open(job, params[0], len(params)) as batch:
        found = batch.run(params)
    assert not dict(found.errors)
    for k, one in enumerate(params):
        alone = run(job(one))
        np.testing.assert_allclose(found.losses[k], alone.loss, rtol=tolerance)
        noise = 1e-20 * max(
            float(np.abs(value).max()) for value in alone.gradients.values()
        )  # what products of roundings leave
        for name, value in alone.gradients.items():
            largest = float(np.abs(value).max())
            np.testing.assert_allclose(found.gradients[name][k], value, rtol=tolerance, atol=tolerance * largest + noise)


def leaves_a_picture(job: Job[Any], name: str) -> None:
    """Require that the job writes a picture that is not of one colour."""
    from matplotlib.image import imread

    with job.opened() as opened:
        opened.run()
        opened.save_once()
        assert np.ptp(imread(opened.artifacts / name)[..., :3]) > 0.2
