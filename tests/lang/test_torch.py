"""Torch tensors: as arguments, with gradients, as results; skipped where torch is not installed."""

import warnings

import numpy as np
import pytest

import qdrun as qd

torch = pytest.importorskip("torch")

BACKENDS = [qd.Backend.FIELD, qd.Backend.NDARRAY]
TYPES = {
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u1": torch.bool,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
}


@pytest.fixture(autouse=True)
def program():
    with warnings.catch_warnings(), qd.init(offline_cache=False, default_fp=qd.f64, cpu_max_num_threads=1) as program:
        warnings.simplefilter("error")  # torch warns about .grad of tensors that are no leaves
        yield program


@qd.kernel
def square(x: qd.types.ndarray(), y: qd.types.ndarray()):
    for I in qd.grouped(x):
        y[I] = x[I] * x[I]


@qd.kernel
def cubes(x: qd.Tensor, y: qd.Tensor):
    for i in x:
        y[i] = x[i] ** 3


@qd.kernel
def increase(x: qd.types.ndarray(ndim=2)):
    for i, j in x:
        x[i, j] += 10 * i + j + 1


def increased():
    i, j = np.indices((3, 4))
    return 10 * i + j + 1


# ---- arguments
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, 4),
        lambda: torch.zeros(4, 3).T,
        lambda: torch.zeros(6, 8)[::2, ::2],
        lambda: torch.zeros(2, 3, 4)[1],
        lambda: torch.nn.Parameter(torch.zeros(3, 4)),
        lambda: torch.zeros(3, 4, dtype=torch.float64).requires_grad_(),
        lambda: torch._neg_view(torch.zeros(3, 4)),
    ],
    ids=["contiguous", "transposed", "strided", "part", "parameter", "leaf", "negated view"],
)
def test_every_form_of_memory_works_and_is_written(make):
    for _ in range(2):
        x = make()
        increase(x)
        assert (x.detach().numpy(force=True) == increased()).all()


def test_contiguous_tensors_are_passed_by_pointer():
    whole = torch.full((6, 8), -1.0)
    increase(whole[1:4, 2:6])
    assert (whole[1:4, 2:6].numpy() == increased() - 1).all() and whole.sum() == increased().sum() - 48

    @qd.kernel
    def stop(x: qd.types.ndarray()):
        for _ in range(1):
            x[0] = 5
            assert x[0] == 0, "stopped"

    with qd.init(offline_cache=False, debug=True):
        x = torch.zeros(3)
        with pytest.raises(qd.QdrunAssertionError):
            stop(x)
        assert x[0] == 5


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_type_both_ways(name):
    @qd.kernel
    def copy(x: qd.types.ndarray(), y: qd.types.ndarray()):
        for i in x:
            y[i] = x[i]

    x, y = torch.tensor([0, 1, 1], dtype=TYPES[name]), torch.zeros(3, dtype=TYPES[name])
    copy(x, y)
    assert x.tolist() == y.tolist()
    for backend in BACKENDS:
        t = qd.tensor(getattr(qd, name), 3, backend=backend)
        t.from_torch(x)
        assert t.to_torch().dtype == TYPES[name] and t.to_torch().tolist() == x.tolist()


def test_tensors_that_have_no_memory_for_kernels_are_refused():
    cases = [
        (torch.zeros(2, 2, dtype=torch.bfloat16), "torch.bfloat16 has no kernel type"),
        (torch.zeros(2, 2, dtype=torch.complex64), "numpy dtype complex64 has no kernel type"),
        (torch.eye(2).to_sparse(), "a torch.sparse_coo tensor of torch has no dense memory"),
        (torch.zeros(2, 2, device="meta"), "a meta tensor of torch has no dense memory"),
    ]
    for value, text in cases:
        with pytest.raises(qd.QdrunTypeError, match=f"`increase`, argument `x`: {text}"):
            increase(value)
    with pytest.raises(qd.QdrunTypeError, match="expected number of axes 2, got 1"):
        increase(torch.zeros(3))


def test_a_tensor_on_another_device_is_copied_and_copied_back(monkeypatch):
    """There is no other device here, so a tensor of the CPU plays one: what is copied back must not depend on shared memory."""
    from qdrun.compiler.lang.args import arrays

    monkeypatch.setattr(arrays, "lives_elsewhere", lambda value: True)
    monkeypatch.setattr(arrays, "host_array", lambda value: value.detach().clone().numpy())
    x, y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    x.requires_grad_()
    y.requires_grad_()
    square(x, y)
    assert y.tolist() == [1, 4] and x.tolist() == [1, 2]
    y.grad.fill_(1)
    square.grad(x, y)
    assert x.grad.tolist() == [2, 4]


def test_empty_and_0d_tensors():
    increase(torch.zeros(0, 4))

    @qd.kernel
    def put(x: qd.types.ndarray(ndim=0), v: float):
        x[None] = v

    x = torch.zeros(())
    put(x, 2.5)
    assert x.item() == 2.5


def test_scalars_and_sizes_from_torch():
    @qd.kernel
    def fill(x: qd.types.ndarray(), n: int, v: float):
        for i in range(n):
            x[i] = v

    x = torch.zeros(4)
    fill(x, torch.tensor(3), torch.tensor(1.5))
    assert x.tolist() == [1.5, 1.5, 1.5, 0]


# ---- gradients
def test_gradients_land_in_grad_and_accumulate():
    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    square(x, y)
    assert x.grad.tolist() == [0, 0, 0] == y.grad.tolist()  # made at the launch
    for k in (1, 2):
        y.grad.copy_(torch.tensor([1.0, 10.0, 100.0]))
        square.grad(x, y)
        assert x.grad.tolist() == [2 * k, 40 * k, 600 * k] and y.grad.tolist() == [0, 0, 0]
    assert y.tolist() == [1, 4, 9]


def test_the_gradient_need_not_be_contiguous():
    x, y = (torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    x.grad = torch.zeros(3, 2, dtype=torch.float64).T
    y.grad = torch.ones(2, 6, dtype=torch.float64)[:, ::2]
    square(x, y)
    square.grad(x, y)
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy())


def test_a_slice_with_a_gradient():
    whole = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    part = whole[:, ::2]
    y = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    square(part, y)
    y.grad.fill_(1)
    square.grad(part, y)
    assert not part.is_leaf
    np.testing.assert_allclose(part.grad.numpy(), 2 * part.detach().numpy())


def test_tensors_without_requires_grad_have_none():
    x, y = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    square(x, y)
    assert x.grad is None
    whole = torch.ones(3, dtype=torch.int64)
    square(whole, whole.clone())
    assert whole.grad is None


def test_a_parameter_that_takes_no_gradient():
    @qd.kernel
    def scale(x: qd.types.ndarray(needs_grad=False), w: qd.types.ndarray(), y: qd.types.ndarray()):
        for i in x:
            y[i] = x[i] * w[i]

    x, w, y = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    scale(x, w, y)
    y.grad.fill_(1)
    scale.grad(x, w, y)
    assert x.grad.tolist() == [0, 0, 0] and torch.equal(w.grad, x.detach())


def test_a_gradient_of_the_wrong_kind_is_refused():
    x, y = torch.rand(3, dtype=torch.float64, requires_grad=True), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(TypeError, match="expected needs_grad True, got False"):

        @qd.kernel
        def read(x: qd.types.ndarray(needs_grad=True)):
            for i in x:
                x[i] += 1

        read(y)
    square(x, y.requires_grad_())
    assert x.grad is not None


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x).requires_grad_()
        square(x, y)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        y.grad = gradient.contiguous()
        square.grad(x, y)
        return x.grad


def test_an_operation_of_torch_made_of_kernels():
    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Square.apply, x)
    z = torch.sin(Square.apply(torch.exp(x)) * 3.0).sum()
    z.backward()
    e = np.exp(x.detach().numpy())
    np.testing.assert_allclose(x.grad.numpy(), np.cos(3 * e * e) * 6 * e * e)
    for _ in range(2):  # the kernel marks what it writes, and nothing else
        x.grad = None
        y = Square.apply(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), 4 * x.detach().numpy())


class Cube(torch.autograd.Function):
    """As the peer's users write it: on the tensors themselves, by way of their ``.grad``."""

    @staticmethod
    def forward(ctx, x):
        y = torch.zeros_like(x, requires_grad=True)
        cubes(x, y)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        y.grad = gradient.contiguous()
        cubes.grad(x, y)
        return x.grad


def test_an_operation_on_a_tensor_that_is_no_leaf():
    a = torch.ones(4, dtype=torch.float64, requires_grad=True)
    Cube.apply(a * 2).sum().backward()
    assert a.grad.tolist() == [24, 24, 24, 24]


def test_fields_between_torch_and_a_kernel():
    x, y = (qd.field(qd.f64, 5, needs_grad=True) for _ in range(2))

    @qd.kernel
    def run():
        for i in x:
            y[4 - i] = x[i] * x[i]

    class Op(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            ctx.save_for_backward(given)
            x.from_torch(given)
            run()
            return y.to_torch()

        @staticmethod
        def backward(ctx, gradient):
            x.from_torch(ctx.saved_tensors[0])
            qd.ad.clear_all_gradients()
            y.grad.from_torch(gradient)
            run.grad()
            return x.grad.to_torch()

    assert torch.autograd.gradcheck(Op.apply, torch.rand(5, dtype=torch.float64, requires_grad=True))


def test_a_kernel_tells_torch_that_it_wrote():
    w = torch.rand(3, dtype=torch.float64, requires_grad=True)
    x = torch.rand(3, dtype=torch.float64)
    loss = (w * x).sum()  # torch keeps x for the gradient of w
    square(w, x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss = (w * x).sum()
    square(x, torch.zeros_like(x))  # only reads it
    loss.backward()
    assert torch.equal(w.grad, x)


def test_a_tensor_of_torch_as_loss_of_a_tape():
    @qd.kernel
    def total(x: qd.types.ndarray(), loss: qd.types.ndarray()):
        for i in x:
            loss[0] += x[i] * x[i] * x[i]

    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    loss = torch.full((1,), 5.0, dtype=torch.float64, requires_grad=True)
    with qd.ad.Tape(loss=loss):
        total(x, loss)
    np.testing.assert_allclose(loss.item(), (x.detach() ** 3).sum().item())
    np.testing.assert_allclose(x.grad.numpy(), 3 * x.detach().numpy() ** 2)
    with qd.ad.Tape(loss=loss):
        total(x, loss)
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.detach().numpy() ** 2)  # torch's gradients are cleared by torch's users
    with (
        pytest.raises(RuntimeError, match="Gradients of loss are not allocated"),
        qd.ad.Tape(loss=torch.ones(1, dtype=torch.float64)),
    ):
        pass
    with pytest.raises(RuntimeError, match="one element"), qd.ad.Tape(loss=torch.ones(2, requires_grad=True)):
        pass


def test_a_tape_keeps_what_a_later_launch_overwrites_of_a_tensor_of_torch():
    @qd.kernel
    def clear(x: qd.types.ndarray()):
        for i in x:
            x[i] = 0.0

    whole, y = torch.rand(6, dtype=torch.float64), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    before, part = whole.clone(), whole[:4].requires_grad_()
    with qd.ad.Tape():
        square(part, y)
        clear(whole[3:])
        y.grad = torch.ones(4, dtype=torch.float64)
    assert torch.equal(part.grad, 2.0 * before[:4]) and not whole[3:].any()


def test_numbers_and_arrays_without_axes_in_a_tape():
    @qd.kernel
    def scale(x: qd.types.ndarray(ndim=0), s: float, y: qd.types.ndarray()):
        for i in y:
            y[i] += x[None] * s

    x, s = torch.tensor(3.0, dtype=torch.float64, requires_grad=True), torch.tensor(2.0)
    y = qd.ndarray(qd.f64, 4, needs_grad=True)
    with qd.ad.Tape():
        scale(x, s, y)
        s.fill_(100)  # the number of the launch counts
        y.grad.fill(1)
    assert x.grad.item() == 8 and y[0] == 6


# ---- conversions
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_torch_both_ways(backend, layout):
    x = qd.tensor(qd.f32, (2, 3), backend=backend, layout=layout)
    data = torch.arange(6.0).reshape(2, 3)
    for source in (data, data.double(), data.T.contiguous().T, data.bfloat16(), data.clone().requires_grad_()):
        x.fill(0)
        x.from_torch(source)
        assert torch.equal(x.to_torch(), data) and x.to_torch(device="cpu").is_contiguous()
    with pytest.raises(TypeError, match="shape"):
        x.from_torch(data.T)
    copy = x.to_torch()
    copy[0, 0] = 9
    assert x[0, 0] == 0


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
@pytest.mark.parametrize("layout", [None, (1, 0)])
def test_memory_is_shared_without_copies(backend, layout):
    x = qd.tensor(qd.f32, (2, 3), backend=backend, layout=layout)
    views = [x.to_torch(copy=False), x.to_torch(copy=None), torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(x.to_dlpack())]
    for k, view in enumerate(views):
        assert tuple(view.shape) == (2, 3) and view.stride() == ((3, 1) if layout is None else (1, 2))
        view[1, 2] = k + 1
        assert x[1, 2] == k + 1 == views[0][1, 2]
    with pytest.raises(ValueError, match="not on meta"):
        x.to_torch(device="meta", copy=False)
    assert x.to_torch(device="meta", copy=None).is_meta


def test_vectors_for_torch():
    v = qd.Vector.field(3, qd.f32, 2)
    assert v.to_torch().shape == (2, 3) and v.to_torch(keep_dims=True).shape == (2, 3, 1)
    v.from_torch(torch.ones(2, 3))
    v.from_torch(2 * torch.ones(2, 3, 1))
    assert v.to_numpy().tolist() == [[2, 2, 2]] * 2


def test_what_torch_cannot_show_is_copied_or_refused():
    a, b = qd.field(qd.f32), qd.field(qd.i8)
    qd.root.dense(qd.i, 3).place(a, b)
    c, d = qd.field(qd.f64), qd.field(qd.i32)
    qd.root.dense(qd.i, 3).place(d, c)
    assert a.to_torch(copy=False).stride() == (2,) and c.to_torch(copy=False).stride() == (2,)
    e, f, g = qd.field(qd.i16), qd.field(qd.f32), qd.field(qd.i16)
    qd.root.dense(qd.i, 3).dense(qd.j, 3).place(e, f, g)
    f.to_torch(copy=False)[1, 1] = 3
    assert f[1, 1] == 3


def test_an_ndarray_on_the_memory_of_a_tensor():
    t = torch.zeros(4, 3).T
    x = qd.from_dlpack(t)
    increase(x)
    assert (t.numpy() == increased()).all() and x.layout == (1, 0) and x.address == t.data_ptr()


def test_numpy_arrays_and_torch_tensors_serve_one_kernel():
    for _ in range(2):
        for make in (torch.zeros, np.zeros, lambda n: qd.ndarray(qd.f64, n)):
            x = make((3, 4))
            increase(x)
            assert (np.asarray(x) == increased()).all()


# ---- subclasses, whose methods may be anything
class Copying(torch.Tensor):
    def detach(self):
        return super().detach().clone()

    def numpy(self, **how):
        return super().numpy(**how).copy()


class Redirected(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out.clone() if isinstance(out, torch.Tensor) else out


@pytest.mark.parametrize("cls", [Copying, Redirected, torch.nn.Parameter])
@pytest.mark.parametrize("part", ["contiguous", "strided", "transposed"])
def test_writes_to_subclasses_are_not_lost(cls, part):
    plain = {
        "contiguous": lambda: torch.zeros(3, 4),
        "strided": lambda: torch.zeros(6, 8)[::2, ::2],
        "transposed": lambda: torch.zeros(4, 3).T,
    }[part]()
    with torch._C.DisableTorchFunctionSubclass():
        given = plain.as_subclass(cls) if cls is not torch.nn.Parameter else cls(plain)
    for k in range(3):
        increase(given)
        assert (plain.numpy() == (k + 1) * increased()).all()


def test_gradients_of_subclasses_land_in_grad():
    x = torch.rand(4, dtype=torch.float64).as_subclass(Copying).requires_grad_()
    y = torch.zeros(4, dtype=torch.float64).as_subclass(Copying).requires_grad_()
    square(x, y)
    values = torch.Tensor.detach(x).as_subclass(torch.Tensor).numpy()
    np.testing.assert_allclose(torch.Tensor.detach(y).as_subclass(torch.Tensor).numpy(), values**2)
    y.grad = torch.ones(4, dtype=torch.float64)
    square.grad(x, y)
    np.testing.assert_allclose(np.asarray(x.grad.as_subclass(torch.Tensor)), 2 * values)


def test_an_expanded_tensor_is_read_and_not_written():
    x = torch.ones(1, dtype=torch.float64).expand(4)
    y = torch.zeros(4, dtype=torch.float64)
    square(x, y)
    assert y.tolist() == [1.0] * 4
    with pytest.raises(qd.QdrunRuntimeError, match="shows one element in many places"):
        square(y, x)
