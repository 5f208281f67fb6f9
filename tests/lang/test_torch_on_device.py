"""Torch tensors and fields on one GPU, without copies. Needs a GPU, a driver and torch with CUDA; skipped without them."""

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.runtime.registry import devices

torch = pytest.importorskip("torch")
usable = torch.cuda.is_available() and next(b for b in devices() if b.name == "cuda").usable
pytestmark = pytest.mark.skipif(not usable, reason="no GPU that torch and qdrun can use")


@pytest.fixture(autouse=True)
def program():
    yield qd.init(arch=qd.cuda)
    qd.reset()


@qd.kernel
def scale(x: qd.types.ndarray(), y: qd.types.ndarray(), by: qd.f32):
    for i in x:
        y[i] += by * x[i]


def test_tensors_are_taken_where_they_lie(program):
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    y = torch.ones_like(x)
    scale(x, y, 2.0)
    assert torch.equal(y, 1 + 2 * x) and program.peaks().get("arguments") is None
    for _ in range(20):  # in order with torch's default stream, without a wait
        y.mul_(0.5)
        scale(x, y, 1.0)
    expected = 1 + 2 * x
    for _ in range(20):
        expected = expected * 0.5 + x
    assert torch.allclose(y, expected)


def test_a_stream_of_their_own_is_waited_for():
    x, y = torch.zeros(1 << 22, device="cuda"), torch.zeros(1 << 22, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(50):
            x.add_(1.0)
        scale(x, y, 1.0)
        y.mul_(2.0)
    side.synchronize()
    assert (y == 100).all()


def test_what_is_not_contiguous_is_brought_back():
    x = torch.arange(12.0, device="cuda").reshape(3, 4)
    column, y = x[:, 1], torch.zeros(3, device="cuda")
    scale(y + 1, column, 10.0)
    qd.sync()
    assert x[:, 1].tolist() == [11, 15, 19] and x[:, 0].tolist() == [0, 4, 8]


def test_gradients_of_torch_tensors():
    x = torch.arange(6.0, device="cuda", requires_grad=True)
    y = torch.zeros(6, device="cuda", requires_grad=True)
    scale(x, y, 3.0)
    y.grad = torch.full((6,), 2.0, device="cuda")
    scale.grad(x, y, 3.0)
    assert x.grad.tolist() == [6.0] * 6 and x.grad.is_cuda


def test_our_memory_as_theirs():
    x = qd.field(qd.f32, shape=(3, 4))
    x.fill(2)
    t = torch.from_dlpack(x)
    assert t.is_cuda and t.shape == (3, 4) and t.sum().item() == 24

    @qd.kernel
    def add():
        for i, j in x:
            x[i, j] += 1

    add()
    assert t.sum().item() == 36
    t.mul_(2)
    add()
    assert x[1, 1] == 7 and x.to_numpy().sum() == 84 and torch.as_tensor(x, device="cuda").sum().item() == 84
    x[0, 0] = 0
    assert t.sum().item() == 77
    assert x.to_torch().device.type == "cpu" and x.to_torch(copy=None).data_ptr() == t.data_ptr()
    assert x.to_torch("cuda").data_ptr() != t.data_ptr()
    x.from_torch(torch.ones(3, 4, device="cuda"))
    assert t.sum().item() == 12 and x[2, 3] == 1
    v = qd.Vector.ndarray(2, qd.f64, (5,))
    assert torch.from_dlpack(v).shape == (5, 2)


def test_an_array_on_their_memory():
    t = torch.arange(5.0, device="cuda")
    n = qd.from_dlpack(t)
    n[1] = 9
    assert t.tolist() == [0, 9, 2, 3, 4]
    t.add_(1)
    assert n.to_numpy().tolist() == [1, 10, 3, 4, 5] and n[1] == 10
    y = qd.ndarray(qd.f32, (5,))
    scale(n, y, 2.0)
    assert np.allclose(y.to_numpy(), [2, 20, 6, 8, 10])


def test_tensors_of_the_host_are_lent():
    x, y = torch.arange(5.0), torch.zeros(5)
    scale(x, y, 2.0)
    assert y.tolist() == [0, 2, 4, 6, 8]


def test_other_libraries():
    cupy = pytest.importorskip("cupy")
    x, y = cupy.arange(5, dtype=cupy.float32), cupy.zeros(5, cupy.float32)
    scale(x, y, 2.0)
    assert y.get().tolist() == [0, 2, 4, 6, 8]
    z = qd.field(qd.f32, shape=(5,))
    z.fill(3)
    assert cupy.asarray(z).sum() == 15
