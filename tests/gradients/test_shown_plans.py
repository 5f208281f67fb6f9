"""A heap plan shown: the formula of each plane is its bytes, term by term; tables, JSON and debug lines say the same."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import qdrun as qd
from qdrun.compiler.tape.heap_plan import debug_lines, spaces
from qdrun.compiler.tape.machine import Machine, check_words, machine

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import compile_source, field, ints, start

PLANES = {"f4": 4, "f8": 8, "i4": 4, "i8": 8}
# Loops one after another, in each other, in both arms, with a stack of integers, of unknown count.
BODIES = {
    "one": "for j in range(n):\n    v = qd.sin(v) + 0.1",
    "two": "for j in range(n):\n    v = qd.sin(v) + 0.1\nfor j in range(m):\n    v = qd.cos(v) * v",
    "nest": "for j in range(n):\n    for k in range(m):\n        v = qd.sin(v) + 0.1\n    v = v * v",
    "arms": "if v > 0.5:\n    for j in range(n):\n        v = qd.sin(v)\nelse:\n    for j in range(m):\n        v = qd.cos(v)",
    "arms in a loop": (
        "for k in range(m):\n    if v > 0.5:\n        for j in range(n):\n            v = qd.sin(v)\n"
        "    else:\n        for j in range(m):\n            v = qd.cos(v)\n    v *= v"
    ),
    "integers": "c = start[i]\nfor j in range(n):\n    c = (c * 5 + 3) % 16\n    v = qd.sin(v) * y[c]",
    "while": "while v > 0.3:\n    v = v * qd.cos(v) * 0.9\nfor j in range(n):\n    v = qd.sin(v)",
    "narrow": "w = qd.cast(v, qd.f32)\nfor j in range(n):\n    w = qd.sin(w)\nfor j in range(m):\n    v = qd.sin(v) + w",
}


def planned(body: str, n: int, m: int, **options: object):
    """The plan of a kernel with that body in each iteration of a parallel loop, and a second, smaller task."""
    start(**options)
    names = {"x": field(16, rng=np.random.default_rng(1)), "y": field(16, rng=np.random.default_rng(2)), "z": field(16)}
    lines = "\n".join("        " + line for line in body.splitlines())
    source = (
        "@qd.kernel\ndef k(n: qd.i32, m: qd.i32):\n    for i in x:\n        v = x[i]\n"
        f"{lines}\n        z[i] += v\n    for i in x:\n        u = x[i]\n        for j in range(3):\n"
        "            u = qd.sin(u) * u\n        z[i] += u\n"
    )
    return compile_source(source, start=ints(np.arange(16)), **names)["k"].grad.plan(n, m)


def worth(formula: str) -> int:
    """The value of a formula without its words in brackets."""
    before = None
    while before != formula:
        before, formula = formula, re.sub(r"\((?=[^()]*[a-z]{2})[^()]*\)", "", formula.replace(" x ", " * "))
    return eval(re.sub(r"rows?\b|bytes\b", "", formula))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.integers(0, 90), st.integers(1, 9), st.sampled_from([1, 2, 3]), st.integers(1, 3))
def test_the_formula_of_a_plane_is_its_bytes(name, n, m, levels, threads):
    plan = planned(BODIES[name], n, m, ad_checkpoint_levels=levels, cpu_max_num_threads=threads)
    data = plan.to_json()
    assert data == json.loads(json.dumps(data))
    assert {p["plane"]: p["bytes"] for p in data["planes"]} == {p: b for p, b in plan.planes.items() if b}
    for plane in data["planes"]:
        assert worth(plane["formula"]) == plane["bytes"], plane["formula"]
        assert plane["where"] in {row["line"] for row in data["loops"]}
    assert sum(p["bytes"] for p in data["planes"]) == data["bytes"] == plan.bytes
    for task in plan.tasks:
        for plane, words in task.words.items():
            assert sum(s.words for s in spaces(task, plane)) == words


def test_a_plan_is_printed_as_a_table_with_a_line_for_each_loop_and_a_sum_for_each_plane():
    plan = planned(BODIES["integers"], 20, 1, cpu_max_num_threads=2, ad_checkpoint_levels=2)
    text = str(plan)
    assert text.startswith(f"adstack of k_grad: {plan.bytes:,} bytes")
    for row in plan.rows():
        line = next(line for line in text.splitlines() if str(row["line"]).rpartition("/")[2] in line and row["task"] in line)
        assert f"{row['row_bytes']:,}" in line and f"{row['bytes']:,}" in line and str(row["bound_from"]) in line
    for plane in plan.to_json()["planes"]:
        assert f"{plane['bytes']:,} = {plane['formula']}" in text
    stream = StringIO()
    Console(file=stream, width=300).print(plan)
    assert "adstack of k_grad" in stream.getvalue()


def test_a_gradient_without_stacks_says_so_in_every_form():
    start()
    x, y = field(8, rng=np.random.default_rng(1)), field(8)
    k = compile_source("@qd.kernel\ndef k():\n    for i in x:\n        y[i] = x[i] * x[i]\n", x=x, y=y)["k"]
    plan = k.grad.plan()
    assert plan.to_json() == {"kernel": "k_grad", "bytes": 0, "planes": [], "loops": []}
    assert "adstack of k_grad: 0 bytes" in str(plan)
    assert list(debug_lines(plan)) == ['[adstack] kernel=k_grad bytes=0 source="no stack"']


def test_debug_lines_say_what_each_task_takes_of_each_plane(monkeypatch, capfd):
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "1")
    program = start(cpu_max_num_threads=2)
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    body = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n"
    body += "        for j in range(n):\n            v = qd.sin(v)\n        y[i] = v\n"
    k = compile_source(body, x=x, y=y)["k"]
    plan = k.grad.plan(50)
    assert capfd.readouterr().err == "", "a plan binds nothing"
    k(50)
    k.grad(50)
    (line,) = capfd.readouterr().err.splitlines()
    facts = dict(re.findall(r"(\w+)=(\S+)", line))
    assert facts | {"source": ""} == {
        **{"kernel": "k_grad", "task": "k_0_grad", "plane": "f8", "rows": "2", "slots": "50", "words": "50"},
        **{"bytes": str(plan.bytes), "source": ""},
    }
    assert 'source="' in line and "argument at" in line and ":5" in line
    assert program.usage()["adstack"] == plan.bytes
    k.grad(50)
    assert capfd.readouterr().err == "", "the same heap is bound already"
    k.grad(60)
    assert "bytes=960" in capfd.readouterr().err
    monkeypatch.setenv("QDRUN_DEBUG_ADSTACK", "0")
    k.grad(70)
    assert capfd.readouterr().err == ""


# ---- other backends
def test_a_plan_for_a_gpu_has_a_row_for_each_iteration_in_flight():
    start(cpu_max_num_threads=2)
    x, y = qd.field(qd.f32, 1000, needs_grad=True), qd.field(qd.f32, 1000, needs_grad=True)
    body = "@qd.kernel\ndef k(n: qd.i32):\n    for i in range(n):\n        v = x[i % 1000]\n"
    body += "        for j in range(30):\n            v = qd.sin(v)\n        y[i % 1000] += v\n"
    k = compile_source(body, x=x, y=y)["k"]
    for arch in ("amdgpu", "metal"):
        for n, rows in ((100, 100), (10**6, 65_536)):
            plan = k.grad.plan(n, arch=arch)
            assert plan.bytes == rows * 30 * 4, f"{arch}: one row for each iteration in flight"
    for arch in ("cuda", "vulkan"):
        near = k.grad.plan(10**6, arch=arch)
        assert near.bytes == 0 and near.rows()[0]["shared_bytes"] == 30 * 4, f"{arch}: the tape lies outside of the heap"
        assert near.rows()[0]["rows"] == 262_144
    assert k.grad.plan(10**6, arch="cpu") == k.grad.plan(10**6)
    assert qd.current_program().usage().get("adstack", 0) == 0


def test_states_that_a_backend_does_not_have_are_refused_by_name():
    start()
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    body = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n"
    body += "        for j in range(n):\n            v = qd.sin(v)\n        y[i] = v\n"
    k = compile_source(body, x=x, y=y)["k"]
    with pytest.raises(qd.QdrunTypeError) as error:
        k.grad.plan(10, arch="metal")
    message = str(error.value)
    assert "the gradient `k_grad` keeps f64 states, and metal has no f64" in message
    assert ":5 in kernel `k`" in message and "use f32 and i32" in message
    assert k.grad.plan(10, arch="amdgpu").bytes > 0 == k.grad.plan(10, arch="vulkan").bytes  # on chip there
    with pytest.raises(qd.QdrunRuntimeError, match="no backend is called `abacus`"):
        k.grad.plan(10, arch="abacus")


def test_wide_integers_are_refused_too():
    start()
    x, y = qd.field(qd.f32, 16, needs_grad=True), qd.field(qd.f32, 16, needs_grad=True)
    body = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n        c = qd.cast(i, qd.i64)\n"
    body += "        for j in range(n):\n            c = (c * 5 + 3) % 16\n            v = v * x[qd.cast(c, qd.i32)]\n        y[i] = v\n"
    k = compile_source(body, x=x, y=y)["k"]
    with pytest.raises(qd.QdrunTypeError, match="keeps i64 states, and metal has no i64"):
        k.grad.plan(10, arch="metal")
    plan = k.grad.plan(10)
    assert check_words(plan, Machine("wide", 1)) is plan


def test_a_parameter_called_arch_stays_the_kernels_own():
    start()
    x, y = field(16, rng=np.random.default_rng(1)), field(16)
    body = "@qd.kernel\ndef k(arch: qd.i32):\n    for i in x:\n        v = x[i]\n"
    body += "        for j in range(arch):\n            v = qd.sin(v)\n        y[i] = v\n"
    k = compile_source(body, x=x, y=y)["k"]
    assert k.grad.plan(arch=5).rows()[0]["bound"] == 5


def test_machines_are_known_by_name():
    assert machine("cuda").rows == 65_536 and machine("cpu", 4).rows == 4
    assert [machine(name).wide for name in ("cuda", "amdgpu", "vulkan", "metal")] == [True, True, True, False]
    assert [machine(name).approximate for name in ("cuda", "amdgpu", "vulkan", "metal")] == [False, False, True, True]
