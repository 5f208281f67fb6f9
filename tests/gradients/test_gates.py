"""Gates: only iterations that pass the conditions around a task's loops need an adstack row, and the plan counts them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import qdrun as qd
from qdrun.compiler.program.plans.gradient_plans import LaunchHost
from qdrun.compiler.tape.bounds.row_count import count_passing, extent_of

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, start

A, B = 5, 9
LONG = 9000  # iterations: a row of 72,000 bytes is worth a count
HEAD = "@qd.kernel\ndef {}(w: qd.types.ndarray(qd.f32, 1), s: qd.f32, t: qd.f64, c: qd.i32, big: qd.i64, n: qd.i32):\n"
LOOP = ["v = x[i, j]", "for _ in range(n):", "    v = v + 0.0001 * qd.sin(v)", "y[i, j] = v"]
DROPPED = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n"


class Space:
    """Arrays that conditions read, filled so that comparisons often hold and often meet a tie."""

    def __init__(self, seed: int, **options) -> None:
        self.program = start(**{"cpu_max_num_threads": 4, "cpu_lanes": 1, **options})
        r = np.random.default_rng(seed)
        self.x, self.y = field(A, B, rng=r), field(A, B)
        kinds = {"f": (qd.f64, (A, B)), "g": (qd.f32, (A, B)), "h": (qd.i32, (A,)), "q": (qd.i64, (B,)), "b": (qd.u1, (A, B))}
        self.names = {name: qd.field(dtype, shape=shape) for name, (dtype, shape) in kinds.items()}
        self.names["f"].from_numpy(r.integers(-2, 3, (A, B)) * 0.1)
        self.names["g"].from_numpy((r.integers(-2, 3, (A, B)) * np.float32(0.1)).astype(np.float32))
        self.names["h"].from_numpy(r.integers(-2, 3, A).astype(np.int32))
        self.names["q"].from_numpy(r.integers(-2, 3, B) + (1 << 40))
        self.names["b"].from_numpy(r.integers(0, 2, (A, B)).astype(bool))
        self.names["perm"] = qd.field(qd.i32, shape=A)
        self.names["perm"].from_numpy(r.permutation(A).astype(np.int32))
        self.hits = qd.field(qd.i32, shape=(A, B))
        self.w = (r.integers(-2, 3, A) * np.float32(0.1)).astype(np.float32)
        self.args = (self.w, float(np.float32(0.1)), 0.1, int(r.integers(-2, 3)), (1 << 40) + 1)
        self.names |= {"x": self.x, "y": self.y, "hits": self.hits}

    def kernels(self, lines: list[str]):
        """The kernel with loops where ``lines`` say LOOP, and the one that marks the iterations that get there."""
        for name, inner in (("k", LOOP), ("marks", ["hits[i, j] = 1"])):
            body = []
            for line in lines:
                indent = line[: len(line) - len(line.lstrip())]
                body += [indent + x for x in inner] if line.strip() == "LOOP" else [line]
            yield compile_source(HEAD.format(name) + "\n".join(body) + "\n", **self.names)[name]

    def sizing(self, k):
        """The sizing of a kernel's gradient, and the launch."""
        variant, bound = k.grad._ready((*self.args, 3), {})
        (sizing,) = variant.gradient.sizing
        return sizing, LaunchHost(bound.call, variant.gradient.owners)

    def expected(self, n: int) -> np.ndarray:
        """d y / d x where an iteration runs its loop."""
        v, d = self.x.to_numpy(), np.ones((A, B))
        for _ in range(n):
            d, v = d * (1 + 0.0001 * np.cos(v)), v + 0.0001 * np.sin(v)
        return d


NUMBERS = {
    "real": [
        "f[i, j]",
        "f[perm[i], j]",
        "f[A1 - i, j]",
        "t",
        "0.1",
        "abs(f[i, j])",
        "f[i, 0] + 0.1",
        "qd.cast(g[i, j], qd.f64)",
    ],
    "single": ["g[i, j]", "g[perm[i], B1 - j]", "w[i]", "w[perm[i]]", "s", "0.1", "-w[i]", "g[i, j] * w[i]"],
    "int": ["h[i]", "h[perm[i]]", "c", "i", "j - 4", "1", "h[i] * 2 - c", "h[(i + j) % A0]", "j // 2 - 2", "min(h[i], c)"],
    "long": ["q[j]", "big", "q[B1 - j]", "q[j] + h[i]"],
}
COMPARE = ["<", "<=", ">", ">=", "==", "!="]


@st.composite
def conditions(draw, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["compare", "compare", "flag", "and", "or", "not"] if depth else ["compare"]))
    if kind == "compare":
        numbers = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))]
        first = draw(st.sampled_from([x for x in numbers if "[" in x or x in "ij"]))
        second = draw(st.sampled_from([x for x in numbers if x != first]))
        return f"({first} {draw(st.sampled_from(COMPARE))} {second})"
    if kind == "flag":
        return draw(st.sampled_from(["b[i, j]", "b[perm[i], 0]"]))
    if kind == "not":
        return f"(not {draw(conditions(depth - 1))})"
    return f"({draw(conditions(depth - 1))} {kind} {draw(conditions(depth - 1))})"


@st.composite
def shapes(draw) -> list[str]:
    """The lines of a kernel: a parallel loop, conditions around LOOP in several ways."""
    lines, indent = [draw(st.sampled_from(["    for i, j in f:", f"    for i, j in qd.ndrange({A}, {B}):"]))], "        "
    for k in range(draw(st.integers(1, 3))):
        cond = draw(conditions())
        how = draw(st.sampled_from(["if", "else", "continue", "local", "changed"]))
        if how == "continue":
            lines += [f"{indent}if {cond}:", f"{indent}    continue"]
            continue
        if how == "else":
            lines += [f"{indent}if {cond}:", f"{indent}    y[i, j] = 0.0", f"{indent}else:"]
        elif how == "local":
            lines += [f"{indent}ok{k} = {cond}", f"{indent}if ok{k}:"]
        elif how == "changed":
            lines += [f"{indent}m{k} = 0", f"{indent}if {cond}:", f"{indent}    m{k} = i + 1", f"{indent}if m{k} > 1:"]
        else:
            lines += [f"{indent}if {cond}:"]
        indent += "    "
    lines.append(f"{indent}LOOP")
    return [x.replace("A1", str(A - 1)).replace("A0", str(A)).replace("B1", str(B - 1)) for x in lines]


@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(shapes(), st.integers(0, 1000), st.sampled_from([1, 4]))
def test_the_count_is_the_number_of_iterations_that_pass(lines, seed, lanes):
    space = Space(seed, cpu_lanes=lanes)
    k, marks = space.kernels(lines)
    marks(*space.args, 3)
    hits = space.hits.to_numpy() != 0
    try:
        sizing, host = space.sizing(k)
    except qd.NothingToDifferentiate:  # conditions that exclude each other: nothing is left at all
        assert not hits.any()
        return
    gate = sizing.gate
    if not sizing.region.all_loops():  # nothing is left of the loop
        assert not hits.any()
        return
    if gate is None:
        assert hits.all(), lines
    else:
        assert not gate.dropped, (lines, gate)
        assert count_passing(gate, extent_of(gate, host), host, A * B) == hits.sum(), lines
    check_launch(space, k, hits, lanes)


def check_launch(space: Space, k, hits: np.ndarray, lanes: int) -> None:
    """A launch with long rows: as many as planned, the same as allocated, the right gradient."""
    plan = k.grad.plan(*space.args, LONG)
    groups = -(-A * B // lanes)
    (row,) = plan.rows()
    assert row["rows"] == min(4, groups, int(hits.sum())) * lanes
    k(*space.args, LONG)
    space.y.grad.fill(1.0)
    space.x.grad.fill(0.0)
    k.grad(*space.args, LONG)
    assert space.program.usage().get("adstack", 0) == plan.bytes == row["rows"] * 8 * LONG
    assert np.allclose(space.x.grad.to_numpy(), np.where(hits, space.expected(LONG), 0.0), rtol=1e-9, atol=0)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, phases=[Phase.generate])
@given(shapes(), st.integers(0, 10**6), st.sampled_from([1, 4, 8]))
def test_many_random_gates(lines, seed, lanes):
    test_the_count_is_the_number_of_iterations_that_pass.hypothesis.inner_test(lines, seed, lanes)


BODY = (
    "            v = x[i]\n            for _ in range(n):\n                v = v + 0.0001 * qd.sin(v)\n            y[i] = v\n"
)


def gated(cond: str, before: str = "", size: int = 40, threads: int = 2, rest: str = "", **names):
    """A kernel over x and y (size) whose loop stands under a condition."""
    program = start(cpu_max_num_threads=threads, cpu_lanes=1)
    x, y = field(size, rng=np.random.default_rng(2)), field(size)
    made = {name: make() for name, make in names.items()}
    source = f"{DROPPED}{before}        if {cond}:\n{BODY}{rest}"
    return program, compile_source(source, x=x, y=y, **made)["k"], x, y, made


def workers(program) -> int:
    """How many iterations of a parallel loop run at once."""
    return program.state.own_machine().workers


def flags(values, dtype=qd.i32):
    """Makes a field with these values."""

    def make():
        out = qd.field(dtype, shape=len(values))
        out.from_numpy(np.array(values))
        return out

    return make


def test_the_plan_follows_the_data_of_its_gate():
    open_ = np.zeros(40, np.int32)
    program, k, x, y, made = gated("m[i] > 0", m=flags(open_))
    for passing in (0, 1, 3, 0, 2):
        open_[:] = 0
        open_[5 : 5 + passing] = 1
        made["m"].from_numpy(open_)
        plan = k.grad.plan(LONG)
        assert plan.bytes == min(2, passing) * 8 * LONG
        Point(k, (LONG,), (x,), (y,)).check()
    assert program.usage()["adstack"] == 2 * 8 * LONG, "a heap never shrinks by itself"


def test_a_kernel_that_opens_a_gate_is_seen():
    _, k, x, y, made = gated("m[i] > 0", m=flags([0] * 40))
    opener = compile_source("@qd.kernel\ndef opener(i: qd.i32):\n    m[i] = 1\n", **made)["opener"]
    k(LONG)
    k.grad(LONG)
    assert k.grad.plan(LONG).rows()[0]["rows"] == 0
    for i in range(3):
        opener(i)
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        k.grad(LONG)
        assert np.count_nonzero(x.grad.to_numpy()) == i + 1
        assert k.grad.plan(LONG).rows()[0]["rows"] == min(2, i + 1)


@pytest.mark.parametrize(
    "passing, rows, source",
    [(0, 0, "gate: 0 of 40 iterations pass"), (1, 1, "gate: 1 of 40 iterations pass"), (2, 2, "workers")],
)
def test_a_plan_says_what_limits_its_rows(passing, rows, source):
    _, k, *_ = gated("m[i] > 0", m=flags([1] * passing + [0] * (40 - passing)))
    (row,) = k.grad.plan(LONG).rows()
    assert (row["rows"], row["rows_from"]) == (rows, source)


@pytest.mark.parametrize(
    "cond, before, why",
    [
        ("qd.sin(x[i]) > 2.0", "", "a value of `sin`"),
        ("u > 0", "        u = 0\n        for j in range(n):\n            u -= m[j % 40]\n", "`u` is set in a loop"),
        ("x[i] > qd.random()", "", "a value of `"),
    ],
)
def test_what_cannot_be_counted_leaves_the_rows_of_all_workers_and_says_why(cond, before, why):
    program, k, *_ = gated(cond, before, m=flags([1] * 40), z=lambda: field(40))
    (row,) = k.grad.plan(LONG).rows()
    assert row["rows"] == min(workers(program), 40) and f"; not counted: {why}" in row["rows_from"], row


def test_the_conditions_that_can_be_counted_are():
    program = start(cpu_max_num_threads=2, cpu_lanes=1)
    x, y, m = field(40, rng=np.random.default_rng(2)), field(40), flags([1] + [0] * 39)()
    nested = f"{DROPPED}        if m[i] > 0:\n          if qd.sin(x[i]) > -2.0:\n{BODY}"
    k = compile_source(nested, x=x, y=y, m=m)["k"]
    (row,) = k.grad.plan(LONG).rows()
    assert row["rows_from"] == "gate: 1 of 40 iterations pass; not counted: a value of `sin`"
    Point(k, (LONG,), (x,), (y,)).check()
    assert program.usage()["adstack"] == 8 * LONG


def test_small_rows_are_not_worth_a_count():
    _, k, x, y, *_ = gated("m[i] > 0", m=flags([1] + [0] * 39))
    (row,) = k.grad.plan(60).rows()
    assert (row["rows"], row["rows_from"]) == (2, "workers; gate not counted: all rows take 960 bytes")
    Point(k, (60,), (x,), (y,)).check()


def test_a_count_of_many_iterations_for_few_bytes_is_not_made():
    _, k, *_ = gated("m[i] > 0", size=20_000, m=flags([0] * 20_000))
    assert k.grad.plan(100).rows()[0]["rows_from"] == (
        "workers; gate not counted: all rows take 1,600 bytes, 20,000 iterations to look at"
    )
    assert k.grad.plan(1000).rows()[0]["rows_from"] == "gate: 0 of 20000 iterations pass"


def test_an_array_that_an_earlier_task_writes_is_not_counted():
    program = start(cpu_max_num_threads=2, cpu_lanes=1)
    x, y, m = field(40, rng=np.random.default_rng(2)), field(40), flags([0] * 40)()
    head = (
        f"@qd.kernel\ndef k(n: qd.i32):\n    for i in m:\n        m[i] = i % 2\n    for i in x:\n        if m[i] > 0:\n{BODY}"
    )
    k = compile_source(head, x=x, y=y, m=m)["k"]
    plan = k.grad.plan(LONG)
    (row,) = plan.rows()
    assert row["rows"] == min(workers(program), 40)
    assert row["rows_from"].endswith("; not counted: `m`, which the same kernel writes")
    k(LONG)
    y.grad.fill(1.0)
    k.grad(LONG)
    assert np.array_equal(x.grad.to_numpy() != 0, np.arange(40) % 2 == 1)
    assert program.usage()["adstack"] == plan.bytes == row["rows"] * 8 * LONG


def test_no_more_rows_than_iterations():
    program = start(cpu_max_num_threads=4, cpu_lanes=1)
    x, y = field(40, rng=np.random.default_rng(2)), field(40)
    k = compile_source(f"@qd.kernel\ndef k(n: qd.i32, m: qd.i32):\n    for i in range(m):\n{BODY}", x=x, y=y)["k"]
    found = {m: (k.grad.plan(30, m).rows()[0]["rows"], k.grad.plan(30, m).rows()[0]["rows_from"]) for m in (0, 1, 3, 4, 40)}
    assert found == {
        0: (0, "0 iterations"),
        1: (1, "1 iterations"),
        3: (3, "3 iterations"),
        4: (4, "workers"),
        40: (4, "workers"),
    }
    for m in (0, 3, 40):
        Point(k, (30, m), (x,), (y,)).check()
    assert program.usage()["adstack"] == 4 * 30 * 8


def test_a_serial_task_behind_a_closed_gate_has_no_row():
    program = start(cpu_lanes=1)
    x, y, m = field(2, rng=np.random.default_rng(2)), field(2), flags([0])()
    k = compile_source(
        "@qd.kernel\ndef k(n: qd.i32):\n    if m[0] > 0:\n        v = x[0]\n        for _ in range(n):\n"
        "            v = v + 0.0001 * qd.sin(v)\n        y[0] = v\n",
        x=x, y=y, m=m,
    )["k"]  # fmt: skip
    Point(k, (LONG,), (x,), (y,)).check()
    assert k.grad.plan(LONG).rows()[0]["rows_from"] == "gate: it is closed" and program.usage().get("adstack", 0) == 0
    m[0] = 1
    Point(k, (LONG,), (x,), (y,)).check()
    assert program.usage()["adstack"] == 8 * LONG


def test_an_array_argument_is_a_gate():
    program = start(cpu_max_num_threads=2, cpu_lanes=1)
    x, y = field(40, rng=np.random.default_rng(2)), field(40)
    source = f"@qd.kernel\ndef k(n: qd.i32, m: qd.types.ndarray(qd.f32, 1)):\n    for i in x:\n        if m[i] < 0.5:\n{BODY}"
    k = compile_source(source, x=x, y=y)["k"]
    m = np.ones(40, np.float32)
    for closed in (40, 39, 12):
        m[closed:] = 0.0
        Point(k, (LONG, m), (x,), (y,)).check()
        assert k.grad.plan(LONG, m).rows()[0]["rows"] == min(workers(program), 40 - closed)
    assert program.usage()["adstack"] == min(workers(program), 28) * 8 * LONG


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("open_now", [1, 40])
def test_a_gate_that_opens_after_the_plan_is_reported_and_nothing_is_written(lanes, open_now):
    program = start(cpu_max_num_threads=4, cpu_lanes=lanes)
    x, y, m = field(40, rng=np.random.default_rng(2)), field(40), flags([0] * 40)()
    k = compile_source(f"{DROPPED}        if m[i] > 0:\n{BODY}", x=x, y=y, m=m)["k"]
    variant, bound = k.grad._ready((LONG,), {})
    gradient = variant.gradient
    stale = gradient.plan(bound.call)
    assert stale.bytes == 0
    m.from_numpy(np.array([1] * open_now + [0] * (40 - open_now), np.int32))
    with program.admission.alone(), pytest.raises(qd.AdStackOverflow) as e:
        gradient._apply(stale, bound.call)
        gradient.launch(bound.call)
        qd.sync()
    text = str(e.value)
    assert text.startswith(
        "more threads of kernel `k_grad` (task `k_0_grad`) need an adstack row than its plan has rows\n  at "
    )
    assert "if m[i] > 0:" in text and "\n  do: the plan counted the iterations that pass the condition here" in text
    for t in (x, y):
        t.grad.fill(0.0)
    Point(k, (LONG,), (x,), (y,)).check()
    assert program.usage()["adstack"] == k.grad.plan(LONG).bytes > 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_plan_for_fewer_workers_is_kept_to(workers):
    """Rows of the workers that the plan names, and no others, are used; the gradient is the same."""
    program = start(cpu_max_num_threads=4, cpu_lanes=1)
    x, y = field(300, rng=np.random.default_rng(2)), field(300)
    k = compile_source(f"{DROPPED}        if x[i] > 0.3:\n{BODY}", x=x, y=y)["k"]
    variant, bound = k.grad._ready((90,), {})  # one thread runs 54,000 iterations: llvmpipe ends all loops after 65,536
    gradient = variant.gradient
    options = gradient.plans._options()
    plan = gradient.plans.plan_with(bound.call, machine=replace(options.machine, workers=workers))
    assert plan.rows()[0]["rows"] == workers and plan.tasks[0].params["threads"] == workers
    results = []
    for use in (plan, gradient.plan(bound.call)):
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        with program.admission.alone():
            gradient._apply(use, bound.call)
            gradient.launch(bound.call)
        results.append(x.grad.to_numpy().tobytes())
    assert results[0] == results[1]


def test_two_tasks_have_rows_of_their_own_size():
    """The heap is the larger of the tasks' heaps, and not the most rows times the longest row."""
    program = start(cpu_max_num_threads=4, cpu_lanes=1)
    x, y, m = field(40, rng=np.random.default_rng(2)), field(40), flags([1] + [0] * 39)()
    short = (
        BODY.replace("            ", "        ", 1).replace("            for", "        for").replace("range(n)", "range(20)")
    )
    short = short.replace("                v", "            v").replace("            y[i] = v", "        y[i] = y[i] + v")
    k = compile_source(f"{DROPPED}        if m[i] > 0:\n{BODY}    for i in x:\n{short}", x=x, y=y, m=m)["k"]
    plan = k.grad.plan(LONG)
    assert sorted(t.bytes for t in plan.tasks) == [4 * 20 * 8, 8 * LONG] and plan.bytes == 8 * LONG
    k(LONG)
    k.grad(LONG)
    assert program.usage()["adstack"] == plan.bytes


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("test", ["m[i] / 1.5 > 0.5", "qd.sqrt(m[i]) > 0.5", "m[i] * 3.0 > 0.5"])
def test_with_fast_math_a_gate_that_the_gpu_approximates_is_not_counted(test, fast):
    qd.init(arch=qd.cuda, device="emulated", fast_math=fast)
    m, x = (qd.field(qd.f32, shape=4096, needs_grad=name == "x") for name in "mx")
    total = qd.field(qd.f32, shape=(), needs_grad=True)
    m.from_numpy((np.arange(4096) < 100).astype(np.float32))
    loop = ["    v = x[i]", "    for _ in range(200):", "        v = qd.sin(v)", "    total[None] += v"]
    lines = ["for i in x:", f"    if {test}:", *(f"    {line}" for line in loop)]
    source = "@qd.kernel\ndef k():\n" + "\n".join(f"    {line}" for line in lines)
    plan = compile_source(source, m=m, x=x, total=total)["k"].grad.plan()
    rows, why = plan.tasks[0].rows, plan.tasks[0].rows_source
    if fast and "*" not in test:
        assert rows == 4096 and why.endswith("gate not counted: the GPU approximates a division or a root in it")
    else:
        assert rows == 100
