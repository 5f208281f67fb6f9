"""Kernels and funcs as methods: whatever the first parameter is called, static and class methods, properties, super()."""

from __future__ import annotations

import pytest

import qdrun as qd


@pytest.fixture(autouse=True, params=["cpu", "python"])
def program(request):
    with qd.init(arch=request.param, default_fp=qd.f64) as p:
        yield p


@qd.data_oriented
class Base:
    SCALE = 2.0

    def __init__(this, start=0.0):
        this.x, this.start = qd.field(qd.f64, 3), start

    @qd.func
    def f(me, i):
        return me.start + i

    @qd.kernel
    def run(this):
        for i in this.x:
            this.x[i] = this.f(i)

    @qd.kernel
    def scaled(it, by: qd.f64) -> qd.f64:
        return by * it.start

    @staticmethod
    @qd.kernel
    def plain(v: qd.f64) -> qd.f64:
        return v * 3

    @classmethod
    @qd.kernel
    def of_class(kind) -> qd.f64:
        return kind.SCALE

    @property
    @qd.kernel
    def first(obj) -> qd.f64:
        return obj.start + 1.0


class Derived(Base):
    SCALE = 5.0

    @qd.func
    def f(self, i):
        return super().f(i) * 10

    @qd.kernel
    def scaled(self, by: qd.f64) -> qd.f64:
        return super().f(1) + by


class Third(Derived):
    @qd.func
    def f(s, i):
        return super().f(i) + Base.f(s, i)


def test_the_first_parameter_of_a_method_has_any_name():
    a = Base(1.0)
    a.run()
    assert a.x.to_numpy().tolist() == [1, 2, 3] and a.scaled(2.0) == 2 and a.first == 2
    assert Base.plain(2.0) == a.plain(2.0) == 6 and Base.of_class() == 2 and Derived.of_class() == 5


def test_super_calls_the_method_of_the_class_above():
    b = Derived(1.0)
    b.run()
    b.run()
    assert b.x.to_numpy().tolist() == [10, 20, 30] and b.scaled(0.5) == 2.5
    c = Third(1.0)
    c.run()
    assert c.x.to_numpy().tolist() == [11, 22, 33]


def test_super_elsewhere_is_refused_with_what_to_write():
    @qd.kernel
    def k():
        super().f(1)

    class Other(Base):
        @qd.kernel
        def bad(self) -> qd.f64:
            return super(Base, self).f(1)

    for call in (k, Other().bad):
        with pytest.raises(
            qd.QdrunSyntaxError, match=r"super\(\) in a kernel is written without arguments(.|\n)*do: name the class: Base\.f"
        ):
            call()


def test_a_method_of_an_unmarked_class_is_refused_whatever_its_parameter_is_called():
    with pytest.raises(qd.QdrunSyntaxError, match="class Plain is not marked"):
        Plain().k()


class Plain:
    @qd.kernel
    def k(this):
        pass


def test_a_parameter_without_annotation_is_refused_outside_of_classes():
    @qd.kernel
    def k(this):
        pass

    with pytest.raises(qd.QdrunSyntaxError, match="parameter `this` of kernel `k` has no annotation"):
        k(3)
