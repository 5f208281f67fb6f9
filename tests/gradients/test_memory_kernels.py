"""Random kernels over memory: the gradient of each is that of its differences, or it is refused."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start
from memory_kernels import Writer


class Bench:
    """The fields that the kernels work on."""

    def __init__(self, **options) -> None:
        start(**options)
        self.fields = {name: field(4, name=name) for name in "xy"} | {"s": field(name="s"), "grid": field(4, 4, name="grid")}
        self.fields["v"] = qd.Vector.field(2, qd.f64, shape=4, needs_grad=True, name="v")
        self.plain, self.c = qd.field(qd.f64, shape=4, name="plain"), ints([2, 0, 1, 3], "c")

    def judge(self, seed: int) -> str:
        """right, refused, or wild (not smooth, infinite).

        Raises:
            AssertionError: the gradient is wrong.
        """
        source = Writer(seed).source()
        k = compile_source(source, **self.fields, plain=self.plain, c=self.c)["k"]
        r = np.random.default_rng(seed)
        for f in self.fields.values():
            f.from_numpy(r.uniform(-1.2, 1.2, f.to_numpy().shape))
        plain = r.uniform(0.3, 1.0, 4)

        class Whole(Point):
            def value(inner, run=None):
                self.plain.from_numpy(plain)
                return super().value(run)

        point = Whole(k, (3,), list(self.fields.values()), list(self.fields.values()))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", qd.GradientWarning)
                got = point.gradient()
        except (qd.DifferentiationError, qd.QdrunRuntimeError, qd.GradientWarning) as e:
            assert "\n  do: " in str(e) or "; do: " in str(e)
            return "refused"
        near, far = point.differences(1e-6), point.differences(1e-5)
        smooth = np.isfinite(near) & np.isfinite(far) & (np.abs(near - far) <= 1e-4 * np.maximum(1, np.abs(near)))
        scale = max(1.0, float(np.abs(near[smooth]).max(initial=0)))
        if not np.isfinite(near).all() or scale > 1e6:
            return "wild"
        assert np.all(np.abs(got - near)[smooth] <= 2e-5 * scale), f"seed {seed}: a wrong gradient\n{source}"
        return "right"


def judge_all(seeds, **options):
    bench = Bench(**options)
    found = Counter(bench.judge(seed) for seed in seeds)
    assert found["right"] > len(seeds) // 10, found
    assert found["wild"] < len(seeds) // 10, found
    return found


def test_random_memory_kernels_on_the_interpreter():
    judge_all(range(25), arch=qd.python)


def test_random_memory_kernels_compiled():
    judge_all(range(100, 125), cpu_max_num_threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_memory_kernels(part):
    judge_all(range(1000 + 60 * part, 1060 + 60 * part), arch=qd.python)
    judge_all(range(3000 + 25 * part, 3025 + 25 * part), cpu_max_num_threads=2)
