"""What a kernel returns has the type that its annotation says, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu) as p:
        yield p


def returned(annotation: Any, make):
    def k(a: qd.f32):
        return make(a)

    k.__annotations__ = {"a": qd.f32, "return": annotation}
    return qd.kernel(k)(1.7)


VECTOR3, MATRIX2 = qd.types.vector(3, qd.i32), qd.types.matrix(2, 2, qd.f32)
PAIR = qd.types.struct(a=qd.i32, b=qd.f32)


@pytest.mark.parametrize(
    ("annotation", "make", "wanted"),
    [
        (qd.i32, lambda a: a, 1),
        (qd.f32, lambda a: 3, 3.0),
        (bool, lambda a: 2.5, True),
        (VECTOR3, lambda a: qd.Vector([a, 2 * a, 3.0]), [1, 3, 3]),
        (tuple[qd.i32, qd.f32], lambda a: (a, 2), (1, 2.0)),
        (tuple[VECTOR3, qd.i32], lambda a: (qd.Vector([a, 2.0, 3.0]), 4), ([1, 2, 3], 4)),
        (Any, lambda a: 4, 4),
    ],
)
def test_numbers_are_converted_to_the_annotation(annotation, make, wanted):
    got = returned(annotation, make)
    plain = [x.to_list() if hasattr(x, "to_list") else x for x in (got if isinstance(got, tuple) else [got])]
    assert plain == (list(wanted) if isinstance(wanted, tuple) else [wanted])


def vector(a):
    return qd.Vector([a, 2.0, 3.0])


def square(a):
    return qd.Matrix([[a, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("annotation", "make", "message"),
    [
        (
            qd.i32,
            vector,
            r"`k` returns a vector of shape \(3,\), and its annotation says i32(.|\n)*-> qd.types.vector\(3, qd.i32\)",
        ),
        (
            float,
            square,
            r"`k` returns a matrix of shape \(2, 2\), and its annotation says float(.|\n)*-> qd.types.matrix\(2, 2, float\)",
        ),
        (VECTOR3, lambda a: qd.Vector([a, a]), r"`k` returns a vector of shape \(2,\), and its annotation says shape \(3,\)"),
        (
            MATRIX2,
            lambda a: qd.Vector([a, a, a, a]),
            r"returns a vector of shape \(4,\), and its annotation says shape \(2, 2\)",
        ),
        (qd.types.vector(4, qd.f32), square, r"returns a matrix of shape \(2, 2\), and its annotation says shape \(4,\)"),
        (tuple[qd.i32, qd.f32], lambda a: (1, 2, 3), "`k` returns 3 values, and its annotation says 2"),
        (tuple[qd.i32, qd.f32], lambda a: a, "and its annotation says tuple"),
        (tuple[qd.i32, VECTOR3], lambda a: (vector(a), 1), r"returns a vector of shape \(3,\), and its annotation says i32"),
        (qd.i32, lambda a: (1, 2), "is not a number of type i32"),
        (qd.i32, lambda a: PAIR(a=1, b=2.0), "is not a number of type i32"),
        (PAIR, vector, "is not struct"),
        (PAIR, lambda a: a, "is not struct"),
        (tuple[qd.i32, ...], lambda a: (1, 2), "as annotation of its result, which kernels do not return"),
        (list[qd.i32], lambda a: [1], "as annotation of its result, which kernels do not return"),
        (str, lambda a: 1, "kernel `k` has str as annotation of its result, which kernels do not return"),
        (qd.types.ndarray(), lambda a: 1, "as annotation of its result, which kernels do not return"),
    ],
)
def test_another_form_is_refused_with_the_line(annotation, make, message):
    make = qd.func(make) if make.__name__ != "<lambda>" else make
    with pytest.raises(qd.QdrunTypeError, match=message) as caught:
        returned(annotation, make)
    assert "in kernel `k`" in str(caught.value)
