"""Python dataclasses as arguments of kernels: members of every kind, nested, passed on to functions."""

import dataclasses
import enum
import typing

import numpy as np
import pytest

import qdrun as qd

vec2 = qd.types.vector(2, qd.f64)
Pair = qd.types.struct(a=qd.f64, v=vec2)
Array = qd.types.NDArray[qd.f64, 1]


@dataclasses.dataclass
class Inner:
    x: qd.types.NDArray[qd.f64, 1]
    scale: qd.f64

    @qd.func
    def scaled(self, i):
        return self.x[i] * self.scale


@dataclasses.dataclass
class Outer:
    inner: Inner
    y: "qd.types.NDArray[qd.f64, 1]"
    f: qd.template()
    t: qd.Tensor
    v: vec2
    p: Pair
    n: int
    flag: typing.Final[bool] = True

    LIMIT = 3


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu, default_fp=qd.f64) as p:
        yield p


def array(values, **how):
    out = qd.ndarray(qd.f64, shape=len(values), **how)
    out.from_numpy(np.asarray(values, float))
    return out


def outer(n=4, **changes):
    f = qd.field(qd.f64, shape=n)
    f.from_numpy(np.arange(n) * 10.0)
    members = dict(
        inner=Inner(array(np.arange(n)), 2.0), y=np.zeros(n), f=f, t=array([1.0] * n), v=(1, 2), p=Pair(5, (6, 7)), n=n
    )
    return Outer(**{**members, **changes})


def test_members_of_every_kind_reach_the_kernel():
    @qd.kernel
    def k(s: Outer, by: qd.f64):
        for i in range(s.n):
            s.y[i] = s.inner.scaled(i) + s.f[i] * by + s.t[i] + s.v.y + s.p.v[1] * s.p.a
            if qd.static(s.flag):
                s.y[i] += 1000 * s.LIMIT
            s.inner.x[i] += s.inner.x.shape[0]

    s = outer()
    k(s, 100.0)
    expected = np.arange(4) * 2 + np.arange(4) * 1000 + 1 + 2 + 35
    assert np.array_equal(s.y, expected + 3000) and s.inner.x.to_numpy().tolist() == [4, 5, 6, 7]
    s.flag, s.n, s.inner.scale = False, 2, 0.0
    s.y[:] = 0
    k(s, 100.0)
    assert s.y.tolist() == [38, 1038, 0, 0]
    k(outer(t=s.f), by=1.0)


def test_one_specialisation_serves_all_dataclasses_of_the_same_types():
    @qd.kernel
    def k(s: Inner):
        for i in s.x:
            s.x[i] *= s.scale

    one, two = Inner(array([1, 2]), 3.0), Inner(array([1, 2, 3]), 10.0)
    for s in (one, two, one):
        k(s)
    assert one.x.to_numpy().tolist() == [9, 18] and two.x.to_numpy().tolist() == [10, 20, 30]
    assert len(k.variants()) == 1


def test_dataclasses_are_passed_on_whole_and_by_members():
    @qd.func
    def leaf(x: Array, i: qd.i32, v):
        x[i] += v

    @qd.func
    def middle(s: Inner, i: qd.i32):
        leaf(s.x, i, s.scale)
        leaf(x=s.x, i=i, v=s.x.shape[0])

    @qd.func
    def top(s: Outer, i):
        middle(s.inner, i)
        middle(s=s.inner, i=i)
        inner = s.inner
        middle(inner, i)

    @qd.func
    def by_template(s: qd.template(), i):
        s.f[i] = s.inner.x[i]

    @qd.kernel
    def k(s: Outer, other: Inner):
        for i in range(s.n):
            top(s, i)
            by_template(s, i)
        for i in range(other.x.shape[0]):
            middle(other, i)

    s, other = outer(), Inner(array([1.0] * 6), 0.5)
    k(s, other)
    assert s.inner.x.to_numpy().tolist() == [18, 19, 20, 21] == s.f.to_numpy().tolist()
    assert other.x.to_numpy().tolist() == [7.5] * 6


def test_parallel_loops_of_a_function_at_the_top_level():
    @qd.func
    def everything(s: Inner):
        for i in s.x:
            s.x[i] += 1
        for i in range(s.x.shape[0]):
            s.x[i] *= s.scale

    @qd.kernel
    def k(s: Inner):
        everything(s)

    s = Inner(array([1, 2, 3]), 2.0)
    k(s)
    assert s.x.to_numpy().tolist() == [4, 6, 8]


def test_optional_members_and_parameters():
    @dataclasses.dataclass
    class Maybe:
        x: Array
        w: Array | None = None

    @qd.kernel
    def k(s: Maybe, extra: Array | None):
        for i in s.x:
            if qd.static(s.w is not None):
                s.x[i] += s.w[i]
            if qd.static(extra is not None):
                s.x[i] += 10 * extra[i]

    x, w = array([1, 2]), array([5, 6])
    k(Maybe(x), None)
    assert x.to_numpy().tolist() == [1, 2]
    k(Maybe(x, w), None)
    k(Maybe(x), w)
    assert x.to_numpy().tolist() == [56, 68]


def test_anything_else_in_a_dataclass_is_known_at_compile_time():
    class Mode(enum.Enum):
        ADD = 1
        MUL = 2

    @dataclasses.dataclass(frozen=True)
    class Setup:
        x: object
        mode: Mode
        names: tuple

    @qd.kernel
    def k(s: Setup):
        for i in s.x:
            if qd.static(s.mode is Mode.ADD):
                s.x[i] += qd.static(len(s.names))
            else:
                s.x[i] *= qd.static(len(s.names))

    x = qd.field(qd.f64, shape=2)
    x.fill(5)
    k(Setup(x, Mode.ADD, ("a", "b")))
    k(Setup(x, Mode.MUL, ("a", "b", "c")))
    assert x.to_numpy().tolist() == [21, 21]


def test_dataclasses_as_templates_follow_their_members():
    @dataclasses.dataclass
    class Plain:
        x: object
        a: object
        n: int

    @qd.kernel
    def k(s: qd.template()):
        for i in range(s.n):
            s.x[i] += s.a[i]

    x, a = qd.field(qd.f64, shape=3), array([1, 2, 3])
    s = Plain(x, a, 3)
    k(s)
    s.n, s.a = 2, array([10, 20, 30, 40])
    k(s)
    s.x = qd.field(qd.f64, shape=3)
    k(s)
    assert x.to_numpy().tolist() == [11, 22, 3] and s.x.to_numpy().tolist() == [10, 20, 0]
    assert len(k.variants()) == 3


def test_wrong_dataclasses_are_refused():
    @qd.kernel
    def k(s: Outer):
        s.y[0] = 1

    @qd.kernel
    def rebound(s: Inner):
        s.x = s.scale

    @qd.kernel
    def scalar(s: Inner):
        s.scale = 2.0

    @qd.kernel
    def unknown(s: Inner):
        s.x[0] = s.mass

    @qd.func
    def wants_inner(s: Inner):
        s.x[0] = 1

    @qd.kernel
    def passed(s: Outer):
        wants_inner(s)

    with pytest.raises(qd.QdrunTypeError, match="kernel `k`, argument `s`: expected a Outer, got a int"):
        k(3)
    with pytest.raises(qd.QdrunTypeError, match="argument `s`: member `inner`: expected a Inner, got a str"):
        k(outer(inner="x"))
    with pytest.raises(qd.QdrunTypeError, match="argument `s`: member `inner`: member `x`: expected number of axes 1, got 2"):
        k(outer(inner=Inner(qd.ndarray(qd.f64, shape=(2, 2)), 1.0)))
    with pytest.raises(qd.QdrunTypeError, match=r"argument `s`: member `n`: expected i32, got 1\.5"):
        k(dataclasses.replace(outer(), n=1.5))
    inner = Inner(array([1.0]), 1.0)
    for kernel in (rebound, scalar):
        with pytest.raises(qd.QdrunTypeError, match="`s` is an argument of the kernel and cannot be assigned"):
            kernel(inner)
    with pytest.raises(qd.QdrunNameError, match=r"Inner has no member `mass`\n(.|\n)*its members are `x`, `scale`, `scaled`"):
        unknown(inner)
    with pytest.raises(qd.QdrunTypeError, match=r"the dataclass Outer with the members .* is not a Inner"):
        passed(outer())
