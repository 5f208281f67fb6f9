"""Random kernels, compiled: gradients against central differences in f64, planned bytes against allocated bytes, levels bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from kernels import compile_source, kernel_sources
from replay import central_differences, difference, resolution, same

COUNTS = {"right": 0, "refused": 0, "kinked components": 0, "too steep for differences": 0}
STEEP = 1e9  # a gradient of that size
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


class Case:
    """One random kernel in a program of its own, with inputs drawn from ``seed``."""

    def __init__(self, source: str, seed: int, **options) -> None:
        options = {"cpu_max_num_threads": 1, **options}  # with several, atomic sums come in any order: other bits in each run
        self.program = qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False, **options)
        self.x = qd.field(qd.f64, shape=8, needs_grad=True)
        self.v = qd.Vector.field(2, dtype=qd.f64, shape=4, needs_grad=True)
        self.y = qd.field(qd.f64, shape=3, needs_grad=True)
        cnt = qd.field(qd.i32, shape=6)
        self.c = qd.ndarray(qd.f64, 5, needs_grad=True)
        r = np.random.default_rng(seed)
        for t in (self.x, self.v, self.c):
            t.from_numpy(r.uniform(-1.2, 1.2, t.to_numpy().shape))
        cnt.from_numpy(r.integers(0, 5, 6))
        self.n = int(r.integers(0, 6))
        self.weights = r.uniform(0.5, 1.5, 3)
        self.k = compile_source(source, {"x": self.x, "v": self.v, "y": self.y, "cnt": cnt})["k"]

    def value(self) -> float:
        self.y.fill(0.0)
        self.k(self.n, self.c)
        return float((self.y.to_numpy() * self.weights).sum())

    def gradient(self) -> np.ndarray:
        for t in (self.x, self.v, self.c):
            t.grad.fill(0.0)
        self.y.grad.from_numpy(self.weights)
        self.k.grad(self.n, self.c)
        return np.concatenate([t.grad.to_numpy().reshape(-1) for t in (self.x, self.v, self.c)])

    def differences(self, h: float) -> np.ndarray:
        return central_differences((self.x, self.v, self.c), self.value, h)


def check(source: str, seed: int) -> None:
    case = Case(source, seed)
    try:
        with np.errstate(all="ignore"):
            planned = case.k.grad.plan(case.n, case.c).bytes
            got = case.gradient()
    except qd.DifferentiationError:
        COUNTS["refused"] += 1
        return
    assert case.program.usage().get("adstack", 0) == planned
    coarse, fine = case.differences(1e-5), case.differences(1e-6)
    scale = max(1.0, float(np.abs(fine).max()))
    # Sines of numbers like 1e90, or a sum with one of them: differences see none of their slope (forward mode agreed with ours to the
    # last digits).
    if not scale <= STEEP or resolution(case.value(), 1e-6) > 1e-7 * scale:
        COUNTS["too steep for differences"] += 1
        usable = np.zeros(len(fine), bool)
    else:
        usable = np.abs(coarse - fine) <= 1e-7 * scale
    COUNTS["kinked components"] += int((~usable).sum())
    error = np.abs(got - coarse)[usable] / scale
    assert error.size == 0 or error.max() <= 1e-6, f"relative error {error.max()}"
    case.program.close()
    for levels in (2, 3):
        other = Case(source, seed, ad_checkpoint_levels=levels)
        assert same(other.gradient(), got), f"{levels} checkpoint levels give other bits"
        other.program.close()
    COUNTS["right"] += 1


@settings(max_examples=2, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_random_kernels_have_the_right_gradient(source, seed):
    check(source, seed)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_more_random_kernels_have_the_right_gradient(source, seed):
    check(source, seed)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(rows=37), st.integers(0, 10**6))
def test_simd_lanes_compute_what_one_lane_computes(source, seed):
    values = []
    for lanes in (1, 4, 16):  # 37 rows: whole vectors and a masked rest
        case = Case(source, seed, cpu_lanes=lanes)
        case.value()
        values.append(np.concatenate([case.y.to_numpy(), case.gradient()]))
        assert case.program.usage().get("adstack", 0) == case.k.grad.plan(case.n, case.c).bytes
        case.program.close()
    scale = max(1.0, float(np.nanmax(np.abs(values[0]), initial=0.0)))
    assume(scale < 1e6)  # beyond that a last bit of a sine grows into the digits that are compared
    for other in values[1:]:  # scalars call libm, lanes our own functions
        np.testing.assert_allclose(other, values[0], rtol=1e-8, atol=1e-8 * scale)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(rows=6000), st.integers(0, 10**6))
def test_two_threads_compute_what_one_thread_computes(source, seed):
    values = []
    for options in (
        {"cpu_max_num_threads": 1},
        {"cpu_max_num_threads": 2},
        {"cpu_max_num_threads": 2, "ad_checkpoint_levels": 2},
    ):
        case = Case(source, seed, **options)
        case.value()
        values.append(np.concatenate([case.y.to_numpy(), case.gradient()]))
        case.program.close()
    assume(np.isfinite(values[0]).all())
    for other in values[1:]:  # sums over threads are in another order
        np.testing.assert_allclose(other, values[0], rtol=1e-7, atol=1e-9 * (1.0 + np.abs(values[0]).max()))


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=CHECKS)
@given(kernel_sources(), st.integers(0, 10**6))
def test_bounds_checks_do_not_change_a_gradient(source, seed):
    values = []
    for debug in (False, True):
        case = Case(source, seed, debug=debug)
        values.append(np.append(case.gradient(), case.value()))
        case.program.close()
    # checks make iterations costlier, so chunks are shorter and partial sums come in another order
    difference("with bounds checks", values[1], values[0], 1e-11)


def teardown_module() -> None:
    print(f"\nrandom kernels: {COUNTS}")
