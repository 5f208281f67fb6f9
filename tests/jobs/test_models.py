"""The models of ``benchmarks.models`` at tiny sizes: gradients beside central differences of the loss, in a batch and alone."""

import importlib

import numpy as np
import pytest

from benchmarks.models import NAMES
from qdrun.jobs.base import Session
from qdrun.jobs.core.batch import BatchSession

FAST = ("heat2d", "springs")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_gradients_are_slopes(name):
    model, rng, h = importlib.import_module(f"benchmarks.models.{name}").MODEL, np.random.default_rng(), 1e-6
    first = model.rows(model.sample(rng, 1, model.job.Params(**model.small)), model.small)[0]
    base = {key: np.asarray(getattr(first, key)) for key in model.job.gradients}
    ways = {key: rng.normal(size=value.shape) * np.maximum(np.abs(value), 0.1) for key, value in base.items()}

    def moved(key, by):
        return first.model_copy(update={key: (base[key] + by * ways[key]).tolist()})

    with Session(model.job(first), threads=1) as session:
        alone = session.run(first)
        for key in model.job.gradients:
            slope = (session.run(moved(key, h)).loss - session.run(moved(key, -h)).loss) / (2 * h)
            given = np.asarray(alone.gradients[key])
            assert given.shape == base[key].shape
            terms = given * ways[key]
            assert np.abs(terms).max() > 1e-9 * abs(alone.loss), f"{key} has no effect at this size"
            rounding = 1e-8 * abs(alone.loss)  # of thousands of steps, divided by h
            assert abs(terms.sum() - slope) < 1e-4 * np.abs(terms).sum() + rounding, key
    with BatchSession.open(model.job, first, 3, threads=1) as batch:
        outcome = batch.run([first] * 3)
    np.testing.assert_allclose(outcome.losses, alone.loss, rtol=1e-9)
    for key in model.job.gradients:
        np.testing.assert_allclose(outcome.gradients[key][2], alone.gradients[key], rtol=1e-7, atol=1e-9)
