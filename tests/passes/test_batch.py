"""Batched kernels: what the pass makes of a kernel, failures of single trials, random numbers, returned values, exact plans."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.compile import pipeline
from qdrun.compiler.frontend.signature import LowerOptions
from qdrun.compiler.ir.nodes import Loop
from qdrun.compiler.ir.printer import print_kernel
from qdrun.compiler.ir.walk import walk

COUNTS = (1, 2, 3, 17, 1000)


@pytest.fixture
def rng():
    return np.random.default_rng(16)


def program(count, **options):
    batch = {} if count is None else {"batch": count}
    return qd.init(arch=qd.cpu, default_fp=qd.f64, **batch, **options)


class Model:
    """A kernel with a gate, a triangular loop whose bounds each trial has for itself, a `while` loop, and a sum."""

    def __init__(self, count, **options):
        self.program = program(count, **options)
        self.x, self.y = qd.field(qd.f64, 5, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)
        self.n = qd.field(qd.i32, 5)
        self.limit = qd.field(qd.f64, ())
        x, y, n, limit = self.x, self.y, self.n, self.limit

        @qd.kernel
        def step(c: qd.f64):
            for i in x:
                v = x[i]
                if v > -0.3:
                    for k in range(n[i]):
                        for _ in range(k):
                            v = qd.sin(v) * 1.1 + c
                    while v < limit[None]:
                        v = v + 0.3 + 0.1 * qd.cos(v)
                y[None] += v * x[i]

        self.step = step

    def fill(self, x, n, limit):
        self.x.from_numpy(x)
        self.n.from_numpy(n)
        self.limit.from_numpy(np.asarray(limit))
        return self

    def run(self):
        """Value and gradient."""
        self.y.fill(0.0)
        self.step(0.2)
        self.y.grad.fill(1.0)
        self.x.grad.fill(0.0)
        self.step.grad(0.2)
        return self.y.to_numpy(), self.x.grad.to_numpy()


def inputs(rng, count):
    return rng.normal(size=(count, 5)), rng.integers(0, 9, (count, 5)).astype(np.int32), rng.uniform(0.5, 3.0, count)


@pytest.mark.parametrize("lanes", [0, 1, 4, 16])
@pytest.mark.parametrize("options", [{}, {"debug": True}, {"ad_checkpoint_levels": 3}, {"memory_budget": 60_000}])
def test_each_trial_has_the_values_and_gradients_that_it_has_alone(rng, lanes, options):
    data = inputs(rng, 19)
    values, gradients = Model(19, cpu_lanes=lanes, **options).fill(*data).run()
    for trial in range(19):
        value, gradient = Model(None, **options).fill(*(d[trial] for d in data)).run()
        np.testing.assert_allclose(values[trial], value, rtol=1e-12)
        np.testing.assert_allclose(gradients[trial], gradient, rtol=1e-11, atol=1e-12)


def test_gradients_of_a_batch_are_those_of_differences(rng):
    data, h = inputs(rng, 9), 1e-6
    gradients = Model(9).fill(*data).run()[1]
    for k in range(5):
        ends = []
        for side in (h, -h):
            moved = data[0].copy()
            moved[:, k] += side
            ends.append(Model(9).fill(moved, *data[1:]).run()[0])
        np.testing.assert_allclose(gradients[:, k], (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("count", COUNTS)
def test_the_heap_is_what_the_plan_says_and_nothing_depends_on_other_trials(rng, count):
    data = inputs(rng, count)
    model = Model(count).fill(*data)
    values, gradients = model.run()
    plan = model.step.grad.plan(0.2)
    workers, width = model.program.device.threads, model.program.trials.width
    (row,) = {r["rows"] for r in plan.rows()}
    assert row == min(workers, -(-count // width)) * width
    assert model.program.usage()["adstack"] == plan.bytes > 0
    bound = max(r["bound"] for r in plan.rows() if r["bound"] is not None)
    assert bound == max(1, data[1].max())
    alone = Model(1).fill(*(d[-1:] for d in data)).run()
    np.testing.assert_array_equal(values[-1:], alone[0])
    np.testing.assert_array_equal(gradients[-1:], alone[1])


# ---- the pass
def test_the_trials_are_the_one_axis_and_sums_are_kept_in_a_register():
    model = Model(9)
    lowered = pipeline.lowered(
        model.step.source, {"c": model.step.variant((0.2,), {})[1].specs["c"]}, LowerOptions(default_fp=qd.f64)
    )
    kernel, how = pipeline.device_input(pipeline.simplified(lowered), model.program.options)
    (task,) = kernel.tasks
    assert len(task.axes) == 1 and not task.reductions and not task.prologue
    assert "param.trials" in print_kernel(kernel)
    outer = [s for s in task.body if isinstance(s, Loop)]
    assert len(outer) == 1 and not how.plain, "the sum is no atomic any more"
    assert not any(getattr(s, "op", "") == "atomic" for s in walk(task.body))


def test_a_kernel_that_writes_to_what_trials_share_is_refused():
    program(4)
    table = qd.field(qd.f64, 3, per_trial=False)
    x = qd.field(qd.f64, 3)

    @qd.kernel
    def spoil():
        for i in x:
            table[i] = x[i]

    @qd.kernel
    def add():
        for i in x:
            table[0] += x[i]

    for kernel in (spoil, add):
        with pytest.raises(
            qd.QdrunCompilationError, match=r"writes to `table`, a field that all trials of the batch share"
        ) as e:
            kernel()
        line = re.search(r"test_batch\.py:(\d+) in kernel", str(e.value))
        assert line and "table[" in Path(__file__).read_text().splitlines()[int(line[1]) - 1]
        assert "  do: " in str(e.value)


def test_shared_fields_are_read_by_all_trials(rng):
    program(11)
    ends = qd.Vector.field(2, qd.i32, 6, per_trial=False)
    x, y = qd.field(qd.f64, 4, needs_grad=True), qd.field(qd.f64, 6, needs_grad=True)
    pairs = rng.integers(0, 4, (6, 2)).astype(np.int32)
    ends.from_numpy(pairs)

    @qd.kernel
    def differences():
        for s in y:
            y[s] = (x[ends[s][0]] - x[ends[s][1]]) ** 2

    data = rng.normal(size=(11, 4))
    x.from_numpy(data)
    differences()
    span = data[:, pairs[:, 0]] - data[:, pairs[:, 1]]
    np.testing.assert_allclose(y.to_numpy(), span**2, rtol=1e-14)
    y.grad.fill(1.0)
    differences.grad()
    want = np.zeros((11, 4))
    for s, (a, b) in enumerate(pairs):
        want[:, a] += 2 * span[:, s]
        want[:, b] -= 2 * span[:, s]
    np.testing.assert_allclose(x.grad.to_numpy(), want, rtol=1e-13, atol=1e-14)


# ---- random numbers, returned values
def draws(count, **options):
    program(count, **options)
    x = qd.field(qd.f64, (3, 2))

    @qd.kernel
    def draw():
        for i, j in x:
            for _ in range(i + 1):
                x[i, j] += qd.random(qd.f64)

    draw()
    draw()
    return x.to_numpy()


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_trial_draws_what_a_program_with_its_seed_draws(lanes):
    batch = draws(11, random_seed=40, cpu_lanes=lanes)
    for trial in range(11):
        np.testing.assert_array_equal(batch[trial], draws(None, random_seed=40 + trial))
    np.testing.assert_array_equal(batch[:3], draws(3, random_seed=40, cpu_lanes=lanes))


def test_seeds_of_trials_can_be_given():
    p = program(5)
    x = qd.field(qd.i32, ())

    @qd.kernel
    def draw():
        x[None] = qd.random(qd.i32)

    p.batch.set_seeds([3, 9, 3, 1, 9])
    draw()
    got = x.to_numpy()
    assert got[0] == got[2] != got[1] == got[4] != got[3]
    with pytest.raises(qd.QdrunRuntimeError, match="2 random seeds for a batch of 5 trials"):
        p.batch.set_seeds([1, 2])


def test_returned_values_are_arrays_of_the_trials(rng):
    program(11)
    x = qd.field(qd.f64, 4)
    data = rng.normal(size=(11, 4))
    x.from_numpy(data)

    @qd.kernel
    def total() -> qd.f64:
        s = 0.0
        for i in range(4):
            s += x[i]
        return s

    np.testing.assert_allclose(total(), data.sum(1), rtol=1e-13)


# ---- failures
def failing(count, lanes, **options):
    p = program(count, cpu_lanes=lanes, debug=True, **options)
    x, y, at = qd.field(qd.f64, 4), qd.field(qd.f64, 4), qd.field(qd.i32, ())

    @qd.kernel
    def work():
        for i in x:
            assert x[i] < 1.0, "too large: {}"
            y[i] = 2.0 * x[(at[None] + i) % 5]
        for i in x:
            y[i] += 1.0

    return p, x, y, at, work


@pytest.mark.parametrize("lanes", [0, 1, 4])
def test_a_trial_that_fails_fails_alone(rng, lanes):
    p, x, y, at, work = failing(21, lanes)
    data = rng.uniform(0.0, 0.9, (21, 4))
    data[6, 2] = 1.5
    x.from_numpy(data)
    where = np.zeros(21, np.int32)
    where[[6, 20]] = 1  # reads x[4], which there is not
    at.from_numpy(where)
    with pytest.raises(qd.TrialsFailed, match=r"2 of 21 trials failed: 6, 20\n  trial 6: too large") as e:
        work()
    assert set(e.value.failed) == {6, 20} and all(isinstance(x, qd.QdrunAssertionError) for x in e.value.failed.values())
    assert "axis 0 of `x` has index 4 but extent 4" in str(e.value.failed[20])
    fine = [t for t in range(21) if t not in (6, 20)]
    np.testing.assert_array_equal(y.to_numpy()[fine], 2.0 * data[fine] + 1.0)
    assert not p.batch.failed(), "raised failures are forgotten"


@pytest.mark.parametrize("lanes", [0, 1])
def test_failures_can_be_kept_and_a_failed_trial_takes_no_part_any_more(rng, lanes):
    p, x, y, _, work = failing(10, lanes)
    data = rng.uniform(0.0, 0.9, (10, 4))
    data[3] = 2.0
    x.from_numpy(data)
    p.batch.keep_failures = True
    work()
    before = y.to_numpy()[3]
    data[3] = 0.5
    x.from_numpy(data)
    work()
    assert list(p.batch.failed()) == [3]
    np.testing.assert_array_equal(y.to_numpy()[3], before)
    np.testing.assert_array_equal(np.delete(y.to_numpy(), 3, 0), np.delete(2 * data + 1, 3, 0))
    p.batch.forget_failures()
    work()
    assert not p.batch.failed()
    np.testing.assert_array_equal(y.to_numpy(), 2 * data + 1)


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_loop_that_is_longer_than_its_adstack_fails_its_trial(rng, lanes):
    def gradient(limits):
        model = Model(len(limits), cpu_lanes=lanes, ad_stack_size=6)
        r = np.random.default_rng(1)
        model.fill(r.uniform(0.0, 0.4, (len(limits), 5)), np.zeros((len(limits), 5), np.int32), limits)
        return model

    fine = gradient([1.0] * 11).run()[1]
    limits = np.full(11, 1.0)
    limits[[2, 9]] = 9.0
    model = gradient(limits)
    with pytest.raises(qd.TrialsFailed) as e:
        model.run()
    assert set(e.value.failed) == {2, 9} and all(isinstance(x, qd.AdStackOverflow) for x in e.value.failed.values())
    assert "test_batch.py" in str(e.value.failed[9])
    others = [t for t in range(11) if t not in (2, 9)]
    np.testing.assert_array_equal(model.x.grad.to_numpy()[others], fine[others])


def test_padding_raises_nothing_and_never_hangs():
    p = program(3, debug=True)
    x = qd.field(qd.f64, ())
    with_trials = qd.field(qd.i32, ())

    @qd.kernel
    def grow():
        assert x[None] > 0.0
        while x[None] < 10.0:
            x[None] *= 2.0
            with_trials[None] += 1

    for trial in range(3):
        with p.trial(trial):
            x[None] = 1.0 + trial
    grow()
    np.testing.assert_array_equal(x.to_numpy(), [16.0, 16.0, 12.0])
    np.testing.assert_array_equal(with_trials.to_numpy(), [4, 3, 2])


# ---- other processes
def test_a_batched_kernel_comes_back_from_the_disk(tmp_path):
    script = tmp_path / "again.py"
    script.write_text(
        "import numpy as np, qdrun as qd\n"
        "p = qd.init(arch=qd.cpu, batch=9)\n"
        "x = qd.field(qd.f32, 4, needs_grad=True)\n"
        "@qd.kernel\n"
        "def square():\n"
        "    for i in x:\n"
        "        x[i] = x[i] * x[i]\n"
        "x.from_numpy(np.arange(36, dtype=np.float32).reshape(9, 4))\n"
        "square()\n"
        "made = square.variant((), {})[0].executable.compiled\n"
        "print(made.from_cache, made.chunk != 0, x.to_numpy().sum())\n"
    )
    env = {**os.environ, "QDRUN_CACHE_DIR": str(tmp_path / "cache")}
    runs = [
        subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True).stdout for _ in range(2)
    ]
    assert runs == ["False True 14910.0\n", "True True 14910.0\n"]


@pytest.mark.parametrize("count", COUNTS)
def test_what_a_batch_will_hold_is_known_before_it_is_compiled(count):
    p = program(count)
    x, y = qd.field(qd.f64, 3, needs_grad=True), qd.field(qd.f64, 3, needs_grad=True)

    @qd.kernel
    def spread():
        total = 0.0
        for i in x:
            total += x[i] * x[i]
        for i in y:
            y[i] = total * x[i]

    @qd.kernel
    def largest() -> qd.f64:
        return qd.max(x[0], x[1])

    later = [*spread.grad.uncompiled().values(), *largest.uncompiled().values()]
    planned = {kind: sum(getattr(k, kind) for k in later) for kind in ("context", "temporaries")}
    x.fill(1.0)
    spread()
    spread.grad()
    largest()
    used = p.usage()
    assert {kind: used[kind] for kind in planned} == planned
    whole = p.trials.padded
    assert used["fields"] == whole * 2 * 24 and used["gradients"] == whole * 2 * 24
    assert used["temporaries"] > 0 and used["temporaries"] % (8 * whole) == 0


# ---- numbers of each trial as arguments
@pytest.mark.parametrize("lanes", [0, 1])
def test_a_scalar_argument_may_be_a_number_for_each_trial(rng, lanes):
    def model(count):
        p = program(count, cpu_lanes=lanes if count else 0)
        x, y = qd.field(qd.f64, 3, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def step(c: qd.f64, n: qd.i32, k: qd.i32):
            scale = 2.0 * c
            for i in x:
                v = x[i]
                for _ in range(n):
                    v = qd.sin(v) + c
                y[None] += scale * v * k
            for i in range(2):
                y[None] += scale * i

        return p, x, y, step

    def run(made, data, *args):
        _, x, y, step = made
        x.from_numpy(data)
        y.fill(0.0)
        with qd.ad.Tape(y):
            step(*args)
        return y.to_numpy(), x.grad.to_numpy()

    data, c, n = rng.normal(size=(11, 3)), rng.uniform(0.1, 0.9, 11), rng.integers(0, 40, 11)
    batch = model(11)
    values, gradients = run(batch, data, c, n, 3)
    plan = batch[3].grad.plan(c, n, 3)
    assert max(r["bound"] for r in plan.rows()) == n.max() and batch[0].usage()["adstack"] == plan.bytes
    assert not np.array_equal(run(batch, data, c, n[::-1].copy(), 3)[0], values), "another array is another launch"
    for trial in range(11):
        value, gradient = run(model(None), data[trial], float(c[trial]), int(n[trial]), 3)
        np.testing.assert_allclose(values[trial], value, rtol=1e-13)
        np.testing.assert_allclose(gradients[trial], gradient, rtol=1e-12, atol=1e-14)


class Fragile:
    """A kernel that may fail in nested control: in a gate, a loop of its own length, a `while` loop, and at an index that it computes."""

    def __init__(self, count, **options):
        self.program = program(count, **options)
        x = self.x = qd.field(qd.f64, 6, needs_grad=True)
        n, at = self.n, self.at = qd.field(qd.i32, 6), qd.field(qd.i32, 6)
        y = self.y = qd.field(qd.f64, 6, needs_grad=True)
        self.whole = qd.field(qd.i32, ())
        whole = self.whole

        @qd.kernel
        def work():
            for i in x:
                v = x[i]
                if v > 0.2:
                    for k in range(n[i]):
                        assert v < 6.0, "v is {}, k is {}"
                        v = 1.3 * v + x[(at[i] + k) % 7]
                        if k % 3 == 2:
                            continue
                        whole[None] += 1
                while v > 3.0:
                    v -= 0.7
                    assert v > 2.31 or n[i] < 5
                y[i] = v * qd.log(x[i])

        self.work = work

    def run(self, x, n, at):
        for field, values in ((self.x, x), (self.n, n), (self.at, at)):
            field.from_numpy(values)
        self.work()
        return [self.y.to_numpy(), self.whole.to_numpy()]


@pytest.mark.parametrize("lanes", [0, 1, 16])
@pytest.mark.parametrize("checks", [{"debug": True}, {"debug": True, "nan_check": True}])
def test_failures_are_those_of_each_trial_alone(rng, lanes, checks):
    count = 60
    x, n = rng.uniform(0.01, 1.0, (count, 6)), rng.integers(0, 8, (count, 6)).astype(np.int32)
    at = rng.integers(0, 2, (count, 6)).astype(np.int32) * (rng.random((count, 1)) < 0.2)
    at = at.astype(np.int32)
    x[::13, 3] = -1.0  # its logarithm is no number
    batch = Fragile(count, cpu_lanes=lanes, **checks)
    batch.program.batch.keep_failures = True
    values = batch.run(x, n, at)
    failed = batch.program.batch.failed()
    alone, kinds = {}, set()
    for trial in range(count):
        single = Fragile(None, cpu_max_num_threads=1, cpu_lanes=1, **checks)
        try:
            own = single.run(x[trial], n[trial], at[trial])
        except qd.QdrunAssertionError as e:
            alone[trial] = str(e)
            kinds.add(e.fault.kind)
        else:
            for got, want in zip(values, own):
                np.testing.assert_allclose(got[trial], want, rtol=1e-14)
    assert {trial: str(e) for trial, e in failed.items()} == alone
    assert 10 < len(alone) < count - 10 and {"assert", "bounds"} <= kinds and ("nan" in kinds) == ("nan_check" in checks)


@pytest.mark.parametrize("lanes", [0, 1])
def test_an_overflow_is_that_of_its_trial(lanes):
    p = program(12, overflow_check=True, cpu_lanes=lanes)
    x, y = qd.field(qd.i32, 3), qd.field(qd.i32, 3)

    @qd.kernel
    def scale():
        for i in x:
            y[i] = x[i] * 1_000_000

    data = np.arange(36, dtype=np.int32).reshape(12, 3)
    data[5, 1] = 3_000
    x.from_numpy(data)
    with pytest.raises(qd.TrialsFailed) as e:
        scale()
        qd.sync()
    assert set(e.value.failed) == {5} and "3000 * 1000000" in str(e.value.failed[5])
    np.testing.assert_array_equal(np.delete(y.to_numpy(), 5, 0), np.delete(data, 5, 0) * 1_000_000)
    assert not p.batch.failed()
