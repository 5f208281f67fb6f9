"""Public names that are used in a wrong way: the message says the name, the line and the right way."""

from __future__ import annotations

import copy
import pickle
import runpy

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(autouse=True)
def program():
    with qd.init(arch=qd.cpu) as p:
        yield p


WRONG = [
    ("qd.f32(1, 2)", r"qd\.f32\(\) converts one value, 2 were given", r"write qd\.f32\(x\)"),
    ("qd.f32()", r"qd\.f32\(\) converts one value, 0 were given", r"write qd\.f32\(x\)"),
    ("qd.sin(1.0, 2.0)", r"sin\(\): too many positional arguments", r"its parameters are sin\(x\)"),
    ("qd.cast(1)", r"cast\(\): missing a required argument: 'dtype'", r"cast\(obj, dtype\)"),
    ("qd.Vector()", r"Vector\(\): missing a required argument", r"its parameters are Vector\(arr, dt=None\)"),
    ("qd.select(1, 2)", r"select\(\): missing a required argument", r"select\(cond, x1, x2\)"),
    ("qd.random(1, 2, 3)", r"random\(\): too many positional", r"random\(dtype=None\)"),
    ("qd.math.clamp(1)", r"clamp\(\): missing a required argument", r"clamp\(x, xmin, xmax\)"),
    ("qd.Vector([1.0, 2.0]).norm(1, 2, 3)", r"norm\(\): too many positional", r"norm\(eps=0.0\)"),
]


@pytest.mark.parametrize(("text", "what", "instead"), WRONG)
def test_wrong_arguments_in_a_kernel_show_the_public_parameters(text, what, instead, tmp_path):
    path = tmp_path / "wrong_call.py"
    path.write_text(f"import qdrun as qd\n\n@qd.kernel\ndef k():\n    a = {text}\n    print(a)\n")
    k = runpy.run_path(str(path))["k"]
    with pytest.raises(qd.QdrunTypeError, match=rf"{what}(.|\n)*in kernel `k`(.|\n)*do: .*{instead}") as caught:
        k()
    assert "lambda" not in str(caught.value) and "_lower" not in str(caught.value)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_fields_are_not_pickled_or_copied(copied):
    x = qd.field(qd.f32, shape=3, needs_grad=True, name="x")
    s = qd.types.struct(a=qd.i32).field(shape=2)
    for each in (x, x.grad, s, qd.Vector.field(2, qd.f32, shape=2)):
        with pytest.raises(
            qd.QdrunRuntimeError, match=r"is a part of its program's layout tree, and cannot be pickled or copied\n  do: "
        ):
            copied(each)
    assert pickle.loads(pickle.dumps(qd.ndarray(qd.f32, 3))).shape == (3,)


def test_a_stage_without_its_counter_says_which_name_is_missing():
    x, c = qd.ndarray(qd.i32, 2), qd.ndarray(qd.i32, ())

    @qd.kernel(graph=True)
    def k(x: qd.types.ndarray(qd.i32, 1), c: qd.types.ndarray(qd.i32, 0)):
        while qd.graph.do_while(not_there):  # noqa: F821
            for i in range(x.shape[0]):
                x[i] += 1

    @qd.data_oriented
    class Steps:
        def __init__(self):
            self.x = qd.ndarray(qd.i32, 2)

        @qd.kernel(graph=True)
        def step(self):
            while qd.graph.do_while(self.nope):
                for i in range(2):
                    self.x[i] += 1

    with pytest.raises(
        qd.QdrunNameError, match=r"there is no `not_there`\n  at .*in kernel `k`(.|\n)*do: define it before the call"
    ):
        k(x, c)
    with pytest.raises(qd.QdrunNameError, match=r"there is no `self\.nope`\n  at .*in kernel `step`"):
        Steps().step()


def test_stars_stand_for_the_parts_of_a_vector_or_a_list():
    x, wanted = qd.field(qd.f32, shape=(2, 3, 4)), np.zeros((2, 3, 4), np.float32)

    @qd.kernel
    def k():
        for I in qd.grouped(qd.ndrange(2, 3)):
            for j in qd.static(range(4)):
                x[(*I, j)] += j
                x[*I, j] += 10
                at = (I[0], *(I[1], j))
                x[at] += qd.Vector([*I, 5])[2] * 100

    k()
    wanted += np.arange(4) + 510
    assert np.array_equal(x.to_numpy(), wanted)

    @qd.kernel
    def wrong():
        a = (*3, 1)
        print(a)

    with pytest.raises(
        qd.QdrunTypeError, match=r"`\*` takes a list, a tuple or a vector, not a Python int(.|\n)*in kernel `wrong`"
    ):
        wrong()


def test_levels_of_the_layout_tree_know_their_place():
    x, y = qd.field(qd.f32, name="x"), qd.field(qd.f32, name="y")
    top = qd.root.dense(qd.k, 3)
    middle = top.dense(qd.j, 4)
    low = middle.dense(qd.i, 5)
    low.place(x, y)
    place = x.snode
    assert place.parent(0) == place == x.parent(0) and place.parent() == place.parent(1) == low == x.parent()
    assert (place.parent(2), place.parent(3)) == (middle, top) and place.parent(4) == qd.root == x.parent(4)
    assert qd.root == top.parent() and qd.root.parent(0) == qd.root and place.parent(5) is None and qd.root.parent() is None
    assert y.snode != place and len({place, x.snode, y.snode}) == 2 and hash(qd.root) == hash(top.parent())
    assert place in low.get_children() and low in middle._get_children() and top in qd.root.get_children()
    assert place.shape == x.shape == (5, 4, 3) and place.dtype == qd.f32 and place.name == "x"
    assert repr(place) == "qd.root.dense(qd.k, 3).dense(qd.j, 4).dense(qd.i, 5).place(x)" and repr(qd.root) == "qd.root"
    for n in (-1, 1.5, "1", None):
        with pytest.raises(qd.QdrunRuntimeError, match=r"takes the number of levels to go up\n  do: parent\(\)"):
            low.parent(n)
    with pytest.raises(qd.QdrunRuntimeError, match=r"dense\(\.\.\) under the place of `x`; do: "):
        place.dense(qd.i, 2)
    with pytest.raises(qd.QdrunRuntimeError, match=r"place\(\.\.\) in the place of `x`; do: "):
        place.place(qd.field(qd.f32))


def test_fields_without_axes_are_placed_by_a_builder_and_have_no_length():
    x, v, s = qd.field(qd.f32, needs_grad=True), qd.Vector.field(3, qd.f32), qd.types.struct(a=qd.i32, b=qd.f32).field()
    builder = qd.FieldsBuilder()
    builder.place(x, v)
    builder.place(s)
    tree = builder.finalize()
    x[None], v[None], s[None].a = 3.0, [1, 2, 3], 4
    assert x[None] == 3 and list(v[None]) == [1, 2, 3] and s[None].a == 4 and x.grad[None] == 0 and x.shape == () and bool(x)
    with pytest.raises(qd.QdrunTypeError, match=r"has no axes, so it has no length\n  do: its one element is x\[None\]"):
        len(x)
    tree.destroy()


def test_classes_of_arrays_answer_issubclass():
    a, x = qd.ndarray(qd.f32, 3), qd.field(qd.f32, 3)
    assert issubclass(type(a), qd.ScalarNdarray) and issubclass(type(x), qd.ScalarField)
    assert not issubclass(type(x), qd.ScalarNdarray) and not issubclass(int, qd.ScalarField)
