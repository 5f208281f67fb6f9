"""Random programs in graphs of the CPU: a graph gives the values and the gradients that its launches give one by one, to the bit.

The programs have gates, `while` loops, loops whose bounds are read from fields, temporaries, atomics, and several tasks. Each is launched
twice, with other bounds, so that plans of one gradient stand side by side; batches run on two threads.
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
PARTS, EACH = 8, int(os.environ.get("QDRUN_RANDOM_GRAPHS", "16")) // 8
OPTIONS = ({}, {"ad_checkpoint_levels": 2}, {"ad_checkpoint_levels": 3}, {"check_out_of_bound": True})


class Work:
    """Two launches of a case with their gradients, and what they leave."""

    def __init__(self, case: Case) -> None:
        self.case, (self.n, *self.rest) = case, case.args

    def __call__(self) -> None:
        case = self.case
        case.clear()
        for n in (self.n, self.n + 3):
            case.k(n, *self.rest)
        case.seed()
        for n in (self.n + 3, self.n):
            case.k.grad(n, *self.rest)

    def results(self) -> list[np.ndarray]:
        return [*(t.to_numpy() for t in self.case.outputs), *(t.grad.to_numpy() for t in self.case.inputs)]

    def spoil(self) -> None:
        """Other numbers wherever the work writes."""
        for t in (*self.case.outputs, *(t.grad for t in (*self.case.inputs, *self.case.outputs))):
            t.fill(3.0)


def check(source: str, inputs: int) -> None:
    """Graphs of the program alone, and in batches."""
    options = OPTIONS[inputs % len(OPTIONS)]
    for batch in ({}, {"batch": 11, "cpu_lanes": 8, "cpu_max_num_threads": 2}, {"batch": 5, "cpu_max_num_threads": 2}):
        with np.errstate(all="ignore"):
            case = Case(source, inputs, **options | batch)
            work = Work(case)
            try:
                work()
            except qd.DifferentiationError:
                COUNTS["refused"] += 1
                case.close()
                return
            try:
                graph = qd.capture(work)
            except (
                qd.QdrunRuntimeError
            ) as e:  # a gate reads an array that was passed as an argument, whose writes nobody counts
                assert "plans its adstack heap from an array that may have been written since" in str(e), str(e)
                COUNTS["refused"] += 1
                case.close()
                return
            rng = np.random.default_rng(inputs)
            for _ in range(2):
                for t in case.inputs:
                    t.from_numpy(rng.uniform(-1.2, 1.2, t.to_numpy().shape))
                found = []
                for launch in (work, graph):
                    work.spoil()
                    launch()
                    found.append(work.results())
                for one_by_one, of_graph in zip(*found, strict=True):
                    np.testing.assert_array_equal(of_graph, one_by_one, str(batch))
            case.close()
    COUNTS["right"] += 1


@settings(max_examples=4, deadline=None, suppress_health_check=CHECKS, phases=[Phase.generate])
@given(program_sources(), st.integers(0, 10**6))
def test_graphs_of_random_programs_give_what_their_launches_give(source, inputs):
    check(source, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs(part):
    check_part(check, part, PARTS, EACH, phases=[Phase.generate])


@pytest.fixture(scope="module", autouse=True)
def few_programs_are_refused():
    """In each process that has run some."""
    yield
    assert COUNTS["refused"] <= 0.4 * COUNTS["right"] + 3, dict(COUNTS)
