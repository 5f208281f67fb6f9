"""Random programs on a GPU, or the emulated one, against the CPU: values, gradients, checkpoint levels, bytes of the heap.

    python tests/cuda/random_on_device.py --count 1000                   # the first GPU
    python tests/cuda/random_on_device.py --count 100 --device emulated

All in one process. What differs by more than rounding explains (the CPU's own answer, a few last bits beside the inputs, says how much
that is) is printed with its source, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
import program_case
from program_case import Case
from programs import program_sources

import qdrun as qd

TOLERANCE = 1e-10
CHECKS = list(HealthCheck)
on_cpu = qd.init


def on_device(device: str | None) -> Any:
    """``qd.init`` as the test suite redirects it."""
    spec = importlib.util.spec_from_file_location("suite", Path(__file__).parents[1] / "conftest.py")
    assert spec and spec.loader
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    suite._redirect(device)
    return qd.init


class Comparison:
    """Runs one program after the other and counts."""

    def __init__(self, init: Any) -> None:
        self.init, self.counts, self.failures = init, Counter[str](), list[str]()

    def run(self, source: str, number: int, init: Any, near: float = 0.0, **options: Any) -> np.ndarray:
        """Value and gradient of a program; ``near``: relative distance of its inputs from the drawn ones."""
        program_case.qd.init = init
        case = Case(source, number, **options)
        try:
            if near:
                for t in case.inputs:
                    t.from_numpy(t.to_numpy() * (1.0 + near))
            planned = case.k.grad.plan(*case.args).bytes
            out = case.gradient()
            assert case.program.usage().get("adstack", 0) == planned, "the heap has not the planned bytes"
            return np.append(out, case.value())
        finally:
            case.close()

    def check(self, source: str, number: int) -> None:
        """One program."""
        self.counts["programs"] += 1
        try:
            want = self.run(source, number, on_cpu)
        except qd.DifferentiationError:
            self.counts["refused"] += 1
            return
        spread = sum(np.abs(self.run(source, number, on_cpu, near) - want) for near in (-2e-15, 2e-15))
        scale = max(1.0, float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0)))
        for levels in (1, 2, 3):
            got = self.run(source, number, self.init, ad_checkpoint_levels=levels)
            with np.errstate(all="ignore"):
                right = (np.abs(got - want) <= TOLERANCE * scale + 100 * spread) | ~np.isfinite(want + spread)
            if not right.all():
                raise AssertionError(f"{levels} levels: {got[~right][:4]}, on the CPU {want[~right][:4]}")
        self.counts["right"] += 1

    def note(self, source: str, number: int) -> None:
        """One program; a failure is kept."""
        try:
            with np.errstate(all="ignore"):
                self.check(source, number)
        except Exception as e:
            self.failures.append(f"inputs {number}: {type(e).__name__}: {e}\n{source}")
            if isinstance(e, qd.QdrunError) and getattr(e, "restart", False):
                raise SystemExit(f"the device has failed\n{self.failures[-1]}") from e


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="random programs on a GPU against the CPU")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=None)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no program after so long")
    args = parser.parse_args()
    comparison, began = Comparison(on_device(args.device)), time.perf_counter()

    @seed(args.seed)
    @settings(max_examples=args.count, deadline=None, suppress_health_check=CHECKS, database=None, phases=(Phase.generate,))
    @given(program_sources(), st.integers(0, 10**6))
    def run(source: str, number: int) -> None:
        if time.perf_counter() - began < args.seconds:
            comparison.note(source, number)

    run()
    for failure in comparison.failures[:10]:
        print(failure, end="\n\n")
    took = time.perf_counter() - began
    print(f"{dict(comparison.counts)}, {len(comparison.failures)} wrong, {took:.0f} s")
    return int(bool(comparison.failures))


if __name__ == "__main__":
    sys.exit(main())
