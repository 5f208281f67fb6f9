"""Programs on a device whose memory the host cannot touch: reads find what was written and launched, and failures are raised where the
host waits. The device is the imitation that runs on the CPU; it runs launches late and kills the process when the host touches its memory.
"""

import copy
import random
import threading

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.errors import AdStackOverflow, QdrunAssertionError, QdrunRuntimeError, QdrunValueError
from qdrun.compiler.program.program import current_program


@pytest.fixture(autouse=True)
def device():
    yield qd.init(arch=qd.cuda, device="emulated", random_seed=7)
    qd.reset()


# ---- by property
class World:
    """Tensors of every kind, each with a numpy model, and kernels that change them."""

    def __init__(self) -> None:
        a, b = qd.field(qd.f32), qd.field(qd.f64)
        v = qd.Vector.field(3, qd.f32)
        qd.root.dense(qd.ij, (5, 7)).place(a, b, v)  # interleaved
        self.tensors = {
            "one": qd.field(qd.i32, shape=()),
            "plain": qd.field(qd.f32, shape=(40,)),
            "real": qd.field(qd.f64, shape=(6, 5), order="ji"),
            "a": a,
            "b": b,
            "v": v,
            "planes": qd.Vector.field(2, qd.f64, shape=(9,), layout=qd.Layout.SOA),
            "matrix": qd.Matrix.field(2, 2, qd.f32, shape=(4,)),
            "array": qd.ndarray(qd.f32, (30,)),
            "turned": qd.ndarray(qd.f64, (4, 6), layout=(1, 0)),
            "vectors": qd.Vector.ndarray(2, qd.i32, (8,)),
            "tensor": qd.tensor(qd.f32, (11,), backend=qd.Backend.FIELD),
            "far": qd.field(qd.f32, shape=(4,), offset=(-2,)),
        }
        self.models = {name: np.array(t.to_numpy()) for name, t in self.tensors.items()}
        fields = [t for name, t in self.tensors.items() if name not in ("array", "turned", "vectors")]
        self.kernels = {id(t): made(t) for t in fields}

    def launch(self, name: str, by: int) -> None:
        t = self.tensors[name]
        if name in ("array", "turned", "vectors"):
            grow_array(t, by)
        else:
            self.kernels[id(t)](by)
        self.models[name] += by


def made(field):
    if field.shape == ():

        @qd.kernel
        def grow(by: qd.i32):
            field[None] += by

    elif getattr(field, "element_shape", ()):

        @qd.kernel
        def grow(by: qd.i32):
            for I in qd.grouped(field):
                for c in qd.static(range(field.n * field.m)):
                    if qd.static(field.m > 1):
                        field[I][c // field.m, c % field.m] += by
                    else:
                        field[I][c] += by

    else:

        @qd.kernel
        def grow(by: qd.i32):
            for I in qd.grouped(field):
                field[I] += by

    return grow


@qd.kernel
def grow_array(x: qd.types.ndarray(), by: qd.i32):
    for I in qd.grouped(x):
        x[I] += by


def an_index(rng, t, model):
    begin = getattr(t, "offset", None) or (0,) * len(t.shape)
    zero = tuple(rng.randrange(n) for n in t.shape)
    index = tuple(b + k for b, k in zip(begin, zero))
    return (index if len(index) > 1 else index[0] if index else None), zero


def act(rng: random.Random, world: World) -> str:
    """A random action; what it reads is compared."""
    name = rng.choice(list(world.tensors))
    t, model = world.tensors[name], world.models[name]
    index, zero = an_index(rng, t, model)
    values = np.array([rng.randrange(-50, 50) for _ in range(model.size)]).reshape(model.shape).astype(model.dtype)
    action = rng.choice("launch launch launch set get fill from_numpy to_numpy copy component arithmetic pickle".split())
    if action == "launch":
        world.launch(name, rng.randrange(1, 9))
    elif action == "set":
        t[index] = values[zero].tolist() if values[zero].ndim else values[zero].item()
        model[zero] = values[zero]
    elif action == "get":
        assert np.array_equal(np.asarray(t[index]), model[zero])
    elif action == "fill":
        t.fill(3)
        model[...] = 3
    elif action == "from_numpy":
        t.from_numpy(values)
        model[...] = values
    elif action == "to_numpy":
        assert np.array_equal(t.to_numpy(), model)
    elif action == "copy":
        t.copy_from(t)
    elif action == "component" and model[zero].ndim:
        element = t[index]
        world.launch(name, 1)  # the element is a place, not a value
        if model[zero].ndim == 1:
            element[1] = 21
            model[zero][1] = 21
            assert element[1] == 21 and element[0] == model[zero][0]
        else:
            element[1, 0] = 22
            model[zero][1, 0] = 22
            element[0][1] = 23
            model[zero][0, 1] = 23
        assert np.array_equal(element.to_numpy(), model[zero])
    elif action == "arithmetic" and model[zero].ndim:
        element = t[index]
        element += 2
        model[zero] += 2
        assert np.array_equal((element * 2).to_numpy(), 2 * model[zero])
    elif action == "pickle" and name == "array":
        assert np.array_equal(copy.deepcopy(t).to_numpy(), model)
    return f"{action} {name}"


@pytest.mark.parametrize("seed", range(12))
def test_reads_find_what_python_and_kernels_wrote(seed):
    rng, world = random.Random(seed), World()
    done = [act(rng, world) for _ in range(70)]
    for name, t in world.tensors.items():
        assert np.array_equal(t.to_numpy(), world.models[name]), (name, done)


def test_host_arrays_are_lent_to_a_launch():
    rng = np.random.default_rng(3)

    @qd.kernel
    def add(x: qd.types.ndarray(), y: qd.types.ndarray()):
        for i in x:
            x[i] += 2 * y[i]

    x, y = rng.random(50).astype(np.float32), rng.random(50).astype(np.float32)
    expected = x + 2 * y
    add(x, y)
    assert np.allclose(x, expected)
    wide = rng.random((50, 3))
    part, before = wide[:, 1], wide.copy()
    add(part, wide[:, 2])  # not contiguous: brought back to where it came from
    assert np.allclose(wide[:, 1], before[:, 1] + 2 * before[:, 2]) and np.array_equal(wide[:, 0], before[:, 0])
    swapped = np.arange(4, dtype=">f4")
    add(swapped, np.ones(4, np.float32))
    assert swapped.tolist() == [2, 3, 4, 5]
    z = np.arange(5.0)
    add(z, z)  # one array, one memory
    assert z.tolist() == [0, 3, 6, 9, 12]
    with pytest.raises(QdrunRuntimeError, match="overlap, and writes"):
        add(z[1:], z[:-1])
    frozen = np.ones(5)
    frozen.flags.writeable = False
    add(z, frozen)
    with pytest.raises(QdrunRuntimeError, match="read-only"):
        add(frozen, z)
    assert "arguments" not in current_program().usage()


def test_a_launch_that_was_not_made_leaves_its_arrays():
    @qd.kernel
    def none(x: qd.types.ndarray()):
        for i in x:
            x[i] += 1

    x = np.zeros(4)
    none(x)
    program = current_program()
    qd.reset()
    with pytest.raises(QdrunRuntimeError), program:
        none(x)
    assert x.tolist() == [1, 1, 1, 1]
    qd.init(arch=qd.cuda, device="emulated")


def test_gradients_that_are_interleaved_are_cleared_without_a_wait(device, monkeypatch):
    a, b = qd.field(qd.f32), qd.Vector.field(3, qd.f64)
    place = qd.root.dense(qd.i, 9)
    place.place(a, b)
    place.lazy_grad()

    @qd.kernel
    def seed():
        for i in a:
            a.grad[i] = 3.0
            b.grad[i][1] = 4.0

    seed()
    download, waits = device.device.download, []
    monkeypatch.setattr(device.device, "download", lambda *a: waits.append(a) or download(*a))
    qd.ad.clear_all_gradients()
    assert not waits
    assert not a.grad.to_numpy().any() and not b.grad.to_numpy().any()


# ---- what cannot be
def test_the_memory_is_not_shown_to_the_host():
    x, n = qd.field(qd.f32, shape=(3,), name="x"), qd.ndarray(qd.f32, (3,))
    for ask in (lambda: x.view, lambda: x.arr, lambda: x.to_numpy(copy=False), lambda: n.view, lambda: n.arr):
        with pytest.raises(QdrunValueError, match=r"it is in device memory, which the host cannot access\n  do: x.to_numpy"):
            ask()
    for share in (x.to_dlpack, x.__dlpack__, x.__dlpack_device__, n.to_dlpack):
        with pytest.raises(
            QdrunValueError, match=r"lies in the memory of .+, which is not shared with other libraries\n  do: x.to_numpy"
        ):
            share()
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.to_numpy(copy=None).tolist() == [0, 0, 0]


def test_the_processor_is_not_chosen_by_a_number():
    with pytest.raises(QdrunRuntimeError, match=r"device=1 chooses a GPU; do: qd.init\(arch=qd.gpu, device=..\)"):
        qd.init(arch=qd.cpu, device=1)


# ---- failures
OUTSIDE = "index out of range: axis 0 of `x` has index"


def the_failing():
    x = qd.field(qd.i32, shape=(4,))

    @qd.kernel
    def small(limit: qd.i32):
        for i in range(4):
            x[i + limit] += 1

    return x, small


WAITS = {
    "sync": lambda x: qd.sync() or x,
    "element": lambda x: x[0],
    "to_numpy": lambda x: x.to_numpy(),
    "numpy": np.asarray,
    "returned": lambda x: (returns(), x),
}


@qd.kernel
def returns() -> qd.i32:
    return 3


@pytest.mark.parametrize("how", WAITS)
def test_a_failed_assertion_is_raised_where_the_host_waits(how):
    qd.init(arch=qd.cuda, device="emulated", check_out_of_bound=True)
    x, small = the_failing()
    small(0)
    WAITS[how](x)
    small(-5)
    assert returns.prepare() is None  # nothing waits for the device
    with pytest.raises(QdrunAssertionError, match=OUTSIDE):
        WAITS[how](x)
    WAITS[how](x)  # once
    small(0)
    assert x[0] == 2


def test_with_debug_the_launch_raises():
    qd.init(arch=qd.cuda, device="emulated", debug=True)
    x, small = the_failing()
    with pytest.raises(QdrunAssertionError, match=OUTSIDE):
        small(-5)
    assert x.to_numpy().tolist() == [0, 0, 0, 0]


def test_closing_raises_what_is_left_and_frees_everything():
    checked = {"arch": qd.cuda, "device": "emulated", "check_out_of_bound": True}
    with pytest.raises(QdrunAssertionError, match=OUTSIDE), qd.init(**checked) as program:
        _, small = the_failing()
        small(-5)
    assert program.closed and not program.usage()
    with pytest.raises(KeyError, match="mine"), qd.init(**checked) as program:
        _, small = the_failing()
        small(-5)
        raise KeyError("mine")  # the first failure is the one that is seen
    assert program.closed


def test_every_kernel_that_failed_is_reported():
    qd.init(arch=qd.cuda, device="emulated", check_out_of_bound=True)
    (_, first), (_, second) = the_failing(), the_failing()
    second(-5)
    first(-5)
    for _ in range(2):
        with pytest.raises(QdrunAssertionError):
            qd.sync()
    qd.sync()


def test_an_adstack_that_was_too_small_is_reported():
    qd.init(arch=qd.cuda, device="emulated", ad_stack_size=4)
    x, loss = qd.field(qd.f32, shape=(3,), needs_grad=True), qd.field(qd.f32, shape=(), needs_grad=True)

    @qd.kernel
    def many():
        for i in x:
            v, k = x[i], 0
            while k < 20:
                v = qd.sin(v)
                k += 1
            loss[None] += v

    many()
    loss.grad[None] = 1
    many.grad()
    with pytest.raises(AdStackOverflow, match="ran more iterations than its adstack holds"):
        qd.sync()


def test_the_lines_of_an_error_are_the_kernels_own():
    """Code is shared by kernels of the same text; what they report is not."""
    qd.init(arch=qd.cuda, device="emulated", ad_stack_size=600)
    x, y = qd.field(qd.f64, shape=(3,), needs_grad=True), qd.field(qd.f64, shape=(3,), needs_grad=True)

    def made(number):
        if number:

            @qd.kernel
            def many(n: qd.i32):
                for i in x:
                    v, k = x[i], 0
                    while k < n:
                        v = qd.sin(v)
                        k += 1
                    y[i] = v  # the first

        else:

            @qd.kernel
            def many(n: qd.i32):
                for i in x:
                    v, k = x[i], 0
                    while k < n:
                        v = qd.sin(v)
                        k += 1
                    y[i] = v

        return many

    lines = set()
    for k in (made(1), made(0)):
        assert k.grad.plan(1000).bytes
        k.grad(1000)
        with pytest.raises(AdStackOverflow, match="than its adstack holds, which is 600") as e:
            qd.sync()
        lines.add(str(e.value).split("\n")[1])
    assert len(lines) == 2


def test_sums_into_an_element_that_is_computed_before_the_loop():
    """On the host, by every thread, or by one before the others; literal bounds need no computation."""
    qd.init(arch=qd.cuda, device="emulated")
    x, y = qd.field(qd.f64, shape=(40, 3)), qd.field(qd.f64, shape=6)
    c = qd.field(qd.i32, shape=7)

    @qd.kernel
    def host(n: qd.i32):
        for i in range(3, 40):
            y[n % 5] += x[i, 0]

    @qd.kernel
    def thread(n: qd.i32):
        for i, j in qd.ndrange((3, 40), 3):
            y[c[n] % 6] += x[i, j]

    @qd.kernel
    def mixed(n: qd.i32):
        for i, j in qd.ndrange((3, 40), (c[n], 3)):
            y[c[n] % 6] += x[i, j]

    @qd.kernel
    def before(n: qd.i32):
        for i in range(3, 40):
            y[c[n] % 6] += x[i, 0]
            c[6] = 2

    x.fill(1.0)
    c.from_numpy(np.array([5, 4, 3, 2, 1, 0, 2], np.int32))
    host(10)
    thread(3)
    mixed(4)
    before(2)
    assert y.to_numpy().tolist() == [37.0, 74.0, 111.0, 37.0, 0.0, 0.0]


# ---- in order
def test_launches_are_native_and_in_the_order_of_the_queue():
    x = qd.field(qd.i64, shape=())

    @qd.kernel
    def step(k: qd.i64):
        x[None] = x[None] * 3 + k

    expected = 0
    for k in range(50):
        step(k)
        expected = (expected * 3 + k) % 2**64
        if k % 7 == 0:
            x[None] = k
            expected = k
    assert x[None] % 2**64 == expected
    assert len(current_program().native_launches[step.token]) == 1


def test_threads_write_their_arrays_while_others_launch():
    program, wrong = current_program(), []

    def work(number: int) -> None:
        with program:
            x, rng = qd.ndarray(qd.f32, (20,)), random.Random(number)
            model = np.zeros(20, np.float32)
            for step in range(60):
                k = rng.randrange(20)
                x[k] = step
                model[k] = step
                grow_array(x, number)
                model += number
                if step % 5 == 0 and not np.array_equal(x.to_numpy(), model):
                    wrong.append((number, step))

    grow_array(qd.ndarray(qd.f32, (20,)), 1)
    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_print_is_written_when_the_host_waits(capsys):
    @qd.kernel
    def say(k: qd.i32):
        print("k is", k)

    say(5)
    assert capsys.readouterr().out == ""
    qd.sync()
    assert capsys.readouterr().out == "k is 5\n"


def test_planning_reads_what_kernels_wrote():
    n = qd.field(qd.i32, shape=(1,))
    x, loss = qd.field(qd.f64, shape=(3,), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def set_bound(k: qd.i32):
        n[0] = k

    @qd.kernel
    def loop():
        for i in x:
            v = x[i]
            for _ in range(n[0]):
                v = v * v
            loss[None] += v

    def slots():
        plan = loop.grad.plan()
        return plan.bytes, [t.shared_bytes for t in plan.tasks]

    set_bound(3)
    first = slots()
    set_bound(200)
    assert slots() != first and slots() == slots()
    n[0] = 3
    assert slots() == first
    x.fill(0.9)
    with qd.ad.Tape(loss):
        loop()
    assert np.allclose(x.grad.to_numpy(), 8 * 0.9**7)


# ---- with other libraries on the device
class TheirArray:
    """An array of another library: memory of the device that is not the program's, as `__cuda_array_interface__` shows it."""

    def __init__(self, content: np.ndarray, readonly: bool = False, strides=None, stream=None) -> None:
        self.program = current_program()
        self.memory = self.program.device.allocate(content.nbytes, "snapshots")
        self.dtype, self.shape = content.dtype, content.shape
        self.memory.mirror.assign(self.memory.view.view(content.dtype), content.reshape(-1))
        self.memory.mirror.shared = True
        data = self.memory.ptr, readonly
        self.__dict__["face"] = {"shape": content.shape, "typestr": content.dtype.str, "data": data, "version": 3}
        self.__dict__["face"] |= {"strides": strides, "stream": stream}

    @property
    def __cuda_array_interface__(self):
        return self.face

    def numpy(self) -> np.ndarray:
        m = self.memory.mirror
        return m.copied(self.memory.view).view(self.dtype).reshape(self.shape)


@pytest.fixture
def known(device):
    device.device.dlpack = (2, 0)  # as if the memory were that of the first GPU
    return device


@pytest.mark.parametrize("stream", [None, 1, "own"])
def test_arrays_of_the_device_are_taken_where_they_lie(known, stream):
    if stream == "own":
        stream = known.device.driver.stream(ordered=False)
    theirs = TheirArray(np.arange(6, dtype=np.float32), stream=stream)
    used = known.device.peak_bytes
    grow_array(theirs, 4)
    grow_array(theirs, 4)
    assert theirs.numpy().tolist() == [8, 9, 10, 11, 12, 13]
    assert known.peaks().get("arguments") is None and known.device.peak_bytes - used < 8192
    with pytest.raises(QdrunRuntimeError, match="read-only"):
        grow_array(TheirArray(np.zeros(3, np.float32), readonly=True), 1)
    with pytest.raises(TypeError, match="not row-major"):
        grow_array(TheirArray(np.zeros((3, 2), np.float32), strides=(4, 12)), 1)


def test_what_they_do_on_a_stream_of_their_own_is_waited_for(known):
    driver = known.device.driver
    stream = driver.stream(ordered=False)
    theirs = TheirArray(np.zeros(6, np.float32), stream=stream)
    x = qd.field(qd.f32, shape=6)
    x.fill(0)

    def write(value):
        driver.memset(theirs.memory.ptr, int(np.float32(value).view(np.uint32)), 6, 4, stream)

    write(1)
    grow_array(theirs, 2)  # a launch comes after what they have begun, and they come after it
    driver.copy(x._mirror.ptr, theirs.memory.ptr, 24, stream)
    driver.synchronize(stream)
    x._mirror.forget()
    assert x.to_numpy().tolist() == [3] * 6
    write(5)
    assert qd.from_dlpack(theirs)[1] == 5  # from here on they wait for us, or we for them, by hand or in the default stream
    driver.stream_free(stream)


def test_from_dlpack_takes_memory_of_the_device(known):
    theirs = TheirArray(np.arange(6, dtype=np.float64))
    x = qd.from_dlpack(theirs)
    x[2] = 9
    grow_array(x, 1)
    assert theirs.numpy().tolist() == [1, 2, 10, 4, 5, 6] == x.to_numpy().tolist()
    theirs.memory.mirror.assign(theirs.memory.view.view(np.float64), np.ones(6))  # they write, we read
    assert x[3] == 1 and x.to_numpy().tolist() == [1] * 6
    host = qd.from_dlpack(np.arange(3.0))  # memory of the host is copied
    grow_array(host, 1)
    assert host.to_numpy().tolist() == [1, 2, 3]
    with pytest.raises(QdrunValueError, match="copy=False"):
        qd.from_dlpack(np.arange(3.0), copy=False)


def test_our_memory_goes_out(known):
    x = qd.field(qd.f32, shape=(2, 3), name="x")
    x.fill(2)
    face = x.__cuda_array_interface__
    assert (face["shape"], face["typestr"], face["strides"], face["version"]) == ((2, 3), "<f4", (12, 4), 3)
    assert x.__dlpack_device__() == (2, 0)
    theirs = TheirArray(np.zeros(1, np.float32))
    theirs.face.update(shape=(6,), data=face["data"], strides=None)
    grow_array(theirs, 5)  # they write
    assert x.to_numpy().tolist() == [[7, 7, 7], [7, 7, 7]] and x[1, 2] == 7
    x[0, 0] = 1
    assert x.to_numpy()[0].tolist() == [1, 7, 7]
    from qdrun.compiler.lang.interop_on_device import capsule_of

    for version in (None, (1, 0)):
        device, shape, address = record_of(capsule_of(x, x._form, version))
        assert (device, shape, address) == ((2, 0), (2, 3), face["data"][0])
    assert np.from_dlpack(OnHost(x)).tolist() == [[1, 7, 7], [7, 7, 7]]
    with pytest.raises(QdrunValueError, match=r"lies on DLPack device \(2, 0\), not on \(2, 1\)"):
        x.__dlpack__(dl_device=(2, 1))
    with pytest.raises(QdrunValueError, match="is shared, not copied, on its device"):
        x.__dlpack__(copy=True)


class OnHost:
    """Asks for a copy on the host, as numpy does with ``device="cpu"``."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **how):
        return self.x.__dlpack__(dl_device=(1, 0), max_version=how.get("max_version"))

    def __dlpack_device__(self):
        return (1, 0)


def record_of(capsule):
    """Device, shape and address in a DLPack capsule."""
    import ctypes

    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    at = api.PyCapsule_GetPointer(capsule, name) + (32 if name == b"dltensor_versioned" else 0)
    address = ctypes.c_uint64.from_address(at).value
    device = tuple((ctypes.c_int32 * 2).from_address(at + 8))
    ndim = ctypes.c_int32.from_address(at + 16).value
    shape = tuple((ctypes.c_int64 * ndim).from_address(ctypes.c_uint64.from_address(at + 24).value))
    return device, shape, address
