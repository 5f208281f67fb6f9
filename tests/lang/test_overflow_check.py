"""``overflow_check``: every operation of every integer type beside Python's integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.ir.printer import print_kernel


def power(a, b):
    """``a ** b`` where it can be written down, else a number that fits nowhere."""
    if a in (-1, 0, 1) and b:
        return (a if b % 2 else a * a) if a or b > 0 else 0
    return 0 if b < 0 else a ** min(b, 200)


OPERATIONS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "-a": lambda a, b: -a,
    "qd.abs(a)": lambda a, b: abs(a),
    "a // b": lambda a, b: a // b if b else 0,
    "a << b": lambda a, b: a << b if 0 <= b < 200 else None,
    "a >> b": lambda a, b: a >> b if b >= 0 else None,
    "a ** b": power,
    "a * a * a - b": lambda a, b: a * a * a - b,
}
FAST = ("i8", "u32", "i64")


def limits(name):
    bits = int(name[1:])
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name[0] == "i" else (0, 2**bits - 1)


def kernel_of(name, tmp_path):
    """One kernel that does operation number ``op`` with two numbers."""
    lines = ["import qdrun as qd", "", "", "@qd.kernel", f"def k(op: qd.i32, a: qd.{name}, b: qd.{name}) -> qd.{name}:"]
    lines += [f"    r = qd.{name}(0)"]
    for number, text in enumerate(OPERATIONS):
        lines += [f"    if op == {number}:", f"        r = {text}"]
    path = tmp_path / f"overflow_{name}.py"
    path.write_text("\n".join([*lines, "    return r", ""]))
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["k"]


def numbers(name, rng):
    low, high = limits(name)
    edges = {
        low,
        low + 1,
        high,
        high - 1,
        0,
        1,
        2,
        3,
        5,
        math.isqrt(high),
        math.isqrt(high) + 1,
        int(name[1:]) - 1,
        int(name[1:]),
    }
    edges |= {-1, -2, -3, -math.isqrt(high)} if low else set()
    drawn = {int(x) for x in rng.integers(low, high, 4, dtype=name.replace("i", "int").replace("u", "uint"), endpoint=True)}
    return sorted(x for x in edges | drawn if low <= x <= high)


def inexact(text, a, b, name):
    """Whether the steps of a formula leave the type, or shift by a count that the machine takes modulo the width."""
    low, high = limits(name)
    if text in ("a << b", "a >> b"):
        return not 0 <= b < int(name[1:]) or not low <= OPERATIONS[text](a, b) <= high
    steps = [a * a, a * a * a] if text == "a * a * a - b" else []
    return any(not low <= x <= high for x in (*steps, OPERATIONS[text](a, b)))


NAMES = [f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in "iu"]


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_what_does_not_fit_is_reported_and_nothing_else_is(name, tmp_path):
    qd.init(overflow_check=True)
    k = kernel_of(name, tmp_path)
    values = numbers(name, np.random.default_rng())
    for (op, text), a, b in itertools.product(enumerate(OPERATIONS), values, values):
        bad = inexact(text, a, b, name)
        try:
            found = k(op, a, b)
        except qd.QdrunAssertionError as e:
            assert (bad, e.kind, e.line) == (True, "overflow", 8 + 2 * op), (text, a, b, str(e))
            assert a in e.operands or op == len(OPERATIONS) - 1
        else:
            assert not bad and found == OPERATIONS[text](a, b), (text, a, b, found)


BACKENDS = {
    "cpu": {"arch": qd.cpu},
    "python": {"arch": qd.python},
    "emulated": {"arch": qd.cuda, "device": "emulated", "debug": True},
}
EACH = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


@EACH
def test_conversions_updates_and_iterations_are_named(backend):
    qd.init(overflow_check=True, **backend)
    count, small = qd.field(qd.u8, shape=()), qd.field(qd.i16, shape=8)

    @qd.kernel
    def narrow(x: qd.i64):
        for i in small:
            small[i] = x * i

    @qd.kernel
    def reals(x: qd.f64) -> qd.u32:
        return qd.cast(x, qd.u32)

    @qd.kernel
    def add(n: qd.i32):
        for _ in range(n):
            count[None] += 1

    @qd.kernel
    def take():
        count[None] -= 1

    def error(launch, *args):
        with pytest.raises(qd.QdrunAssertionError) as e:
            launch(*args)
            qd.sync()
        return e.value

    narrow(4681)
    e = error(narrow, 4682)
    assert e.iteration == {"i": 7} and e.operands == (32774,) and "32774 does not fit i16" in str(e)
    assert reals(4294967295.5) == 4294967295 and reals(-0.9) == 0
    for x in (4294967296.0, -1.0, math.nan, math.inf):
        assert "does not fit u32" in str(error(reals, x))
    add(255)
    e = error(add, 1)
    assert e.operands == (255, 1) and "255 + 1 does not fit u8, of `count`" in str(e)
    count[None] = 1
    take()
    assert "0 - 1 does not fit u8" in str(error(take))


def test_what_is_meant_to_wrap_inside_of_the_compiler_is_left_alone():
    qd.init(overflow_check=True)
    x = qd.field(qd.u32, shape=100)

    @qd.kernel
    def draw():
        for i in x:
            x[i] = qd.random(qd.u32) // 2 + qd.cast(qd.random() * 8.0, qd.u32)

    draw()
    assert len(set(x.to_numpy())) > 90


@pytest.mark.parametrize("debug", [False, True])
def test_integers_wrap_and_only_debug_tests_them(debug):
    qd.init(debug=debug)

    @qd.kernel
    def k(a: qd.i32) -> qd.i32:
        return a * a

    assert k(65537) == 131073
    variant, _ = k.variant((65537,), {})
    assert ("print once" in print_kernel(variant.compiled_kernel.ir)) == debug


@EACH
def test_debug_reports_each_operation_once_and_wraps(backend, capsys):
    qd.init(**backend | {"debug": True})
    x, count = qd.field(qd.i32, 8), qd.field(qd.i32, ())

    @qd.kernel
    def k():
        for i in x:
            x[i] = x[i] + 2147483640
            count[None] += 2000000000
            print("i", i)

    x.from_numpy(np.arange(8, dtype=np.int32))
    k()
    k()
    qd.sync()
    out = capsys.readouterr().out
    assert out.count("integer overflow:") == 2 and out.count("i ") >= 16
    assert "integer overflow: 8 + 2147483640 does not fit i32" not in out  # 7 + 2147483640 is the largest i32
    assert f"test_overflow_check.py:{k.fn.__code__.co_firstlineno + 3} in kernel `k`\n    x[i] = x[i] + 2147483640\n" in out
    assert "does not fit i32, of `count`" in out
    assert out.count("do: compute in a wider type, such as qd.i64, where it shall not wrap; this is printed once") == 2
    assert (x.to_numpy() == np.arange(8) + 2 * 2147483640 - 2**32).all()


@pytest.mark.parametrize("name", ["i32", "u8"])
def test_debug_reports_what_overflow_check_refuses(name, tmp_path, capsys):
    k, values = kernel_of(name, tmp_path), numbers(name, np.random.default_rng())
    for op, text in enumerate(OPERATIONS):
        qd.init(debug=True)
        for a, b in itertools.product(values[::2], values[::2]):
            k(op, a, b)
        bad = any(inexact(text, a, b, name) for a, b in itertools.product(values[::2], values[::2]))
        assert ("integer overflow" in capsys.readouterr().out) == bad, text


def test_gradients_in_debug_mode_equal_those_without():
    """Integers of a loop whose adstack is planned, that wrap, and that decide which branch a real takes."""

    def gradient(**options):
        qd.init(default_fp=qd.f64, **options)
        x, loss = qd.field(qd.f64, 16, needs_grad=True), qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def k():
            for i in x:
                y, h = x[i], qd.u32(i) * qd.u32(2654435761)
                for j in range(i % 5 + 3):
                    h = (h ^ (h >> 13)) * qd.u32(1540483477) + qd.u32(j)
                    if h % 3 == 0:
                        y = qd.sin(y) * (1 + h % 7)
                    else:
                        y = y * y - 0.3
                loss[None] += y

        x.from_numpy(np.random.default_rng(3).normal(size=16) * 0.7)
        loss.grad[None] = 1.0
        k()
        k.grad()
        return x.grad.to_numpy()

    assert np.array_equal(gradient(), gradient(debug=True))
