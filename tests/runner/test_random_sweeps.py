"""Random sweeps from the config to the table: each row is what numpy computes for its parameters, in batches of any size."""

import random

import numpy as np
import pytest
import yaml

from qdrun.runner import submit

JOB = """
from typing import Literal

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class Params(JobParams):
    a: float = 1.5
    b: float = 0.5
    w: float = 0.25
    v: list[float] = [1.0, 2.0, 3.0]
    k: int = 2
    n: int = 3
    flag: bool = False
    mode: Literal["p", "q"] = "p"


class Series(Job[Params]):
    gradients = ("a", "v", "w")

    def build(self):
        a, b, w, v, k = (self.input(name) for name in "abwvk")
        loss, seen = self.objective(), self.output("seen", 3)
        n, flag, mode = self.params.n, self.params.flag, self.params.mode

        @qd.kernel
        def series():
            for i in range(3):
                y = a[None]
                for j in range(n):
                    y = y * b[None] + v[i] * w[None]
                if qd.static(flag):
                    y += k[None]
                if qd.static(mode == "q"):
                    y = y * y
                seen[i] = y + k[None]
                loss[None] += y

        self.series = series

    def simulate(self):
        self.series()
"""
DEFAULTS = {"a": 1.5, "b": 0.5, "w": 0.25, "v": [1.0, 2.0, 3.0], "k": 2, "n": 3, "flag": False, "mode": "p"}


def expected(p):
    """The columns of a row, by forward differentiation."""
    v, y = np.array(p["v"], float), np.full(3, p["a"])
    da, dv, dw = np.ones(3), np.zeros(3), np.zeros(3)
    for _ in range(p["n"]):
        y, da, dv, dw = y * p["b"] + v * p["w"], da * p["b"], dv * p["b"] + p["w"], dw * p["b"] + v
    y = y + p["k"] * p["flag"]
    if p["mode"] == "q":
        y, da, dv, dw = y * y, 2 * y * da, 2 * y * dv, 2 * y * dw
    return {"loss": y.sum(), "grad.a": da.sum(), "grad.v": dv, "grad.w": dw.sum(), "out.seen": y + p["k"]}


def value(r, name):
    if name == "v":
        return [round(r.uniform(-1, 1), 3) for _ in range(3)]
    if name in ("k", "n"):
        return r.randint(0, 4)
    return {"flag": r.random() < 0.5, "mode": r.choice("pq")}.get(name, round(r.uniform(-1, 1), 3))


def sweep_of(r):
    """A section `sweep` of any method. Of a grid, batches may have one value of a parameter each."""
    names = r.sample(["a", "b", "w", r.choice(["v", "v.1"]), "k", "n", "flag", "mode"], r.randint(1, 4))
    method = r.choice(["grid", "zip", "random", "list"])
    if method == "list":
        return {"method": method, "trials": [{"a": float(row), **{name: value(r, name) for name in names}} for row in range(7)]}
    if method == "random":
        choices = {name: {"choice": [value(r, name) for _ in range(3)]} for name in names}
        return {"method": method, "samples": 7, "seed": r.randint(0, 99), "params": choices | {"w": {"uniform": [-1, 1]}}}
    params = {name: [value(r, name) for _ in range(6 if method == "zip" else r.randint(1, 3))] for name in names}
    if method == "zip":
        return {"method": method, "params": params | {"a": [0.1 * row for row in range(6)]}}
    single = {name: [one for at, one in enumerate(column) if one not in column[:at]] for name, column in params.items()}
    return {"params": single, "repeat": r.choice([1, 2])}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_each_row_of_a_random_sweep_is_what_its_parameters_give(number, local_ray, tmp_path):
    r = random.Random()
    (tmp_path / "series.py").write_text(JOB)
    given = {name: value(r, name) for name in r.sample(sorted(DEFAULTS), r.randint(0, 3))}
    config = {
        "version": 1,
        "name": "random",
        "job": {"target": "series.py:Series", "params": given},
        "gradients": ["a", "v", "w"],
        "sweep": sweep_of(r),
        "batch": r.choice([1, 2, 3, 4, "auto", "off"]),
        "device": {"backend": "cpu", "slots": 1} if number % 2 else {"backend": "cpu"},
        "output": str(tmp_path / "runs"),
    }
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(config))
    rows = submit(path).rows
    assert rows, config
    for row in rows:
        params = DEFAULTS | given
        params |= {name: row[f"param.{name}"] for name in DEFAULTS if row.get(f"param.{name}") is not None}
        if row.get("param.v.1") is not None:
            params["v"] = [params["v"][0], row["param.v.1"], params["v"][2]]
        for column, want in expected(params).items():
            np.testing.assert_allclose(row[column], want, rtol=1e-9, atol=1e-9, err_msg=f"{column} of {params} in {config}")
