"""``grad_replaced``, ``grad_for``, ``no_grad``: functions with a gradient of their own, in tapes and called by hand."""

import numpy as np
import pytest

import qdrun as qd

N = 5


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False, random_seed=3) as program:
        yield program


@qd.data_oriented
class Sum:
    """total += mul * x, as a kernel of a class."""

    def __init__(self):
        self.x = qd.field(qd.f64, shape=N, needs_grad=True)
        self.total = qd.field(qd.f64, shape=(), needs_grad=True)
        self.x.from_numpy(np.random.default_rng().uniform(0.5, 1.5, N))
        self.ran: list[float] = []

    @qd.kernel
    def add(self, mul: qd.f64):
        for i in range(N):
            self.total[None] += self.x[i] * mul

    @qd.ad.grad_replaced
    def forward(self, mul):
        self.add(mul)
        self.add(mul)

    @qd.ad.grad_for(forward)
    def backward(self, mul):
        self.ran.append(mul)
        self.add.grad(mul)

    @qd.ad.no_grad
    def constant(self, mul):
        self.add(mul)


def test_the_given_gradient_runs_in_place_of_the_kernels():
    s = Sum()
    with qd.ad.Tape(loss=s.total):
        s.forward(4.0)
    assert s.x.grad.to_numpy().tolist() == [4] * N  # once, though the kernel ran twice
    assert s.total[None] == pytest.approx(8 * s.x.to_numpy().sum()) and s.ran == [4.0]


def test_it_may_be_called_by_hand():
    s = Sum()
    s.total.grad[None] = 1
    s.forward(4.0)
    s.forward.grad(4.0)
    assert s.x.grad.to_numpy().tolist() == [4] * N


def test_plain_functions_keyword_arguments_and_returned_values():
    s = Sum()

    @qd.ad.grad_replaced
    def forward(mul, *, times=1):
        """Doc."""
        for _ in range(times):
            s.add(mul)
        return "done"

    seen = []

    @qd.ad.grad_for(forward)
    def backward(mul, *, times=1):
        seen.append((mul, times))
        for _ in range(times):
            s.add.grad(mul)

    with qd.ad.Tape(loss=s.total):
        assert forward(2.0, times=3) == "done"
        forward(1.0)
    assert seen == [(1.0, 1), (2.0, 3)] and s.x.grad.to_numpy().tolist() == [7] * N
    assert (forward.__name__, forward.__doc__) == ("forward", "Doc.")


def test_steps_of_both_kinds_run_in_their_order():
    """y = sin(x) by a kernel, z = f(y) with a straight-through gradient, loss = sum z * z."""
    x, y, z = (qd.field(qd.f64, shape=N, needs_grad=True) for _ in range(3))
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def sine():
        for i in x:
            y[i] = qd.sin(x[i])

    @qd.kernel
    def quantise():
        for i in x:
            z[i] = qd.floor(4.0 * y[i]) / 4.0

    @qd.kernel
    def through():
        for i in x:
            y.grad[i] += z.grad[i]
            z.grad[i] = 0.0

    @qd.kernel
    def square():
        for i in x:
            loss[None] += z[i] * z[i]

    @qd.ad.grad_replaced
    def rounded():
        quantise()

    @qd.ad.grad_for(rounded)
    def rounded_grad():
        through()

    values = np.random.default_rng().uniform(-1, 1, N)
    x.from_numpy(values)
    for _ in range(2):
        with qd.ad.Tape(loss=loss):
            sine()
            rounded()
            square()
        expected = 2 * np.floor(4 * np.sin(values)) / 4 * np.cos(values)
        np.testing.assert_allclose(x.grad.to_numpy(), expected, rtol=1e-14, atol=1e-15)


def test_inside_another_one_it_is_a_plain_function():
    s = Sum()

    @qd.ad.grad_replaced
    def outer(mul):
        s.forward(mul)
        s.add(mul)

    @qd.ad.grad_for(outer)
    def outer_grad(mul):
        s.add.grad(10 * mul)

    with qd.ad.Tape(loss=s.total):
        outer(1.0)
        s.add(0.5)  # recorded again after the function
    assert s.x.grad.to_numpy().tolist() == [10.5] * N and not s.ran


def test_no_grad_hides_what_is_inside():
    s = Sum()
    with qd.ad.Tape(loss=s.total):
        s.constant(4.0)
        s.add(5.0)
    assert s.x.grad.to_numpy().tolist() == [5] * N
    assert s.total[None] == pytest.approx(9 * s.x.to_numpy().sum())
    s.total.grad[None] = 1
    s.x.grad.fill(0)
    s.constant(4.0)
    s.constant.grad(4.0)
    assert not s.x.grad.to_numpy().any()


def test_checkpoints_with_a_gradient_that_computes_again():
    """Segments of a chain keep only their first state; the gradient restores it and runs the segment again."""
    steps, length = 12, 4
    x = qd.field(qd.f64, shape=length + 1, needs_grad=True)
    kept = np.zeros(steps // length)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def step(t: qd.i32):
        x[t + 1] = x[t] + 0.1 * qd.sin(3.0 * x[t])  # a slope of about 1: not a chain that forgets where it began

    @qd.kernel
    def to_front():
        x[0] = x[length]

    @qd.kernel
    def front_grad():
        x.grad[length] = x.grad[0]
        x.grad[0] = 0.0

    @qd.kernel
    def clear():
        for t in range(length):
            x.grad[t] = 0.0

    @qd.kernel
    def read():
        loss[None] += x[length] * x[length]

    def run():
        for t in range(length):
            step(t)

    @qd.ad.grad_replaced
    def segment(number):
        if number:
            to_front()
        kept[number] = x[0]
        run()

    @qd.ad.grad_for(segment)
    def segment_grad(number):
        x[0] = kept[number]
        clear()
        run()
        for t in reversed(range(length)):
            step.grad(t)
        if number:
            front_grad()

    for debug in (False, True):
        start = np.random.default_rng().uniform(0.1, 0.5)
        with qd.init(default_fp=qd.f64, offline_cache=False, debug=debug):
            x = qd.field(qd.f64, shape=length + 1, needs_grad=True)
            loss = qd.field(qd.f64, shape=(), needs_grad=True)
            x[0] = start
            with qd.ad.Tape(loss=loss):
                for number in range(steps // length):
                    segment(number)
                read()

            def value(v):
                for _ in range(steps):
                    v = v + 0.1 * np.sin(3.0 * v)
                return v * v

            h = 1e-6
            assert abs(x.grad[0]) > 0.01
            assert x.grad[0] == pytest.approx((value(start + h) - value(start - h)) / (2 * h), rel=1e-6)


def test_an_exception_inside_is_the_callers():
    s = Sum()

    @qd.ad.grad_replaced
    def fails():
        s.add(1.0)
        raise KeyError("mine")

    qd.ad.grad_for(fails)(lambda: None)
    with pytest.raises(KeyError, match="mine"), qd.ad.Tape(loss=s.total):
        fails()
    with pytest.raises(qd.QdrunRuntimeError, match="<grad_replaced fails> raised KeyError inside this tape"):
        with qd.ad.Tape(loss=s.total):
            with pytest.raises(KeyError):
                fails()
            s.add(1.0)
    with qd.ad.Tape(loss=s.total):
        s.add(2.0)
    assert s.x.grad.to_numpy().tolist() == [2] * N


def test_misuse_is_refused_by_name():
    s = Sum()

    @qd.kernel
    def k():
        for i in s.x:
            s.total[None] += s.x[i]

    def plain():
        k()

    for wrong, text in (
        (lambda: qd.ad.grad_replaced(k), "grad_replaced takes a Python function, and `k` is a kernel"),
        (lambda: qd.ad.no_grad(qd.func(plain)), "no_grad takes a Python function, and `plain` is a func"),
        (lambda: qd.ad.grad_for(k), "the primal must be a Python function, and `k` is a kernel"),
        (lambda: qd.ad.grad_for(s.add), "the primal must be a Python function, and `add` is a kernel"),
        (lambda: qd.ad.grad_for(plain), r"grad_for: `plain` must be decorated with @qd.ad.grad_replaced"),
        (lambda: qd.ad.grad_for(qd.ad.no_grad(plain)), "`.*plain` is decorated with no_grad"),
        (lambda: qd.ad.grad_for(s.forward), "`Sum.forward` has a gradient already"),
        (lambda: qd.ad.grad_replaced(qd.ad.no_grad(plain)), "`plain` has a gradient of its own already"),
        (lambda: qd.ad.grad_replaced(3), "takes a Python function, not int"),
        (lambda: qd.ad.grad_replaced(plain).grad(), "`.*plain` is decorated with grad_replaced and has no gradient"),
    ):
        with pytest.raises(qd.QdrunRuntimeError, match=text):
            wrong()
    bare = qd.ad.grad_replaced(plain)
    with pytest.raises(RuntimeError, match=r"has no gradient\n.*grad_for\(plain\)"), qd.ad.Tape(loss=s.total):
        bare()


def test_what_a_hidden_kernel_overwrites_is_an_overwrite():
    s = Sum()
    y = qd.field(qd.f64, shape=N, needs_grad=True)

    @qd.kernel
    def square():
        for i in y:
            y[i] = s.x[i] * s.x[i]

    @qd.kernel
    def move():
        for i in y:
            s.x[i] = 0.0

    @qd.kernel
    def collect():
        for i in y:
            s.total[None] += y[i]

    @qd.ad.grad_replaced
    def moved():
        move()

    qd.ad.grad_for(moved)(lambda: None)
    start = s.x.to_numpy()
    with qd.ad.Tape(loss=s.total):
        square()
        moved()
        collect()
    np.testing.assert_allclose(s.x.grad.to_numpy(), 2 * start)  # of what it was
    assert not s.x.to_numpy().any()
    s.x.from_numpy(start)
    with qd.ad.Tape(loss=s.total):  # its own inputs are its own affair
        moved()
        square()
        collect()


def test_no_grad_may_not_overwrite_what_a_gradient_would_flow_through():
    s = Sum()
    y = qd.field(qd.f64, shape=N, needs_grad=True, name="y")

    @qd.kernel
    def double():
        for i in y:
            y[i] = 2.0 * s.x[i]

    @qd.kernel
    def reset(to: qd.f64):
        for i in y:
            y[i] = to

    @qd.kernel
    def more():
        for i in y:
            y[i] += 1.0

    def add_one():
        more()

    @qd.kernel
    def collect():
        for i in y:
            s.total[None] += y[i]

    ones, one_more = qd.ad.no_grad(lambda: reset(1.0)), qd.ad.no_grad(add_one)
    with pytest.raises(qd.DifferentiationError, match=r"`<lambda>` has no gradient \(no_grad\) and overwrites `y` here"):
        with qd.ad.Tape(loss=s.total):
            double()
            ones()
            collect()
    with qd.ad.Tape(loss=s.total):  # a sum leaves the gradient of what was there alone
        double()
        one_more()
        collect()
    assert s.x.grad.to_numpy().tolist() == [2] * N
    with qd.ad.Tape(loss=s.total):  # nothing with a gradient was there
        ones()
        collect()
    assert not s.x.grad.to_numpy().any()


def test_in_forward_mode():
    x, y = (qd.field(qd.f64, shape=N, needs_dual=True) for _ in range(2))

    @qd.kernel
    def cube():
        for i in x:
            y[i] = x[i] ** 3

    def plain():
        cube()

    x.fill(2.0)
    step = qd.ad.grad_replaced(plain)
    with qd.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
        step()  # forward mode differentiates the kernels themselves
    assert y.dual.to_numpy().tolist() == [12] * N
    with pytest.raises(qd.QdrunRuntimeError, match="decorated with no_grad, and forward mode would carry tangents"):
        with qd.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
            qd.ad.no_grad(plain)()


def test_a_tape_in_a_gradient_would_clear_the_gradients_on_their_way():
    s = Sum()
    other = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.ad.grad_replaced
    def f():
        s.add(1.0)

    @qd.ad.grad_for(f)
    def f_grad():
        with qd.ad.Tape(loss=other):
            pass

    with pytest.raises(qd.QdrunRuntimeError, match="a tape inside the gradient of another would clear"):
        with qd.ad.Tape(loss=s.total):
            f()


def test_no_grad_hides_a_kernel():
    s = Sum()

    @qd.data_oriented
    class Scaled:
        @qd.ad.no_grad
        @qd.kernel
        def shift(self, by: qd.f64):
            for i in s.x:
                s.total[None] += by * s.x[i] ** 2

    @qd.ad.no_grad
    @qd.kernel
    def copy(out: qd.types.ndarray()):
        for i in s.x:
            out[i] = s.x[i]
            s.total[None] += s.x[i]

    shown, scaled = np.zeros(N), Scaled()
    with qd.ad.Tape(loss=s.total):
        s.add(2.0)
        copy(shown)
        scaled.shift(3.0)
    x = s.x.to_numpy()
    assert (shown == x).all() and np.allclose(s.total[None], (3 * x + 3 * x**2).sum(), rtol=1e-13)
    assert (s.x.grad.to_numpy() == 2).all()
    copy(shown)
    scaled.shift(1.0)
    assert "no_grad copy" in repr(copy)
