"""Random programs for batches of trials: what ``programs.py`` draws, and what concerns batches.

A program has two kernels. ``k(n, c, cv, s0)`` is the one of ``programs.py``, which also reads what trials share (``table``, ``shared``),
draws random numbers, and has statements that fail in some trials. ``look(n, s0)`` returns a number. A *profile* says which checks the
program has, and with that which statements may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
from program_case import Case
from programs import KernelWriter, Scope

import qdrun as qd

FOREIGN = (
    "table[({}) % 7]",
    "shared[({}) % 5]",
    "qd.random(qd.f64)",
    "0.3 * qd.randn(qd.f64)",
    "(0.2 * (qd.random(qd.i32) % 5))",
)
"""Reals that ``programs.py`` does not draw."""


LONG = "for {2} in range(20 + 9 * cnt[({0}) % 6]):\n    a = qd.sin(a) + 0.05 * x[({1}) % 8]"
"""A loop whose states take more than a few words, of another length in each trial."""
GATED = """
    for i in range(8):
        g = x[i]
        if x[i] + s0 > {0}:
            for j in range(9 + cnt[i % 6]):
                g = qd.sin(g) + 0.01 * j
            y[i % 3] += g
"""


@dataclass(frozen=True)
class Profile:
    """Checks and remedies of a program.

    Attributes:
        options: of ``qd.init``; ``batch`` and ``lanes`` are not among them.
        statements: what only this profile has, with ``{}`` for two indices and a new name; where it has checks, they fail for a few
            values of the inputs.
        budget: gradients have a memory budget, half way between the least and what they take without.
    """

    options: dict[str, Any] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    budget: bool = False


PROFILES = {
    "plain": Profile(),
    "levels": Profile({"ad_checkpoint_levels": 2}, (LONG,)),
    "more levels": Profile({"ad_checkpoint_levels": 3, "cpu_max_num_threads": 2}, (LONG,)),
    "budget": Profile({}, (LONG,), budget=True),
    "threads": Profile({"cpu_max_num_threads": 2}),
    "asserts": Profile(
        {"debug": True}, ('assert x[({0}) % 8] < 1.05, "too far"', 'assert cnt[({0}) % 6] + cnt[({1}) % 6] < 8, "too many"')
    ),
    "not finite": Profile(
        {"nan_check": True}, ("y[({0}) % 3] += 0.1 * qd.sqrt(x[({1}) % 8] + 1.05)", "y[({0}) % 3] += 0.1 * qd.log(x[({1}) % 8] + 1.1)")
    ),
    "overflows": Profile({"overflow_check": True}, ("y[({0}) % 3] += 1e-9 * (cnt[({0}) % 6] * cnt[({1}) % 6] * 150000000)",)),
    "bounds": Profile(
        {"check_out_of_bound": True}, ("y[({0}) % 3] += 0.2 * x[({0}) % 8 + cnt[({0}) % 6] * cnt[({1}) % 6] // 16 * 8]",)
    ),
    "short stacks": Profile(
        {"ad_stack_size": 3}, ("{2} = cnt[({0}) % 6]\nwhile {2} > 0:\n    {2} -= 1\n    a = qd.sin(a) + 0.1 * x[({1}) % 8]",)
    ),
}  # fmt: skip


class TrialWriter(KernelWriter):
    """Draws both kernels. With numbers of its own, and not with hypothesis, which draws many programs that are nearly equal."""

    def __init__(self, random: Random, statements: tuple[str, ...]) -> None:
        super().__init__(None)
        self.random, self.statements = random, statements
        self.arrays = True  # the arrays that ``k`` is given may be read

    def pick(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def real(self, depth: int = 0) -> str:
        if self.globals and self.number(0, 9) == 0:
            return self.pick(FOREIGN).format(self.int_(1))
        return super().real(depth)

    def load(self) -> str:
        return super().load() if self.arrays else f"x[({self.int_(1)}) % 8]"

    def vec(self, depth: int = 0) -> str:
        return super().vec(depth) if self.arrays else f"v[({self.int_(1)}) % 4]"

    def stmt(self, depth: int, loops: int, leave: bool) -> None:
        if self.globals and self.number(0, 3) == 0:
            self.own(depth)
        else:
            super().stmt(depth, loops, leave)

    def parallel(self, top: Scope, fields: list[str], last: bool) -> None:
        super().parallel(top, fields, last)
        self.own(2)

    def own(self, depth: int) -> None:
        """A statement of the profile, if it has some."""
        if not self.statements:
            return self.put(depth, "pass")
        text = self.pick(self.statements).format(self.int_(1), self.int_(1), self.fresh("times"))
        for line in text.split("\n"):
            self.put(depth, line)

    def kernel(self) -> str:
        super().kernel()
        if self.number(0, 1):
            self.lines += GATED.strip("\n").format(self.number(-5, 5) / 8).split("\n")
        self.look()
        return "\n".join(self.lines) + "\n"

    def look(self) -> None:
        """A kernel of one serial task, with a loop that ends where the trial says."""
        self.lines += ["", "@qd.kernel", "def look(n: qd.i32, s0: qd.f64) -> qd.f64:"]
        self.calls, self.extra, self.outputs, self.arrays = ("fa", "fb"), [], [], False
        self.s = Scope(reals=["s0"], ints=["n"], fixed={"n", "s0"})
        self.statements = tuple(text for text in self.statements if text != LONG)  # at the top it would be a parallel loop
        for text in ("a = x[n % 8]", "left = cnt[n % 6]", "while left > 0:", "    left -= 1", "    a = qd.sin(a) + 0.3 * s0"):
            self.put(1, text)
        self.s.reals.append("a")
        for _ in range(self.number(1, 3)):
            self.stmt(1, 3, False)
        self.put(1, f"return a + {self.real(1)}")


def trial_program(seed: int, number: int) -> tuple[Profile, str]:
    """The profile and the source of a program. ``number``: profiles come in turn."""
    profile = PROFILES[list(PROFILES)[number % len(PROFILES)]]
    return profile, TrialWriter(Random(f"{seed} {number}"), profile.statements).kernel()


class Results:
    """What a program has given: for a batch with the trials as first axis.

    Attributes:
        returned: of ``look``.
        values: the outputs, then the gradients of the inputs.
        failed: by trial, what it failed with; 0 is that of a program which is no batch.
        planned: bytes of the heap of the gradient.
    """

    def __init__(self) -> None:
        self.returned: Any = None
        self.values: list[np.ndarray] = []
        self.failed: dict[int, Exception] = {}
        self.planned = 0


class TrialCase(Case):
    """A random program with its inputs, as a batch (``batch=``) or alone.

    Attributes:
        budget: the keywords of the gradient's last launch.
    """

    budget: Mapping[str, int] = MappingProxyType({})

    def more(self) -> dict[str, Any]:
        table, shared = qd.field(qd.f64, 7, per_trial=False), qd.ndarray(qd.f64, 5, per_trial=False)
        table.from_numpy(np.linspace(-0.9, 1.0, 7))
        shared.from_numpy(np.linspace(0.7, -1.0, 5))
        return {"table": table, "shared": shared}

    def columns(self, seed: int) -> tuple[bool, bool]:
        """Give each trial scalar arguments of its own; whether the bound and the real number are."""
        r, count = np.random.default_rng(seed + 1), self.program.options.batch
        n, c, cv, number = self.args
        own = bool(r.integers(3)), bool(r.integers(3))
        self.args = (r.integers(0, 6, count) if own[0] else n, c, cv, r.uniform(-1, 1, count) if own[1] else number)
        return own

    def known(self) -> list[np.ndarray]:
        """All that goes in."""
        return [t.to_numpy() for t in (*self.inputs, *self.ints)]

    def row(self, source: str, seed: int, known: list[np.ndarray], trial: int, **options: Any) -> TrialCase:
        """A trial of this batch as a program of its own; with ``batch=1`` as a batch of one."""
        one = TrialCase(source, seed, random_seed=trial, **options)
        axis = (slice(trial, trial + 1),) if "batch" in options else (trial,)
        for t, values in zip((*one.inputs, *one.ints), known, strict=True):
            t.from_numpy(values[axis])
        numbers = [
            a if np.ndim(a) == 0 else a[axis] if "batch" in options else a[trial].item() for a in (self.args[0], self.args[3])
        ]
        one.args = (numbers[0], one.c, one.cv, numbers[1])
        one.weights = [w[axis] for w in self.weights]
        return one

    def begin(self) -> None:
        """Outputs, seeds of the gradient, failures and random numbers are as before the first launch."""
        self.program.seeds.drawn = 0
        self.clear()
        self.seed()
        if self.program.trials is not None:
            self.program.batch.keep_failures = True
            self.program.batch.forget_failures()

    def end(self, results: Results) -> Results:
        """Read what the launches have left."""
        qd.sync()
        results.values = [*(t.to_numpy() for t in self.outputs), *(t.grad.to_numpy() for t in self.inputs)]
        if self.program.trials is not None:
            results.failed = dict(self.program.batch.failed())
        return results

    def launch(self) -> None:
        """The launches that are recorded."""
        self.k(*self.args)
        self.k.grad(*self.args, **self.budget)

    def results(self, budget: Callable[[TrialCase], dict[str, int]] | None = None) -> Results:
        """Run everything once.

        Args:
            budget: gives the keywords of the gradient after the forward launch.

        Raises:
            DifferentiationError: the gradient is refused.
        """
        found = Results()
        self.begin()
        try:
            found.returned = self.space["look"](self.args[0], self.args[3])
            self.k(*self.args)
            qd.sync()
            self.budget = {} if budget is None else budget(self)
            found.planned = self.k.grad.plan(*self.args, **self.budget).bytes
            self.k.grad(*self.args, **self.budget)
            return self.end(found)
        except qd.DifferentiationError:
            raise
        except qd.QdrunRuntimeError as error:
            if self.program.trials is not None:
                raise
            found.failed = {0: error}
            return found


__all__ = ["PROFILES", "Results", "TrialCase", "trial_program"]
