"""Random programs in batches: each trial has the values and the gradients that it has alone, with other numbers in each trial.

The programs have gates, `while` loops, loops whose bounds are read from fields, temporaries, atomics, and several tasks.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from program_case import Case
from programs import CHECKS, check_part, program_sources

COUNTS: Counter[str] = Counter()
PARTS, EACH = 16, int(os.environ.get("QDRUN_RANDOM_BATCHES", "64")) // 16
WIDTHS = (4, 8, 16, 32)
OPTIONS = ({}, {"ad_checkpoint_levels": 2}, {"ad_checkpoint_levels": 3}, {"debug": True}, {"cpu_max_num_threads": 2})


def results(case: Case) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Outputs and gradients of a case, with the trials as their first axis where it is a batch; bytes of the heap."""
    case.clear()
    case.k(*case.args)
    outputs = [t.to_numpy() for t in case.outputs]
    case.seed()
    planned = case.k.grad.plan(*case.args).bytes
    case.k.grad(*case.args)
    assert case.program.usage().get("adstack", 0) == planned
    gradients = [t.grad.to_numpy() for t in case.inputs]
    case.close()
    return outputs, gradients, planned


def row(source: str, inputs: int, whole: Case, known: list[np.ndarray], trial: int, **options) -> Case:
    """A trial of a batch as a case of its own; in a batch of one with ``batch=1``."""
    case = Case(source, inputs, **options)
    axis = (slice(trial, trial + 1),) if "batch" in options else (trial,)
    for t, values in zip((*case.inputs, *case.ints), known):
        t.from_numpy(values[axis])
    n, _, _, number = whole.args
    case.args = (n, case.c, case.cv, number)
    case.weights = [w[axis] for w in whole.weights]
    return case


def check(source: str, inputs: int) -> None:
    """Rows against batches of one to the bit, and against programs that are not batched."""
    options = OPTIONS[inputs % len(OPTIONS)]
    for lanes, count in ((WIDTHS[inputs % len(WIDTHS)], 11), (1, 3)):
        with np.errstate(all="ignore"):
            batch = Case(source, inputs, batch=count, **options | {"cpu_lanes": lanes})
            known = [t.to_numpy() for t in (*batch.inputs, *batch.ints)]
            try:
                outputs, gradients, _ = results(batch)
            except qd.DifferentiationError:
                COUNTS["refused"] += 1
                return
            for trial in {0, count // 2, count - 1}:
                one = row(source, inputs, batch, known, trial, batch=1, **options | {"cpu_lanes": lanes})
                own = results(one)
                for got, want in zip((*outputs, *gradients), (*own[0], *own[1])):
                    np.testing.assert_array_equal(got[trial], want[0], f"trial {trial} of {count}, {lanes} lanes")
            if lanes == 1:
                single = results(row(source, inputs, batch, known, 1, **options))
                for got, want in zip((*outputs, *gradients), (*single[0], *single[1])):
                    scale = max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
                    if np.isfinite(scale):
                        np.testing.assert_allclose(got[1] / scale, want / scale, rtol=0, atol=1e-11)
    COUNTS["right"] += 1


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS, phases=[Phase.generate])
@given(program_sources(), st.integers(0, 10**6))
def test_trials_of_random_programs_are_what_they_are_alone(source, inputs):
    check(source, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs(part):
    check_part(check, part, PARTS, EACH, phases=[Phase.generate])


def test_few_random_programs_are_refused():
    assert COUNTS["refused"] <= 0.2 * COUNTS["right"] + 3, dict(COUNTS)
