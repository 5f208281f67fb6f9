"""Plain Python functions called by a kernel with values of the run: they are run once, while the kernel is compiled."""

import operator

import numpy as np
import pytest

import qdrun as qd

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
BITS = ["and_", "or_", "xor", "lshift", "rshift"]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_operator_on_reals(name):
    rng = np.random.default_rng(3)
    fn = getattr(operator, name)
    with qd.init(default_fp=qd.f64):
        x, y = rng.uniform(0.5, 3.0, (2, 5))
        y[0] = x[0]

        @qd.kernel
        def run(x: qd.types.ndarray(), y: qd.types.ndarray(), out: qd.types.ndarray()):
            for i in x:
                out[i, 0] = fn(x[i], y[i])
                out[i, 1] = fn(2.0, y[i])
                out[i, 2] = fn(x[i], 3)

        out = np.zeros((5, 3))
        run(x, y, out)
    assert np.allclose(out, np.stack([fn(x, y), fn(2.0, y), fn(x, 3)], axis=1), rtol=1e-14)


@pytest.mark.parametrize("name", BITS)
def test_functions_of_operator_on_integers(name):
    fn = getattr(operator, name)
    with qd.init():
        x, y = np.array([5, 12, 7], np.int32), np.array([3, 1, 4], np.int32)
        out = np.zeros((3, 3), np.int32)

        @qd.kernel
        def run(x: qd.types.ndarray(), y: qd.types.ndarray(), out: qd.types.ndarray()):
            for i in x:
                out[i, 0] = fn(x[i], y[i])
                out[i, 1] = fn(6, y[i])
                out[i, 2] = fn(x[i], 2)

        run(x, y, out)
    assert (out == np.stack([fn(x, y), fn(6, y), fn(x, 2)], axis=1)).all()


def test_a_lambda_has_a_gradient():
    with qd.init(default_fp=qd.f64):
        x, y = (qd.field(qd.f64, shape=4, needs_grad=True) for _ in range(2))
        x.from_numpy(np.array([0.3, -1.2, 2.0, 0.7]))
        f = lambda v: 0.4 * abs(v) ** 3 - qd.sin(-v) / (v * v + 1)

        @qd.kernel
        def run():
            for i in x:
                y[i] = f(x[i])

        run()
        y.grad.fill(1.0)
        run.grad()
        v, h = x.to_numpy(), 1e-6
        value = lambda v: 0.4 * np.abs(v) ** 3 + np.sin(v) / (v * v + 1)
        assert np.allclose(y.to_numpy(), value(v), rtol=1e-14)
        assert np.allclose(x.grad.to_numpy(), (value(v + h) - value(v - h)) / (2 * h), rtol=1e-7)


def test_vectors_lists_and_loops_of_python():
    weights = [0.5, 1.5, 2.5]

    def weighted(v, *rest, scale=1.0):
        total = 0.0
        for w, component in zip(weights, v):
            total = total + w * component
        for r in rest[0]:
            total += r
        return total * scale, len(v), v.norm_sqr(), v @ v

    with qd.init(default_fp=qd.f64):
        out = qd.field(qd.f64, shape=4)

        @qd.kernel
        def run(a: qd.f64):
            v = qd.Vector([a, 2.0, 3.0])
            total, n, sqr, dot = weighted(v, [a, a], scale=2.0)
            out[0], out[1], out[2], out[3] = total, n, sqr, dot

        run(4.0)
        assert out.to_numpy().tolist() == [2.0 * (0.5 * 4 + 1.5 * 2 + 2.5 * 3 + 8), 3.0, 29.0, 29.0]


def test_python_makes_vectors_and_matrices_of_values_of_the_run():
    with qd.init(default_fp=qd.f64):
        rng = np.random.default_rng()
        values = rng.normal(size=4)
        x, total = qd.field(qd.f64, shape=4, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        x.from_numpy(values)

        def turn(a, b):
            rows = qd.Matrix([[qd.cos(a), -qd.sin(a)], [qd.sin(a), qd.cos(a)]])
            return rows @ qd.Vector([b, 2.0 * b], qd.f64)

        @qd.kernel
        def add():
            for i in range(3):
                v = turn(x[i], x[i + 1])
                total[None] += v[0] * v[1]

        def value(at):
            a, b = at[:3], at[1:]
            return float(sum((np.cos(a) * b - 2 * np.sin(a) * b) * (np.sin(a) * b + 2 * np.cos(a) * b)))

        with qd.ad.Tape(loss=total):
            add()
        np.testing.assert_allclose(total[None], value(values), rtol=1e-12)
        by = rng.normal(size=4)
        slope = (value(values + 1e-6 * by) - value(values - 1e-6 * by)) / 2e-6
        np.testing.assert_allclose(x.grad.to_numpy() @ by, slope, rtol=1e-6, atol=1e-8)


def test_values_of_the_host_and_of_the_kernel_mix():
    host = qd.Vector([1, 2])
    with qd.init():
        f = qd.Vector.field(2, qd.i32, shape=2)

        @qd.kernel
        def run():
            f[0] = operator.sub(host, f[1])
            f[1] = operator.invert(host + f[1])

        f[1] = [5, 9]
        run()
        assert f.to_numpy().tolist() == [[-4, -7], [-7, -12]]


def test_a_method_of_an_object_is_such_a_function():
    class Material:
        def __init__(self, stiffness):
            self.stiffness = stiffness

        def energy(self, strain):
            return 0.5 * self.stiffness * strain**2

    material = Material(3.0)
    with qd.init(default_fp=qd.f64):
        out = qd.field(qd.f64, shape=())

        @qd.kernel
        def run(strain: qd.f64):
            out[None] = material.energy(strain)

        run(2.0)
        assert out[None] == 6.0


@pytest.mark.parametrize(
    "decide", [lambda v: v and 1, lambda v: max(v, 2), lambda v: 1 if v == 2 else 0, lambda v: v in (1, 2)]
)
def test_python_cannot_decide_on_a_value_of_the_run(decide):
    with qd.init():

        @qd.kernel
        def run(a: qd.i32) -> qd.i32:
            return decide(a)

        with pytest.raises(qd.QdrunTypeError, match="while the kernel is compiled"):
            run(2)


def test_python_with_compile_time_arguments_calls_funcs():
    """Their bodies are emitted where the kernel calls the Python function, also from a func, a method and a comprehension."""

    @qd.data_oriented
    class Chain:
        def __init__(self, n):
            self.x = qd.field(qd.f64, shape=n, needs_grad=True)

        @qd.func
        def spring(self, k: qd.template(), stiffness):
            return 0.5 * stiffness * (self.x[k + 1] - self.x[k]) ** 2

        def energy(self, n):
            return sum(self.spring(k, stiffness=2.0 + k) for k in range(n - 1))

        @qd.kernel
        def run(self, out: qd.template()):
            out[None] += self.energy(self.x.shape[0])

    x = np.random.default_rng().normal(size=5)
    with qd.init(default_fp=qd.f64):
        chain, out = Chain(5), qd.field(qd.f64, shape=(), needs_grad=True)
        chain.x.from_numpy(x)
        chain.run(out)
        out.grad[None] = 1.0
        chain.run.grad(out)
        value, gradient = out[None], chain.x.grad.to_numpy()
        chain.x[0] = 3.0
        before = out[None]
        chain.run(out)
        assert out[None] - before != value  # the elements are read in each launch
    stretch = np.diff(x)
    pull = (2.0 + np.arange(4)) * stretch
    assert np.isclose(value, 0.5 * (2.0 + np.arange(4)) @ stretch**2, rtol=1e-13)
    assert np.allclose(gradient, np.append(0, pull) - np.append(pull, 0), rtol=1e-13)


def test_a_func_that_python_calls_writes_and_returns():
    with qd.init():
        x = qd.field(qd.i32, shape=6)

        @qd.func
        def put(k, value):
            if value > 2:
                x[k] = value
            return k, value * 10

        def fill(n):
            last = None
            for k in range(n):
                _, last = put(k, k)
            return last

        @qd.kernel
        def run() -> qd.i32:
            return fill(6) + 1

        assert run() == 51
        assert x.to_numpy().tolist() == [0, 0, 0, 3, 4, 5]


def test_elements_of_fields_in_python_are_no_constants_of_a_kernel():
    with qd.init():
        x = qd.field(qd.f32, shape=3)
        x[1] = 2.5

        def read(k):
            return x[k]

        def write(k):
            x[k] = 1.0

        @qd.kernel
        def reads() -> qd.f32:
            return read(1)

        @qd.kernel
        def writes():
            write(0)

        @qd.kernel
        def constant() -> qd.f32:
            return qd.static(read(1))

        for kernel, what in ((reads, "reads"), (writes, "writes")):
            with pytest.raises(qd.QdrunSyntaxError, match=f"{what} an element of a field or an array once, while") as e:
                kernel()
            assert f"in kernel `{what}`" in str(e.value) and "do: it is plain Python: decorate" in str(e.value)
        assert x.to_numpy().tolist() == [0, 2.5, 0]
        assert constant() == 2.5


def test_a_func_outside_of_kernels_is_refused_still():
    @qd.func
    def double(x):
        return 2 * x

    with pytest.raises(qd.QdrunSyntaxError, match="func `double` can only be called in a kernel"):
        double(2)
