"""Random programs: machine code against the interpreter to the bit, forward and reverse; gradients against central differences.

Each slow test has seeds of its own, so that ``-n 2`` shares the work.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from program_case import COUNTS, check
from programs import CHECKS, check_part, program_sources

PARTS, EACH = 8, int(os.environ.get("QDRUN_RANDOM_PROGRAMS", "32")) // 8


@settings(max_examples=2, deadline=None, suppress_health_check=CHECKS)
@given(program_sources(), st.integers(0, 10**6))
def test_random_programs_are_right(source, inputs):
    check(source, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs_are_right(part):
    check_part(check, part, PARTS, EACH)


@pytest.fixture(scope="module", autouse=True)
def few_programs_are_refused():
    """In each process that has run some."""
    yield
    print(f"\nrandom programs: {dict(COUNTS)}")
    assert COUNTS["refused"] <= 0.1 * COUNTS["programs"] + 3, dict(COUNTS)
    assert COUNTS["lanes take another branch"] <= 0.02 * COUNTS["in lanes"] + 2, dict(COUNTS)
    assert COUNTS["f32 far from f64"] <= 0.02 * COUNTS["with f32"] + 2, dict(COUNTS)
