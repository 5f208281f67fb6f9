"""Where a gradient could be silently wrong: it is right, or refused with the kernel, the line and what to do."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.nodes import GlobalStore, Op
from qdrun.compiler.ir.walk import atomic_of, walk

sys.path.insert(0, str(Path(__file__).parent))
from gradient_checks import Point, compile_source, field, ints, start

OVERWRITES = "write to another field (for time steps: give the field a leading time axis), or split the kernel in two"
IN_A_TAPE = f"{OVERWRITES}; a qd.ad.Tape keeps such values itself"
STEPS = "put qd.loop_config(serialize=True) before it, or launch the kernel once for each `i`, which is its argument then"
CROSS = "write to another field, split the loop into two kernels, or run it in order: qd.loop_config(serialize=True)"

# name: (lines of the kernel, the line that is named, words of the message, what to do)
REFUSED = {
    "the value of an atomic": (
        ["for i in x:", "    t = qd.atomic_add(s[None], x[i])", "    y[i] = t"],
        2,
        "the value returned by an atomic on `s` is used, and `s` has a gradient",
        "in a kernel of its own",
    ),
    "a counter's value as an index": (
        ["for i in x:", "    k = qd.atomic_add(c[0], 1)", "    y[i] = x[k] * x[k]"],
        2,
        "cannot repeat the update",
        "store the returned value in a field in one kernel and read it in the next",
    ),
    "read, then overwritten": (
        ["s[None] += x[0] * x[0]", "x[0] = 7.0"],
        1,
        "the gradient needs the value of `x` read here, but line 4 (`x[0] = 7.0`) overwrites it",
        OVERWRITES,
    ),
    "overwritten by a later task": (
        ["for i in x:", "    y[i] = x[i] * x[i]", "for i in x:", "    x[i] = 0.0"],
        2,
        "the gradient needs the value of `x` read here",
        OVERWRITES,
    ),
    "what a loop has left and the next one overwrites": (
        ["for i in x:", "    x[i] = qd.sin(x[i])", "for i in x:", "    x[i] = x[i] * x[i]"],
        4,
        "the gradient needs the value of `x` read here, but line 6 (`x[i] = x[i] * x[i]`) overwrites it",
        IN_A_TAPE,
    ),
    "a neighbour that another iteration writes": (
        ["for i in range(1, 4):", "    y[i] += y[i - 1]"],
        2,
        "cross-iteration read-after-write: one iteration may read the element of `y` that another writes",
        STEPS,
    ),
    "a total that is read while it is summed": (
        ["for i in x:", "    s[None] += x[i]", "    y[i] = s[None]"],
        3,
        "cross-iteration read-after-write: one iteration may read the element of `s` that another writes (line 4",
        CROSS,
    ),
    "a temporary that is read while it is summed": (
        ["t = 0.0", "for i in x:", "    t += x[i]", "    y[i] = t"],
        4,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "rows shared by the iterations of a second axis": (
        ["for i, j in qd.ndrange(4, 4):", "    y[i] += grid[i, j]", "    grid[i, j] = y[i]"],
        3,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "an inner index instead of the loop's own": (
        ["for p in range(4):", "    for i in range(4):", "        y[i] += x[p]", "        grid[p, 0] += y[i]"],
        4,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "two scalar arguments that may be equal": (
        ["for i in x:", "    y[n] += x[i]", "    grid[i, 0] = y[n + 0 * i]"],
        3,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "an index from a field": (
        ["for i in x:", "    y[c[i]] += x[i]", "    grid[i, 0] = y[c[i]]"],
        3,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "a flat index that repeats": (
        ["for i, j in qd.ndrange(2, 3):", "    y[i * 2 + j] = 0.5 * y[j + 2 * i]"],
        2,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "one element that all iterations store to": (
        ["for i in x:", "    s[None] = x[i]"],
        2,
        "several iterations write to one element of `s`, and which of them comes last is not determined",
        "give each iteration its own element",
    ),
    "one element that is reset and summed": (
        ["for i in x:", "    if i == 0:", "        s[None] = 0.0", "    s[None] += x[i]"],
        3,
        "several iterations write to one element of `s` (line 6 (`s[None] += x[i]`))",
        "loop_config(serialize=True)",
    ),
    "an element of its own and the next one": (
        ["for i in range(3):", "    y[i] = x[i]", "    y[i + 1] = w[i]"],
        2,
        "several iterations write to one element of `y` (line 5 (`y[i + 1] = w[i]`))",
        "give each iteration its own element",
    ),
    "an element of its own and one from memory": (
        ["for i in x:", "    y[i] = x[i]", "    y[c[i]] = w[i]"],
        2,
        "several iterations write to one element of `y` (line 5 (`y[c[i]] = w[i]`))",
        "give each iteration its own element",
    ),
    "the same elements by every iteration": (
        ["for i in x:", "    for j in range(3):", "        y[j] = x[i]"],
        3,
        "several iterations write to one element of `y`",
        "give each iteration its own element",
    ),
    "one element under a condition that several meet": (
        ["for i in x:", "    if i % 2 == 0:", "        s[None] = x[i]"],
        3,
        "several iterations write to one element of `s`",
        "give each iteration its own element",
    ),
    "one row for all columns": (
        ["for i, j in grid:", "    y[i] = grid[i, j]"],
        2,
        "several iterations write to one element of `y`",
        "give each iteration its own element",
    ),
    "a gradient that is read while it is summed": (
        ["for i in x:", "    y[i] = x[i] * x.grad[i]"],
        2,
        "the gradient needs the value of `x.grad` read here, and changes it itself",
        "copy it to another field",
    ),
    "a ring of three rows, of a number that may wrap around": (
        ["for i in range(4):", "    grid[(n + 1) % 3, i] = grid[n % 3, (i + 1) % 4] + x[i]"],
        2,
        "cross-iteration read-after-write",
        "take the remainder first, as `m = t % 3`",
    ),
    "rows of a ring that meet": (
        ["m = n % 3", "for i in range(4):", "    grid[(m + 1) % 3, i] = grid[(m + 4) % 3, (i + 1) % 4] + x[i]"],
        3,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "a sum and a product of one element in any order": (
        ["for i in x:", "    s[None] *= 2.0", "    s[None] += x[i]"],
        2,
        "cross-iteration read-after-write",
        CROSS,
    ),
    "a bound array written by the same kernel": (
        ["for i in x:", "    v = x[i]", "    for j in range(c[i]):", "        v = qd.sin(v)", "    y[i] = v", "    c[i] = 1"],
        3,
        "the gradient needs the value of `c` read here",
        OVERWRITES,
    ),
    "the extent of a loop written by the same kernel": (
        ["for i in range(c[0]):", "    y[i] = x[i] * x[i]", "c[0] = 1"],
        1,
        "the gradient needs the value of `c` read here",
        OVERWRITES,
    ),
    "the bits of a number": (
        ["for i in x:", "    y[i] = qd.bit_cast(qd.bit_cast(x[i], qd.i64) + 1, qd.f64)"],
        2,
        "the bits of a value that has a gradient become a number again",
        "compute the number with arithmetic",
    ),
}

LOST = {
    "an old value from an array without a gradient": (
        ["for i in x:", "    y[i] = qd.atomic_add(plain[0], x[i])"],
        2,
        "the gradient is lost in `plain`, which has none: `k` line 4",
        "write stop_grad(plain)",
    ),
    "a way through a field without a gradient": (
        ["for i in x:", "    plain[i] = x[i] * x[i]", "for i in x:", "    y[i] = plain[3 - i]"],
        4,
        "the gradient is lost in `plain`, which has none: `k` line 4 (`plain[i] = x[i] * x[i]`) stores a differentiable value to it",
        "make `plain` with needs_grad=True",
    ),
    "a way through a field without a gradient, in a loop": (
        ["for i in x:", "    for j in range(n):", "        y[i] += plain[i]", "        plain[i] += x[i] * 0.5"],
        3,
        "the gradient is lost in `plain`",
        "make `plain` with needs_grad=True",
    ),
}

RIGHT = {
    "one value that all iterations store": ["for i in x:", "    s[None] = x[0] * 2.0", "    w[i] = 0.5 * w[i]"],
    "one value for each row": ["for i, j in grid:", "    y[i] = w[i] * w[i] + 0.0 * n"],
    "one value for each pair": ["for i in x:", "    y[i // 2] = x[i // 2] * w[i // 2] + 0.0 * n"],
    "a constant that all iterations store": ["for i in x:", "    s[None] = 0.5", "    y[i] = x[i] * x[i]"],
    "a store by one iteration": ["for i in x:", "    if i == n:", "        s[None] = x[i] * x[i]"],
    "rows of a flat array": [
        "for i in range(2):", "    for j in range(2):", "        y[i * 2 + j] = x[i] * w[j]", "    for j in range(2):",
        "        y[i * 2 + j] += 0.5 * x[j] * x[i]",
    ],
    "remainders in rows of a flat array": ["for i in range(2):", "    y[i * 2 + (i + n) % 2] = x[i] * w[i]",
        "    y[i * 2 + (i + n + 1) % 2] += x[i]"],
    "an element behind the loop's": ["for i in range(3):", "    y[i] = x[i] * w[i]", "    if i == 0:", "        y[3] = x[i] * x[i]"],
    "halves of an argument's length": ["for i in range(n):", "    y[i] = x[i] * w[i]", "    y[i + n] = x[i]"],
    "one half from the other": ["for i in range(n):", "    y[i + n] = 0.5 * y[i] + x[i] * x[i]"],
    "two halves": ["for i in range(2):", "    y[i] = x[i] * w[i]", "    y[i + 2] = x[i + 2]"],
    "a product with a literal": ["for i in x:", "    y[i] *= 2.0"],
    "a product with a value that has no gradient": ["for i in x:", "    y[i] *= plain[i] * n"],
    "products of one element": ["for i in x:", "    s[None] *= 1.5"],
    "a difference and a sum in place": ["for i in x:", "    y[i] -= x[i] * w[i]", "    y[i] += x[i]"],
    "overwritten after a linear read": ["s[None] += 3.0 * x[0]", "x[0] = 7.0"],
    "own element, linear, several times": [
        "for i in x:", "    y[i] = x[i] * 2.0", "    y[i] += w[i]", "    y[i] = 0.5 * y[i]", "    s[None] += y[i]",
    ],
    "a square of what was just stored": ["for i in x:", "    y[i] = 2.0 * x[i]", "    y[i] = y[i] * y[i]"],
    "a swap of two fields": ["for i in x:", "    t = x[i]", "    x[i] = y[i]", "    y[i] = t"],
    "a kernel that returns a value": ["for i in x:", "    y[i] = x[i] * x[i]", "return n"],
    "time steps": ["for i in range(4):", "    grid[n, i] = qd.sin(grid[n - 1, i]) + 0.1 * grid[n - 1, (i + 1) % 4]"],
    "a ring of three rows": ["m = n % 3", "for i in range(4):",
        "    grid[(m + 1) % 3, i] = grid[m, (i + 1) % 4] * 0.9 + qd.sin(grid[(m - 1) % 3, (i + 2) % 4]) + x[i]"],
    "two rows by the last bit": ["for i in range(4):", "    grid[n & 1, i] = qd.sin(grid[(n + 1) & 1, (i + 1) % 4]) * x[i]"],
    "rows of a rollout": ["for i in x:", "    for t in range(3):", "        grid[i, t + 1] += 0.5 * grid[i, t] + x[i] * w[t]"],
    "a flat index that does not repeat": ["for i, j in qd.ndrange(2, 2):", "    y[i * 2 + j] = 0.5 * y[j + 2 * i] + x[i]"],
    "odd elements from even ones": ["for i in range(2):", "    y[2 * i] = 0.5 * y[2 * i + 1] + x[i]"],
    "a random number that is only added": ["for i in x:", "    y[i] = x[i] * w[i] + 0.0 * qd.random(qd.f64)"],
    "bits that only decide": ["for i in x:", "    if qd.bit_cast(x[i], qd.i64) > 0:", "        y[i] = x[i] * x[i]"],
    "a field without a gradient that is read by the next launch": ["for i in x:", "    y[i] += 0.0 * plain[i] + x[i]",
        "    plain[i] = x[i]"],
    "an index written by the task before": ["for i in x:", "    c[i] = (i + 1) % 4", "for i in x:", "    y[i] = x[c[i]] * x[c[i]]"],
    "a bound written by the task before": ["for i in x:", "    c[i] = i", "for i in x:", "    v = x[i]",
        "    for j in range(c[i]):", "        v = qd.sin(v)", "    y[i] = v"],
    "a permutation": ["for i in x:", "    y[(i * 3 + n) % 4] = x[i] * x[i]"],
}  # fmt: skip


def make(lines):
    """The kernel ``k(n)`` of some lines, over x, w, y, plain (4), s (0-D), grid (4 x 4) and integers c (4)."""
    start(cpu_max_num_threads=1)
    r = np.random.default_rng(3)
    f = {name: field(4, rng=r, name=name) for name in ("x", "w", "y")}
    f |= {"s": field(values=0.4, name="s"), "grid": field(4, 4, rng=r, name="grid")}
    plain = qd.field(qd.f64, shape=4, name="plain")
    plain.fill(0.7)
    names = {**f, "plain": plain, "c": ints([2, 0, 1, 3], "c")}
    returns = " -> qd.i32" if lines[-1].startswith("return") else ""
    source = f"@qd.kernel\ndef k(n: qd.i32){returns}:\n" + "\n".join("    " + line for line in lines)
    return compile_source(source, **names)["k"], f


@pytest.mark.parametrize("name", LOST)
def test_a_gradient_that_is_lost_in_an_array_without_one_is_a_warning_by_name_and_line(name):
    lines, number, words, remedy = LOST[name]
    k, f = make(lines)
    for written in "ys":
        f[written].grad.fill(1.0)
    with pytest.warns(qd.GradientWarning) as seen:
        k.grad(2)
        k.grad(2)
    assert len(seen) == 1
    message = str(seen[0].message)
    for part in (words, f":{number + 2} in kernel `k`", lines[number - 1].strip(), "\n  do: ", remedy):
        assert part in message
    assert not f["x"].grad.to_numpy().any()


@pytest.mark.parametrize("name", LOST)
def test_a_gradient_that_is_lost_is_an_error_under_validation(name):
    lines, _, words, _ = LOST[name]
    k, f = make([*lines, "s[None] += y[0]"])
    with pytest.raises(qd.DifferentiationError) as e, qd.ad.Tape(loss=f["s"], validation=True):
        k(2)
    assert words in str(e.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_right_gradient_is_refused_by_name_and_line(name):
    lines, number, words, remedy = REFUSED[name]
    k, _ = make(lines)
    with pytest.raises(qd.DifferentiationError) as e:
        k.grad(2)
    message = str(e.value)
    assert words in message
    assert f":{number + 2} in kernel `k`" in message
    assert lines[number - 1].strip() in message
    assert "\n  do: " in message
    assert remedy in message


@pytest.mark.parametrize("name", REFUSED)
def test_a_kernel_without_a_gradient_still_runs_forward(name):
    k, _ = make(REFUSED[name][0])
    k(2)


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_alike_and_has_a_gradient_is_right(name):
    k, f = make(RIGHT[name])
    Point(k, (2,), list(f.values()), list(f.values())).check()


@pytest.mark.parametrize("name", ["one value that all iterations store", "one value for each row", "one value for each pair"])
def test_of_iterations_that_store_one_value_one_takes_the_adjoint(name):
    """Whichever comes first: threads that all read it before one of them has cleared it would count it several times."""
    k, _ = make(RIGHT[name])
    k.grad(2)
    (variant,) = k.variants().values()
    gradient, _ = variant.compiled_kernel.reverse(variant.program.device)
    found = [s for t in gradient.kernel.tasks for s in walk(t.body)]
    exchanged = {atomic_of(s)[0].name for s in found if isinstance(s, Op) and s.op == "atomic" and atomic_of(s)[1] == "xchg"}
    assert len(exchanged) == 1
    assert not exchanged & {s.place.name for s in found if isinstance(s, GlobalStore)}


def test_writes_to_what_has_no_gradient_are_not_repeated():
    k, f = make(["for i in x:", "    y[i] = x[i] * x[i]", "    plain[i] += x[i]", "    c[i] += 1"])
    k(2)
    plain, c = (k.fn.__globals__[name] for name in ("plain", "c"))
    before = plain.to_numpy(), c.to_numpy()
    f["y"].grad.fill(1.0)
    k.grad(2)
    k.grad(2)
    assert np.array_equal(plain.to_numpy(), before[0])
    assert np.array_equal(c.to_numpy(), before[1])
    np.testing.assert_allclose(f["x"].grad.to_numpy(), 2 * f["x"].to_numpy())


def test_the_adjoint_of_an_overwritten_element_is_consumed():
    k, f = make(["for i in x:", "    y[i] = x[i] * x[i]"])
    k(2)
    f["y"].grad.fill(1.0)
    k.grad(2)
    assert not f["y"].grad.to_numpy().any()


def test_a_kernel_that_touches_nothing_with_a_gradient_has_no_grad():
    k, _ = make(["for i in range(4):", "    plain[i] = 2.0 * n"])
    with pytest.raises(qd.QdrunRuntimeError, match=r"kernel `k` touches nothing that has a gradient\n  do: make a field"):
        k.grad(2)


def test_a_field_of_integers_cannot_have_a_gradient():
    start()
    with pytest.raises(qd.QdrunError, match=r"(?i)grad|real|float"):
        qd.field(qd.i32, shape=4, needs_grad=True)
        qd.current_program().materialize()


# ---- adstack overflow
def overflowing():
    program = start(ad_stack_size=8)
    x, y = field(4, values=[0.5, 0.6, 0.7, 0.8]), field(4)

    @qd.kernel
    def settle(n: qd.i32):
        for i in x:
            v = x[i]
            j = 0
            while j < n:
                v = qd.sin(v)
                j += 1
            y[i] = v

    return program, settle, x, y


def test_an_overflow_names_kernel_line_and_capacity():
    _, settle, _, y = overflowing()
    y.grad.fill(1.0)
    with pytest.raises(qd.AdStackOverflow) as e:
        settle.grad(20)
        qd.sync()  # a device reports it when the host waits
    first = inspect.getsourcelines(overflowing)[1]
    message = str(e.value)
    assert "settle" in message
    assert f"{Path(__file__).name}:{first + 9} in kernel `settle`" in message
    assert "while j < n:" in message
    assert "which is 8 (ad_stack_size: " in message
    assert "ask for a larger adstack" in message


def test_the_program_is_usable_after_an_overflow():
    _, settle, x, y = overflowing()
    settle(20)
    with pytest.raises(qd.AdStackOverflow):
        settle.grad(20)
        qd.sync()
    Point(settle, (6,), (x,), (y,)).check()


# ---- the tape
def steps():
    start()
    x, y, loss = field(6, 4, name="x"), field(4, name="y"), field(name="loss")
    x.from_numpy(np.random.default_rng(0).uniform(0.2, 1.0, (6, 4)))

    @qd.kernel
    def advance(t: qd.i32):
        for i in range(4):
            x[t + 1, i] = qd.sin(x[t, i]) + 0.2 * x[t, (i + 1) % 4]

    @qd.kernel
    def measure():
        for i in range(4):
            loss[None] += x[5, i] * x[5, i]

    return x, y, loss, advance, measure


def test_time_steps_on_a_tape_are_right():
    x, _, loss, advance, measure = steps()

    def run():
        for t in range(5):
            advance(t)
        measure()

    with qd.ad.Tape(loss=loss):
        run()
    got = x.grad.to_numpy()[0]
    first = x.to_numpy()
    for i in range(4):
        ends = []
        for h in (1e-6, -1e-6):
            moved = first.copy()
            moved[0, i] += h
            x.from_numpy(moved)
            loss[None] = 0
            run()
            ends.append(loss[None])
        assert got[i] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_the_loss_of_a_tape_needs_a_gradient():
    steps()
    plain = qd.field(qd.f64, shape=())
    with pytest.raises(qd.QdrunRuntimeError, match="Gradients of loss are not allocated; do: create it with needs_grad=True"):
        with qd.ad.Tape(loss=plain):
            pass


def test_a_tape_is_entered_once():
    _, _, loss, _, _ = steps()
    tape = qd.ad.Tape(loss=loss)
    with tape:
        pass
    with pytest.raises(qd.QdrunRuntimeError, match="Tape can be entered only once; do: make a new one"):
        with tape:
            pass


def test_a_tape_in_a_tape_is_refused_and_the_outer_one_goes_on():
    x, _, loss, advance, measure = steps()
    with qd.ad.Tape(loss=loss):
        with pytest.raises(qd.QdrunRuntimeError, match="a tape is open already"):
            with qd.ad.Tape(loss=loss):
                pass
        for t in range(5):
            advance(t)
        measure()
    assert x.grad.to_numpy()[0].all()


def test_a_tape_whose_body_raises_replays_nothing_and_is_closed():
    x, _, loss, advance, measure = steps()
    with pytest.raises(ZeroDivisionError):
        with qd.ad.Tape(loss=loss):
            advance(4)
            measure()
            1 / 0
    assert not x.grad.to_numpy().any()
    with qd.ad.Tape(loss=loss):
        measure()
    assert x.grad.to_numpy()[5].all()


def test_a_refusal_on_a_tape_names_the_kernel():
    x, y, loss, _, _ = steps()

    @qd.kernel
    def bad():
        for i in range(4):
            y[i] = 2.0 * x[0, i]
            for _ in range(2):
                y[3 - i] = y[3 - i] * y[3 - i]
                loss[None] += y[i] * y[i]

    with pytest.raises(qd.DataAccessError, match="in kernel `bad`"):
        with qd.ad.Tape(loss=loss):
            bad()


def test_a_launch_that_overwrites_what_an_earlier_gradient_needs_is_right():
    x, y, loss, _, _ = steps()
    start = x.to_numpy()[0]

    @qd.kernel
    def square():
        for i in range(4):
            y[i] = x[0, i] * x[0, i]

    @qd.kernel
    def overwrite():
        for i in range(4):
            x[0, i] = 2.0

    @qd.kernel
    def total():
        for i in range(4):
            loss[None] += y[i] * x[0, i]

    with qd.ad.Tape(loss=loss):
        square()
        overwrite()
        total()
    np.testing.assert_allclose(x.grad.to_numpy()[0], 2 * 2 * start)


def test_one_array_as_two_arguments_is_refused_where_a_value_is_overwritten():
    start()
    a = qd.ndarray(qd.f64, 4, needs_grad=True)
    a.fill(3.0)

    @qd.kernel
    def k(p: qd.types.ndarray(dtype=qd.f64, ndim=1), q: qd.types.ndarray(dtype=qd.f64, ndim=1)):
        for i in range(4):
            q[i] = p[i] * p[i]

    k(a, a)
    with pytest.raises(qd.QdrunError):
        k.grad(a, a)


def test_a_tape_passes_over_launches_that_touch_nothing_with_a_gradient():
    x, _, loss, _, measure = steps()
    hits = ints([0, 0])

    @qd.kernel
    def tally():
        for i in range(2):
            hits[i] += 1

    with qd.ad.Tape(loss=loss):
        tally()
        measure()
    assert hits.to_numpy().tolist() == [1, 1]
    np.testing.assert_allclose(x.grad.to_numpy()[5], 2 * x.to_numpy()[5])


def test_a_gradient_with_an_index_out_of_bounds_is_stopped_before_it_reads_or_writes():
    start(debug=True)
    x = qd.field(qd.f64, shape=4, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def gather(n: qd.i32):
        for i in range(2):
            v = 1.0
            for j in range(n):
                v = qd.sin(v) * x[i + j]
            loss[None] += v

    gather(3)
    gather.grad(3)
    before = x.grad.to_numpy()
    with pytest.raises(qd.QdrunAssertionError, match=r"axis 0 of `x` has index 4 but extent 4"):
        gather.grad(5)
    assert np.isfinite(x.grad.to_numpy()).all()
    x.grad.from_numpy(before)
    gather.grad(2)


def test_a_component_seen_as_a_field_is_the_same_memory():
    start()
    v, y = qd.Vector.field(2, qd.f64, shape=4, needs_grad=True, name="v"), field(4, name="y")
    first = v.get_scalar_field(0)

    @qd.kernel
    def overwrites():
        for i in y:
            y[i] = v[i][0] * v[i][0]
            first[i] = 0.0

    @qd.kernel
    def apart():
        for i in y:
            y[i] = v[i][1] * v[i][1]
            first[i] = 0.0

    @qd.kernel
    def shifts():
        for i in range(3):
            first[i + 1] = 2.0 * v[i][0]

    with pytest.raises(qd.DataAccessError, match="the gradient needs the value of"):
        overwrites.grad()
    with pytest.raises(qd.DataAccessError, match="cross-iteration read-after-write"):
        shifts.grad()
    v.fill(3.0)
    y.grad.fill(1.0)
    apart.grad()
    assert v.grad.to_numpy()[:, 1].tolist() == [6.0] * 4
