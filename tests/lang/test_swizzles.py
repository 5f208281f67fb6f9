"""Swizzles: every name of up to four letters, read and written, on variables, elements of fields and arrays, and in Python."""

import itertools

import numpy as np
import pytest

import qdrun as qd

GROUPS = ("xyzw", "rgba", "stpq")


@pytest.fixture(autouse=True)
def program():
    with qd.init(default_fp=qd.f64, offline_cache=False) as program:
        yield program


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_swizzle_of_up_to_three_letters_in_python_is_that_of_numpy(n):
    v = qd.Vector([float(k + 1) for k in range(n)])
    for group in GROUPS:
        for size in (1, 2, 3):
            for letters in itertools.product(group[:n], repeat=size):
                want = [group.index(c) + 1.0 for c in letters]
                found = getattr(v, "".join(letters))
                assert (found == want[0]) if size == 1 else found.to_list() == want


@pytest.mark.parametrize(("names", "positions"), [("wzyx", (3, 2, 1, 0)), ("rrb", (0, 0, 2)), ("ts", (1, 0)), ("q", (3,))])
def test_swizzles_of_variables_and_of_elements_are_read(names, positions):
    x = qd.Vector.field(4, qd.f64, shape=2)
    out = qd.Vector.field(max(2, len(names)), qd.f64, shape=2)
    x.from_numpy(np.arange(8.0).reshape(2, 4))
    space = {"qd": qd, "x": x, "out": out}
    value = f"a.{names}" if len(names) > 1 else f"qd.Vector([a.{names}, a.{names}])"
    element = f"x[i].{names}" if len(names) > 1 else f"qd.Vector([x[i].{names}, x[i].{names}])"
    _run(
        f"for i in range(1):\n        a = x[i]\n        out[0] = {value}\n    for i in range(1, 2):\n        out[1] = {element}",
        space,
    )
    for row in range(2):
        want = [4.0 * row + k for k in positions]
        assert out[row].to_list() == want * (2 if len(names) == 1 else 1)


def _run(body, space):
    """A kernel from text, so that names of attributes can be parameters of a test."""
    import linecache

    text = f"@qd.kernel\ndef k():\n    {body}\n"
    name = f"<swizzle {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), space)
    space["k"]()


def test_swizzles_are_targets_of_assignments_and_updates():
    x = qd.Vector.field(4, qd.f64, shape=3)

    @qd.kernel
    def k():
        for _ in range(1):
            v = qd.Vector([1.0, 2.0, 3.0, 4.0])
            v.xz = v.zx
            v.gb += 10.0
            v.q *= 2.0
            v.st = qd.Vector([v.y, v.x]) * 1.0
            x[0] = v
            x[1].wzyx = v
            x[1].rg -= qd.Vector([0.5, 0.25])
            x[2].xyz = 7.0

    k()
    assert x[0].to_list() == [12.0, 3.0, 11.0, 8.0]
    assert x[1].to_list() == [7.5, 10.75, 3.0, 12.0]
    assert x[2].to_list() == [7.0, 7.0, 7.0, 0.0]


def test_an_update_of_a_swizzle_in_a_parallel_loop_is_atomic():
    x = qd.Vector.field(3, qd.i32, shape=())

    @qd.kernel
    def k():
        for i in range(1000):
            x[None].zx += qd.Vector([1, i])

    k()
    assert x[None].to_list() == [499500, 0, 1000]


def test_swizzles_carry_gradients():
    x = qd.Vector.field(3, qd.f64, shape=4, needs_grad=True)
    loss = qd.field(qd.f64, shape=(), needs_grad=True)
    a = np.random.default_rng(0).normal(size=(4, 3))
    x.from_numpy(a)

    @qd.kernel
    def k():
        for i in x:
            v = x[i]
            v.zy = v.xx * v.yz
            loss[None] += v.rgb.dot(x[i].zxy)

    with qd.ad.Tape(loss):
        k()
    p, q, r = a.T
    want = np.stack([r + q * q + 2 * p * r, 2 * p * q, p + p * p], 1)  # loss: p r + (p r) p + (p q) q
    assert np.allclose(x.grad.to_numpy(), want)


def test_swizzles_of_host_vectors_are_written():
    v = qd.Vector([1.0, 2.0, 3.0])
    v.zx = [5.0, 6.0]
    v.y = 9.0
    assert v.to_list() == [6.0, 9.0, 5.0]
    with pytest.raises(AttributeError, match="no attribute `w`"):
        _ = v.w


@pytest.mark.parametrize("names", ["xw", "xr", "xyzw", "foo"])
def test_components_that_a_vector_does_not_have_are_refused(names):
    with pytest.raises(qd.QdrunNameError, match=f"a vector of 3 has no attribute `{names}`"):
        _run(f"v = qd.Vector([1.0, 2.0, 3.0])\n    w = v.{names}", {"qd": qd})


def test_another_number_of_components_is_refused():
    with pytest.raises(qd.QdrunTypeError, match="2 components are assigned a vector of 3"):
        _run("v = qd.Vector([1.0, 2.0, 3.0])\n    v.xy = v", {"qd": qd})
