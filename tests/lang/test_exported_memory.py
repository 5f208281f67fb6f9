"""A tape notices what Python writes through the memory of a field or an ndarray, where a gradient reads it again."""

import numpy as np
import pytest

import qdrun as qd

N = 4


@pytest.fixture(params=["field", "vector", "ndarray"])
def given(request):
    """Weights of a kind, a function that launches a kernel with them, the input and the loss."""
    with qd.init(qd.cpu, default_fp=qd.f64, offline_cache=False):
        x, loss = qd.field(qd.f64, shape=N, needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)
        other = qd.field(qd.f64, shape=N, name="other")
        kinds = {
            "field": lambda: qd.field(qd.f64, shape=N, name="w"),
            "vector": lambda: qd.Vector.field(2, qd.f64, shape=N, name="w"),
            "ndarray": lambda: qd.ndarray(qd.f64, (N,)),
        }
        w = kinds[request.param]()
        w.fill(1.0)

        @qd.kernel
        def by_name():
            for i in x:
                loss[None] += x[i] * w[i]

        @qd.kernel
        def components():
            for i in x:
                loss[None] += x[i] * w[i][1]

        @qd.kernel
        def argument(w: qd.types.ndarray()):
            for i in x:
                loss[None] += x[i] * w[i]

        @qd.kernel
        def double():
            for i in x:
                w[i] *= 2.0

        launch = {"field": by_name, "vector": components, "ndarray": lambda: argument(w)}[request.param]
        yield launch, w, x, loss, other, double


def gradient(x, loss, *runs):
    with qd.ad.Tape(loss):
        for run in runs:
            run()
    return x.grad.to_numpy().tolist()


@pytest.mark.parametrize("early", [True, False], ids=["before the tape", "in the tape"])
def test_a_change_through_a_view_is_refused_by_name(given, early):
    launch, w, x, loss, _, _ = given
    for _ in range(2):
        gradient(x, loss, launch, launch)  # the next tape begins as this one, of which no launch is looked at again
    views = [w.view] if early else []
    with pytest.raises(
        qd.DataAccessError, match=r"needs the values of `w(_1)?` read here, but Python changed them(.|\n)*x\.fill\("
    ) as e:
        gradient(x, loss, launch, lambda: (views[0] if early else w.to_numpy(copy=False)).__imul__(2.0), launch)
    assert "in kernel `" in str(e.value)
    assert "test_exported_memory.py:" in str(e.value)


def test_what_a_tape_follows_and_what_no_gradient_reads_is_no_error(given):
    launch, w, x, loss, other, double = given
    view = w.view
    view[:] = 1.0
    found = gradient(
        x,
        loss,
        lambda: view.__imul__(1.5),  # before any launch
        launch,
        double,
        launch,
        lambda: w.fill(0.5),
        lambda: other.view.__iadd__(1.0),
        launch,
    )
    assert found == [5.0] * N
    assert np.all(view == 0.5)
