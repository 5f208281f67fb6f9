"""Stores through computed indices: a gradient is right, or the store is refused by name where two iterations may meet."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.passes.dependence import store_maps

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start

# Each takes i from 0 to 7 to other elements; s is 3.
APART = """i ^ 5, (i + 3) % 8, (i + s) % 8, (i * s) % 8, 7 - i, ~i + 8, -i % 8, i * s, s + i, i // 2 * 2 + i % 2, i // 4 + i % 4 * 2,
    i % 2 * 4 + i // 2, i >> 1 | (i & 1) << 2, (i & 1) << 2 | i & 2 | i >> 2, i if i < 4 else 11 - i, qd.select(i > 3, i, 3 - i),
    qd.i32(qd.i8(i)), qd.i32(qd.u8(i * 37)) % 32, z[None] + i, qd.i64(i) + 1, qd.max(i, 7 - i) + (8 if i > 3 else 0), i * i,
    qd.u64(i) * qd.u64(5),
    i * 1431655766 * 3, abs(i - 3) * 2 + (i > 3)"""
# Each takes two of them to one element.
MEET = """i // 2, i % 4, i >> 1, i & 3, (i * 2) % 8, abs(i - 3), i * (s - 3), qd.min(i, 5), qd.max(i, 2), qd.math.clamp(i, 1, 6), s,
    qd.select(i > 3, i, i + 1), qd.cast(i > 3, qd.i32), qd.i32(qd.i8(i * 64)) & 7, qd.i32(qd.u8(i * 128)) & 7, (i << 31) & 7,
    i * 1073741824 * 4, qd.u64(i) // qd.u64(2),
    i * i % 8, qd.popcnt(i), i - i, i // 4 + i % 4, p[i // 2], z[None] + i // 2, i % s, (i + s) // s"""


def forms(text):
    """The expressions of a list, which are separated by commas outside of brackets."""
    out, depth = [""], 0
    for c in text.replace("\n", " "):
        depth += (c in "([") - (c in ")]")
        out = [*out, ""] if c == "," and not depth else [*out[:-1], out[-1] + c]
    return [" ".join(e.split()) for e in out]


def program(body, size=64, **options):
    """The kernel ``k(s)`` of some lines over x (8), y (``size``), integers p (8) and z (0-D)."""
    body = dedent(body).strip().splitlines() if isinstance(body, str) else body
    start(cpu_max_num_threads=1, **options)
    f = {"x": field(8, rng=np.random.default_rng(5), name="x"), "y": field(size, name="y")}
    names = {**f, "p": ints([3, 1, 2, 0, 7, 5, 6, 4], "p"), "z": ints(1, "z")}
    source = "@qd.kernel\ndef k(s: qd.i32):\n" + "\n".join("    " + line for line in body)
    return compile_source(source, **names)["k"], f, names


def loop(index):
    return ["for i in x:", f"    y[{index}] = x[i] * x[i]"]


@pytest.mark.parametrize("index", forms(APART))
def test_a_store_that_no_two_iterations_make_to_one_element_has_a_right_gradient(index):
    k, f, _ = program(loop(index))
    Point(k, (3,), [f["x"]], [f["y"]]).check()


@pytest.mark.parametrize("index", forms(MEET))
def test_a_store_that_two_iterations_make_to_one_element_is_refused_by_name_and_line(index):
    k, f, _ = program(loop(index))
    with pytest.raises(qd.DataAccessError) as e:
        k.grad(3)
    message = str(e.value)
    assert (
        "several iterations write to one element of `y`, and which of them comes last is not determined: iterations i = "
        in message
    )
    assert f":4 in kernel `k`\n    y[{index}] = x[i] * x[i]" in message
    assert message.endswith(
        "do: give each iteration its own element, add up with `+=` (qd.atomic_add), or run the loop in order:"
        " qd.loop_config(serialize=True)"
    )
    k(3)  # forward runs are unaffected
    assert not f["x"].grad.to_numpy().any()


@pytest.mark.parametrize("index", ["i // 2", "i % s", "qd.min(i, 5)"])
def test_the_loop_in_order_has_the_gradient_of_the_last_iteration(index):
    k, f, _ = program(["qd.loop_config(serialize=True)", *loop(index)])
    Point(k, (3,), [f["x"]], [f["y"]]).check()


@pytest.mark.parametrize("index", ["i // 2", "i % s", "qd.min(i, 5)"])
def test_sums_through_an_index_that_repeats_have_a_gradient(index):
    k, f, _ = program(["for i in x:", f"    y[{index}] += x[i] * x[i]"])
    Point(k, (3,), [f["x"]], [f["y"]]).check()


@pytest.mark.parametrize("index", ["i // 2", "i * (s - 3)", "qd.min(i, 5)"])
def test_forward_mode_runs_such_a_loop_in_order(index):
    start()
    x = qd.field(qd.f64, shape=8, needs_dual=True)
    y = qd.field(qd.f64, shape=8, needs_dual=True)
    source = f"@qd.kernel\ndef k(s: qd.i32):\n    for i in x:\n        y[{index}] = x[i] * x[i]"
    k = compile_source(source, x=x, y=y)["k"]
    X = np.arange(1.0, 9.0)
    x.from_numpy(X)
    with qd.ad.FwdMode(loss=y, param=x, seed=np.ones(8)):
        k(3)
    kept = np.isin(X**2, y.to_numpy())
    assert sorted(y.dual.to_numpy()[y.dual.to_numpy() != 0]) == sorted(2 * X[kept])


REFUSED = {
    "an index that a real number gives": (
        """
        for i in x:
            y[int(i * 0.5)] = x[i]
        """,
        2,
        "(it is computed with real numbers)",
    ),
    "a random index": (
        """
        for i in x:
            y[qd.random(qd.i32) & 7] = x[i]
        """,
        2,
        "its index is not proven to differ between iterations",
    ),
    "an index that a while loop finds": (
        """
        for i in x:
            j = i
            while x[j] > 0.5:
                j = j // 2 * 3 + 1
            y[j & 7] = x[i]
        """,
        5,
        "its index is not proven to differ between iterations",
    ),
    "an index that a while loop counts": (
        """
        for i in x:
            j = 0
            while j < 3:
                y[i * 3 + j] = x[i]
                j += 1
        """,
        4,
        "its index is not proven to differ between iterations (a `while` loop counts it)",
    ),
    "a variable that a condition changes": (
        """
        for i in x:
            j = i
            if x[i] > 0.5:
                j = i + 1
            y[j] = x[i]
        """,
        5,
        "which of them comes last is not determined: iterations i = 0 and i = 1",
    ),
    "two statements that meet across iterations": (
        """
        for i in x:
            y[i // 2] = x[i]
            y[4 + i] = x[i]
        """,
        2,
        "iterations i = 0 and i = 1 both write element [0]",
    ),
    "two conditions that pick two iterations": (
        """
        for i in x:
            if i == 2:
                y[0] = x[i]
            if i == 5:
                y[0] = x[i] * x[i]
        """,
        3,
        "iterations i = 2 and i = 5 both write element [0]",
    ),
    "a store and a sum": (
        """
        for i in x:
            y[i ^ 1] = x[i]
            y[i] += x[i] * x[i]
        """,
        2,
        "several iterations write to one element of `y` (line 5 (`y[i] += x[i] * x[i]`))",
    ),
    "an inner loop": (
        """
        for i in x:
            for j in range(3):
                y[i * 2 + j] = x[i]
        """,
        3,
        "iterations i = 0 and i = 1 both write element [2]",
    ),
    "an inner loop as long as an element says": (
        """
        for i in x:
            for j in range(p[i]):
                y[i + j] = x[i]
        """,
        3,
        "(how many iterations there are is read from memory)",
    ),
    "two axes": (
        """
        for i, j in qd.ndrange(4, 8):
            y[i + j * 2] = x[j] * i
        """,
        2,
        "iterations i = 0, j = 1 and i = 2, j = 0",
    ),
    "a step": (
        """
        for i in range(0, 8, 2):
            y[i // 4] = x[i]
        """,
        2,
        "several iterations write to one element of `y`",
    ),
    "a step that makes the index wrap": (
        """
        for i in range(0, 8, 2):
            y[i * 2147483647 + i] = x[i]
        """,
        2,
        "both write element [0]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused(name):
    body, line, words = REFUSED[name]
    k, _, _ = program(body)
    with pytest.raises(qd.DataAccessError) as e:
        k.grad(3)
    message = str(e.value)
    assert words in message
    assert f":{line + 2} in kernel `k`" in message
    assert "qd.loop_config(serialize=True)" in message


RIGHT = {
    "a row and a column": """
        for i, j in qd.ndrange(4, 2):
            y[j * 4 + i] = x[i * 2 + j] * x[i]
        """,
    "a quotient and a remainder of two axes": """
        for i in range(8):
            y[i // 4 * 8 + i % 4] = x[i] * x[i]
        """,
    "an inner loop of its own": """
        for i in x:
            for j in range(3):
                y[i * 3 + j] = x[i] * x[j]
        """,
    "an inner loop backwards": """
        for i in x:
            for j in range(2, -1, -1):
                y[i + j * 8] = x[i] * x[j]
        """,
    "a variable that is counted": """
        for i in x:
            k = i * 3
            for j in range(3):
                y[k] = x[i] * x[j]
                k += 1
        """,
    "a variable that a condition changes": """
        for i in x:
            j = i
            if x[i] > 0.5:
                j = i + 8
            y[j] = x[i] * x[i]
        """,
    "one of several under a condition": """
        for i in x:
            if i % 2 == 0:
                y[i // 2] = x[i] * x[i]
        """,
    "two statements of one iteration": """
        for i in x:
            y[i ^ 1] = x[i]
            y[i ^ 1] = x[i] * x[i]
        """,
    "a store apart from sums that meet": """
        for i in x:
            if i == 2:
                y[9] = x[i] * x[i]
            y[i // 2] += x[i] * x[i]
        """,
    "two statements apart": """
        for i in x:
            y[i ^ 1] = x[i]
            y[8 + (i + s) % 8] = x[i] * x[i]
        """,
    "one value for each pair": """
        for i in x:
            y[i // 2] = x[i // 2] * x[i // 2]
        """,
    "one value for all that repeat": """
        for i in x:
            y[i % 4] = x[i % 4 + s] * 2.0
        """,
    "a range that an argument gives": """
        for i in range(s):
            y[(i * 5 + s) % 7] = x[i] * x[i]
        """,
    "a range with a step": """
        for i in range(7, -1, -2):
            y[i // 2] = x[i] * x[i]
        """,
    "an index from memory": """
        for i in x:
            y[p[i]] = x[i] * x[i]
        """,
    "a loop from memory to memory": """
        for i in range(7):
            for j in range(i * z[None], (i + 1) * z[None]):
                y[j] = x[i] * x[j]
        """,
    "a condition that is an exit": """
        for i in x:
            if i % 2 == 1:
                continue
            y[i // 2] = x[i] * x[i]
        """,
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("debug", [False, True])
def test_what_is_proven_has_a_right_gradient(name, debug):
    k, f, _ = program(RIGHT[name], debug=debug)
    Point(k, (3,), [f["x"]], [f["y"]]).check()


def test_a_launch_whose_arguments_make_iterations_meet_is_refused_and_the_others_are_right():
    k, f, _ = program(["for i in range(s):", "    y[(i * 3) % 8] = x[i % 8] * (i + 1)"])
    for n in (8, 5, 0, 8):
        f["y"].fill(0.0)
        Point(k, (n,), [f["x"]], [f["y"]]).check()
    for _ in range(2):
        with pytest.raises(qd.DataAccessError, match=r"iterations i = 0 and i = 8 both write element \[0\]"):
            k.grad(9)
    Point(k, (4,), [f["x"]], [f["y"]]).check()


def test_the_shape_of_an_array_decides():
    start()

    @qd.kernel
    def spread(x: qd.types.ndarray(qd.f64, 1), y: qd.types.ndarray(qd.f64, 1)):
        for i in range(x.shape[0]):
            y[(i * 2) % y.shape[0]] = x[i] * x[i]

    x = qd.ndarray(qd.f64, 4, needs_grad=True)
    x.from_numpy(np.arange(1.0, 5.0))
    for n, right in ((5, True), (4, False), (7, True), (6, False)):
        y = qd.ndarray(qd.f64, n, needs_grad=True)
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        if right:
            spread.grad(x, y)
            np.testing.assert_array_equal(x.grad.to_numpy(), 2 * x.to_numpy())
        else:
            with pytest.raises(qd.DataAccessError, match="both write element"):
                spread.grad(x, y)


@pytest.mark.parametrize("how", ["debug", "validation"])
@pytest.mark.parametrize("index", ["p[i]", "p[i] // 2", "p[i] + i", "p[p[i]]", "int(w[i])", "z[None] * i"])
def test_an_index_from_memory_is_checked_where_launches_are_watched(how, index):
    k, f, names = program(["for i in x:", f"    y[{index}] = x[i] * x[i]"], debug=how == "debug")
    w, loss = qd.field(qd.f64, shape=8), field(name="loss")
    k.fn.__globals__.update(w=w)
    total = compile_source("@qd.kernel\ndef total():\n    for j in y:\n        loss[None] += y[j]", y=f["y"], loss=loss)[
        "total"
    ]

    def run():
        f["y"].fill(0.0)
        with qd.ad.Tape(loss=loss, validation=how == "validation"):
            k(3)
            total()
        return f["x"].grad.to_numpy()

    names["p"].from_numpy(
        np.array([1, 3, 5, 7, 0, 2, 4, 6], np.int32) if "//" not in index else np.arange(0, 16, 2, dtype=np.int32)
    )
    if index == "p[i] + i":
        names["p"].from_numpy(np.arange(8, dtype=np.int32))
    w.from_numpy(np.arange(8.0)[::-1])
    np.testing.assert_allclose(run(), 2 * f["x"].to_numpy())
    names["p"].from_numpy(np.array([1, 3, 5, 3, 0, 2, 2, 6], np.int32))
    names["z"].fill(0)
    w.from_numpy([0.0, 1.0, 2.0, 2.5, 4.0, 5.0, 6.0, 7.0])
    with pytest.raises(qd.DataAccessError, match=r"several iterations write to one element of `y`.*both write element \["):
        run()


def test_components_members_and_offsets_have_elements_of_their_own():
    start()
    S = qd.types.struct(a=qd.f64, b=qd.types.vector(2, qd.f64))
    s = S.field(shape=8, needs_grad=True, offset=-4)
    x = field(8, rng=np.random.default_rng(0))

    @qd.kernel
    def k():
        for i in x:
            s[i - 4].a = x[i] * x[i]
            s[3 - i].b[0] = 2.0 * x[i]
            s[(i + 2) % 8 - 4].b[1] = x[i] * 3.0

    k()
    s.a.grad.fill(1.0)
    s.b.grad.fill(1.0)
    k.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * x.to_numpy() + 5.0)

    @qd.kernel
    def bad():
        for i in x:
            s[i // 2 - 4].b[1] = x[i]

    with pytest.raises(qd.DataAccessError, match=r"iterations i = 0 and i = 1 both write element"):
        bad.grad()


def test_each_trial_of_a_batch_is_checked_by_its_own_arguments():
    start(batch=3)
    x, y = field(4, name="x"), field(8, name="y")

    @qd.kernel
    def k(s: qd.i32):
        for i in x:
            y[i * s] = x[i] * x[i]

    x.fill(0.5)
    k(2)
    y.grad.fill(1.0)
    k.grad(2)
    np.testing.assert_allclose(x.grad.to_numpy(), 1.0)
    with pytest.raises(qd.DataAccessError, match=r"iterations i = 0 and i = 1 both write element \[0\]"):
        k.grad(0)
    strides = np.array([1, 2, 1])
    x.grad.fill(0.0)
    k(strides)
    y.grad.fill(1.0)
    k.grad(strides)
    np.testing.assert_allclose(x.grad.to_numpy(), 1.0)
    with pytest.raises(qd.DataAccessError, match=r"iterations i = 0 and i = 1 both write element \[0\]"):
        k.grad(np.array([1, 2, 0]))


@pytest.mark.parametrize("how", ["debug", "validation"])
def test_each_trial_of_a_batch_is_checked_by_its_own_memory(how):
    start(batch=3, debug=how == "debug")
    x, y, p, loss = field(4, name="x"), field(8, name="y"), qd.field(qd.i32, shape=4), field(name="loss")

    @qd.kernel
    def k():
        for i in x:
            y[p[i]] = x[i] * x[i]

    @qd.kernel
    def total():
        for j in y:
            loss[None] += y[j]

    def run(places):
        x.fill(0.5)
        p.from_numpy(np.array(places, np.int32))
        with qd.ad.Tape(loss=loss, validation=how == "validation"):
            k()
            total()

    run([[0, 1, 2, 3], [3, 2, 1, 0], [7, 5, 3, 1]])
    np.testing.assert_allclose(x.grad.to_numpy(), 1.0)
    with pytest.raises(qd.DataAccessError, match=r"iterations i = 1 and i = 3 both write element \[5\]"):
        run([[0, 1, 2, 3], [3, 2, 1, 0], [7, 5, 3, 5]])


def test_a_large_loop_is_proven_by_its_form_and_any_other_is_refused(monkeypatch):
    monkeypatch.setattr(store_maps, "MOST_POINTS", 1000)
    start()
    n = 48
    y = qd.field(qd.f64, shape=n * n, needs_grad=True)
    x = field(4, rng=np.random.default_rng(0))

    @qd.kernel
    def good():
        for i, j in qd.ndrange(n, n):
            y[i * n + j] = x[j % 4]

    @qd.kernel
    def bad():
        for i, j in qd.ndrange(n, n):
            y[(i * n + j) ^ 1] = x[j % 4]

    good()
    y.grad.fill(1.0)
    good.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), n * n / 4)
    with pytest.raises(
        qd.DataAccessError, match=r"several iterations may write .*there are too many iterations to look at each"
    ):
        bad.grad()


def test_a_hessian_and_a_fixed_point_obey_the_same_rule():
    start()
    x, y, loss = qd.field(qd.f64, shape=4), qd.field(qd.f64, shape=4), qd.field(qd.f64, shape=())
    qd.root.lazy_hessian()

    def make(index):
        source = f"@qd.kernel\ndef k():\n    for i in x:\n        y[{index}] = x[i] ** 3\n"
        source += "    for j in y:\n        loss[None] += y[j] * y[j]"
        return compile_source(source, x=x, y=y, loss=loss)["k"]

    x.from_numpy([1.0, 2.0, 3.0, 4.0])
    found = qd.ad.hvp(make("3 - i"), loss, x, [1.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(found.product, 30 * x.to_numpy() ** 4)
    y.fill(0.0)
    found = qd.ad.hvp(make("i // 2"), loss, x, [1.0, 1.0, 1.0, 1.0])  # in order: the last one counts
    np.testing.assert_allclose(found.product, [0.0, 30 * 16.0, 0.0, 30 * 256.0])


def test_a_flat_index_over_the_lengths_of_the_loop_is_proven_by_its_form():
    start()

    @qd.kernel
    def flat(x: qd.types.ndarray(qd.f64, 2), y: qd.types.ndarray(qd.f64, 1), n: qd.i32):
        for i, j, k in qd.ndrange(n, x.shape[0], x.shape[1]):
            y[(i * x.shape[0] + j) * x.shape[1] + k + n] = x[j, k] * x[j, k] * (i + 1)

    @qd.kernel
    def swapped(x: qd.types.ndarray(qd.f64, 2), y: qd.types.ndarray(qd.f64, 1)):
        for i, j in x:
            y[i * x.shape[0] + j] = x[i, j] * x[i, j]

    x, y = qd.ndarray(qd.f64, (2, 3), needs_grad=True), qd.ndarray(qd.f64, 32, needs_grad=True)
    x.from_numpy(np.arange(6.0).reshape(2, 3))
    y.grad.fill(1.0)
    flat.grad(x, y, 4)
    np.testing.assert_allclose(x.grad.to_numpy(), 20 * x.to_numpy())
    assert [v.gradient.stores.asks for v in flat.variants().values()] == [False]
    with pytest.raises(qd.DataAccessError, match=r"i = 0, j = 2 and i = 1, j = 0 both write element \[2\]"):
        swapped.grad(x, y)


def test_an_argument_that_decides_is_looked_at_once():
    k, _, _ = program(["for i in x:", "    y[(i + s) % 8] = x[i] * x[i]"])
    k.grad(3)
    (variant,) = k.variants().values()
    known = variant.gradient.stores._known
    before = len(known)
    k.grad(3)
    assert len(known) == before == 1
