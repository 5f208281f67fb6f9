"""The comparison with other frameworks: our sides run, and lines are counted as it says."""

from contextlib import ExitStack

import numpy as np
import pytest

from benchmarks.beside.measure import code_lines, figures
from benchmarks.beside.ours import SIDES


def counted(x):
    """A docstring is no line."""
    # nor is a comment

    total = sum(
        k * x  # and a statement is one line
        for k in range(3)
    )
    return total


def test_lines_are_statements():
    assert code_lines(counted) == 3


@pytest.mark.parametrize(
    "case", ["burgers", "pendulum", *(pytest.param(c, marks=pytest.mark.slow) for c in ("smoke", "cloth", "diffmpm"))]
)
def test_our_side_runs(case):
    make, source = SIDES[case]
    with ExitStack() as keep:
        found = figures(lambda: make(keep), source, 0.0)
    assert np.isfinite(found["loss"]).all() and np.any(found["gradient"]) and found["seconds"] > 0 and found["lines"] > 20
