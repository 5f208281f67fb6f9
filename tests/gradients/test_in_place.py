"""State that is updated in place, under a tape: random programs against central differences, and how many bytes are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from in_place_programs import InPlace, random_values


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def check_program(case: InPlace, seed: int, **tape: Any) -> bool:
    """One random program: its gradient along random directions, and what its fields hold. Whether differences say anything."""
    rng = np.random.default_rng(seed)
    calls = case.draw(rng, int(rng.integers(3, 18)))
    values = random_values(rng, case)
    case.loss_at(calls, values)
    left = case.values()
    gradient = case.gradient(calls, values, **tape)
    for got, want in zip(case.values(), left, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=f"{seed}: {calls}")
    assert "tape" not in case.program.usage()
    said = 0
    for _ in range(2):
        by = [rng.uniform(-1, 1, v.shape) for v in values]
        terms = [g * d for g, d in zip(gradient, by, strict=True)]
        scale = max(1.0, sum(float(np.abs(t).sum()) for t in terms))
        found = []
        for h in (1e-5, 1e-6):
            up, low = (case.loss_at(calls, [v + s * d for v, d in zip(values, by, strict=True)]) for s in (h, -h))
            found.append(float(np.sum(up - low)) / (2 * h))
        if abs(found[0] - found[1]) < 1e-6 * scale:  # else there is a jump, or a tie
            said += 1
            assert abs(sum(float(t.sum()) for t in terms) - found[1]) < 1e-6 * scale, f"{seed}: {calls}"
    return said > 0


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "threads": ({"cpu_max_num_threads": 2}, {}, 12),
    "one thread": ({"cpu_max_num_threads": 1}, {"validation": True}, 8),
    "interpreter": ({"arch": "python"}, {}, 4),
    "debug": ({"debug": True}, {}, 6),
    "batch": ({"batch": 3}, {}, 8),
    "emulated CUDA": ({"arch": "cuda", "device": "emulated"}, {}, 6),
    "a batch on emulated CUDA": ({"arch": "cuda", "device": "emulated", "batch": 3}, {}, 4),
    "Vulkan": ({"arch": "vulkan", "device": "llvmpipe"}, {}, 6),
}
SLOW = ("debug", "batch", "emulated CUDA", "a batch on emulated CUDA", "Vulkan")


@pytest.mark.parametrize("way", [pytest.param(w, marks=pytest.mark.slow) if w in SLOW else w for w in WAYS])
def test_random_programs_in_place_have_the_gradients_of_differences(way):
    options, tape, count = WAYS[way]
    arch = {"arch": getattr(qd, options["arch"])} if "arch" in options else {}
    case = InPlace(**{**options, **arch})
    first = int(np.random.default_rng().integers(1 << 30))
    assert sum(check_program(case, first + k, **tape) for k in range(count)) > count // 2


def test_the_budget_that_a_refusal_names_is_enough_and_is_the_peak():
    for seed in np.random.default_rng().integers(1 << 30, size=3).tolist():
        rng = np.random.default_rng(seed)
        case = InPlace(cpu_max_num_threads=1)
        calls, values = [("euler", 0.5), *case.draw(rng, 8), ("iterate", 0.4)], random_values(rng, case)
        want = case.gradient(calls, values)
        small = InPlace(cpu_max_num_threads=1, memory_budget=1)
        with pytest.raises(qd.OutOfMemory, match=r"checkpointed_steps|memory_budget=") as error:
            small.gradient(calls, values)
        assert "tape" not in small.program.usage()
        budget = error.value.smallest
        assert f"qd.init(memory_budget={budget})" in str(error.value)
        enough = InPlace(cpu_max_num_threads=1, memory_budget=budget)
        for got, wanted in zip(enough.gradient(calls, values), want, strict=True):
            assert np.array_equal(got, wanted), (seed, calls)
        assert enough.program.peak_bytes == budget, (seed, calls)


def test_a_gradient_that_is_compiled_later_is_in_the_budget_that_a_tape_names():
    def run(budget: int) -> qd.Program:
        program = qd.init(default_fp=qd.f64, memory_budget=budget)
        x, y, loss = (qd.field(qd.f64, shape=s, needs_grad=True) for s in (8, 8, ()))

        @qd.kernel
        def first():
            for i in x:
                y[i] = x[i] * x[i]

        @qd.kernel
        def total(n: qd.i32):
            for i in x:
                v = y[i] + 0.1
                for _ in range(n):
                    v = qd.sin(v) * v
                loss[None] += v

        with qd.ad.Tape(loss):
            first()
            total(6)
            total(9)
        return program

    with pytest.raises(qd.OutOfMemory) as error:
        run(1)
    assert run(error.value.smallest).peak_bytes == error.value.smallest
