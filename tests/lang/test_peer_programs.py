"""What programs written for the peer use, and what is easily lost: forms of calls, of containers, of messages and of exceptions."""

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, debug=True) as opened:
        yield opened


def test_any_and_all_of_vectors_matrices_and_lists():
    out = qd.field(qd.i32, shape=6)

    @qd.kernel
    def run(a: qd.i32, b: qd.i32):
        v = qd.Vector([a, b])
        out[0], out[1] = any(v), all(v)
        out[2] = any(qd.Matrix([[a, 0], [0, b]]))
        out[3] = all([a > 0, b > 0])
        out[4] = all(v == (a, b))
        out[5] = any([1, 0] == v)

    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        run(a, b)
        assert out.to_numpy().tolist() == [a or b, a and b, a or b, a and b, 1, a == 1 or b == 0]

    @qd.kernel
    def scalar(a: qd.i32) -> qd.i32:
        return any(a)

    with pytest.raises(qd.QdrunTypeError, match=r"any\(\) takes a vector, a matrix or a list, not a scalar"):
        scalar(1)


def test_lists_and_tuples_beside_vectors_are_vectors():
    f = qd.Matrix.field(2, 2, qd.f64, shape=2)
    g = qd.Vector.field(3, qd.f64, shape=())

    @qd.kernel
    def run():
        v = qd.Vector([1.0, 2.0, 3.0])
        g[None] = (10.0, 20.0, 30.0) - v * [1, 2, 3]
        g[None] += [1, 1, 1]
        f[0] = [[1, 2], [3, 4]]
        f[0] += [[1, 1], [0, 0]]
        f[1] = f[0] - ((1, 0), (0, 1))

    run()
    assert g[None].to_list() == [10.0, 17.0, 22.0]
    assert f.to_numpy().tolist() == [[[2.0, 3.0], [3.0, 4.0]], [[1.0, 3.0], [3.0, 3.0]]]


def test_star_arguments_of_ndrange_and_of_functions():
    x = qd.field(qd.i32, shape=(3, 4))
    bounds = [(1, 3), (0, 2)]
    weights = (2.0, 3.0)

    @qd.kernel
    def fill(a: qd.types.ndarray()):
        for i, j in qd.ndrange(*a.shape):
            a[i, j] = 1
        for i, j in qd.ndrange(*bounds):
            a[i, j] += 10

    @qd.kernel
    def largest(a: qd.f64) -> qd.f64:
        return qd.max(*weights, a)

    @qd.func
    def pair(a, b):
        return a + b

    @qd.kernel
    def inlined() -> qd.f64:
        return pair(*weights)

    a = np.zeros((3, 4), np.int32)
    fill(a)
    expected = np.ones((3, 4), np.int32)
    expected[1:3, 0:2] += 10
    assert (a == expected).all() and largest(2.5) == 3.0 and largest(7.0) == 7.0
    assert inlined() == 5.0
    assert x.shape == (3, 4)

    @qd.kernel
    def wrong(n: qd.i32):
        for _ in qd.ndrange(*n):
            pass

    with pytest.raises(qd.QdrunTypeError, match=r"`\*` takes a list, a tuple or a vector"):
        wrong(3)


def test_numpy_integers_and_arrays_without_axes_are_numbers():
    begin, end = np.int64(1), np.array(4, np.int32)
    x = qd.field(qd.i32, shape=6)

    @qd.kernel
    def run():
        for i in range(begin, end):
            x[i] = i
        for i, _ in qd.static(qd.ndrange((np.int32(4), 6), np.int64(1))):
            x[i] = 10 * i

    run()
    assert x.to_numpy().tolist() == [0, 1, 2, 3, 40, 50]


def test_grouped_of_a_field_without_axes_runs_once():
    x, y = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))

    @qd.kernel
    def run():
        for i in qd.grouped(x):
            y[i] += 3.0 * x[i] ** 2

    x[None] = 2.0
    with qd.ad.Tape(loss=y):
        run()
    assert (y[None], x.grad[None]) == (12.0, 12.0)


def test_a_loop_that_is_left_inside_a_known_if_runs_in_order():
    flag = True

    @qd.kernel
    def run(n: qd.i32) -> qd.i32:
        found = 0
        if flag:
            for i in range(1000):
                if i == n:
                    break
                found += 1
        return found

    assert [run(n) for n in (0, 7, 999, 5000)] == [0, 7, 999, 1000]


def test_functions_with_template_parameters_may_call_themselves():
    @qd.func
    def power(x, n: qd.template()):
        if qd.static(n == 0):
            return 1.0
        return x * power(x, n - 1)

    @qd.func
    def endless(x, n: qd.template()):
        return endless(x, n + 1)

    @qd.kernel
    def run(x: qd.f64) -> qd.f64:
        return power(x, 5)

    @qd.kernel
    def never(x: qd.f64) -> qd.f64:
        return endless(x, 0)

    assert run(1.5) == 1.5**5
    with pytest.raises(qd.QdrunSyntaxError, match="calls itself"):
        never(1.0)


def test_assignment_expressions():
    @qd.kernel
    def run(n: qd.i32) -> qd.i32:
        b = 2 + (a := n + 1)
        while (a := a + 1) < 10:
            b += a
        return b * 100 + a

    def expected(n):
        b = 2 + (a := n + 1)
        while (a := a + 1) < 10:
            b += a
        return b * 100 + a

    assert [run(n) for n in (0, 5, 20)] == [expected(n) for n in (0, 5, 20)]


def test_dicts_of_compile_time():
    shared = {5: 6}

    @qd.kernel
    def run(a: qd.i32, which: qd.template()) -> qd.i32:
        d = {1: a, 2: 2 * a, **shared}
        squares = {i: i * i for i in range(6) if i % 2 if i != 3}
        return d[which] * 100 + squares[5] + squares[1]

    assert (run(7, 1), run(7, 2), run(7, 5)) == (726, 1426, 626)
    with pytest.raises(qd.QdrunCompilationError):
        run(7, 3)


def test_rows_of_a_matrix_in_comprehensions():
    @qd.kernel
    def run(a: qd.f64) -> qd.f64:
        m = qd.Matrix([[a, 2.0], [3.0, 4.0]])
        first = [row[0] for row in m]
        flat = [x for row in m for x in row]
        return first[0] + 10 * first[1] + 100 * flat[3]

    assert run(1.0) == 431.0


def test_messages_with_percent_signs():
    x = qd.field(qd.i32, shape=16)
    x[10] = 42

    @qd.kernel
    def several():
        for i in x:
            assert x[i] == 0, "x[%d] expected=%d got=%5d: %d%%" % (i, 0, x[i], 7)  # noqa: UP031

    @qd.kernel
    def one(y: qd.f64):
        assert y < 0, "y = %.2f" % y  # noqa: UP031

    @qd.kernel
    def too_many(y: qd.f64):
        assert y < 0, "y = %f" % (y, y)  # noqa: UP031, F507

    with pytest.raises(RuntimeError, match=r"x\[10\] expected=0 got=   42: 7%"):
        several()
    with pytest.raises(qd.QdrunAssertionError, match=r"y = 0\.50"):
        one(0.5)
    with pytest.raises(qd.QdrunSyntaxError, match="more values than"):
        too_many(0.5)


def test_host_vectors_that_are_compared():
    v, w = qd.Vector([1, 2]), qd.Vector([1, 3])
    assert v == [1, 2] and not v == w and v != w and not (v != [1, 2])
    assert list(qd.Matrix([[1, 2], [3, 4]])) == [[1, 2], [3, 4]] and w in [v, w]
    assert all(qd.Matrix([[1, 2], [3, 4]]) == qd.Matrix([[1, 2], [3, 4]]))
    assert (v == w).to_list() == [True, False]
    for ambiguous in (v, v < w):
        with pytest.raises(qd.QdrunTypeError, match="ambiguous"):
            bool(ambiguous)
    assert qd.Vector([1, 2], qd.f32).entries.dtype == np.float32
    with pytest.raises(qd.QdrunTypeError, match="square"):
        qd.Matrix([[1.0, 2.0]]).trace()


def test_arrays_of_row_vectors_and_one_extent_for_all_axes():
    v = qd.Vector.field(3, qd.i32, shape=(2, 2))
    rows = np.arange(12, dtype=np.int32).reshape(2, 2, 1, 3)
    v.from_numpy(rows)
    assert (v.to_numpy() == rows[:, :, 0]).all()
    x = qd.field(qd.f64)
    qd.root.dense(qd.ij, (3,)).place(x)
    assert x.shape == (3, 3)


def test_static_comparisons_of_index_vectors_decide_breaks():
    x = qd.field(qd.i32, shape=(3, 3))

    @qd.kernel
    def run():
        for index in qd.static(qd.grouped(qd.ndrange(3, 3))):
            if qd.static(index[0] >= 2):
                continue
            x[index] = 1

    run()
    assert x.to_numpy().tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def test_classes_that_programs_catch():
    x, loss = (qd.field(qd.f64, shape=(), needs_grad=True) for _ in range(2))
    y = qd.field(qd.f64, shape=2, needs_grad=True)

    @qd.kernel
    def overwrites():
        for i in range(4):
            y[i // 2] = x[None] * i

    for caught in (qd.QuadrantsAssertionError, RuntimeError, qd.DataAccessError, AssertionError):
        with pytest.raises(caught), qd.ad.Tape(loss=loss, validation=True):
            overwrites()
    for make in (qd.ndarray, qd.Vector.ndarray):
        args = (2, qd.i32, 3) if make is not qd.ndarray else (qd.i32, 3)
        with pytest.raises(qd.QuadrantsRuntimeError, match="i32 is not supported for ndarray with needs_grad=True"):
            make(*args, needs_grad=True)


def test_a_kernel_that_adds_constants_hands_no_gradient_on():
    y = qd.field(qd.f64, shape=(), needs_grad=True)
    x = qd.field(qd.f64, shape=3)

    @qd.kernel
    def add():
        for i in x:
            y[None] += 2.0 * x[i]

    @qd.kernel
    def reads_a_gradient():
        for i in x:
            y[None] += i * y.grad[None]

    y.grad[None] = 1.0
    add.grad()
    assert y.grad[None] == 1.0
    with pytest.raises(RuntimeError):
        reads_a_gradient.grad()
