"""``qd.FieldsBuilder``: trees of fields whose memory can be given back."""

import numpy as np
import pytest

import qdrun as qd


@pytest.fixture(params=["cpu", "python", 3])
def program(request):
    how = {"batch": request.param} if request.param == 3 else {"arch": request.param}
    with qd.init(default_fp=qd.f64, offline_cache=False, **how) as program:
        yield program


def built(n=5):
    """Fields with gradients, placed in three ways, in a tree of their own."""
    x, y, v = qd.field(qd.f64, name="x"), qd.field(qd.f64, name="y"), qd.Vector.field(2, qd.f64, needs_grad=True, name="v")
    builder = qd.FieldsBuilder()
    builder.dense(qd.i, n).place(x, x.grad)
    builder.dense(qd.i, n).place(*(v.get_scalar_field(k) for k in range(2)))
    builder.place(y)
    builder.lazy_grad()
    return builder, x, v, y


def test_fields_of_a_builder_are_fields_like_others(program):
    builder, x, v, y = built()
    w = qd.field(qd.f64, 5, needs_grad=True)
    tree = builder.finalize()

    @qd.kernel
    def k():
        for i in x:
            y[None] += x[i] ** 2 * v[i][1] * w[i]

    a, b, c = np.random.default_rng().normal(size=(3, 5))
    x.from_numpy(a)
    v.from_numpy(np.stack([a, b], 1))
    w.from_numpy(c)
    with qd.ad.Tape(y):
        k()
    seen = (lambda array: array[1]) if program.trials is not None else (lambda array: array)
    assert np.allclose(seen(y.to_numpy()), (a * a * b * c).sum(), rtol=1e-12)
    assert np.allclose(seen(x.grad.to_numpy()), 2 * a * b * c, rtol=1e-12)
    assert np.allclose(seen(v.grad.to_numpy()), np.stack([0 * a, a * a * c], 1), rtol=1e-12)
    before = program.usage()
    tree.destroy()
    after = program.usage()
    assert after["fields"] < before["fields"] and after["gradients"] < before["gradients"]
    assert np.allclose(seen(w.grad.to_numpy()), a * a * b, rtol=1e-12)  # the others are what they were


def test_destroyed_fields_are_refused_and_kernels_go_on_with_new_ones(program):
    @qd.kernel
    def scale(x: qd.template(), by: qd.f64):
        for i in x:
            x[i] = x[i] * by

    made = []
    for n in (4, 4, 7):
        x = qd.field(qd.f64, name="x")
        builder = qd.FieldsBuilder()
        builder.dense(qd.i, n).place(x)
        tree = builder.finalize()
        assert not x.to_numpy().any()  # zeros, whatever lay there before
        x.fill(2.0)
        for _ in range(3):
            scale(x, 3.0)
        assert (x.to_numpy() == 54).all() and x.shape == (n,)
        used, kept = program.usage()["fields"], x.get_scalar_field()
        tree.destroy()
        assert program.usage().get("fields", 0) < used
        for use in (lambda x=x: x[0], x.to_numpy, lambda x=x: x.fill(1.0), lambda x=x: scale(x, 2.0), lambda k=kept: k[0]):
            with pytest.raises(
                qd.QdrunRuntimeError, match=r"`x(\[\])?` was destroyed with its FieldsBuilder; do: make it anew"
            ):
                use()
        with pytest.raises(qd.QdrunRuntimeError, match="fields of this FieldsBuilder are destroyed already"):
            tree.destroy()
        made.append(x)


def test_a_kernel_that_names_a_destroyed_field_is_refused(program):
    builder, x, _, _ = built()
    other = qd.field(qd.f64, 5)
    tree = builder.finalize()

    @qd.kernel
    def copies():
        for i in x:
            other[i] = x[i]

    x.fill(3.0)
    for _ in range(3):
        copies()
    tree.destroy()
    with pytest.raises(qd.QdrunRuntimeError, match="destroyed"):
        copies()
    assert (other.to_numpy() == 3).all()


def test_a_graph_of_destroyed_fields_is_refused():
    with qd.init(arch=qd.cpu, default_fp=qd.f64, offline_cache=False):
        builder, x, _, _ = built()
        tree = builder.finalize()

        @qd.kernel
        def add():
            for i in x:
                x[i] += 1

        add()
        graph = qd.capture(add)
        graph()
        tree.destroy()
        with pytest.raises(qd.QdrunRuntimeError, match=r"uses a field that was destroyed\n  do: make the field anew"):
            graph()


def test_misuse_is_refused_by_name(program):
    builder, x, _, y = built()
    for read in (x.to_numpy, lambda: x.fill(1.0)):
        with pytest.raises(
            qd.QdrunRuntimeError, match=r"`x` has no memory: it is placed in a FieldsBuilder; do: builder.finalize"
        ):
            read()
    level = builder.dense(qd.i, 3)
    tree = builder.finalize()
    assert builder.finalized
    with pytest.raises(qd.QdrunRuntimeError, match="this FieldsBuilder is finalized already"):
        builder.finalize()
    for place in (builder.place, level.place, lambda z: builder.dense(qd.i, 2).place(z)):
        with pytest.raises(qd.QdrunRuntimeError, match="this level has its memory already"):
            place(qd.field(qd.f64))
    with pytest.raises(qd.QdrunRuntimeError, match="fields are destroyed while launches are recorded"), qd.ad.Tape(y):
        tree.destroy()
    tree.destroy()
    with pytest.raises(qd.QdrunRuntimeError, match="this level has its memory already"):
        builder.place(qd.field(qd.f64))
    with pytest.warns(RuntimeWarning, match="a FieldsBuilder without fields is finalized"):
        qd.FieldsBuilder().finalize()
    qd.FieldsBuilder().finalize(raise_warning=False).destroy()


def test_lazy_gradients_after_a_kernel_are_those_of_new_fields(program):
    old = qd.field(qd.f64, 3)

    @qd.kernel
    def begin():
        for i in old:
            old[i] = 2.0

    begin()
    x, loss = qd.field(qd.f64), qd.field(qd.f64)
    qd.root.dense(qd.i, 3).place(x)
    qd.root.place(loss)
    qd.root.lazy_grad()
    assert x.has_grad() and loss.has_grad() and not old.has_grad()

    @qd.kernel
    def k():
        for i in x:
            loss[None] += x[i] ** 2 * old[i]

    x.fill(3.0)
    with qd.ad.Tape(loss):
        k()
    assert (x.grad.to_numpy() == 12).all()
