"""Kernels with ``graph=True``: loops that the device counts, checkpoints, sections; their gradients on a tape; what is refused."""

import enum
import re
import runpy

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.program.program import current_program

I0 = qd.types.ndarray(qd.i32, ndim=0)
F1 = qd.types.ndarray(qd.f64, ndim=1)


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


def number(value):
    x = qd.ndarray(qd.i32, shape=())
    x[None] = value
    return x


def log_of(n=60):
    return qd.ndarray(qd.i32, shape=n)


def test_a_loop_runs_as_often_as_the_device_counts():
    @qd.kernel(graph=True)
    def solve(x: F1, counter: I0):
        for i in range(x.shape[0]):
            x[i] += 100.0
        while qd.graph.do_while(counter):
            for i in range(x.shape[0]):
                x[i] += 1.0
            counter[()] -= 1
        for i in range(x.shape[0]):
            x[i] *= 2.0

    x = qd.ndarray(qd.f64, shape=5)
    for n in (1, 7):
        x.fill(0.0)
        solve(x, number(n))
        assert x.to_numpy().tolist() == [200.0 + 2 * n] * 5
    counter = number(3)
    solve(x=x, counter=counter)
    assert counter[None] == 0
    counts = np.array(2, np.int32)
    solve(x, counts)
    assert counts == 0
    tensor = qd.tensor(qd.i32, shape=(), backend=qd.Backend.NDARRAY)
    tensor[None] = 2
    solve(x, tensor)
    assert tensor[None] == 0
    solve(x, number(1), qd_stream=qd.create_stream())


def test_loops_inside_of_loops_and_fields_as_flags():
    log, at, inner, outer = log_of(), number(0), number(0), qd.field(qd.i32, shape=())

    @qd.kernel(graph=True)
    def nest(log: qd.types.ndarray(qd.i32, ndim=1), at: I0, inner: I0):
        while qd.graph_do_while(condition=outer):
            inner[()] = 2
            while qd.graph_do_while(inner):
                log[at[()]] = 10 * outer[None] + inner[()]
                at[()] += 1
                inner[()] -= 1
            outer[None] -= 1

    outer[None] = 3
    nest(log, at, inner)
    assert log.to_numpy()[: at[None]].tolist() == [32, 31, 22, 21, 12, 11]


@qd.data_oriented
class Newton:
    """The square root of each element, until all have converged."""

    def __init__(self, a):
        self.a, self.x = qd.ndarray(qd.f64, shape=len(a)), qd.ndarray(qd.f64, shape=len(a))
        self.a.from_numpy(a)
        self.x.fill(1.0)
        self.goes_on = qd.ndarray(qd.i32, shape=())
        self.steps = qd.ndarray(qd.i32, shape=())

    @qd.kernel(graph=True)
    def solve(self, tolerance: qd.f64):
        while qd.graph.do_while(self.goes_on):
            self.goes_on[()] = 0
            self.steps[()] += 1
            for i in range(self.x.shape[0]):
                new = 0.5 * (self.x[i] + self.a[i] / self.x[i])
                if abs(new - self.x[i]) > tolerance:
                    self.goes_on[()] = 1
                self.x[i] = new


def test_a_method_loops_until_it_has_converged():
    a = np.random.default_rng().uniform(0.5, 50.0, 20)
    newton = Newton(a)
    newton.solve(1e-12)
    np.testing.assert_allclose(newton.x.to_numpy(), np.sqrt(a), rtol=1e-12)
    assert 3 < newton.steps[None] < 20
    assert repr(Newton.solve) == "<graph kernel Newton.solve>"


def test_extents_and_arguments_may_be_named_before_a_stage():
    @qd.kernel(graph=True)
    def scale(x: F1, counter: I0, by: qd.f64, part: qd.i32):
        n = x.shape[0]
        half = max(n // part, 1)
        factor = by * 2.0
        for i in range(n):
            x[i] = 1.0
        while qd.graph.do_while(counter):
            for i in range(half):
                x[i] *= factor
            for _ in range(1):
                counter[()] -= 1

    x = qd.ndarray(qd.f64, shape=6)
    scale(x, number(2), 1.5, 2)
    assert x.to_numpy().tolist() == [9.0] * 3 + [1.0] * 3


class At(enum.IntEnum):
    FIRST = 4
    SECOND = 9


@qd.kernel(graph=True, checkpoints=True)
def paused(log: qd.types.ndarray(qd.i32, ndim=1), at: I0, first: I0, second: I0, counter: I0):
    log[at[()]] = 1
    at[()] += 1
    while qd.graph.do_while(counter):
        log[at[()]] = 2
        at[()] += 1
        with qd.checkpoint(At.FIRST, yield_on=first):
            for _ in range(1):
                log[at[()]] = 3
                at[()] += 1
                if at[()] == 3:
                    first[()] = 1
        log[at[()]] = 4
        at[()] += 1
        counter[()] -= 1
    with qd.checkpoint(cp_id=At.SECOND, yield_on=second):
        for _ in range(1):
            log[at[()]] = 5
            at[()] += 1
    log[at[()]] = 6
    at[()] += 1


def test_a_checkpoint_pauses_and_resumes_where_it_stood():
    log, at, first, second, counter = log_of(), number(0), number(0), number(1), number(2)
    arguments = log, at, first, second, counter
    status = paused(*arguments)
    assert status == qd.GraphStatus(True, At.FIRST) and status.checkpoint is At.FIRST and "At.FIRST" in repr(status)
    assert log.to_numpy()[: at[None]].tolist() == [1, 2, 3] and counter[None] == 2
    first[None] = 0
    status = paused.resume(*arguments, from_checkpoint=status.checkpoint)
    assert status.yielded and status.checkpoint is At.SECOND and second[None] == 1
    assert log.to_numpy()[: at[None]].tolist() == [1, 2, 3, 3, 4, 2, 3, 4, 5]
    second[None] = 0
    status = paused.resume(*arguments, from_checkpoint=9)
    assert not status.yielded and status.checkpoint is None and repr(status) == "GraphStatus(yielded=False)"
    assert log.to_numpy()[: at[None]].tolist() == [1, 2, 3, 3, 4, 2, 3, 4, 5, 5, 6]
    with pytest.raises(qd.QdrunRuntimeError, match=r"`paused` has no checkpoint 5\n  do: resume from one of \[.*FIRST.*SECOND"):
        paused.resume(*arguments, from_checkpoint=5)


def test_a_checkpoint_has_loops():
    @qd.func
    def count(c: qd.template(), total: qd.template()):
        while qd.graph.do_while(c):
            total[()] += 1
            c[()] -= 1

    @qd.kernel(graph=True, checkpoints=True)
    def steps(c: I0, d: I0, total: I0, full: I0):
        with qd.checkpoint(1, yield_on=full):
            count(c, total)
            while qd.graph.do_while(d):
                total[()] += 10
                d[()] -= 1
            if total[()] < 50:
                full[()] = 1
                c[()] = d[()] = 1
        total[()] += 1000

    c, d, total, full = number(3), number(2), number(0), number(0)
    status, launches = steps(c, d, total, full), 1
    while status.yielded:
        full[None] = 0
        status = steps.resume(c, d, total, full, from_checkpoint=status.checkpoint)
        launches += 1
    assert total[None] == 23 + 11 * 3 + 1000 and launches == 4


def test_sections_run_in_order():
    log, at = log_of(), number(0)

    @qd.kernel(graph=True)
    def sections(log: qd.types.ndarray(qd.i32, ndim=1), at: I0, flag: qd.template()):
        with qd.graph.parallel_context():
            for k in qd.static(range(2)):
                with qd.graph.parallel():
                    for _ in range(1):
                        log[at[()]] = 1 + k
                        at[()] += 1
            if qd.static(flag):
                with qd.graph_parallel():
                    log[at[()]] = 7
                    at[()] += 1

    @qd.kernel
    def streams(log: qd.types.ndarray(qd.i32, ndim=1), at: I0):
        with qd.stream_parallel():
            for i in range(40):
                log[20 + i] = i
        with qd.stream_parallel():
            log[at[()]] = 8

    sections(log, at, True)
    streams(log, at)
    sections(log, at, False)
    assert log.to_numpy()[:6].tolist() == [1, 2, 7, 1, 2, 0] and log.to_numpy()[20:].tolist() == list(range(40))


def test_sections_have_gradients():
    x, y, z = (qd.field(qd.f64, shape=5, needs_grad=True) for _ in range(3))

    @qd.func
    def doubled():
        with qd.stream_parallel():
            for i in z:
                z[i] += 2.0 * x[i]

    @qd.kernel(graph=True)
    def sections():
        with qd.graph.parallel_context():
            with qd.graph.parallel():
                for i in y:
                    y[i] = x[i] ** 2
            with qd.graph.parallel():
                for i in z:
                    z[i] = qd.sin(x[i])
        doubled()
        for i in y:
            y[i] += z[i] * x[i]

    a, w = np.random.default_rng().uniform(0.5, 1.5, (2, 5))
    x.from_numpy(a)
    sections()
    np.testing.assert_allclose(y.to_numpy(), a**2 + (np.sin(a) + 2 * a) * a, rtol=1e-14)
    y.grad.from_numpy(w)
    sections.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), w * (2 * a + np.cos(a) * a + np.sin(a) + 4 * a), rtol=1e-13)


def test_gradients_on_a_tape_are_those_of_the_launches_that_ran():
    """A sum that grows as often as the device says, and what is computed from it; the closed form beside it."""
    rng = np.random.default_rng()
    n, steps = 4, int(rng.integers(3, 8))
    p, kept = (qd.ndarray(qd.f64, shape=n, needs_grad=True) for _ in range(2))
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel(graph=True)
    def grow(p: F1, kept: F1, counter: I0):
        while qd.graph.do_while(counter):
            for i in range(p.shape[0]):
                kept[i] += p[i] ** 3
            counter[()] -= 1
        for i in range(p.shape[0]):
            loss[None] += kept[i] * p[i]

    rates = rng.uniform(0.5, 1.2, n)
    p.from_numpy(rates)
    with qd.ad.Tape(loss=loss):
        grow(p, kept, number(steps))
    np.testing.assert_allclose(loss[None], (steps * rates**4).sum(), rtol=1e-12)
    np.testing.assert_allclose(p.grad.to_numpy(), 4 * steps * rates**3, rtol=1e-12)


@pytest.mark.parametrize("state", ["x[i] = x[i] * x[i]", "x[counter[()]] = x[counter[()] - 1] ** 2"])
def test_a_tape_keeps_what_an_iteration_overwrites(state, tmp_path):
    source = tmp_path / "overwriting.py"
    source.write_text(
        "import qdrun as qd\n\n\n@qd.kernel(graph=True)\n"
        "def step(x: qd.types.ndarray(qd.f64, ndim=1), counter: qd.types.ndarray(qd.i32, ndim=0)):\n"
        "    while qd.graph.do_while(counter):\n        for i in range(1):\n"
        f"            {state}\n        counter[()] -= 1\n"
    )
    namespace = runpy.run_path(str(source))
    x, start = qd.ndarray(qd.f64, shape=5, needs_grad=True), np.linspace(0.5, 1.3, 5)
    x.from_numpy(start)
    with qd.ad.Tape():
        namespace["step"](x, number(3))
        x.grad.fill(1.0)
    in_place = [8 * start[0] ** 7, 1, 1, 1, 1]
    one_by_one = [1 + 2 * start[0], 2 * start[1], 2 * start[2], 0, 1]
    np.testing.assert_allclose(x.grad.to_numpy(), in_place if state.startswith("x[i]") else one_by_one, rtol=1e-13)


def test_a_gradient_by_hand_is_refused_by_name():
    @qd.kernel(graph=True)
    def solve(x: F1, counter: I0):
        while qd.graph.do_while(counter):
            for i in range(x.shape[0]):
                x[i] += 1.0
            counter[()] -= 1

    x = qd.ndarray(qd.f64, shape=3, needs_grad=True)
    with pytest.raises(qd.DifferentiationError) as caught:
        solve.grad(x, number(1))
    text = str(caught.value)
    assert "the gradient of kernel `solve` by hand is not possible: how many launches it made depended on" in text
    assert "qd.graph.do_while(..)" in text and "test_graph_kernels.py:" in text and "do: launch it in a qd.ad.Tape" in text
    with pytest.raises(qd.DifferentiationError, match="by hand is not possible"):
        paused.grad.plan(*(number(0) for _ in range(5)))


def test_a_graph_kernel_without_stages_is_a_kernel_with_a_gradient():
    x, y = (qd.field(qd.f64, shape=5, needs_grad=True) for _ in range(2))

    @qd.kernel(graph=True)
    def two():
        for i in x:
            y[i] = x[i] ** 2
        for i in x:
            y[i] += 3.0 * x[i]

    a = np.random.default_rng().uniform(0.5, 2.0, 5)
    x.from_numpy(a)
    y.grad.fill(1.0)
    two()
    two.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * a + 3.0, rtol=1e-14)
    assert isinstance(two, type(qd.kernel(lambda: None)))


@qd.data_oriented
class ConjugateGradients:
    """A solver that a kernel calls: A x = b, A tridiagonal."""

    def __init__(self, b, logs):
        n = len(b)
        self.n, self.logs = n, logs
        self.b, self.x, self.r, self.p, self.q = (qd.ndarray(qd.f64, shape=n) for _ in range(5))
        self.sums = qd.ndarray(qd.f64, shape=2)
        self.condition, self.iterations = qd.ndarray(qd.i32, shape=()), qd.ndarray(qd.i32, shape=())
        self.history = qd.ndarray(qd.f64, shape=100)
        self.b.from_numpy(b)

    @qd.func
    def advance(self):
        for i in range(self.n):
            left = self.p[i - 1] if i > 0 else 0.0
            right = self.p[i + 1] if i < self.n - 1 else 0.0
            self.q[i] = 3.0 * self.p[i] - left - right
        self.sums[1] = 0.0
        for i in range(self.n):
            self.sums[1] += self.p[i] * self.q[i]
        alpha = self.sums[0] / self.sums[1]
        for i in range(self.n):
            self.x[i] += alpha * self.p[i]
            self.r[i] -= alpha * self.q[i]

    @qd.func(requires_top_level=True)
    def iterate(self, tolerance, most):
        n = self.r.shape[0]
        while qd.graph.do_while(self.condition):
            self.advance()
            self.sums[1] = 0.0
            for i in range(n):
                self.sums[1] += self.r[i] ** 2
            beta = self.sums[1] / self.sums[0]
            for i in range(n):
                self.p[i] = self.r[i] + beta * self.p[i]
            if qd.static(self.logs):
                self.history[self.iterations[None]] = self.sums[1]
            for _ in range(1):
                self.sums[0] = self.sums[1]
                self.iterations[None] += 1
                self.condition[None] = self.sums[1] > tolerance and self.iterations[None] < most


@qd.func
def solve(solver: qd.template(), tolerance: qd.f64, most: qd.template()):
    """A function that calls a method with stages."""
    solver.sums[0] = 0.0
    for i in range(solver.n):
        solver.x[i], solver.r[i], solver.p[i] = 0.0, solver.b[i], solver.b[i]
        solver.sums[0] += solver.b[i] ** 2
    for _ in range(1):
        solver.condition[None], solver.iterations[None] = 1, 0
    solver.iterate(tolerance, most)
    for i in range(solver.n):
        solver.q[i] = 2.0 * solver.x[i]


@qd.kernel(graph=True)
def solve_twice(solver: qd.template(), tolerance: qd.f64, twice: qd.template()):
    solve(solver, tolerance, 60)
    if qd.static(twice):
        for i in range(solver.n):
            solver.b[i] = solver.q[i]
        solve(solver, most=60, tolerance=tolerance)
    for i in range(solver.n):
        solver.r[i] = -1.0


def test_functions_that_are_called_at_the_top_level_have_stages():
    b = np.random.default_rng().uniform(-1.0, 1.0, 30)
    matrix = 3 * np.eye(30) - np.eye(30, k=1) - np.eye(30, k=-1)
    wanted = np.linalg.solve(matrix, b)
    for logs in (False, True):
        solver = ConjugateGradients(b, logs)
        solve_twice(solver, 1e-20, False)
        np.testing.assert_allclose(solver.x.to_numpy(), wanted, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(solver.q.to_numpy(), 2 * wanted, rtol=1e-8, atol=1e-10)
        assert (solver.r.to_numpy() == -1.0).all() and 5 < solver.iterations[None] < 60
        assert (solver.history.to_numpy() != 0).sum() == logs * solver.iterations[None]
        solve_twice(solver, 1e-20, True)
        np.testing.assert_allclose(solver.x.to_numpy(), np.linalg.solve(matrix, 2 * wanted), rtol=1e-8, atol=1e-10)


def test_stages_follow_what_static_finds_in_the_object():
    @qd.data_oriented
    class Counting:
        def __init__(self):
            self.loops, self.c, self.out = False, qd.ndarray(qd.i32, shape=()), qd.field(qd.f64, shape=(), needs_grad=True)
            self.x = qd.field(qd.f64, shape=(), needs_grad=True)

        @qd.func
        def step(self):
            for _ in range(1):
                self.out[None] += self.x[None] ** 2

        @qd.kernel(graph=True)
        def run(self):
            if qd.static(self.loops):
                while qd.graph.do_while(self.c):
                    self.step()
                    self.c[None] -= 1
            else:
                self.step()

    counting = Counting()
    counting.x[None] = 3.0
    counting.run()
    assert counting.out[None] == 9.0
    counting.out.grad[None] = 1.0
    counting.run.grad()  # without stages it is a kernel like any other
    assert counting.x.grad[None] == 6.0 and counting.run.grad.plan().bytes >= 0
    counting.loops, counting.c[None] = True, 4
    counting.run()
    assert counting.out[None] == 45.0
    with pytest.raises(qd.DifferentiationError, match="by hand is not possible"):
        counting.run.grad()
    counting.loops = False
    counting.run()
    assert counting.out[None] == 54.0


def test_a_function_may_be_defined_after_its_kernel():
    @qd.kernel(graph=True)
    def early(c: I0):
        late(c)

    @qd.kernel(graph=True)
    def never(c: I0):
        if qd.static(unknown > 1):  # noqa: F821
            late(c)

    @qd.func
    def late(c: qd.template()):
        while qd.graph.do_while(c):
            c[()] -= 1

    c = number(4)
    early(c)
    assert c[None] == 0
    with pytest.raises(qd.QdrunNameError, match="`unknown` is not defined"):
        never(c)


def test_what_parts_of_a_function_would_not_get_alike_is_refused():
    @qd.func
    def count(c: qd.template(), value):
        c[()] -= value
        while qd.graph.do_while(c):
            c[()] -= value

    @qd.func
    def changing(c: qd.template(), value):
        value = value + 1
        while qd.graph.do_while(c):
            c[()] -= value

    with refused(r"`count` has stages, and would compute `c\[\(\)\]` again in each"):

        @qd.kernel(graph=True)
        def reads(c: I0):
            count(c, c[()])

    with refused(r"`changing` has stages, and assigns its parameter `value`"):

        @qd.kernel(graph=True)
        def changes(c: I0):
            changing(c, 1)

    @qd.kernel(graph=True)
    def local(c: I0):
        one = 1
        count(c, one)

    c = number(5)
    local(c)
    assert c[None] == 0


def test_time_steps_on_windows_run_again_what_the_device_counted():
    """A step sets the number itself; the closed form beside it."""
    x = qd.field(qd.f64, shape=9, needs_grad=True)
    rate, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    counter, p = number(0), np.random.default_rng().uniform(0.05, 0.15)

    @qd.kernel(graph=True)
    def grow(k: qd.i32, counter: I0):
        for _ in range(1):
            x[k + 1] = x[k]
        while qd.graph.do_while(counter):
            for _ in range(1):
                x[k + 1] += rate[None] * x[k]
            counter[()] -= 1

    @qd.kernel
    def measure():
        loss[None] += x[8]

    def step(t, k):
        counter[None] = 2
        grow(k, counter)

    rate[None], x[0] = p, 1.0
    with qd.ad.Tape(loss=loss, validation=True):
        qd.ad.checkpointed_steps(step, 20, [x])
        measure()
    np.testing.assert_allclose(loss[None], (1 + 2 * p) ** 20, rtol=1e-12)
    np.testing.assert_allclose(rate.grad[None], 40 * (1 + 2 * p) ** 19, rtol=1e-12)


def test_a_step_whose_flag_is_left_by_the_steps_before_is_refused_when_it_is_run_again():
    x, rate, loss = (
        qd.field(qd.f64, shape=4, needs_grad=True),
        qd.field(qd.f64, shape=(), needs_grad=True),
        qd.field(qd.f64, shape=(), needs_grad=True),
    )
    c = number(3)

    @qd.kernel(graph=True)
    def grow(k: qd.i32, c: I0):
        while qd.graph.do_while(c):
            for _ in range(1):
                x[k + 1] = (1 + rate[None]) * x[k]
            c[()] -= 1

    @qd.kernel
    def measure():
        loss[None] += x[3]

    def step(t, k):
        if t == 0:  # once: the first step alone has several iterations
            c[()] = 3 - started[0]
            started[0] = 1
        else:
            c[()] = 1
        grow(k, c)

    started = [0]
    rate[None], x[0] = 0.5, 1.0
    with pytest.raises(
        qd.QdrunRuntimeError,
        match=r"(?s)step.*, 12\): run again from step 0, graph kernels find other flags set.*do: set the flag",
    ):
        with qd.ad.Tape(loss=loss):
            qd.ad.checkpointed_steps(step, 12, [x])
            measure()


def refused(said, error=qd.QdrunSyntaxError):
    return pytest.raises(error, match=rf"(?s){said}.*test_graph_kernels.py:\d+.*do: ")


def test_what_is_not_a_stage_is_refused_with_its_line():
    x, c = qd.ndarray(qd.f64, shape=3), number(1)

    @qd.kernel
    def plain(c: I0):
        while qd.graph.do_while(c):
            c[()] -= 1

    @qd.kernel(graph=True)
    def inside(c: I0):
        for _ in range(2):
            while qd.graph.do_while(c):
                c[()] -= 1

    @qd.kernel(graph=True)
    def section(c: I0):
        for _ in range(2):
            with qd.graph.parallel():
                c[()] -= 1

    for wrong, said in (
        (plain, r"`qd.graph.do_while` is not possible here: a stage stands at the top level of a kernel with graph=True"),
        (inside, r"`qd.graph.do_while` is not possible here"),
        (section, r"`qd.graph.parallel\(\)` stands inside of a loop or a branch"),
    ):
        with refused(said):
            wrong(c)

    with refused(r"`total` is assigned in another stage of kernel `across`"):

        @qd.kernel(graph=True)
        def across(x: F1, c: I0):
            total = x[0] + x[1]
            while qd.graph.do_while(c):
                for i in range(3):
                    x[i] += total
                c[()] -= 1

    with refused(r"`returns` has stages, and returns here"):

        @qd.kernel(graph=True)
        def returns(c: I0) -> qd.i32:
            while qd.graph.do_while(c):
                c[()] -= 1
            return c[()]

    with refused(r"qd.graph.do_while\(..\) takes an ndarray or a field by its name, not `c\[\(\)\] > 1`"):

        @qd.kernel(graph=True)
        def expression(c: I0):
            while qd.graph.do_while(c[()] > 1):
                c[()] -= 1

    @qd.kernel(graph=True)
    def real(x: F1):
        while qd.graph.do_while(x):
            x[0] = 0.0

    with refused(r"takes an integer ndarray or field without axes, not <ndarray f64, \(3,\)>", qd.QdrunTypeError):
        real(x)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("1", "takes cp_id and yield_on, each once; here: no yield_on="),
        ("yield_on=c", "here: no cp_id="),
        ("1, yield_on=c, when=2", "here: when="),
        ("1, c, 3", "here: 3 arguments"),
        ("'a', yield_on=c", "the cp_id of a checkpoint is a number that is known before a launch, not `'a'`"),
        ("n, yield_on=c", "known before a launch, not `n`"),
        ("1, yield_on=1", "takes an ndarray or a field by its name, not `1`"),
        ("1, yield_on=n", "takes an integer ndarray or field without axes, not 3"),
        ("1, yield_on=nothing", "and there is no `nothing`"),
    ],
)
def test_arguments_of_a_checkpoint_are_refused_with_an_example(arguments, said, tmp_path):
    path = tmp_path / "checkpoint.py"
    kernel = "@qd.kernel(graph=True, checkpoints=True)\ndef k(c: qd.types.ndarray(qd.i32, ndim=0), n: qd.i32):\n"
    path.write_text(f"import qdrun as qd\n{kernel}    with qd.checkpoint({arguments}):\n        c[()] = 1\n")
    with pytest.raises(qd.QdrunCompilationError, match=re.escape(said)) as error:
        runpy.run_path(str(path))["k"](number(0), 3)
    assert f"{path}:4 in kernel `k`" in str(error.value) and "\n  do: " in str(error.value)
    if "each once" in said:
        assert str(error.value).endswith("do: write with qd.checkpoint(1, yield_on=flag):")


@pytest.mark.parametrize("dtype", [qd.u1, qd.u8, qd.i16, qd.i64])
def test_a_checkpoint_yields_on_any_number_that_is_not_zero(dtype):
    @qd.data_oriented
    class Work:
        def __init__(self):
            self.flag, self.x = qd.field(dtype, shape=()), qd.field(qd.i32, shape=2)

        @qd.kernel(graph=True, checkpoints=True)
        def run(self):
            with qd.checkpoint(7, yield_on=self.flag):
                for i in self.x:
                    self.x[i] += 1
            for i in self.x:
                self.x[i] += 100

    for value in {qd.i16: (1, -1), qd.i64: (-1, 1 << 40)}.get(dtype, (1,)):
        work = Work()
        assert not work.run().yielded and work.x.to_numpy().tolist() == [101, 101]
        work.flag[None] = value
        assert work.run() == qd.GraphStatus(True, 7) and work.x.to_numpy().tolist() == [102, 102]
        work.flag[None] = 0
        assert not work.run.resume(from_checkpoint=7).yielded and work.x.to_numpy().tolist() == [203, 203]


def test_checkpoints_that_cannot_be_are_refused():
    with refused(r"kernel `undeclared` has a checkpoint, and no checkpoints=True"):

        @qd.kernel(graph=True)
        def undeclared(c: I0):
            with qd.checkpoint(1, yield_on=c):
                c[()] = 1

    with refused(r"two checkpoints of kernel `twice` have the cp_id 1"):

        @qd.kernel(graph=True, checkpoints=True)
        def twice(c: I0):
            with qd.checkpoint(1, yield_on=c):
                c[()] = 0
            with qd.checkpoint(1, yield_on=c):
                c[()] = 0

    @qd.kernel(graph=True, checkpoints=True)
    def nested(c: I0):
        with qd.checkpoint(1, yield_on=c):
            with qd.checkpoint(2, yield_on=c):
                c[()] = 0

    with refused(r"`qd.checkpoint` is not possible here: a stage stands at the top level"):
        nested(number(0))

    @qd.func
    def pauses(c: qd.template()):
        with qd.checkpoint(3, yield_on=c):
            c[()] = 0

    @qd.kernel(graph=True, checkpoints=True)
    def within(c: I0):
        with qd.checkpoint(1, yield_on=c):
            pauses(c)

    with refused(r"`qd.checkpoint` is not possible here: a stage stands at the top level"):
        within(number(1))
    with pytest.raises(qd.QdrunTypeError, match=r"kernel\(checkpoints=True\) without graph=True\n  do: "):
        qd.kernel(checkpoints=True)


def test_batches_and_recordings_are_refused():
    @qd.kernel(graph=True)
    def solve(c: I0):
        while qd.graph.do_while(c):
            c[()] -= 1

    c = number(1)
    solve(c)
    if not current_program().device.conditional:
        refusal = r"`solve` has loops .*, and a graph is recorded\n  do: launch it outside"
        with pytest.raises(qd.QdrunRuntimeError, match=refusal):
            qd.capture(lambda: solve(c))
    with (
        qd.init(batch=2),
        pytest.raises(qd.QdrunRuntimeError, match=r"`solve` has stages .* each trial of a batch has its own"),
    ):
        solve(qd.ndarray(qd.i32, shape=()))


def test_stages_are_kept_on_disk_apart(tmp_path, monkeypatch):
    """Two stages of one function are two kernels, also in another program that finds them in the cache."""

    @qd.kernel(graph=True)
    def solve(x: F1, c: I0):
        for i in range(3):
            x[i] = 1.0
        while qd.graph.do_while(c):
            for i in range(3):
                x[i] *= 2.0
            c[()] -= 1

    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        with qd.init(default_fp=qd.f64):
            x = qd.ndarray(qd.f64, shape=3)
            solve.prepare(x, number(1))
            solve(x, number(3))
            assert x.to_numpy().tolist() == [8.0] * 3
