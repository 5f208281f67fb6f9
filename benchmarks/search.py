"""The least loss after a number of evaluations: descents that go on while they promise something, all descents to their ends, one sweep
that stops descents which are behind, and Optuna.

    python -m benchmarks.search [--only lj13,robot] [--evaluations 4000] [--seeds 3]        needs the extra `search`

lj13: 13 atoms, whose least known energy is -44.326801, by L-BFGS; a start is a seed. robot: the walking robot of `configs/optimize.yaml`
with 100 steps, by Adam. For Optuna the start is the point itself: 39 coordinates, or stiffness and four muscles, and one evaluation is one
loss without a gradient, which is cheaper than one with it. Printed are the losses of all seeds, sorted, and how many evaluations the least
one took.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml

from qdrun.runner.api import submit
from qdrun.runner.rounds.driver import RoundSettings, search

SIDE = 1.6
LJ: dict[str, Any] = {
    "name": "lj13",
    "job": {"target": "qdrun.jobs.lj_cluster:LjCluster", "params": {"atoms": 13}},
    "gradients": ["positions"],
    "sweep": {"params": {"start": {"randint": [0, 1000000]}}},
    "optimize": {"rule": "lbfgs", "params": ["positions"], "stop": {"gradient_norm": 1e-6}},
}
MUSCLES = {f"actuation.{k}": {"uniform": [0.0, 0.5]} for k in range(4)}
ROBOT: dict[str, Any] = {
    "name": "robot",
    "job": {"target": "qdrun.jobs.mass_spring:MassSpring", "params": {"steps": 100}},
    "gradients": ["stiffness", "actuation"],
    "sweep": {"params": {"stiffness": {"loguniform": [100, 5000]}, **MUSCLES}},
    "optimize": {
        "rule": "adam",
        "learning_rate": 0.05,
        "scale": {"stiffness": 1000},
        "bounds": {"stiffness": [100, 5000], "actuation": [0, 0.5]},
        "stop": {"patience": 10, "progress": 1e-5},
    },
}
CASES = {"lj13": (LJ, {f"positions.{k}": {"uniform": [-SIDE, SIDE]} for k in range(39)}, 400), "robot": (ROBOT, None, 100)}
"""The config, the axes of Optuna where they are others, and the steps of a whole descent."""


def configs(case: str, evaluations: int, seed: int) -> dict[str, dict[str, Any]]:
    """The configs of a case by method."""
    base, axes, whole = CASES[case]
    base = {"version": 1, **base, "device": {"backend": "cpu", "threads": 1}}
    common = {"evaluations": evaluations, "seed": seed}
    out = {
        "descents": base | {"search": common | {"method": "descents", "trials": 32, "steps": 25}},
        "whole descents": base | {"search": common | {"method": "descents", "trials": 32, "steps": whole, "keep": 0.01}},
    }
    alone = {key: value for key, value in base.items() if key != "optimize"}
    if axes is not None:
        alone |= {
            "sweep": {"params": axes},
            "job": base["job"] | {"params": base["job"]["params"] | {"positions": [0.0] * len(axes)}},
        }
    for method in ("tpe", "random"):
        out[f"Optuna, {method}"] = alone | {"search": common | {"method": method, "trials": max(32, evaluations // 20)}}
    return out


def early(case: str, evaluations: int, seed: int, rule: str, folder: str) -> tuple[float, int]:
    """The least loss of one sweep whose descents stop when they are behind, and its evaluations: about as many as were asked for."""
    base, _, whole = CASES[case]
    first, each = (25, 60) if rule == "halving" else (10, 20)
    sweep = base["sweep"] | {"method": "random", "samples": evaluations // each, "seed": seed}
    stop = base["optimize"]["stop"] | {"trials": {"rule": rule, "first": first}}
    config = {"version": 1, **base, "sweep": sweep, "optimize": base["optimize"] | {"steps": whole, "stop": stop}}
    path = Path(folder, f"{case}-{rule}.yaml")
    path.write_text(yaml.safe_dump(config | {"storage": folder, "device": {"backend": "cpu", "threads": 1}}, sort_keys=False))
    rows = submit(path, quiet=True).rows
    return min(row["loss"] for row in rows), int(sum(row["out.opt.steps"] + 1 for row in rows))


def main() -> None:
    """Run all methods with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--evaluations", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    for case in asked.only.split(","):
        found: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(asked.seeds):
                for method, config in configs(case, asked.evaluations, 1000 * seed).items():
                    path = Path(folder, f"{case}.yaml")
                    path.write_text(yaml.safe_dump(config | {"storage": folder}, sort_keys=False))
                    made = search(path, folder=f"{folder}/{method.replace(', ', '-')}-{seed}", where=RoundSettings(quiet=True))
                    loss = float("inf") if made.best is None else made.best["loss"]
                    found.setdefault(method, []).append(loss)
                    print(f"{case:6} seed {seed} {method:16} {loss:12.6f} after {made.spent:,} evaluations", flush=True)
                for rule in ("halving", "median"):
                    loss, spent = early(case, asked.evaluations, 1000 * seed, rule, folder)
                    found.setdefault(f"stop: {rule}", []).append(loss)
                    print(f"{case:6} seed {seed} {f'stop: {rule}':16} {loss:12.6f} after {spent:,} evaluations", flush=True)
        for method, losses in found.items():
            print(f"{case:6} {method:16} {'  '.join(f'{x:12.6f}' for x in sorted(losses))}")


if __name__ == "__main__":
    main()
