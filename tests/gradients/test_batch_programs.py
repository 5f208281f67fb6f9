"""Random programs in batches: each trial has the values, the gradients and the failures that it has alone, one by one and recorded.

The programs have gates, `while` loops, loops whose bounds are read from fields, temporaries, atomics, several tasks, random draws, arrays
that trials share and values that they return; with checks that fail in some trials, checkpoint levels, budgets and short adstacks.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from trial_programs import PROFILES, Results, TrialCase, trial_program

SEED, PROGRAMS = int(os.environ.get("QDRUN_SEED", "0")), int(os.environ.get("QDRUN_RANDOM_BATCHES", "18"))
PARTS = PROGRAMS // 4 if PROGRAMS >= 300 else 6
WIDTHS = (4, 8, 1, 16, 32)
FEW = (2, 3, 4, 5, 6, 7, 8, 9)
"""Programs of seed 0 in which everything occurs."""
PLAN_OF_OTHERS = "plans its adstack heap from an array that may have been written since"
OCCURS = {
    "values returned", "scalars of each trial", "arrays that trials share", "random draws", "gates", "levels", "budgets",
    "loops that differ", "recorded", "recorded failures",
    *(f"failures: {name}" for name in ("asserts", "not finite", "overflows", "bounds", "short stacks")),
}  # fmt: skip


class Check:
    """One program: a batch in lanes, and one without, whose trials are compared with programs that are no batch, too.

    Attributes:
        seen: which parts of the language and which events have occurred.
    """

    def __init__(self, number: int, seen: Counter[str]) -> None:
        self.number, self.seen = number, seen
        self.profile, self.source = trial_program(SEED, number)
        self.name = next(name for name, profile in PROFILES.items() if profile is self.profile)
        self.on_host = os.environ.get("QDRUN_TEST_ARCH", "cpu") == "cpu"

    def run(self, whole: bool = True) -> None:
        """``whole``: trials are also compared with programs that are no batch; else those of every other program are."""
        with np.errstate(all="ignore"):
            lanes = WIDTHS[self.number // 10 % len(WIDTHS)] if self.on_host else 1
            self.batch(11, lanes, singles=whole or not self.number % 2)

    def batch(self, count: int, lanes: int, singles: bool) -> None:
        options = {**self.profile.options, "cpu_lanes": lanes, "gpu_lanes": (1, 0, 4)[self.number // 10 % 3]}
        ordered = (
            self.on_host or options["gpu_lanes"] == 1
        )  # else threads of a trial add in any order, and any of them fails first
        batch = TrialCase(self.source, self.number, batch=count, **options)
        own = batch.columns(self.number)
        known = batch.known()
        try:
            found = batch.results(self.budget if self.profile.budget else None)
        except qd.DifferentiationError as error:
            assert "\n  do: " in str(error), str(error)
            self.seen["refused"] += 1
            batch.close()
            return
        assert batch.program.usage().get("adstack", 0) == found.planned
        self.note(batch, found, own)
        bounds = set()
        for trial in sorted({0, count // 2, count - 1, *[*found.failed][:1]}):
            where = f"program {self.number} of seed {SEED} ({self.name}), {lanes} lanes, trial {trial} of {count}"
            one = batch.row(self.source, self.number, known, trial, batch=1, **options)
            self.same(found, trial, one.results(), 0, 0.0 if ordered else 1e-10, where)
            one.close()
            if singles:
                alone = batch.row(
                    self.source, self.number, known, trial, **options | {"cpu_max_num_threads": 1, "cpu_lanes": 1}
                )
                self.same(found, trial, alone.results(), None, 1e-11 if self.on_host else 1e-10, where)
                rows = alone.k.grad.plan(*alone.args).rows()
                self.seen["gates"] += any("gate" in str(row["rows_from"]) for row in rows)
                bounds.add(tuple(row["bound"] for row in rows))
                alone.close()
        self.seen["loops that differ"] += len(bounds) > 1
        with batch.program:
            self.recorded(batch, ordered)
        batch.close()
        self.seen["right"] += 1

    def budget(self, case: TrialCase) -> dict[str, int]:
        """Half of what may be saved."""
        full = case.k.grad.plan(*case.args)
        try:
            case.k.grad.plan(*case.args, budget=0)
            return {}
        except qd.OutOfMemory as error:
            allowed = (error.smallest + full.bytes) // 2
        self.seen["budgets"] += case.k.grad.plan(*case.args, budget=allowed).bytes < full.bytes
        return {"budget": allowed}

    def note(self, batch: TrialCase, found: Results, own: tuple[bool, bool]) -> None:
        """What has occurred."""
        count = len(found.values[0])
        assert found.returned.shape == (count,)
        seen = self.seen
        seen["values returned"] += len(set(found.returned.tolist())) > 1
        seen["scalars of each trial"] += any(own)
        seen["arrays that trials share"] += "table[" in self.source or "shared[" in self.source
        seen[f"failures: {self.name}"] += 0 < len(found.failed) < count
        seen["levels"] += "ad_checkpoint_levels" in self.profile.options and any(
            row["levels"] > 1 for row in batch.k.grad.plan(*batch.args).rows()
        )
        batch.begin()
        batch.program.seeds.drawn = 7
        batch.k(*batch.args)
        other = batch.end(Results())
        seen["random draws"] += any(
            not np.array_equal(a, b, equal_nan=True) for a, b in zip(other.values[:4], found.values[:4], strict=True)
        )

    def same(self, found: Results, trial: int, one: Results, at: int | None, tolerance: float, where: str) -> None:
        """A trial of a batch against the trial alone.

        Args:
            found: of the batch.
            trial: which.
            one: the trial alone.
            at: its index in a batch of one; None: that is no batch.
            tolerance: relative to the largest number of an array; 0: to the bit, and failures say the same.
            where: for messages.
        """
        wrong, expected = found.failed.get(trial), one.failed.get(0)
        if expected is not None or wrong is not None:
            assert type(wrong) is type(expected), f"{where}\n{wrong!r}\n{expected!r}"
            if not tolerance or self.on_host:
                assert str(wrong) == str(expected), where
            return
        pairs = [(found.returned, one.returned), *zip(found.values, one.values, strict=True)]
        for got, want in pairs:
            self.equal(got[trial], want if at is None else want[at], tolerance, where)

    @staticmethod
    def equal(got: Any, want: Any, tolerance: float, where: str) -> None:
        if not tolerance:
            np.testing.assert_array_equal(got, want, where)
            return
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        if np.isfinite(scale):
            np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=tolerance, err_msg=where)

    def recorded(self, batch: TrialCase, ordered: bool) -> None:
        """The same launches as a graph, twice, with other inputs. On a device, a graph is given the same numbers for all trials.

        ``ordered``: a trial has one thread, so that bits are equal.
        """
        if not self.on_host:
            n, c, cv, number = batch.args
            batch.args = (int(np.max(n)), c, cv, float(np.max(number)))
            batch.begin()
            batch.launch()
        batch.begin()
        try:
            graph = qd.capture(batch.launch)
        except qd.QdrunRuntimeError as error:  # nobody counts the writes to an array that was passed as an argument
            expected = "cannot be recorded while launches are checked" if "debug" in self.profile.options else PLAN_OF_OTHERS
            assert expected in str(error), str(error)
            self.seen["not recorded"] += 1
            return
        for turn in range(2):
            r = np.random.default_rng([self.number, turn])
            for t in batch.inputs:
                t.from_numpy(r.uniform(-1.2, 1.2, t.to_numpy().shape))
            ends = []
            for launch in (batch.launch, graph):
                for t in (*batch.outputs, *(t.grad for t in batch.inputs)):
                    t.fill(3.0)
                batch.begin()
                launch()
                ends.append(batch.end(Results()))
            direct, replay = ends
            where = f"recorded: program {self.number} of seed {SEED} ({self.name})"
            failed = [{t: str(e) if ordered else "" for t, e in end.failed.items()} for end in ends]
            assert failed[0] == failed[1], where
            good = [t for t in range(len(direct.values[0])) if t not in direct.failed]
            for got, want in zip(replay.values, direct.values, strict=True):
                for trial in good:
                    self.equal(got[trial], want[trial], 0.0 if ordered else 1e-10, where)
            self.seen["recorded"] += 1
            self.seen["recorded failures"] += 0 < len(direct.failed) < len(direct.values[0])
        graph.close()


def run_programs(numbers: Sequence[int], whole: bool = True) -> Counter[str]:
    """Check programs; what has occurred in them."""
    seen: Counter[str] = Counter()
    for number in numbers:
        Check(number, seen).run(whole)
    print(f"\nrandom batches {numbers[0]} to {numbers[-1]} of seed {SEED}: {dict(seen)}")
    return seen


def test_trials_of_random_programs_are_what_they_are_alone():
    seen = run_programs(FEW, whole=False)
    assert SEED or OCCURS <= (+seen).keys(), OCCURS - (+seen).keys()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_programs(part, record_property):
    each = -(-PROGRAMS // PARTS)
    seen = run_programs(range(part * each, min(PROGRAMS, (part + 1) * each)))
    for name, count in seen.items():  # what --junitxml keeps
        record_property(name, count)
    assert seen["refused"] <= 0.2 * seen["right"] + 3, dict(seen)
