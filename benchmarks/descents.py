"""What descents cost beside the evaluations that they make: Adam from many starts, against the same batch run as often by itself.

python -m benchmarks.descents [--trials 2000] [--steps 50] [--backend cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import BatchSession, Job, JobParams
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import descend_batch

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
    """Print both times and their ratio, each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--backend", default="cpu")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    params = [ChainParams(w=tuple(rng.normal(0.1, 0.02, NUMBERS)), k=float(rng.uniform(0.5, 2.0))) for _ in range(args.trials)]
    columns = {"w": np.array([p.w for p in params]), "k": np.array([p.k for p in params])}
    section = OptimizeSection.model_validate({"params": ["w", "k"], "steps": args.steps, "rule": "adam", "learning_rate": 1e-3})
    with BatchSession.open(Chain, params[0], args.trials, backend=args.backend) as batch:
        batch.run_columns(columns, range(args.trials))
        for _ in range(3):
            began = time.perf_counter()
            for _ in range(args.steps + 1):
                batch.run_columns(columns, range(args.trials))
            raw = time.perf_counter() - began
            ends = descend_batch(batch, params, section)
            took = time.perf_counter() - began - raw
            assert not any(isinstance(end, BaseException) for end in ends)
            print(f"evaluations {raw:.3f} s, descents {took:.3f} s: {raw / took:.2f} of the batch's rate")


if __name__ == "__main__":
    main()
