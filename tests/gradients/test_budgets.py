"""``budget=`` and ``memory_budget``: the heap fits, the smallest budget that a refusal names works, and no bit of a gradient changes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start
from harness import watched
from heap_guard import launch_under, plan_with

from qdrun.compiler.tape.cost import refills
from qdrun.compiler.tape.levels import three_levels, two_levels

FRAME = "@qd.kernel\ndef k(n: qd.i32):\n    for i in x:\n        v = x[i]\n        w = 0.3\n"
BODIES = {
    "one loop": "for j in range(n):\n    v = qd.sin(v) + 0.1",
    "two states": "for j in range(n):\n    w -= 0.05 * qd.sin(v)\n    v += 0.05 * w",
    "ragged": "for j in range(lens[i]):\n    v = qd.tanh(v) + 0.2",
    "a nest": (
        "for j in range(n // 4):\n    w = v\n    for l in range(j % 7):\n        w = qd.sin(w) + 0.01 * l\n    v = 0.5 * v + 0.4 * w * w"
    ),
    "siblings": "for j in range(n):\n    v = qd.sin(v) + 0.1\nfor j in range(n // 2):\n    v = 1.2 * v * (1.1 - v)",
    "arms": (
        "if i % 2 == 0:\n    for j in range(n):\n        v = qd.sin(v) + 0.1\nelse:\n    for j in range(n // 2):\n"
        "        v = qd.cos(v) * w\n        w = 0.9 * w + 0.1 * v"
    ),
    "two planes": "s = i\nfor j in range(n):\n    s = (s * 1103515245 + 12345) % 65536\n    v = v * (1.5 - v) + 0.000001 * s * v",
    "an early exit": "for j in range(n):\n    v = v * (1.4 - v)\n    if v < 0.35:\n        break",
    "a while": "while v > 0.05:\n    v = v - 0.02 * v * v\n    w = w * (1.0 + 0.001 * v)",
}


def build(body: str, n: int = 60, **options):
    """A kernel over x, y (13), the point to check it at, and the arguments."""
    program = start(**{"cpu_max_num_threads": 2, "cpu_lanes": 1, **options})
    rng = np.random.default_rng(3)
    x, y = field(13, rng=rng), field(13)
    lens = ints(rng.integers(0, n, 13))
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    k = compile_source(f"{FRAME}{lines}\n        y[i] = v * w\n", x=x, y=y, lens=lens)["k"]
    return program, k, Point(k, (n,), (x,), (y,))


def smallest(k, *args) -> int:
    """The smallest budget, as a refusal names it."""
    with pytest.raises(qd.OutOfMemory) as e:
        k.grad.plan(*args, budget=0)
    return e.value.smallest


@pytest.mark.parametrize("name", BODIES)
def test_a_budget_is_kept_and_changes_no_bit(name):
    program, k, point = build(BODIES[name])
    point.check()
    expected = point.gradient()
    whole, least = k.grad.plan(60).bytes, smallest(k, 60)
    assert 0 < least < whole
    held = whole  # the heap does not shrink
    for share in (0.0, 0.13, 0.4, 0.77, 0.99, 1.0):
        budget = least + int(share * (whole - least))
        plan = k.grad.plan(60, budget=budget)
        assert plan.bytes <= budget
        got = point.gradient(lambda budget=budget: k.grad(60, budget=budget))
        assert got.tobytes() == expected.tobytes()
        assert program.usage()["adstack"] == held


@pytest.mark.parametrize("name", BODIES)
def test_a_launch_under_a_budget_allocates_its_plan(name):
    _, k, point = build(BODIES[name])
    expected = point.gradient()
    least = smallest(k, 60)
    program, k, point = build(BODIES[name])
    with pytest.raises(qd.OutOfMemory, match="do: give a budget of"):
        point.gradient(lambda: k.grad(60, budget=least - 1))
    assert program.usage().get("adstack", 0) == 0
    got = point.gradient(lambda: k.grad(60, budget=least))
    assert program.usage()["adstack"] == k.grad.plan(60, budget=least).bytes <= least
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("lanes", [1, 4, 8])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_fewer_threads_and_lanes_under_a_budget(threads, lanes):
    _, k, point = build(BODIES["two states"], cpu_max_num_threads=threads, cpu_lanes=lanes)
    expected = point.gradient()
    least = smallest(k, 60)
    assert k.grad.plan(60, budget=least).tasks[-1].rows == lanes
    for budget in (least, 2 * least, 3 * least):
        assert point.gradient(lambda budget=budget: k.grad(60, budget=budget)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_the_cost_model_counts_the_runs_that_happen(seed):
    """The last replay needs only the operand of the sine: sines are run by sweeps alone."""
    rng = np.random.default_rng(seed)
    n, s, r = int(rng.integers(2, 90)), int(rng.integers(1, 9)), int(rng.integers(1, 5))
    start(arch=qd.python, cpu_max_num_threads=1)
    x, y = field(1, rng=rng), field(1)
    k = compile_source(f"{FRAME}        for j in range(n):\n            v = qd.sin(v) + 0.1\n        y[i] = v\n", x=x, y=y)["k"]
    planned = plan_with(
        k, (n,), lambda loop, count, source: three_levels(count, s, r) if r > 1 else two_levels(count, min(s, n))
    )
    with watched() as watch:
        launch_under(k, (n,), planned)
    assert watch.runs["sin"] == n + int(refills(n, min(s, n), r))


@pytest.mark.parametrize("seed", range(6))
def test_random_budgets_give_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    name = sorted(BODIES)[seed % len(BODIES)]
    n = int(rng.integers(8, 300))
    _, k, point = build(BODIES[name], n)
    expected = point.gradient()
    least, whole = smallest(k, n), k.grad.plan(n).bytes
    for budget in rng.integers(least, whole + 1, 5).tolist():
        assert point.gradient(lambda budget=budget: k.grad(n, budget=budget)).tobytes() == expected.tobytes()


def test_a_fixed_gradient_is_planned_anew_without_a_budget():
    """It is launched natively after the first time."""
    program = start(cpu_max_num_threads=1)
    x, y = field(5, rng=np.random.default_rng(0)), field(5)

    @qd.kernel
    def k():
        for i in x:
            v = x[i]
            for _ in range(50):
                v = qd.sin(v) + 0.1
            y[i] = v

    point = Point(k, (), (x,), (y,))
    first = point.gradient()
    for budget in (8 * 40, 8 * 20, None, 8 * 15, None):
        got = point.gradient(lambda budget=budget: k.grad() if budget is None else k.grad(budget=budget))
        assert got.tobytes() == first.tobytes()
    (variant,) = program.variants[k.token].values()
    assert variant.gradient._set == k.grad.plan()


def test_a_parameter_called_budget_stays_the_kernels():
    start(cpu_max_num_threads=1)
    x, y = field(3, rng=np.random.default_rng(0)), field(3)

    @qd.kernel
    def k(budget: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(budget):
                v = qd.sin(v) + 0.1
            y[i] = v

    assert k.grad.plan(budget=40).bytes == 8 * 40
    k.grad(budget=30)


def test_methods_take_a_budget():
    start(cpu_max_num_threads=1)

    @qd.data_oriented
    class Model:
        def __init__(self):
            self.x, self.y = field(4, rng=np.random.default_rng(0)), field(4)

        @qd.kernel
        def run(self, n: qd.i32):
            for i in self.x:
                v = self.x[i]
                for _ in range(n):
                    v = qd.sin(v) + 0.1
                self.y[i] = v

    m = Model()
    assert m.run.grad.plan(100, budget="400B").bytes <= 400
    m.run.grad(100, budget=400)
    assert qd.current_program().usage()["adstack"] <= 400


@pytest.mark.parametrize("budget", [-1, 1.5, "much", "3 XB", True])
def test_a_budget_that_is_no_amount_is_refused(budget):
    _, k, _ = build(BODIES["one loop"])
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"budget=.* is not an amount of memory; do: a number of bytes, or a text such as"
    ):
        k.grad.plan(60, budget=budget)


@pytest.mark.parametrize(("text", "amount"), [("2GiB", 2 << 30), ("512MB", 512 * 10**6), ("1.5 kib", 1536), ("77", 77), (8, 8)])
def test_amounts_of_memory(text, amount):
    start(memory_budget=text)
    assert qd.current_program().options.memory_budget == amount


def test_the_environment_gives_a_memory_budget(monkeypatch):
    monkeypatch.setenv("QD_MEMORY_BUDGET", "3MiB")
    start()
    assert qd.current_program().options.memory_budget == 3 << 20


# ---- the budget of a program
def test_a_memory_budget_is_kept_by_the_peak():
    program, k, point = build(BODIES["two states"], 200)
    expected = point.gradient()
    unbounded, whole = program.peak_bytes, k.grad.plan(200).bytes
    others = unbounded - whole
    for heap in (whole, whole // 2, whole // 5, smallest(k, 200)):
        program, k2, point = build(BODIES["two states"], 200, memory_budget=others + heap)
        assert point.gradient().tobytes() == expected.tobytes()
        assert program.peak_bytes <= others + heap
        assert k2.grad.plan(200).bytes == program.usage()["adstack"] <= heap


def test_a_memory_budget_that_is_too_small_names_one_that_is_not():
    _, _, point = build(BODIES["two states"], 200, memory_budget=1000)
    with pytest.raises(qd.OutOfMemory) as e:
        point.gradient()
    text = str(e.value)
    assert text.startswith("the gradient `k_grad` does not fit a budget of ")
    assert "\n  memory_budget=1000 leaves it " in text
    assert "the program holds context " in text
    enough = int(text.split("qd.init(memory_budget=")[1].split(")")[0])
    program, _, point = build(BODIES["two states"], 200, memory_budget=enough)
    point.check()
    assert program.peak_bytes <= enough
    _, _, point = build(BODIES["two states"], 200, memory_budget=enough - 1)
    with pytest.raises(qd.OutOfMemory):
        point.gradient()
    point.value()  # the program goes on


def test_a_new_field_takes_the_heaps_room():
    program, k, point = build(BODIES["one loop"], 500, memory_budget=20_000)
    expected = point.gradient()
    held = program.usage()["adstack"]
    assert held == k.grad.plan(500).bytes == 2 * 8 * 500
    more = qd.field(qd.f64, shape=(20_000 - program.device.used_bytes + held) // 8 - 200)
    more.fill(1.0)
    assert program.usage().get("adstack", 0) == 0, "it is given back before the field is made"
    assert point.gradient().tobytes() == expected.tobytes()
    assert 0 < program.usage()["adstack"] <= 1600
    assert program.peak_bytes <= 20_000


def test_kernels_with_states_in_different_planes_take_turns():
    program = start(cpu_max_num_threads=1, memory_budget=7_000)
    x, y = field(8, rng=np.random.default_rng(0)), field(8)

    @qd.kernel
    def real():
        for i in x:
            v = x[i]
            for _ in range(600):
                v = qd.sin(v) + 0.1
            y[i] = v

    @qd.kernel
    def whole():
        for i in x:
            s, v = i, 0.0
            for _ in range(900):
                v += x[i] * s
                s = (s * 1103515245 + 12345) % 1024
            y[i] = v

    points = [Point(k, (), (x,), (y,)) for k in (real, whole)]
    sizes = [k.grad.plan().planes for k in (real, whole)]
    assert sum(max(a, b) for a, b in zip(sizes[0].values(), sizes[1].values())) > 7_000
    first = [p.gradient() for p in points]
    for _ in range(3):
        for p, expected in zip(points, first):
            assert p.gradient().tobytes() == expected.tobytes()
            assert program.usage()["adstack"] <= program.heap.room()
    points[0].check()
    assert program.peak_bytes <= 7_000


def test_without_a_budget_the_heap_stays():
    program, _, point = build(BODIES["one loop"], 500)
    point.gradient()
    qd.field(qd.f64, shape=10_000).fill(1.0)
    assert program.heap.room() is None
    assert program.usage()["adstack"] == 2 * 8 * 500


def test_a_tape_keeps_the_memory_budget():
    program = start(cpu_max_num_threads=2, cpu_lanes=1, memory_budget=3_000)
    x, loss = field(13, rng=np.random.default_rng(3)), field()

    @qd.kernel
    def total(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = qd.sin(v) + 0.1
            loss[None] += v

    with qd.ad.Tape(loss=loss):
        total(300)
    assert program.peak_bytes <= 3_000
    assert np.abs(x.grad.to_numpy()).sum() > 0


def second_order(k, x, loss):
    return qd.ad.hvp(lambda: k(9), loss, x, np.ones(4)).product


def both_modes(k, x, loss):
    with qd.ad.FwdMode(loss, x, [1.0] * 4):
        k(9)
    with qd.ad.Tape(loss):
        k(9)
    return x.grad.to_numpy()


def two_tapes(k, x, loss):
    for first, second in ((5, 7), (11, 3)):  # the second needs the larger heap
        with qd.ad.Tape(loss):
            k(first)
            k(second)
    return x.grad.to_numpy()


def captured(k, x, loss):
    def run():
        with qd.ad.Tape(loss):
            k(9)

    run()
    qd.capture(run)()
    return x.grad.to_numpy()


@pytest.mark.parametrize("options", [{}, pytest.param({"batch": 3}, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("way", [second_order, both_modes, two_tapes, captured])
def test_the_budget_that_refusals_ask_for_is_the_peak_in_every_way_to_a_gradient(way, options):
    def run(budget: int):
        program = qd.init(default_fp=qd.f64, cpu_max_num_threads=2, memory_budget=budget, **options)
        x, loss = qd.field(qd.f64, 4, name="x"), qd.field(qd.f64, (), name="loss")
        qd.root.lazy_hessian()

        @qd.kernel
        def k(n: qd.i32):
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = qd.sin(v) * v + 0.1
                loss[None] += v

        x.fill(0.4)
        return way(k, x, loss), program.peak_bytes

    (want, _), budget = run(0), 1
    for _ in range(4):
        try:
            got, peak = run(budget)
            break
        except qd.OutOfMemory as error:
            assert error.smallest is not None and error.smallest > budget
            budget = error.smallest
    assert peak == budget > 1 and np.array_equal(got, want)
    with pytest.raises(qd.OutOfMemory):
        run(budget - 1)


# ---- gradients without an adstack
def plain(x, loss):
    @qd.kernel
    def k():
        for i in x:
            loss[None] += x[i] * x[i]

    with qd.ad.Tape(loss):
        k()


def by_hand(x, loss):
    @qd.kernel
    def k():
        for i in x:
            loss[None] += x[i] * x[i]

    k()
    loss.grad[None] = 1.0
    k.grad()


def at_a_fixed_point(x, loss):
    u, w = (qd.field(qd.f64, 4, needs_grad=True) for _ in range(2))

    @qd.kernel
    def step():
        for i in u:
            w[i] = 0.5 * qd.cos(u[i]) * x[i] + 0.1 * i

    @qd.kernel
    def total():
        for i in u:
            loss[None] += u[i] * u[i]

    with qd.ad.Tape(loss):
        qd.ad.fixed_point(step, u, w)
        total()


def of_a_solver(x, loss):
    y = qd.field(qd.f64, 4, needs_grad=True)

    @qd.kernel
    def matvec(v: qd.Template, out: qd.Template):
        for i in v:
            out[i] = 3.0 * v[i] - v[(i + 1) % 4] - v[(i + 3) % 4]

    @qd.kernel
    def total():
        for i in y:
            loss[None] += y[i] * y[i]

    with qd.ad.Tape(loss):
        qd.linalg.MatrixFreeCG(qd.linalg.LinearOperator(matvec), x, y, tol=1e-11)
        total()


@pytest.mark.parametrize("way", [plain, by_hand, at_a_fixed_point, of_a_solver])
def test_gradients_without_an_adstack_keep_the_budget_that_refusals_ask_for(way):
    def run(budget: int):
        program = qd.init(default_fp=qd.f64, cpu_max_num_threads=1, memory_budget=budget)
        x, loss = qd.field(qd.f64, 4, needs_grad=True, name="x"), qd.field(qd.f64, (), needs_grad=True, name="loss")
        x.from_numpy(np.array([0.4, 0.3, 0.6, 0.1]))
        way(x, loss)
        return x.grad.to_numpy(), program.peak_bytes

    (want, free), budget = run(0), 1
    for _ in range(2):  # what it keeps on its way forward, and all else
        with pytest.raises(qd.OutOfMemory, match=r"memory_budget=\d+\) or more, or smaller fields") as error:
            run(budget)
        assert error.value.smallest is not None and error.value.smallest > budget
        budget = error.value.smallest
        if budget == free:
            break
    got, peak = run(budget)
    assert peak == budget == free and np.array_equal(got, want)
    with pytest.raises(qd.OutOfMemory):
        run(budget - 1)
