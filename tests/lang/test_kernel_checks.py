"""What kernels report: print, assert, bounds, random numbers, and errors with the user's line and a caret."""

import re
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, offline_cache=False) as program:
        yield program


@pytest.fixture
def debug():
    with qd.init(arch=qd.cpu, offline_cache=False, debug=True) as program:
        yield program


def marked(message):
    """The part of the user's line above the caret."""
    lines = message.splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip() and set(line.strip()) == {"^"})
    begin = lines[at].index("^")
    return lines[at - 1][begin : begin + lines[at].count("^")]


# ---- print


def test_prints_come_in_order_with_values_and_separators(capfd):
    @qd.kernel
    def k(a: qd.i32, b: qd.f64):
        print("start")
        qd.loop_config(serialize=True)
        for i in range(3):
            print("i", i, a * i, sep="-")
        v = qd.Vector([a, 2])
        print(f"a={a} b={b}", v, a > 2, end="!\n")
        print()

    k(3, 0.5)
    qd.sync()
    assert capfd.readouterr().out == "start\ni-0-0\ni-1-3\ni-2-6\na=3 b=0.5 [3, 2] True!\n\n"


def test_prints_of_parallel_loops_are_whole_lines(capfd):
    @qd.kernel
    def k():
        for i in range(200):
            print("line", i, 0.5)

    k()
    qd.sync()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"line {i} 0.5" for i in range(200))


def test_prints_of_every_type(capfd):
    @qd.kernel
    def k():
        print(
            qd.cast(-5, qd.i8), qd.cast(-1, qd.u8), qd.cast(-1, qd.u64), qd.cast(-1, qd.i64), qd.cast(0.5, qd.f16), "{}", 1e300
        )

    k()
    qd.sync()
    assert capfd.readouterr().out.startswith("-5 255 18446744073709551615 -1 0.5 {} ")


# ---- assert and bounds


def test_a_failed_assert_gives_message_values_and_line(debug):
    x = qd.field(qd.i32, shape=10)

    @qd.kernel
    def k(limit: qd.i32):
        for i in range(10):
            x[i] = i
            assert x[i] < limit, f"x[{i}] of {{}} is {x[i]}, limit {limit}"

    k(10)
    with pytest.raises(qd.QdrunAssertionError) as caught:
        k(9)
    message = str(caught.value)
    assert message.startswith("x[9] of {} is 9, limit 9\n") and re.search(rf"{HERE}:\d+ in kernel `k`", message)
    assert isinstance(caught.value, AssertionError) and isinstance(caught.value, RuntimeError) and marked(message)
    k(10)


def test_an_assert_without_message_or_without_debug(debug):
    @qd.kernel
    def k(a: qd.i32):
        assert a > 3

    with pytest.raises(AssertionError, match="assertion failed"):
        k(1)
    with qd.init(offline_cache=False):
        k(1)


@pytest.mark.parametrize("checked", [False, True])
def test_what_an_assert_calls_runs_with_and_without_debug(checked):
    """A function, an atomic, an assignment in the condition; a function in the message."""
    with qd.init(offline_cache=False, debug=checked):
        x = qd.field(qd.i32, shape=4)

        @qd.func
        def count(k):
            x[k] += 1
            return x[k]

        @qd.kernel
        def k() -> qd.i32:
            for i in range(5):
                assert qd.atomic_add(x[0], i) >= 0, "never"
            assert count(1) > 0 and count(2) > 0, f"after {count(3)}"
            assert (found := count(1)) == 2  # noqa: RUF018
            return found

        assert k() == 2 and x.to_numpy().tolist() == [10, 2, 1, 1]


def test_the_first_failure_of_many_is_reported_once(debug):
    @qd.kernel
    def k(n: qd.i32):
        for i in range(1000):
            assert i < n, "too far"

    for _ in range(5):
        with pytest.raises(AssertionError, match="too far"):
            k(10)
        k(1000)


@pytest.mark.parametrize("options", [{"debug": True}, {"check_out_of_bound": True}])
def test_an_index_out_of_bounds_names_field_index_extent_and_line(options):
    with qd.init(arch=qd.cpu, offline_cache=False, **options):
        x = qd.field(qd.f32, shape=(4, 5), name="speeds")

        @qd.kernel
        def read(i: qd.i32, j: qd.i32) -> qd.f32:
            return x[i, j]

        @qd.kernel
        def write(a: qd.types.ndarray(dtype=qd.f32, ndim=1), at: qd.i64):
            a[at] = 1.0

        assert read(3, 4) == 0
        for i, j, text in [
            (3, 5, "axis 1 of `speeds` has index 5 but extent 5"),
            (-1, 0, "axis 0 of `speeds` has index -1 but extent 4"),
            (4, 0, "axis 0 of `speeds` has index 4 but extent 4"),
        ]:
            with pytest.raises(qd.QdrunRuntimeError) as caught:
                read(i, j)
            assert text in str(caught.value) and re.search(rf"{HERE}:\d+ in kernel `read`", str(caught.value))
            assert "x[i, j]" in marked(str(caught.value))
        a = np.zeros(6, np.float32)
        for at in (6, -1, 2**40):
            with pytest.raises(qd.QdrunRuntimeError, match=f"axis 0 of `a` has index {at} but extent 6"):
                write(a, at)
        write(a, 5)
        assert a.tolist() == [0, 0, 0, 0, 0, 1]


def test_an_access_out_of_bounds_in_a_parallel_loop_writes_nothing_outside(debug):
    @qd.kernel
    def k(a: qd.types.ndarray(dtype=qd.i32, ndim=1), shift: qd.i32):
        for i in a:
            a[i + shift] = 7

    whole = np.zeros(40, np.int32)
    with pytest.raises(qd.QdrunRuntimeError, match="out of range"):
        k(whole[10:30], 3)
    assert not whole[:10].any() and not whole[30:].any()


# ---- random numbers


def test_random_numbers_are_a_function_of_the_seed():
    @qd.kernel
    def draw(out: qd.types.ndarray(dtype=qd.f32, ndim=2)):
        for i in range(out.shape[0]):
            out[i, 0] = qd.random()
            out[i, 1] = qd.randn()

    def run(seed, threads):
        with qd.init(random_seed=seed, cpu_max_num_threads=threads, offline_cache=False):
            out = np.zeros((3000, 2), np.float32)
            draw(out)
            first = out.copy()
            draw(out)
            assert (first != out).any(1).all()
            return first, out

    one, same, other = run(1, 1), run(1, 2), run(2, 2)
    np.testing.assert_array_equal(one, same)
    assert (one[0] != other[0]).mean() > 0.9
    uniform, normal = one[0][:, 0], one[0][:, 1]
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.08 and abs(normal.std() - 1) < 0.06
    assert len(np.unique(uniform)) > 2900 and abs(np.corrcoef(uniform, normal)[0, 1]) < 0.06


def test_random_integers_have_all_bits():
    @qd.kernel
    def draw(out: qd.types.ndarray(dtype=qd.i32, ndim=1)):
        for i in out:
            out[i] = qd.random(qd.i32)

    out = np.zeros(2000, np.int32)
    draw(out)
    ones = ((out[:, None].view(np.uint32) >> np.arange(32, dtype=np.uint32)) & 1).mean(0)
    assert (abs(ones - 0.5) < 0.06).all()


# ---- compile errors


def wrong_type(a: qd.i32):
    b = qd.Vector([1, 2]) + qd.Vector([1, 2, 3])  # noqa: F841


def wrong_name(a: qd.i32):
    for _ in range(3):
        c = a + missing  # noqa: F821, F841


def wrong_count(x: qd.types.ndarray(dtype=qd.f32, ndim=2)):
    x[0] = 1.0


def wrong_bound(a: qd.f32):
    for _ in range(0, 3, a):
        pass


def wrong_bits(a: qd.f32):
    b = a & 3  # noqa: F841


def wrong_break(a: qd.i32):
    for i in range(10):
        if i > a:
            break


def wrong_call(a: qd.i32):
    open("a", a)


def wrong_scope(a: qd.i32):
    for _ in range(1):
        if a > 3:
            b = 1
        c = b + 1  # noqa: F841


def wrong_store(a: qd.i32):
    for i in qd.static(range(3)):
        i = a  # noqa: F841


@pytest.mark.parametrize(
    "fn, error, text, at",
    [
        (wrong_type, TypeError, "shapes (2,) and (3,) do not fit", "qd.Vector([1, 2]) + qd.Vector([1, 2, 3])"),
        (wrong_name, NameError, "`missing`", "missing"),
        (wrong_count, IndexError, "`x` takes 2 indices, not 1", "x[0]"),
        (wrong_bound, TypeError, "the step of range() is a literal other than zero", "range(0, 3, a)"),
        (wrong_bits, TypeError, "`&` takes integers, not f32", "a & 3"),
        (wrong_break, SyntaxError, "`break` cannot leave a parallel loop", "break"),
        (wrong_call, TypeError, "open() is a Python function", 'open("a", a)'),
        (wrong_scope, NameError, "`b`", "b"),
        (wrong_store, TypeError, "`i`", "i"),
    ],
)
def test_errors_show_the_line_and_mark_the_place(fn, error, text, at):
    kernel = qd.kernel(fn)
    argument = np.zeros((2, 2), np.float32) if fn is wrong_count else 1
    for _ in range(2):
        with pytest.raises(error) as caught:
            kernel(argument)
        message = str(caught.value)
        line = next(k for k, s in enumerate(Path(__file__).read_text().splitlines(), 1) if s.startswith(f"def {fn.__name__}("))
        found = re.search(rf"at (.*{HERE}):(\d+) in kernel `{fn.__name__}`", message)
        assert isinstance(caught.value, qd.QdrunCompilationError) and text in message and found, message
        assert line < int(found[2]) < line + 6 and marked(message) == at, message


def test_an_error_in_a_function_shows_the_function_and_the_kernel():
    @qd.func
    def inner(a):
        return a.nothing

    @qd.kernel
    def outer(a: qd.i32):
        b = inner(a)  # noqa: F841

    with pytest.raises(qd.QdrunCompilationError) as caught:
        outer(1)
    assert "a.nothing" in str(caught.value) and "outer" in str(caught.value)


def test_a_function_is_not_called_from_python():
    @qd.func
    def f(a):
        return a

    with pytest.raises(qd.QdrunSyntaxError, match="func `f` can only be called in a kernel"):
        f(1)


# ---- components


def component_accesses():
    """Name -> (a kernel that touches the component [row, column] of a 2 x 3 matrix, what the message calls the matrix)."""
    record = qd.types.struct(m=qd.types.matrix(2, 3, qd.f64))
    f, s, a = qd.Matrix.field(2, 3, qd.f64, shape=4), record.field(shape=4), qd.Matrix.ndarray(2, 3, qd.f64, shape=4)
    value = qd.Matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

    @qd.kernel
    def read(i: qd.i32, j: qd.i64) -> qd.f64:
        return f[1][i, j]

    @qd.kernel
    def written(i: qd.i32, j: qd.i64):
        for k in f:
            f[k][i, j] = 1.0

    @qd.kernel
    def updated(i: qd.i32, j: qd.i64):
        for _ in f:
            f[0][i, j] += 1.0

    @qd.kernel
    def member(i: qd.i32, j: qd.i64):
        s[1].m[i, j] = s[2].m[i, j]

    @qd.kernel
    def array(x: qd.types.ndarray(), i: qd.i32, j: qd.i64):
        for k in x:
            x[k][i, j] += x[0][i, j]

    @qd.kernel
    def row(i: qd.i32, j: qd.i64):
        f[1][i, :] = 2.0
        f[1][:, j] = 2.0

    @qd.kernel
    def variable(i: qd.i32, j: qd.i64) -> qd.f64:
        m = value * 2.0
        m[i, j] = 7.0
        return m[i, j]

    @qd.kernel
    def constant(i: qd.i32, j: qd.i64) -> qd.f64:
        return value[i, j]

    plain = {"read": read, "written": written, "updated": updated, "member": member, "row": row}
    named = {"f[..]": {"read", "written", "updated", "row"}, "s.m[..]": {"member"}}
    out = {name: (k, next(f"matrix `{n}`" for n, of in named.items() if name in of)) for name, k in plain.items()}
    return out | {
        "array": (lambda *index: array(a, *index), "matrix `x[..]`"),
        "variable": (variable, "matrix `m`"),
        "constant": (constant, "value of shape (2, 3)"),
    }


def test_debug_checks_each_index_of_a_component(debug):
    """Also where the position in memory would lie inside of the matrix: [0, 3] of a 2 x 3 matrix is not [1, 0]."""
    for name, (touch, matrix) in component_accesses().items():
        touch(1, 2)
        for index, axis in (((2, 0), 0), ((-1, 0), 0), ((0, 3), 1), ((1, -1), 1)):
            with pytest.raises(qd.QdrunAssertionError) as caught:
                touch(*index)
            said = f"axis {axis} of the {matrix} has index {index[axis]} but extent {(2, 3)[axis]}"
            assert said in str(caught.value) and HERE in str(caught.value), name


# ---- what is returned


def endings():
    """Kernels whose annotation and end do not agree, each with the line that is marked and what is said."""
    x = qd.field(qd.i32, shape=4)

    @qd.kernel
    def empty() -> qd.i32:
        pass

    @qd.kernel
    def loop() -> qd.types.vector(2, qd.f32):
        for i in x:
            x[i] = 1

    @qd.kernel
    def bare() -> qd.i32:
        return

    @qd.kernel
    def never() -> qd.i32:
        if qd.static(x.shape[0] > 4):
            return 5

    @qd.func
    def short(v) -> qd.i32:
        x[1] = v

    @qd.kernel
    def used(v: qd.i32) -> qd.i32:
        return short(v)

    @qd.kernel
    def unused():
        short(3)

    @qd.kernel
    def nothing() -> None:
        return 3

    missing = "`{}` ends without returning a value, and its annotation says {}"
    return [
        (empty, "def empty() -> qd.i32:", missing.format("empty", "i32")),
        (loop, "def loop() -> qd.types.vector(2, qd.f32):", missing.format("loop", "vector(2, f32)")),
        (bare, "return", missing.format("bare", "i32")),
        (never, "def never() -> qd.i32:", missing.format("never", "i32")),
        (lambda: used(1), "def short(v) -> qd.i32:", missing.format("short", "i32")),
        (unused, "def short(v) -> qd.i32:", missing.format("short", "i32")),
        (nothing, "return 3", "`nothing` returns a value, and its annotation says None"),
    ]


def test_a_path_that_ends_otherwise_than_the_annotation_says_is_refused():
    for run, line, said in endings():
        with pytest.raises(qd.QdrunCompilationError) as caught:
            run()
        assert str(caught.value).startswith(said) and marked(str(caught.value)) == line


# ---- what is decided while compiling


def test_static_assert_looks_at_the_value_of_a_variable_that_holds_a_literal():
    @qd.kernel
    def false():
        v = 0
        qd.static_assert(v == 1, msg="v is one")

    @qd.kernel
    def true():
        v, w = 2, qd.Vector([1, 2])
        qd.static_assert(cond=v == 2)
        qd.static_assert(w[0] == 1)

    @qd.kernel
    def changed():
        v = 0
        v += 1
        qd.static_assert(v == 1)

    @qd.kernel
    def vector():
        qd.static_assert(qd.Vector([1, 2]) == qd.Vector([1, 3]))

    true()
    for run, said in (
        (false, "static_assert failed: v is one"),
        (changed, "this value is not known at compile time"),
        (vector, r"the truth of a vector or a matrix is ambiguous(.|\n)*\.all\(\)"),
    ):
        with pytest.raises(qd.QdrunTypeError, match=said):
            run()


def test_conditions_of_comprehensions_and_static_choices_look_at_values_too():
    @qd.kernel
    def k() -> qd.i32:
        v, total = 2, 0
        for i in qd.static([i for i in range(5) if i != v]):
            total += i
        for _ in qd.static(range(100)) if v == 3 else qd.static(range(7)):
            total += 100
        table = {v: 10000}
        return total + table[2]

    assert k() == 0 + 1 + 3 + 4 + 700 + 10000


ACCESSES = {
    "f[i, j] = 1.0": ("f[2, 4]", "axis 1 of `f`"),
    "f[i, j] += 1.0": ("f[2, 4]", "axis 1 of `f`"),
    "g[None] += f[i, j]": ("f[2, 4]", "axis 1 of `f`"),
    "qd.atomic_max(f[i, j], 2.0)": ("f[2, 4]", "axis 1 of `f`"),
    "f.grad[i, j] = 1.0": ("[2, 4]", "axis 1 of `f.grad`"),
    "a[0, i, j] = 1.0": ("a[0, 2, 4]", "axis 2 of `a`"),
    "s[j].v[0] = 1.0": ("", "axis 0 of `s.v[0]`"),
    "s[i].v[j - 1] = 1.0": ("", "axis 0 of the vector `s.v[..]`"),
    "w[j - 1] = 1.0": ("", "axis 0 of the vector `w`"),
}


@pytest.mark.parametrize("line", ACCESSES)
def test_each_access_names_array_element_shape_and_iteration(line, tmp_path):
    qd.init(debug=True)
    path = tmp_path / "accesses.py"
    path.write_text(
        "import qdrun as qd\n@qd.kernel\ndef k(a: qd.types.ndarray(dtype=qd.f32, ndim=3), first: qd.i32):\n"
        "    for i in range(3):\n        w = qd.Vector([0.0, 0.0, 0.0])\n        for t in range(first, 3):\n"
        f"            j = i + t\n            {line}\n        g[None] += w[0]\n"
    )
    point = qd.types.struct(v=qd.math.vec3)
    names = {
        "f": qd.field(qd.f32, shape=(3, 4), needs_grad=True),
        "g": qd.field(qd.f32, shape=()),
        "s": point.field(shape=4),
    }
    exec(compile(path.read_text(), str(path), "exec"), names)
    array = qd.ndarray(qd.f32, shape=(1, 3, 4))
    with pytest.raises(qd.QdrunAssertionError) as caught:
        names["k"](array, 2)
    error, (element, what) = caught.value, ACCESSES[line]
    assert (error.kind, error.line, error.iteration) == ("bounds", 8, {"i": 2, "t": 2})
    assert f"{what} has index " in str(error)
    assert f"{element}` of shape (" in str(error) if element else " of shape (" not in str(error)


def test_an_index_that_only_the_gradient_meets_is_found_with_its_iteration():
    qd.init(debug=True)
    x, y = qd.field(qd.f32, shape=5, needs_grad=True), qd.field(qd.f32, shape=3, needs_grad=True)

    @qd.kernel
    def k(n: qd.i32):
        for i in y:
            v = 1.0
            for t in range(n):
                v = qd.sin(v) * x[i + t]
            y[i] = v

    y.grad.fill(1.0)
    with pytest.raises(qd.QdrunAssertionError, match=r"axis 0 of `x` has index 5 but extent 5") as caught:
        k.grad(20)
    assert caught.value.iteration == {"i": 0, "t": 5}


def test_of_iterations_that_fail_at_once_the_first_is_reported():
    qd.init(debug=True, cpu_max_num_threads=8)
    n = 100_000
    x = qd.field(qd.f32, shape=n)
    bad = np.sort(np.random.default_rng().choice(n, 40, replace=False))
    x.fill(1.0)
    for i in bad:
        x[int(i)] = -1.0

    @qd.kernel
    def k():
        for i in x:
            assert x[i] > 0.0, f"iteration {i}"

    for _ in range(5):
        with pytest.raises(qd.QdrunAssertionError, match=f"^iteration {bad[0]}\n") as caught:
            k()
        assert caught.value.iteration == {"i": bad[0]}
