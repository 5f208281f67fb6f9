"""``qd.ad.checkpointed_steps``: what is refused, and that the program goes on."""

import time
import warnings
from functools import partial

import numpy as np
import pytest

import qdrun as qd

from .steps_chain import Chain, M, plainly


@pytest.fixture(autouse=True)
def no_program():
    yield
    qd.reset()


def refused(error, match, body):
    with pytest.raises(error, match=match):
        body()


def test_shapes_and_numbers_that_do_not_fit():
    chain = Chain(4, 2)
    steps = qd.ad.checkpointed_steps
    x, f, step = chain.x, chain.f, chain.step
    odd = qd.field(qd.f64, shape=(5, M))
    shifted = qd.field(qd.f64, shape=(3, M), offset=(1, 0))
    for match, args in {
        "no state": (step, 4, []),
        "has no room for a step": (step, 4, [chain.loss]),
        "of shape \\(5, 5\\) is state in a window of 2 steps": (step, 4, [x, odd]),
        "of shape \\(5, 5\\) is scratch in a window of 2 steps": (step, 4, [x], [odd]),
        "an array is given twice": (step, 4, [x, x]),
        "begins at 1": (step, 4, [shifted]),
        "not ndarray": (step, 4, [np.zeros((3, M))]),
        "is negative": (step, -1, [x]),
        "is not a whole number": (step, 2.5, [x]),
    }.items():
        refused(qd.QdrunRuntimeError, match, lambda args=args: steps(*args))
    assert steps(step, 0, [x], [f]).windows == 1


def test_arrays_of_another_program():
    other = Chain(4, 2)
    chain = Chain(4, 2)
    refused(qd.QdrunRuntimeError, "belongs to another", lambda: qd.ad.checkpointed_steps(chain.step, 4, [other.x]))


def test_a_budget_that_is_too_small_names_the_smallest():
    chain = Chain(9, 2)
    state = 2 * 8 * M + 4
    with pytest.raises(qd.OutOfMemory, match=f"at least 1 snapshots and the final state, {2 * state} bytes") as error:
        chain.run(budget=2 * state - 1)
    assert error.value.smallest == 2 * state
    chain = Chain(9, 2)
    assert chain.run(budget=error.value.smallest).snapshots == 1
    assert chain.results() == plainly(9)
    refused(qd.QdrunRuntimeError, "levels=1 runs no step again", lambda: Chain(9, 2).run(levels=1))


def test_a_limit_that_the_snapshots_pass():
    Chain(9, 2)
    qd.current_program().materialize()
    chain = Chain(9, 2, memory_limit=sum(qd.current_program().usage().values()) + 5 * 84 - 1)
    refused(qd.OutOfMemory, "4 snapshots and the final state: 5 x 84 bytes of state", chain.run)
    chain.loss[None] = 0.0  # the program goes on
    assert "snapshots" not in qd.current_program().usage()


def test_what_the_steps_write_and_read_must_be_state():
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=3, needs_grad=True, name="x")
    total = qd.field(qd.f64, shape=(), needs_grad=True, name="total")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")

    @qd.kernel
    def move(k: qd.i32):
        x[k + 1] = x[k] + 2.0 * total[None]

    @qd.kernel
    def gather(k: qd.i32):
        total[None] += x[k]

    def kernels(t, k):
        move(k)
        gather(k)

    def python(t, k):
        total[None] = 0.1 * t
        move(k)

    for step, who in ((kernels, "`gather`"), (python, "Python")):

        def run(step=step):
            with qd.ad.Tape(loss=loss):
                qd.ad.checkpointed_steps(step, 6, [x])

        refused(qd.DataAccessError, f"{who} writes `total` in a step .* and `move` reads it here", run)


def test_a_product_outside_of_the_window_is_refused():
    """Its gradient reads the final content, which steps that are run again change."""
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=3, needs_grad=True, name="x")
    log = qd.field(qd.f64, shape=6, needs_grad=True, name="log")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")

    @qd.kernel
    def move(t: qd.i32, k: qd.i32):
        x[k + 1] = qd.sin(x[k])
        log[t] *= x[k]

    def run():
        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(move, 6, [x])

    refused(qd.DataAccessError, "`move` writes `log` in a step", run)


def test_a_parameter_that_changes_after_the_steps():
    def run(window, square):
        qd.init(default_fp=qd.f64)
        x = qd.field(qd.f64, shape=window + 1, needs_grad=True, name="x")
        u = qd.field(qd.f64, shape=(), name="u")
        loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")
        x[0] = 0.2

        @qd.kernel
        def move(k: qd.i32):
            if qd.static(square):
                x[k + 1] = x[k] * u[None]
            else:
                x[k + 1] = x[k] + u[None]

        @qd.kernel
        def measure(k: qd.i32):
            loss[None] += x[k]

        u[None] = 0.7
        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(lambda t, k: move(k), 6, [x])
            u[None] = 5.0
            measure(window)
        assert u[None] == 5.0
        return x.grad[0]

    assert run(6, square=False) == run(2, square=False) == 1.0
    for window in (6, 2):
        np.testing.assert_allclose(run(window, square=True), 0.7**6)


@pytest.mark.parametrize("slot", [0, 1])
def test_an_earlier_launch_that_reads_a_slot_is_right(slot):
    """The steps overwrite slot 1, whose old value the launch reads again, and whose gradient is that of the old value."""
    values, found = np.random.default_rng(3).uniform(0.2, 0.9, (3, M)), []
    for before in (False, True):
        chain = Chain(6, 2)
        x, loss = chain.x, chain.loss
        x.from_numpy(values)

        @qd.kernel
        def early(k: qd.i32):
            for i in range(M):
                loss[None] += x[k, i] ** 2  # noqa: B023

        with qd.ad.Tape(loss=loss):
            if before:
                early(slot)
            qd.ad.checkpointed_steps(chain.step, 6, [chain.x, chain.v, chain.c], [chain.f])
        found.append(x.grad.to_numpy()[: slot + 1])
    found[0][slot] += 2 * values[slot]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-13)


def test_steps_on_the_same_arrays_twice_in_a_tape_are_right():
    """The second steps begin with what the first have left in slot 0, the start of their last window."""
    found = []
    for window in (3, 6):
        qd.init(default_fp=qd.f64)
        x = qd.field(qd.f64, shape=window + 1, needs_grad=True)
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def move(k: qd.i32):
            x[k + 1] = qd.sin(x[k]) + 0.1  # noqa: B023

        @qd.kernel
        def measure(k: qd.i32):
            loss[None] += x[k] ** 2  # noqa: B023

        x[0] = 0.4
        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(lambda t, k: move(k), 6, [x])
            measure(window)
            qd.ad.checkpointed_steps(lambda t, k: move(k), 6, [x])
            measure(window)
        found.append((x.grad[0], loss[None]))
    value, slope = [0.4], [1.0]
    for _ in range(9):
        slope.append(slope[-1] * np.cos(value[-1]))
        value.append(np.sin(value[-1]) + 0.1)
    for window, (gradient, total) in zip((3, 6), found, strict=True):
        last = 9 if window == 3 else 6
        np.testing.assert_allclose(total, value[6] ** 2 + value[last] ** 2, rtol=1e-13)
        np.testing.assert_allclose(gradient, 2 * value[6] * slope[6] + 2 * value[last] * slope[last], rtol=1e-12)


def test_what_a_step_overwrites_after_it_was_read_is_kept():
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=4, needs_grad=True, name="x")
    loss = qd.field(qd.f64, shape=(), needs_grad=True, name="loss")

    @qd.kernel
    def move(k: qd.i32):
        x[k + 1] = qd.sin(x[k])

    @qd.kernel
    def spoil(k: qd.i32):
        x[k] = 0.0

    def step(t, k):
        move(k)
        spoil(k)

    @qd.kernel
    def measure():
        loss[None] += x[3] ** 2

    x[0] = 0.7
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(step, 6, [x])
        measure()
    value, slope = 0.7, 1.0
    for _ in range(6):
        value, slope = np.sin(value), slope * np.cos(value)
    np.testing.assert_allclose(x.grad[0], 2 * value * slope, rtol=1e-13)


def test_the_number_of_the_step_in_the_place_of_the_slot():
    chain = Chain(6, 2)
    chain.step = lambda t, k: chain.advance(t, t)
    refused(qd.DataAccessError, "reads or writes slot [23] of `.`, which has [23]", chain.run)


@pytest.mark.parametrize("where", ["state", "scratch", "ahead"])
def test_the_slot_of_another_step(where):
    """With guards in Python all slots lie within the window; a shorter window would still be another program."""
    qd.init(default_fp=qd.f64)
    x = qd.field(qd.f64, shape=4, needs_grad=True, name="x")
    s = qd.field(qd.f64, shape=3, needs_grad=True, name="s")
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def square(k: qd.i32):
        s[k] = x[k] ** 2

    @qd.kernel
    def move(k: qd.i32):
        x[k + 1] += qd.sin(x[k])

    @qd.kernel
    def from_state(k: qd.i32, j: qd.i32):
        x[k] += x[j]

    @qd.kernel
    def from_scratch(k: qd.i32, j: qd.i32):
        x[k] += s[j]

    def step(t, k):
        square(k)
        move(k)
        if where == "state":
            from_state(k + 1, max(k - 1, 0))
        elif where == "scratch":
            from_scratch(k + 1, max(k - 1, 0))
        else:
            move(min(k + 1, 2))

    def run():
        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(step, 6, [x], [s])

    what = {
        "state": r"slot k = 1 reads or writes slot 0 of `x`, a state: it has slots 1 and 2",
        "scratch": r"slot k = 1 reads or writes slot 0 of `s`, scratch: it has slot 1",
        "ahead": r"slot k = 0 reads or writes slot 2 of `x`, a state: it has slots 0 and 1",
    }
    refused(qd.DataAccessError, what[where], run)


@pytest.mark.parametrize("window", [9, 4, 1])
def test_a_history_of_two_steps_is_a_state_of_its_own(window):
    qd.init(default_fp=qd.f64, cpu_max_num_threads=1)
    x = qd.field(qd.f64, shape=window + 1, needs_grad=True, name="x")
    before = qd.field(qd.f64, shape=window + 1, needs_grad=True, name="before")
    a = qd.field(qd.f64, shape=(), needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def move(k: qd.i32):
        x[k + 1] = 1.5 * x[k] - a[None] * qd.sin(before[k])
        before[k + 1] = x[k]

    @qd.kernel
    def end(k: qd.i32):
        loss[None] += x[k] ** 2

    def value(given):
        now, last = 0.3, 0.2
        for _ in range(9):
            now, last = 1.5 * now - given * np.sin(last), now
        return now**2

    x[0], before[0], a[None] = 0.3, 0.2, 0.7
    with qd.ad.Tape(loss=loss):
        qd.ad.checkpointed_steps(lambda t, k: move(k), 9, [x, before])
        end(window)
    assert loss[None] == pytest.approx(value(0.7), rel=1e-12)
    assert a.grad[None] == pytest.approx((value(0.7 + 1e-6) - value(0.7 - 1e-6)) / 2e-6, rel=1e-7)


def test_gradients_that_a_step_writes():
    chain = Chain(6, 2)
    x = chain.x

    @qd.kernel
    def bad(k: qd.i32):
        x.grad[k, 0] = 1.0

    chain.step = lambda t, k: bad(k)
    refused(qd.QdrunError, "writes the gradient `x.grad`", chain.run)


def test_steps_within_steps():
    chain = Chain(6, 2)
    inner = qd.field(qd.f64, shape=3)
    chain.step = lambda t, k: qd.ad.checkpointed_steps(lambda a, b: None, 2, [inner])
    refused(qd.QdrunRuntimeError, "inside of a step", chain.run)


@pytest.mark.parametrize("when", [0, 4, 8])
def test_a_step_that_raises_leaves_the_program_usable(when):
    chain = Chain(9, 2)
    step = chain.step

    def failing(t, k):
        if t == when:
            raise ZeroDivisionError("in a step")
        step(t, k)

    chain.x.grad.fill(3.0)
    chain.step = failing
    refused(ZeroDivisionError, "in a step", lambda: chain.run(clear_gradients=False))
    assert (chain.x.grad.to_numpy()[0] == 3.0).all()
    assert "snapshots" not in qd.current_program().usage()
    again = Chain(9, 2)
    again.run()
    assert again.results() == plainly(9)


def test_a_step_that_raises_when_it_is_run_again():
    chain = Chain(9, 2)
    step, calls = chain.step, []

    def failing(t, k):
        calls.append(t)
        if len(calls) > 10:
            raise ZeroDivisionError("in a replay")
        step(t, k)

    chain.step = failing
    refused(ZeroDivisionError, "in a replay", chain.run)
    program = qd.current_program()
    assert "snapshots" not in program.usage() and program.recorders.tape is None and not program.replay.running


class Restless:
    """Steps ``x[k + 1] = sin(x[k]) * by`` that read what Python changes from call to call, each in another way."""

    def __init__(self, window, **options):
        program = qd.init(default_fp=qd.f64, **{"cpu_max_num_threads": 1, **options})
        self.x = qd.field(qd.f64, (window + 1, M), needs_grad=True, name="x")
        self.by, self.loss = (qd.field(qd.f64, (), needs_grad=True, name=name) for name in ("by", "loss"))
        self.arrays = [qd.ndarray(qd.f64, M, needs_grad=True) for _ in range(40)]
        self.scale = np.ones(M)
        self.window, self.calls, self.dtype = window, 0, qd.types.ndarray(dtype=qd.f64, ndim=1)
        self.x.from_numpy(np.full((*self.x.to_numpy().shape,), 0.5))
        self.by.fill(1.1)
        for a in self.arrays:
            a.fill(1.0)
        assert program.device.threads >= 1
        self.kernels()

    def kernels(self):
        x, by, loss, dtype = self.x, self.by, self.loss, self.dtype

        @qd.kernel
        def move(k: qd.i32, c: qd.f64):
            for i in range(M):
                x[k + 1, i] = qd.sin(x[k, i]) * by[None] + c

        @qd.kernel
        def move_by_array(k: qd.i32, a: dtype):
            for i in range(M):
                x[k + 1, i] = qd.sin(x[k, i]) * by[None] * a[i]

        @qd.kernel
        def again(k: qd.i32):
            for i in range(M):
                x[k + 1, i] += 0.001

        @qd.kernel
        def total(k: qd.i32):
            for i in range(M):
                loss[None] += x[k, i] ** 2

        @qd.kernel
        def mean(k: qd.i32) -> qd.f64:
            s = 0.0
            for i in range(M):
                s += x[k, i]
            return s

        @qd.data_oriented(template_primitives=False)
        class Numbers:
            c = 0.0

            @qd.kernel
            def move(self, k: qd.i32):
                for i in range(M):
                    x[k + 1, i] = qd.sin(x[k, i]) * by[None] + self.c

        self.move, self.move_by_array, self.again, self.total, self.mean = move, move_by_array, again, total, mean
        self.numbers = Numbers()

    def by_zero(self, k):
        self.move(k, 0.0)

    def by_one(self, k):
        self.move_by_array(k, self.arrays[0])

    def of_object(self, t, k):
        self.numbers.c = 0.01 * self.calls
        self.numbers.move(k)

    def assigned(self, t, k):
        self.x[k, 0] = 0.01 * self.calls
        self.move(k, 0.0)

    def replaced(self, t, k):
        @qd.ad.grad_replaced
        def custom(c):
            self.move(k, 0.0)

        qd.ad.grad_for(custom)(lambda c: self.move.grad(k, 0.0))
        custom(float(self.calls))

    def run(self, step, n=8):
        def counted(t, k):
            self.calls += 1
            step(t, k)

        self.calls = 0
        with qd.ad.Tape(loss=self.loss):
            qd.ad.checkpointed_steps(counted, n, self.x)
            self.total(min(n, self.window))
        return self.by.grad.to_numpy()

    def restless(self):
        """Steps, and what the message says of them."""
        random = np.random.default_rng()
        return {
            "a counter": (
                lambda t, k: self.move(k, 0.01 * self.calls),
                r"`c` of kernel `move` \(launch 1\) is [\d.]+, and was",
            ),
            "random": (lambda t, k: self.move(k, random.uniform()), "`c` of kernel `move`"),
            "time": (lambda t, k: self.move(k, time.perf_counter()), "`c` of kernel `move`"),
            "another kernel": (
                lambda t, k: self.move(k, 0.0) if self.calls <= 8 else self.move_by_array(k, self.arrays[0]),
                r"kernel `move_by_array` \(launch 1\) comes where kernel `move` came in the first run",
            ),
            "one more launch": (
                lambda t, k: (self.move(k, 0.0), self.calls > 8 and self.again(k)),
                "it makes 2 launches and assignments, and made 1 in the first run",
            ),
            "a list that grows": (
                lambda t, k: self.move_by_array(k, self.arrays[self.calls]),
                r"`a` of kernel `move_by_array` \(launch 1\) is",
            ),
            "numpy": (lambda t, k: self.move_by_array(k, self.scale * self.calls), "`a` of kernel `move_by_array`"),
            "an object": (self.of_object, "`self.c` of kernel `move`"),
            "assigned": (self.assigned, r"what Python assigns of `x` is"),
            "a function": (self.replaced, r"argument 1 of `custom` \(launch 1\) is"),
        }


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in ({"batch": 2}, {"cpu_max_num_threads": 2}))]
)
def test_a_step_that_reads_what_python_changes_is_noticed(options):
    case = Restless(3, **options)
    for name, (step, text) in case.restless().items():
        again = rf"step \d is not the same when it is run again: {text}(.|\n)*do: let a step"
        refused(qd.QdrunRuntimeError, again, partial(case.run, step))
        assert "snapshots" not in case.x._owner.usage(), name
        case.by.fill(1.1)


def test_steps_that_repeat_are_not_refused():
    """What is made in a step, read from fields, or counted without use."""

    def made(case, t, k):
        case.calls += 100
        own = qd.ndarray(qd.f64, M, needs_grad=True)
        own.fill(1.0 + 0.1 * t)
        case.move_by_array(k, own)

    def read(case, t, k):
        case.move(k, 0.1 * case.mean(k) / M)
        case.scale[0] = case.x.to_numpy().sum()  # written, and not read

    def numpy_made(case, t, k):
        case.move_by_array(k, np.full(M, 1.0 + 0.1 * t))

    def dispatched(case, t, k):
        case.dispatch(k)

    for step, threads in ((made, 1), (read, 2), (numpy_made, 1), (dispatched, 1)):
        found = []
        for window in (8, 3):
            case = Restless(window, cpu_max_num_threads=threads)
            case.dispatch = qd.perf_dispatch(get_geometry_hash=lambda k: 0, first_warmup=0, active=1)(case.by_zero)
            for way in (case.by_zero, case.by_one):
                case.dispatch.register(way)
            found.append(float(case.run(partial(step, case))))
        np.testing.assert_allclose(found, found[0], rtol=1e-12)


def test_the_step_of_a_fixed_point_that_reads_what_python_changes_is_noticed():
    qd.init(default_fp=qd.f64)
    x, new, by, loss = (qd.field(qd.f64, (), needs_grad=True, name=name) for name in ("x", "new", "by", "loss"))
    calls = []

    @qd.kernel
    def step(c: qd.f64):
        new[None] = by[None] * qd.cos(x[None]) + c

    @qd.kernel
    def total():
        loss[None] += x[None]

    def changing():
        calls.append(0)
        step(1e-9 * len(calls))

    by[None] = 0.3
    with qd.ad.Tape(loss=loss):
        qd.ad.fixed_point(lambda: step(0.1), x, new)
        total()
    a = x[None]
    np.testing.assert_allclose(by.grad[None], np.cos(a) / (1 + 0.3 * np.sin(a)), rtol=1e-10)
    with pytest.raises(qd.QdrunRuntimeError, match=r"step is not the same when it is run again: `c` of kernel `step`"):
        with qd.ad.Tape(loss=loss):
            qd.ad.fixed_point(changing, x, new, rtol=1e-6)
            total()


def test_validation_names_the_array_of_a_step_that_does_not_repeat():
    def run(validation):
        chain = Chain(9, 2)
        step, calls, stiff = chain.step, [], chain.stiff.view

        def other(t, k):
            calls.append(t)
            stiff[:] = 0.7 if len(calls) > 9 else 0.8  # through memory that was handed out
            step(t, k)

        chain.step = other
        chain.tally = lambda t, k: None
        chain.run(validation=validation)

    refused(qd.QdrunRuntimeError, "run again up to step 7, `[xv]` differs from the first run", lambda: run(True))
    run(False)  # what was not asked for is not looked at


def test_gradients_that_were_run_cannot_be_run_again():
    chain = Chain(6, 2)
    with qd.ad.Tape(loss=chain.loss) as tape:
        qd.ad.checkpointed_steps(chain.step, 6, [chain.x, chain.v, chain.c], [chain.f])
        chain.end(2)
    refused(qd.QdrunRuntimeError, "were run already", tape.grad)


@pytest.mark.parametrize("window", [1, 3])
def test_a_gradient_lost_in_a_state_without_one(window):
    def run(**tape):
        qd.init(default_fp=qd.f64)
        x = qd.field(qd.f64, shape=window + 1, needs_grad=True, name="x")
        m = qd.field(qd.f64, shape=window + 1, name="m")
        loss = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.kernel
        def move(k: qd.i32):
            m[k + 1] = 0.5 * x[k]
            x[k + 1] = x[k] + m[k]

        with qd.ad.Tape(loss=loss, **tape):
            qd.ad.checkpointed_steps(lambda t, k: move(k), 6, [x, m])

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    assert any("the gradient is lost in `m`" in str(w.message) for w in found)
    refused(qd.DifferentiationError, "the gradient is lost in `m`", lambda: run(validation=True))
