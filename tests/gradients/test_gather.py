"""Gathered adjoints: against differences, against the scatter in one thread (the same bits), and the same bits for any threads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.compile.cache import CACHE
from qdrun.compiler.ir.nodes import Kernel
from qdrun.compiler.passes.gather import gather
from qdrun.compiler.passes.gather.gather import gather_kernel

sys.path.insert(0, str(Path(__file__).parent))
from stencil_models import GRID, MODELS
from stencils import STEP_KERNELS, loss_of, run

SHAPES = [(20, 13), (7, 30), (7, 4)]


@pytest.fixture
def gathered(monkeypatch):
    """The names of the tasks that the pass has made."""
    names: list[str] = []

    def noted(kernel: Kernel, *rest) -> Kernel:
        out = gather_kernel(kernel, *rest)
        names.extend(task.name for task in out.tasks if "_interior" in task.name)
        return out

    monkeypatch.setattr(pipeline, "gather_kernel", noted)
    monkeypatch.setattr(gather, "_pays", lambda *_: True)  # for small grids it need not
    CACHE.clear()
    yield names
    CACHE.clear()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", STEP_KERNELS, ids=lambda make: make.__name__)
def test_the_bits_are_those_of_the_scatter_and_the_values_those_of_differences(make, shape, gathered, monkeypatch):
    seed = int(np.random.default_rng().integers(1 << 30))
    found = run(make, shape, seed, cpu_max_num_threads=1)
    assert gathered, "nothing was gathered"
    CACHE.clear()
    monkeypatch.setattr(pipeline, "gathers", lambda options, on_host: "")
    scattered = run(make, shape, seed, cpu_max_num_threads=1)
    for a, b in zip(found, scattered):
        np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
    rng = np.random.default_rng(seed)
    first, direction, h = rng.normal(size=shape), np.random.default_rng(seed + 1).normal(size=shape), 1e-6
    slope = (loss_of(make, first + h * direction, 0.15 + h) - loss_of(make, first - h * direction, 0.15 - h)) / (2 * h)
    expected = float((found[1][0] * direction).sum() + found[2])
    assert slope == pytest.approx(expected, rel=1e-5, abs=1e-5), f"seed {seed}"


@pytest.mark.parametrize("make", STEP_KERNELS, ids=lambda make: make.__name__)
def test_the_bits_do_not_depend_on_the_threads(make, gathered):
    one, two, again = (run(make, (150, 170), 5, cpu_max_num_threads=n) for n in (1, 2, 2))
    for a, b, c in zip(one, two, again):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, c)
    assert gathered


@pytest.mark.parametrize("make", STEP_KERNELS, ids=lambda make: make.__name__)
def test_lanes_of_a_trial_on_a_gpu_gather_the_same_bits(make, gathered):
    """On the emulated device; what all iterations add to, as the coefficient, is another matter there."""
    seed = int(np.random.default_rng().integers(1 << 30))
    alone, found = run(make, (9, 8), seed, cpu_max_num_threads=1), []
    gathered.clear()
    for lanes in (1, 8, 64):
        CACHE.clear()
        found.append(run(make, (9, 8), seed, True, arch=qd.cuda, device="emulated", batch=2, gpu_lanes=lanes))
    assert gathered, "nothing was gathered"
    for result in found:
        np.testing.assert_array_equal(result[1], found[0][1], err_msg=f"seed {seed}")
        for of_trial, expected in zip(result, alone):
            np.testing.assert_allclose(of_trial[1], expected, rtol=1e-12, atol=1e-13, err_msg=f"seed {seed}")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_have_the_bits_of_the_scatter_on_any_threads(model, gathered, monkeypatch):
    def results(threads: int) -> list[np.ndarray]:
        CACHE.clear()
        with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, cpu_max_num_threads=threads):
            return model()

    found = [results(1), results(2)]
    assert gathered, "nothing was gathered"
    monkeypatch.setattr(pipeline, "gathers", lambda options, on_host: "")
    scattered = results(1)
    for result in found:
        for a, b in zip(result, scattered):
            np.testing.assert_array_equal(a, b)


def test_an_array_that_is_passed_twice_gets_both_gradients(gathered):
    """Two arguments that are only read may be one array: its gradient gets the adds of both."""
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False):
        x, y = (qd.ndarray(qd.f64, (40, 40), needs_grad=True) for _ in range(2))

        @qd.kernel
        def step(a: GRID, b: GRID, out: GRID):
            for i, j in qd.ndrange(38, 38):
                out[i, j] = a[i + 1, j] * a[i, j] + b[j + 2, i] * b[j, i]

        values = np.random.default_rng().normal(size=(40, 40))
        x.from_numpy(values)
        y.grad.fill(1.0)
        step(x, x, y)
        step.grad(x, x, y)
        expected = np.zeros((40, 40))
        expected[1:39, :38] += values[:38, :38]
        expected[:38, :38] += values[1:39, :38]
        expected[2:40, :38] += values[:38, :38]
        expected[:38, :38] += values[2:40, :38]
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-12)
