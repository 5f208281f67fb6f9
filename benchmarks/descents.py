"""What descents cost beside the evaluations that they make: Adam from many starts, against the same batch run as often by itself.

python -m benchmarks.descents [--trials 2000] [--steps 50] [--rounds 7] [--backend cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import BatchSession, Job, JobParams
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import descend_columns
from qdrun.runner.optimize.evaluate import Starts
from qdrun.runner.optimize.points import optimizer_of

NUMBERS = 193


class ChainParams(JobParams):
    w: tuple[float, ...] = Field((0.1,) * NUMBERS, min_length=NUMBERS, max_length=NUMBERS, description="rest lengths, m")
    k: float = Field(1.0, gt=0, description="stiffness, N/m")
    steps: int = 300


class Chain(Job[ChainParams]):
    """Masses on springs, whose last position is to be 1."""

    gradients = ("w", "k")

    def build(self) -> None:
        w, k, loss, steps = self.input("w"), self.input("k"), self.objective(), self.params.steps

        @qd.kernel
        def chain():
            for _ in range(1):
                x, v = 0.0, 0.0
                for t in range(steps):
                    v += 0.01 * (k[None] * (w[t % NUMBERS] - x) - 0.1 * v)
                    x += 0.01 * v
                loss[None] += (x - 1.0) ** 2

        self.chain = chain

    def simulate(self) -> None:
        self.chain()


def main() -> None:
    """Print both times and their ratio, each round, and the best and the worst ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", default="cpu")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = args.trials, NUMBERS
    columns = {"w": rng.normal(0.1, 0.02, shape), "k": rng.uniform(0.5, 2.0, args.trials)}
    section = OptimizeSection.model_validate({"params": ["w", "k"], "steps": args.steps, "rule": "adam", "learning_rate": 1e-3})
    params, ratios = ChainParams(), list[float]()
    on_device = optimizer_of(section, params)
    with BatchSession.open(Chain, params, args.trials, backend=args.backend, optimizer=on_device) as batch:
        for _ in range(2):
            batch.run_columns(columns, range(args.trials))
        descend_columns(batch, Starts(params, columns, args.trials), section.model_copy(update={"steps": 1}))
        for _ in range(args.rounds):
            began = time.perf_counter()
            for _ in range(args.steps + 1):
                batch.run_columns(columns, range(args.trials))
            raw = time.perf_counter() - began
            ends = descend_columns(batch, Starts(params, columns, args.trials), section)
            took = time.perf_counter() - began - raw
            assert not ends.errors and len(list(ends.groups())) == 1
            ratios.append(raw / took)
            print(f"evaluations {raw:.3f} s, descents {took:.3f} s: {ratios[-1]:.2f} of the batch's rate")
    print(f"\n**{max(ratios):.2f} of the batch's rate in the best round, {min(ratios):.2f} in the worst**")


if __name__ == "__main__":
    main()
