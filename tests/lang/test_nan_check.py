"""``nan_check``: what is reported, what is not, and what the error says. ``tests/gradients/test_nan_origin.py`` has random programs."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.program import current_program

EACH = pytest.mark.parametrize(
    "backend",
    [{"arch": qd.cpu}, {"arch": qd.python}, {"arch": qd.cuda, "device": "emulated"}],
    ids=["cpu", "python", "emulated"],
)


def start(arch=qd.cpu, **options):
    qd.init(arch=arch, debug=True, nan_check=True, default_fp=qd.f64, **options)


def field(values, **options):
    out = qd.field(qd.f64, shape=np.shape(values), **options)
    out.from_numpy(np.asarray(values, np.float64))
    return out


def fault(launch, *args):
    with pytest.raises(qd.QdrunAssertionError) as caught:
        launch(*args)
    return caught.value


@EACH
def test_the_error_names_the_line_the_iteration_and_the_operands_and_survives_a_pickle(backend):
    start(**backend)
    x, y = field(np.full((3, 4), 2.0)), field(np.zeros((3, 4)))
    x[1, 2] = x[2, 0] = -0.25

    @qd.kernel
    def roots(n: qd.i32):
        for i, j in x:
            for t in range(n):
                y[i, j] += qd.sqrt(x[i, j] + t * 0.125)

    e = fault(roots, 3)
    assert (e.kind, e.kernel, e.mode, e.iteration) == ("nan", "roots", "", {"i": 1, "j": 2, "t": 0})
    assert math.isnan(e.operands[0]) and e.operands[1] == -0.25 and e.file == __file__
    text = str(e)
    for part in ("sqrt(-0.25) = nan", f"{__file__}:{e.line} in kernel `roots`", "qd.sqrt(x[i, j] + t * 0.125)", "^^^^", "do: "):
        assert part in text
    assert "iteration i = 1, j = 2, t = 0" in text
    again = pickle.loads(pickle.dumps(e))
    assert (str(again), again.iteration, again.line, again.operands[1:]) == (text, e.iteration, e.line, e.operands[1:])


@EACH
def test_the_adjoint_of_a_statement_is_named_with_its_iteration(backend):
    start(**backend)
    x, y = field([4.0, 0.0, 1.0, 0.0], needs_grad=True), field(np.zeros(4), needs_grad=True)

    @qd.kernel
    def roots():
        for i in x:
            v = x[i]
            for t in range(20):
                v = 0.5 * v + qd.sqrt(x[i] * (t + 1))
            y[i] = v

    roots()
    roots.grad()  # nothing was asked of y
    y.grad.fill(1.0)
    e = fault(roots.grad)
    assert (e.kind, e.mode, e.iteration, e.operands[2]) == ("nan", "gradient", {"i": 1, "t": 19}, 0.0)
    assert "in the gradient of kernel `roots`" in str(e) and "qd.sqrt(x[i] * (t + 1))" in str(e)


def test_a_tangent_is_checked_too():
    start()
    x, y = field([0.0], needs_dual=True), field([0.0], needs_dual=True)

    @qd.kernel
    def root():
        for i in x:
            y[i] = qd.sqrt(x[i])

    root()
    e = fault(lambda: tangent_of(root, y, x))
    assert (e.mode, e.kind) == ("tangent", "nan")


def tangent_of(kernel, y, x):
    with qd.ad.FwdMode(loss=y, param=x, seed=[1.0]):
        kernel()


@EACH
@pytest.mark.parametrize(
    "line",
    [
        "qd.select(x[i] > 0.0, qd.log(x[i]), 0.0)",
        "qd.log(x[i]) if x[i] > 0.0 else 0.0",
        "1.0 / (qd.math.inf + x[i])",
        "qd.min(qd.math.inf, x[i])",
        "x[i] * 0.0 + far[i] * 2.0",
        "qd.select(qd.math.isnan(qd.log(x[i])), 0.0, 1.0)",
    ],
)
def test_what_nobody_sees_and_infinities_that_are_meant_are_no_faults(backend, line):
    start(**backend)
    x, far, y = field([1.0, 0.0, -1.0]), field([math.inf] * 3), field([0.0] * 3)
    k = kernel_of(f"for i in x:\n        y[i] = {line}", x=x, far=far, y=y)
    k()
    assert not np.isnan(y.to_numpy()).any()


def kernel_of(body, **names):
    import linecache

    source = f"import qdrun as qd\n@qd.kernel\ndef k():\n    {body}\n"
    name = f"<nan check {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), names)
    return names["k"]


@EACH
@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("y[i] = far[i] - far[i]", "nan", "inf - inf = nan"),
        ("y[i] = 1.0 / x[i]", "nan", "1.0 / 0.0 = inf"),
        ("y[i] = qd.log(-1.0)", "nan", "log(-1.0) = nan"),
        ("y[i] = lost[i] + 1.0", "input", "`lost[0]` holds a NaN"),
        ("total[None] += 1e308 + x[i]", "nan", "inf"),
        ("y[0] += 1e308 + x[i]", "nan", "inf"),
        ("small[i] = 1e300 + x[i]", "nan", "f32(1e+300) = inf"),
    ],
)
def test_each_way_to_a_fault_is_found(backend, line, kind, text):
    start(**backend)
    names = {"x": field([0.0] * 3), "y": field([0.0] * 3), "far": field([math.inf] * 3), "lost": field([math.nan] * 3)}
    names |= {"total": qd.field(qd.f64, shape=()), "small": qd.field(qd.f32, shape=3)}
    e = fault(kernel_of(f"for i in x:\n        {line}", **names))
    assert e.kind == kind and text in str(e) and e.line == 5


@EACH
def test_an_argument_that_is_a_nan_is_named(backend):
    start(**backend)
    y = field([0.0])

    @qd.kernel
    def k(speed: qd.f64):
        for i in y:
            y[i] = speed * 2.0

    e = fault(k, math.nan)
    assert e.kind == "input" and "the argument `speed` is a NaN" in str(e)


@EACH
def test_a_tape_names_the_launch_and_the_time_step(backend):
    start(**backend)
    s, loss = qd.field(qd.f64, shape=(4, 2), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32, k: qd.i32, bad: qd.i32):
        for i in range(2):
            s[k + 1, i] = s[k, i] + qd.sqrt(s[k, i] * ((t - bad) * 1.0) ** 2)

    @qd.kernel
    def add(k: qd.i32):
        for i in range(2):
            loss[None] += s[k, i]

    def run(bad, begin):
        s.fill(begin)
        with qd.ad.Tape(loss):
            qd.ad.checkpointed_steps(lambda t, k: step(t, k, bad), 7, state=[s])
            add(3)

    e = fault(run, 5, 1.0)
    assert (e.launch, e.step, e.mode) == (1, 5, "gradient") and "launch 1 of time step 5" in str(e)
    e = fault(run, 9, -1.0)
    assert (e.launch, e.step, e.mode) == (1, 0, "")

    def plain():
        s.fill(1.0)
        with qd.ad.Tape(loss):
            step(0, 0, 2)
            step(1, 1, 1)
            add(2)

    e = fault(plain)
    assert (e.launch, e.step, e.mode) == (2, None, "gradient") and "launch 2 of the tape" in str(e)


def test_a_gpu_that_is_not_waited_for_raises_at_the_next_wait():
    qd.init(arch=qd.cuda, device="emulated", nan_check=True)
    x = qd.field(qd.f32, shape=4)

    @qd.kernel
    def k():
        for i in x:
            x[i] = 1.0 / x[i]

    k()
    e = fault(qd.sync)
    assert e.iteration == {"i": 0} and e.launch is None


@pytest.mark.parametrize("lanes", [1, 8])
def test_the_first_iteration_is_reported_whatever_thread_fails_first(lanes):
    start(cpu_max_num_threads=8, cpu_lanes=lanes)
    n = 20000
    rng = np.random.default_rng()
    bad = rng.choice(n, 50, replace=False)
    values = np.ones(n)
    values[bad[:25]], values[bad[25:]] = -1.0, 0.0
    x, y = field(values), field(np.zeros(n))

    @qd.kernel
    def k():
        for i in x:
            v = qd.log(x[i] + 1.0)  # fails first in a lane, for a later iteration
            for _ in range(3):
                v += qd.sin(v) / x[i]
            y[i] = v

    for _ in range(3):
        assert fault(k).iteration["i"] == bad.min()


@EACH
def test_checks_change_no_bits(backend):
    """Sums included: which iterations share a partial sum is decided without the checks."""
    n = 5000
    values = np.random.default_rng().uniform(0.1, 2.0, n if backend["arch"] != qd.python else 20)

    def results(**options):
        qd.init(default_fp=qd.f64, **backend, **options)
        x = field(values, needs_grad=True)
        y, loss = field(np.zeros(x.shape), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def k():
            for i in x:
                v = x[i]
                for t in range(6):
                    v = qd.sin(v * 3.0) + 0.2 * t / (1.0 + v * v)
                y[i] = v
                loss[None] += v * v

        with qd.ad.Tape(loss):
            k()
        return y.to_numpy(), x.grad.to_numpy(), loss[None] if backend["arch"] != qd.cuda else 0.0

    plain, checked = results(), results(debug=True, nan_check=True, overflow_check=True)
    assert all(map(np.array_equal, plain, checked))


def test_a_gradient_recomputed_from_checkpoints_keeps_its_plan_and_names_the_iteration():
    start(ad_checkpoint_levels=2, cpu_max_num_threads=1)
    x, y = field([0.5], needs_grad=True), field([0.0], needs_grad=True)

    @qd.kernel
    def k(n: qd.i32, bad: qd.i32):
        for i in x:
            v = x[i]
            for t in range(n):
                v = qd.sin(v) + 0.1 * qd.sqrt((2.0 + v) * ((t - bad) * 0.01) ** 2)
            y[i] = v

    k(400, 137)
    y.grad.fill(1.0)
    plan = k.grad.plan(400, 137)
    e = fault(k.grad, 400, 137)
    assert e.iteration == {"i": 0, "t": 137} and e.mode == "gradient"
    assert 0 < plan.bytes == current_program().usage()["adstack"]


@pytest.mark.parametrize("value", [2, "nan", 0.5])
def test_an_option_that_is_no_truth_value_is_refused(value):
    with pytest.raises(qd.QdrunRuntimeError, match=r"nan_check=.* is neither True nor False"):
        qd.init(nan_check=value)
