"""The page of derivatives is what the code does: each rule against central differences, each edge at its point."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from qdrun.compiler.ir.builder import StatementBuilder
from qdrun.compiler.ir.meaning import evaluate, scalar
from qdrun.compiler.ir.nodes import Buffer, Kernel, Place, Task
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f64, u1
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.passes.reverse.derivatives import FLAT, RULES
from qdrun.compiler.runtime.python.interpret import Memory, run_kernel

DOCS = Path(__file__).parents[2] / "docs"


def load_tables():
    spec = importlib.util.spec_from_file_location("docs_tables_of_derivatives", DOCS / "tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLES = load_tables()


def place(name: str, dtype=f64) -> Place:
    return Place(name, dtype, Buffer("field"), 0, (), ())


def adjoints(code: str, at: tuple[float, ...], g: float = 1.0) -> list[float | None]:
    """What the rules of an operation give each operand, on the interpreter."""
    types = [u1 if code == "select" and k == 0 else f64 for k in range(len(at))]
    inputs = [place(f"a{k}", d) for k, d in enumerate(types)]
    outputs = [place(f"out{k}") for k in range(len(at))]
    task = Task("t", [])
    b = StatementBuilder(task.body)
    args = tuple(b.gload(p, ()) for p in inputs)
    result = b.op(code, *args, dtype=f64) if code in ("cast", "select") else b.op(code, *args)
    seed = place("g")
    adjoint = b.gload(seed, ())
    for (_, rule, *_), out in zip(RULES[code], outputs, strict=True):
        if rule is not None:
            b.gstore(out, (), rule(b, adjoint, args, result))
    kernel = Kernel("rule", [], [task])
    verify_kernel(kernel)
    memory = Memory.of({p: np.array(v, p.dtype.numpy).reshape(1) for p, v in zip(inputs, at)} | {seed: np.array([g])})
    with np.errstate(all="ignore"):
        run_kernel(kernel, memory)
    return [None if rule is None else float(memory.array(p)) for (_, rule, *_), p in zip(RULES[code], outputs)]


def value(code: str, at: list[float]) -> float:
    args = [scalar(v, u1 if code == "select" and k == 0 else f64) for k, v in enumerate(at)]
    return float(evaluate(code, args, f64))


def differences(code: str, at: tuple[float, ...], k: int, h: float = 1e-6) -> float:
    ends = [value(code, [*at[:k], at[k] + step, *at[k + 1 :]]) for step in (h, -h)]
    return (ends[0] - ends[1]) / (2 * h)


@pytest.mark.parametrize("code", RULES)
def test_a_rule_is_the_slope_of_its_operation(code):
    r = np.random.default_rng()
    for _ in range(20):
        at = tuple(float(r.uniform(*span)) for span in TABLES.FACTS[code].ranges)
        at = (float(r.integers(0, 2)), *at[1:]) if code == "select" else at
        for k, got in enumerate(adjoints(code, at, 0.7)):
            if code == "attach":  # by definition the value of one operand with the gradient of the other
                assert got == (None, 0.7)[k]
            elif got is not None:
                assert got == pytest.approx(0.7 * differences(code, at, k), rel=2e-6, abs=2e-7), (code, at, k)


@pytest.mark.parametrize("code", [c for c in RULES if TABLES.FACTS[c].edges])
def test_an_edge_is_as_the_page_says(code):
    for edge in TABLES.FACTS[code].edges:
        for got, want in zip(adjoints(code, edge.at), edge.gives, strict=True):
            assert got == want or (math.isnan(got) and math.isnan(want)), (code, edge.words, got)


@pytest.mark.parametrize("code", [c for c in RULES if TABLES.FACTS[c].edges])
def test_a_zero_gradient_stays_zero_at_the_edges(code):
    for edge in TABLES.FACTS[code].edges:
        for got in adjoints(code, edge.at, 0.0):
            assert got == 0.0, (code, edge.words)


@pytest.mark.parametrize("code", sorted(FLAT - {"isnan", "isinf", "detach"}))
def test_a_flat_operation_has_no_slope(code):
    r = np.random.default_rng()
    at = tuple(float(r.integers(-3, 3) + r.uniform(0.1, 0.4)) for _ in range(TABLE[code].arity))
    at = (at[0], 10.0) if len(at) == 2 else at
    assert [differences(code, at, k) for k in range(len(at))] == [0.0] * len(at)


def test_the_page_has_a_row_for_each_rule_and_nothing_else():
    page = (DOCS / "derivatives.md").read_text(encoding="utf-8")
    assert TABLES.filled(page) == page, "run: python docs/tables.py"
    assert set(TABLES.FACTS) == set(RULES)
    assert set(re.findall(r"^\| `(\w+)", page, re.M)) == set(RULES) | FLAT


def test_a_formula_is_read_off_the_rule():
    text = TABLES.derivatives()
    assert "| `mul(x, y)` | x: `g * y`; y: `g * x` |" in text
    assert "| `min(x, y)` | x: `g if x < y else 0`; y: `0 if x < y else g` |" in text
    assert "| `sqrt(x)` | x: `g * 0.5 * (1 / r)` |" in text
