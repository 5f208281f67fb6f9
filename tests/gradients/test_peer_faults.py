"""Programs that another system of this kind gets wrong without a word, or refuses: each is right here, or refused with the line.

The first part follows its known faults in order, the second the list of programs that it rejects.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start


def make(lines, **options):
    """The kernel ``k(n, a)`` of some lines over x, w, y (4), s (0-D), grid (4 x 4), and integers c, d (4), m (0-D)."""
    start(**{"cpu_max_num_threads": 1, **options})
    r = np.random.default_rng(11)
    f = {name: field(4, rng=r, name=name) for name in ("x", "w", "y")}
    f |= {"s": field(values=0.4, name="s"), "grid": field(4, 4, rng=r, name="grid")}
    plain = qd.field(qd.f64, shape=4, name="plain")
    plain.fill(0.7)
    names = {**f, "plain": plain, "c": ints([2, 0, 1, 3], "c"), "d": ints([1, 2, 0, 2], "d"), "m": ints(5, "m")}
    source = "@qd.kernel\ndef k(n: qd.i32, a: qd.f64):\n" + "\n".join("    " + line for line in lines)
    return compile_source(source, **names)["k"], f, names


def check(lines, **options):
    k, f, _ = make(lines, **options)
    Point(k, (5, 2.5), list(f.values()), list(f.values())).check()


def refused(lines, words, **options):
    k, _, _ = make(lines, **options)
    k(5, 2.5)
    with pytest.raises(qd.DifferentiationError) as e:
        k.grad(5, 2.5)
    assert words in str(e.value)
    assert " in kernel `k`" in str(e.value)
    assert "\n  do: " in str(e.value)


# ---- 1: bounds with a difference
FALLING = {
    "of two loop indices": ["for p in x:", "    v = x[p]", "    for i in range(8):", "        for j in range(8 - i):",
        "            v = qd.sin(v) + 0.1", "    y[p] = v"],
    "of the parallel index": ["for p in x:", "    v = x[p]", "    for i in range(20 - 4 * p):", "        v = qd.sin(v) + 0.1",
        "    y[p] = v"],
    "of two arrays": ["for p in x:", "    v = x[p]", "    for i in range(m[None] - c[p]):", "        v = qd.sin(v) + 0.1", "    y[p] = v"],
    "of an argument and an array": ["for p in x:", "    v = x[p]", "    for i in range(n - d[p], n):", "        v = qd.sin(v) + 0.1",
        "    y[p] = v"],
}  # fmt: skip


@pytest.mark.parametrize("levels", (1, 2, 3))
@pytest.mark.parametrize("name", FALLING)
def test_a_bound_that_is_a_difference_has_room_for_all_its_iterations(name, levels):
    check(FALLING[name], ad_checkpoint_levels=levels)


def test_many_iterations_with_falling_bounds():
    start()
    n = 4096
    x, y = field(n, rng=np.random.default_rng(1)), field(n)

    @qd.kernel
    def k():
        for p in x:
            v = x[p]
            for i in range(3):
                for _ in range(64 - 20 * i - p % 5):
                    v = qd.sin(v) * 0.99 + 0.01
            y[p] = v

    k()
    y.grad.fill(1.0)
    k.grad()
    v, g = x.to_numpy().copy(), np.ones(n)
    for i in range(3):
        for j in range(64):
            runs = j < 64 - 20 * i - np.arange(n) % 5
            g = np.where(runs, g * np.cos(v) * 0.99, g)
            v = np.where(runs, np.sin(v) * 0.99 + 0.01, v)
    np.testing.assert_allclose(x.grad.to_numpy(), g, rtol=1e-9)


# ---- 2 and 3: overflow
@pytest.mark.parametrize("debug", (False, True))
def test_an_overflow_is_always_found_and_named(debug):
    k, f, _ = make(["for i in x:", "    v = x[i]", "    j = 0", "    while j < 50:", "        v = qd.sin(v)", "        j += 1",
        "    y[i] = v"], ad_stack_size=8, debug=debug)  # fmt: skip
    k(5, 2.5)
    f["y"].grad.fill(1.0)
    with pytest.raises(qd.AdStackOverflow) as e:
        k.grad(5, 2.5)
        qd.sync()  # a device reports it when the host waits
    message = str(e.value)
    assert ":6 in kernel `k`" in message
    assert "which is 8" in message
    assert "mutated" not in message


# ---- 4: wrong without a word
def test_extrema_and_products_are_no_sums():
    check(["for i in x:", "    qd.atomic_max(s[None], x[i])"])
    check(["for i in x:", "    qd.atomic_min(s[None], x[i])"])
    check(["for i in x:", "    y[i] *= x[i]"])
    check(["for i in x:", "    s[None] *= x[i]"])


def test_a_kernel_that_returns_a_value_has_gradients_of_what_it_writes():
    start()
    x, y = field(4, rng=np.random.default_rng(2)), field(4)

    @qd.kernel
    def k(n: qd.i32) -> qd.f64:
        total = 0.0
        for i in x:
            y[i] = x[i] * x[i] * n
            total += x[i]
        return total

    assert k(3) == pytest.approx(x.to_numpy().sum())
    y.grad.fill(1.0)
    k.grad(3)
    np.testing.assert_allclose(x.grad.to_numpy(), 6 * x.to_numpy())


def test_a_kernel_that_only_returns_a_value_has_no_gradient():
    start()
    x, loss = field(4, rng=np.random.default_rng(2)), field(name="loss")

    @qd.kernel
    def energy() -> qd.f64:
        total = 0.0
        for i in x:
            total += x[i] * x[i]
        return total

    @qd.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    energy()
    with pytest.raises(
        qd.QdrunRuntimeError, match=r"returns its result and writes nothing that has a gradient.*\n  do: store the result in"
    ):
        energy.grad()
    with qd.ad.Tape(loss=loss):  # looking at a number on the way is no fault
        energy()
        measure()
    assert x.grad.to_numpy().tolist() == [1.0] * 4


def test_a_value_that_is_read_and_then_overwritten_is_refused_with_both_lines():
    words = "the gradient needs the value of `x` read here, but line 4 (`x[0] = 7.0`) overwrites it"
    refused(["s[None] += x[0] * x[0]", "x[0] = 7.0"], words)
    refused(
        ["for i in x:", "    y[i] = 2.0 * x[i]", "for i in x:", "    y[i] = y[i] * y[i]"], "needs the value of `y` read here"
    )
    check(["for i in x:", "    y[i] = 2.0 * x[i]", "    y[i] = y[i] * y[i]"])


def test_effects_on_what_has_no_gradient_are_not_repeated():
    k, f, names = make(["for i in x:", "    y[i] = x[i] * x[i]", "    c[i] += 1", "    plain[i] += x[i]"])
    k(5, 2.5)
    before = names["c"].to_numpy(), names["plain"].to_numpy()
    k.grad(5, 2.5)
    assert np.array_equal(before[0], names["c"].to_numpy())
    assert np.array_equal(before[1], names["plain"].to_numpy())
    assert f["y"].to_numpy().any()


TRIPS = ["for i in x:", "    v = x[i]", "    for j in range(c[i]):", "        v = v * w[j]", "    y[i] = v"]


def test_a_bound_that_changes_before_the_gradient_is_refused_in_one_kernel():
    refused([*TRIPS, "    c[i] = 1"], "the gradient needs the value of `c` read here")


def test_a_bound_that_changes_before_the_gradient_is_put_back_by_a_tape():
    k, f, names = make([*TRIPS, "for i in x:", "    s[None] += y[i]"])
    c, found = names["c"], []
    for change in (False, True):
        with qd.ad.Tape(loss=f["s"]):
            k(5, 2.5)
            if change:
                c[0] = 1
        found.append(f["x"].grad.to_numpy())
    assert np.array_equal(*found) and c[0] == 1


def test_a_bound_that_changes_before_a_bare_gradient_is_refused_in_debug_mode():
    k, f, names = make(TRIPS, debug=True)
    k(5, 2.5)
    names["c"][0] = 1
    f["y"].grad.fill(1.0)
    with pytest.raises(qd.DataAccessError, match="`c`"):
        k.grad(5, 2.5)


def test_atomics_of_one_iteration_that_another_reads_are_refused():
    words = "cross-iteration read-after-write: one iteration may read the element of"
    refused(["for i in range(1, 4):", "    y[i] += y[i - 1]"], words)
    refused(["for i in x:", "    s[None] += x[i]", "    y[i] = s[None]"], words)
    refused(["for i in range(1, 4):", "    y[i] = 0.5 * y[i - 1]"], words)


# ---- 6
def test_a_gradient_of_nothing_says_so():
    k, _, _ = make(["for i in range(4):", "    plain[i] = 2.0 * a"])
    with pytest.raises(qd.QdrunRuntimeError, match="kernel `k` touches nothing that has a gradient"):
        k.grad(5, 2.5)
    k, _, _ = make(["for i in range(4):", "    plain[i] = 2.0 * x[i]"])
    with pytest.raises(qd.QdrunRuntimeError, match="kernel `k` writes nothing that has a gradient"):
        k.grad(5, 2.5)


def test_a_tape_does_not_run_gradients_after_an_exception():
    k, f, _ = make(["for i in x:", "    s[None] += x[i]"])
    with pytest.raises(ZeroDivisionError):
        with qd.ad.Tape(loss=f["s"]):
            k(5, 2.5)
            1 / 0
    assert not f["x"].grad.to_numpy().any()


def test_a_tape_with_an_array_as_loss_clears_the_gradients_of_arrays():
    start()
    x, loss = qd.ndarray(qd.f64, 4, needs_grad=True), qd.ndarray(qd.f64, 1, needs_grad=True)
    x.fill(3.0)
    x.grad.fill(100.0)

    @qd.kernel
    def k(p: qd.types.ndarray(dtype=qd.f64, ndim=1), q: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(4):
            q[0] += p[i] * p[i]

    with qd.ad.Tape(loss=loss):
        k(x, loss)
    assert x.grad.to_numpy().tolist() == [6.0] * 4


# ---- programs that it rejects
BODY = "        v = qd.sin(v) * w[j % 4] + 0.1"


def loop(bound):
    return ["for i in x:", "    v = x[i]", f"    for j in range({bound}):", BODY, "    y[i] = v"]


ACCEPTED = {
    "a scalar argument as bound": loop("n"),
    "half an argument": loop("n // 2"),
    "a remainder": loop("n % 3 + 1"),
    "a root": loop("qd.cast(qd.sqrt(1.0 * n + i), qd.i32)"),
    "a real argument, rounded": loop("qd.cast(a * a, qd.i32)"),
    "a bound of two arrays": loop("c[i] * d[i] + d[3 - i]"),
    "the smaller of two": loop("qd.min(n, c[i])"),
    "a shifted bound": loop("n >> 1"),
    "a step": loop("0, n + 4, 3"),
    "a falling step": loop("n, 0, -2"),
    "a bound that is counted in the kernel": [
        "for i in x:", "    t = 0", "    for q in range(4):", "        if x[q] > 0.5:", "            t += 1", "    v = x[i]",
        "    for j in range(t):", BODY, "    y[i] = v",
    ],
    "a bound that changes in the loop": [
        "for i in x:", "    v = x[i]", "    t = n", "    for j in range(t):", "        t += 1", BODY, "    y[i] = v",
    ],
    "while": ["for i in x:", "    v = x[i]", "    j = 0", "    while v > 0.2 and j < 9:", "        v = v * w[j % 4] * 0.9",
        "        j += 1", "    y[i] = v"],
    "break": ["for i in x:", "    v = x[i]", "    for j in range(9):", BODY, "        if v > 0.9:", "            break", "    y[i] = v"],
    "continue": ["for i in x:", "    v = x[i]", "    for j in range(9):", "        if (i + j) % 3 == 0:",
        "            continue", BODY, "    y[i] = v"],
    "a loop over a field inside a loop": ["for i in x:", "    v = x[i]", "    for j in x:", "        v = qd.sin(v) * x[j]", "    y[i] = v"],
    "loops and statements at the top": [
        "s[None] += x[0] * 2.0", "t = x[1] * x[1]", "for i in x:", "    y[i] = t * x[i]", "u = t * 3.0", "for i in x:",
            "    grid[i, 0] = u * x[i]",
        "s[None] += u",
    ],
    "round": ["for i in x:", "    y[i] = x[i] * x[i] + qd.round(w[i])"],
    "floor and ceil": ["for i in x:", "    y[i] = x[i] * qd.floor(w[i] * 3.0) + qd.ceil(x[i])"],
    "isnan and isinf": ["for i in x:", "    if not qd.isnan(x[i]) and not qd.isinf(w[i]):", "        y[i] = x[i] * x[i]"],
    "bits": ["for i in x:", "    if qd.bit_cast(x[i], qd.i64) > 0:", "        y[i] = x[i] * w[i]"],
    "a remainder of reals": ["for i in x:", "    y[i] = (x[i] * 5.0) % 1.7 + x[i] % w[i]"],
    "a vector that is rebuilt from itself": [
        "for i in x:", "    p = qd.Vector([x[i], w[i]])", "    for j in range(n):",
            "        p = qd.Vector([qd.sin(p[1]), p[0] * w[j % 4]])",
        "    y[i] = p[0] + 2.0 * p[1]",
    ],
    "a matrix that is multiplied in a loop": [
        "for i in x:", "    p = qd.Matrix([[x[i], 0.1], [w[i], 0.5]])", "    for j in range(3):", "        p = p @ p",
            "    y[i] = p[0, 1] + p[1, 1]",
    ],
    "an untaken branch with a NaN": ["for i in x:", "    y[i] = qd.select(x[i] > 5.0, qd.log(-x[i]) * w[i], x[i] * x[i])"],
    "an untaken branch with an infinite slope": ["for i in x:", "    z = x[i] - x[i]",
        "    y[i] = qd.select(z > 0.0, qd.sqrt(z), 2.0 * x[i])"],
    "a norm": ["for i in x:", "    y[i] = qd.Vector([x[i], w[i]]).norm()"],
    "variables of narrow types": [
        "for i in x:", "    t = qd.cast(0, qd.i8)", "    v = x[i]", "    for j in range(n):", "        t += qd.cast(1, qd.i8)",
            "        v = v * qd.sin(v + t)", "    y[i] = v",
    ],
    "variables of 64 bits": [
        "for i in x:", "    t = qd.cast(3, qd.i64)", "    v = x[i]", "    for j in range(n):", "        t = t * 3 % 1000",
            "        v = qd.sin(v * (t % 4))", "    y[i] = v",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_others_reject_is_right(name):
    check(ACCEPTED[name])


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_others_reject_is_right_on_the_interpreter(name):
    check(ACCEPTED[name], arch=qd.python)


def test_variables_of_half_precision():
    start()
    x, y = field(4, values=[0.25, 0.5, 1.0, 1.5]), field(4)

    @qd.kernel
    def k():
        for i in x:
            v = qd.cast(x[i], qd.f16)
            for _ in range(5):
                v = v * qd.cast(0.5, qd.f16) + v * v * qd.cast(0.125, qd.f16)
            y[i] = v

    k()
    y.grad.fill(1.0)
    k.grad()
    v, g = x.to_numpy(), np.ones(4)
    for _ in range(5):
        v, g = v * 0.5 + v * v * 0.125, g * (0.5 + 0.25 * v)
    np.testing.assert_allclose(x.grad.to_numpy(), g, rtol=1e-2)


def test_a_random_number_is_drawn_again():
    k, f, _ = make(["for i in x:", "    y[i] = x[i] * qd.random(qd.f64)"])
    k(5, 2.5)
    f["y"].grad.fill(1.0)
    k.grad(5, 2.5)
    np.testing.assert_allclose(f["x"].grad.to_numpy(), f["y"].to_numpy() / f["x"].to_numpy())
