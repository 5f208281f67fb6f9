"""The calls of NVIDIA's driver, on a stand-in for cuda-python that notes them; and that cuda-python takes them so."""

import ctypes
from collections import Counter
from enum import IntEnum

import pytest

from qdrun.compiler.errors import DeviceError
from qdrun.compiler.runtime.cuda import driver as nvidia
from qdrun.compiler.runtime.cuda import native
from qdrun.compiler.runtime.cuda.native import Addresses, launchers
from qdrun.compiler.runtime.gpu.driver import LoadedFunction

Code = IntEnum("Code", {"CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_PTX": 218, "CUDA_ERROR_LAUNCH_FAILED": 719})
OURS, OTHERS = 0xC0, 0xD0


class Names:
    """Any enumeration: a member is its own name."""

    def __getattr__(self, name):
        return name


class Bindings:
    """``current``: this thread's context; ``fails``: results by call; ``gives``: what calls return."""

    def __init__(self):
        self.current, self.calls, self.fails, self.gives, self.pools = 0, [], {}, {}, 1
        for name in (
            "CUdevice_attribute",
            "CUmemPool_attribute",
            "CUjit_option",
            "CUjitInputType",
            "CUfunction_attribute",
            "CUlimit",
        ):
            setattr(self, name, Names())
        for name in ("CUstreamCaptureMode", "CUmemAllocationType", "CUmemAllocationHandleType", "CUmemLocationType"):
            setattr(self, name, Names())
        self.cuuint64_t = int

    class CUmemPoolProps:
        def __init__(self):
            self.location = Names()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args):
            self.calls.append((name, *args))
            code = self.fails.get(name, 0)
            if code:
                return (Code(code), None)
            if name == "cuCtxGetCurrent":
                return Code(0), self.current
            if name in ("cuCtxSetCurrent", "cuCtxPushCurrent"):
                self.before, self.current = self.current, args[0]
                return (Code(0),)
            if name == "cuCtxPopCurrent":
                self.current = self.before
                return Code(0), OURS
            if name == "cuDeviceGetAttribute":
                return Code(0), self.pools if "POOLS" in args[0] else 7
            given = self.gives.get(name)
            return (Code(0), *given) if given else (Code(0),)

        return call

    def names(self):
        return [c[0] for c in self.calls if c[0] != "cuCtxGetCurrent"]


@pytest.fixture
def d(monkeypatch):
    fake = Bindings()
    fake.gives |= {
        "cuDriverGetVersion": (13000,),
        "cuDeviceGet": (0,),
        "cuDevicePrimaryCtxRetain": (OURS,),
        "cuMemPoolCreate": ("pool",),
    }
    fake.gives |= {"cuMemAllocFromPoolAsync": (512,), "cuMemAlloc": (512,), "cuStreamCreate": (3,), "cuMemGetInfo": (1, 2)}
    monkeypatch.setattr(nvidia, "bindings", lambda: fake)
    monkeypatch.setattr(nvidia, "addresses", lambda: Addresses(1, 2, 3, 4, 5, 6, 7))
    monkeypatch.setattr(nvidia, "launchers", lambda context, found: native.Launchers(10, 11, 12, 13))
    monkeypatch.setattr(nvidia, "_contexts", {})
    monkeypatch.setattr(nvidia, "_streams", Counter())
    return fake


@pytest.fixture
def driver(d):
    made = nvidia.CudaDriver()
    made.open(0)
    d.calls.clear()
    return made


def test_opening_takes_the_primary_context_once_and_makes_a_pool_that_keeps_little(d):
    for _ in range(2):
        driver = nvidia.CudaDriver()
        driver.open(0)
    assert d.names().count("cuDevicePrimaryCtxRetain") == 1 and d.current == OURS
    assert ("cuMemPoolSetAttribute", "pool", "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD", 64 << 20) in d.calls
    assert (driver.launch_address, driver.memset_address, driver.together_address, driver.native_copy(3)) == (10, 11, 12, 13)


def test_a_thread_without_a_context_gets_ours(d, driver):
    d.current = 0
    driver.synchronize(3)
    assert d.names() == ["cuCtxSetCurrent", "cuStreamSynchronize"] and d.current == OURS
    d.calls.clear()
    driver.synchronize(3)
    assert d.names() == ["cuStreamSynchronize"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_with_anothers_context_keeps_it(d, driver, fails):
    d.current = OTHERS
    d.fails = {"cuStreamSynchronize": 719} if fails else {}
    if fails:
        with pytest.raises(DeviceError):
            driver.synchronize(3)
    else:
        driver.synchronize(3)
    assert d.names() == ["cuCtxPushCurrent", "cuStreamSynchronize", "cuCtxPopCurrent"] and d.current == OTHERS


def test_memory_comes_from_the_pool_in_the_order_of_the_stream(d, driver):
    assert driver.allocate(100, 3) == 512
    driver.free(512, 3)
    driver.trim()
    assert d.calls[1::2] == [
        ("cuMemAllocFromPoolAsync", 100, "pool", 3),
        ("cuMemFreeAsync", 512, 3),
        ("cuMemPoolTrimTo", "pool", 0),
    ]


def test_what_is_shared_with_other_libraries_calls_the_drivers_functions(d, driver):
    """The class that knows libraries by their names alone (``runtime/gpu/library.py``)."""
    d.gives |= {"cuModuleGetFunction": (7,), "cuFuncGetAttribute": (5,), "cuEventCreate": (8,), "cuEventElapsedTime": (1.5,)}
    d.gives |= {"cuStreamEndCapture": ("graph",), "cuGraphInstantiate": (9,), "cuMemPoolGetAttribute": (6,)}
    function, pool, rows = "CU_FUNC_ATTRIBUTE_", "CU_MEMPOOL_ATTR_", (64, 32, 7, 3)
    for work, gives, *calls in (
        (driver.memory_info, (1, 2), ("cuMemGetInfo",)),
        (driver.pool_bytes, (6, 6), *(("cuMemPoolGetAttribute", "pool", f"{pool}{k}_MEM_CURRENT") for k in ("USED", "RESERVED"))),
        (lambda: driver.host_free(77), None, ("cuMemFreeHost", 77)),
        *((lambda w=w: driver.memset(64, 255, 3, w, 5), None, (f"cuMemsetD{8 * w}Async", 64, 255, 3, 5)) for w in (1, 2, 4)),
        *((lambda w=w: driver.memset_rows(*rows, w, 2, 5), None, (f"cuMemsetD2D{8 * w}Async", *rows, 2, 5)) for w in (1, 2, 4)),
        (lambda: driver.fetch(64, 32, 8, 5), None, ("cuMemcpyDtoHAsync", 64, 32, 8, 5)),
        (
            lambda: driver.function(3, "f"), LoadedFunction(7, 5, 5, 5), ("cuModuleGetFunction", 3, b"f"),
            *(("cuFuncGetAttribute", function + k, 7) for k in ("LOCAL_SIZE_BYTES", "NUM_REGS", "SHARED_SIZE_BYTES")),
        ),
        (lambda: driver.unload(3), None, ("cuModuleUnload", 3)),
        *((lambda k=k: driver.event(k), 8, ("cuEventCreate", int(k))) for k in (False, True)),
        (lambda: driver.event_free(8), None, ("cuEventDestroy", 8)),
        (lambda: driver.record(8, 5), None, ("cuEventRecord", 8, 5)),
        (lambda: driver.event_wait(8), None, ("cuEventSynchronize", 8)),
        (lambda: driver.elapsed_ms(8, 9), 1.5, ("cuEventElapsedTime", 8, 9)),
        (lambda: driver.capture_begin(5), None, ("cuStreamBeginCapture", 5, "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")),
        (lambda: driver.capture_end(5), 9, ("cuStreamEndCapture", 5), ("cuGraphInstantiate", "graph", 0), ("cuGraphDestroy", "graph")),
        (lambda: driver.graph_launch(9, 5), None, ("cuGraphLaunch", 9, 5)),
        (lambda: driver.graph_free(9), None, ("cuGraphExecDestroy", 9)),
    ):  # fmt: skip
        d.calls.clear()
        assert work() == gives
        assert [call for call in d.calls if call[0] != "cuCtxGetCurrent"] == calls


def test_only_the_last_program_of_a_device_gives_the_stacks_back(d, driver):
    """The call waits for the device: programs on other threads would wait with it."""
    other = nvidia.CudaDriver()
    other.open(0)
    first, second = driver.stream(ordered=False), other.stream(ordered=False)
    d.calls.clear()
    driver.close(first)
    assert d.names() == ["cuStreamDestroy", "cuMemPoolDestroy"]
    d.calls.clear()
    other.close(second)
    assert d.names() == ["cuStreamDestroy", "cuCtxSetLimit", "cuMemPoolDestroy"]


def test_streams_wait_for_the_default_one_only_where_they_are_in_order_with_it(d, driver):
    first = driver.stream(ordered=False)
    driver.stream(ordered=True)
    assert [c for c in d.calls if c[0] == "cuStreamCreate"] == [("cuStreamCreate", 1), ("cuStreamCreate", 0)]
    driver.stream_free(first)
    d.calls.clear()
    driver.close(3)  # the one that came in its place: nobody else is there
    assert d.names() == ["cuStreamDestroy", "cuCtxSetLimit", "cuMemPoolDestroy"]


def test_a_device_without_pools_allocates_directly(d):
    d.pools = 0
    driver = nvidia.CudaDriver()
    driver.open(0)
    assert driver.allocate(100, 3) == 512
    driver.free(512, 3)
    driver.trim()
    assert d.names()[-2:] == ["cuMemAlloc", "cuMemFree"] and driver.pool_bytes() == (0, 0)


def test_the_drivers_compiler_log_is_in_the_error(d, driver):
    real = d.__getattr__("cuLinkAddData")
    d.gives |= {"cuLinkCreate": ("state",)}
    d.fails = {"cuLinkAddData": 218}

    def link(*args):
        log = next(c for c in d.calls if c[0] == "cuLinkCreate")[3][0]
        log[:14] = b"line 3: nope\0!"
        return real(*args)

    d.cuLinkAddData = link
    with pytest.raises(DeviceError) as e:
        driver.assemble(b"ptx", "f")
    assert str(e.value).splitlines()[:2] == [
        "the driver cannot compile kernel `f`: the driver refuses the code (CUDA_ERROR_INVALID_PTX)",
        "  line 3: nope",
    ]
    assert d.names()[-1] == "cuLinkDestroy"


def test_an_assembled_image_is_copied_before_the_link_is_destroyed(d, driver):
    data = ctypes.create_string_buffer(b"\x7fELFcubin", 9)
    d.gives |= {"cuLinkCreate": ("state",), "cuLinkComplete": (ctypes.addressof(data), 9)}
    assert driver.assemble(b"text\0\0", "f") == b"\x7fELFcubin"
    (added,) = (c for c in d.calls if c[0] == "cuLinkAddData")
    assert added[3:6] == (b"text\0", 5, b"f.ptx") and d.names()[-1] == "cuLinkDestroy"


def test_a_cubin_is_loaded_as_it_is_and_text_with_its_end(d, driver):
    d.gives["cuModuleLoadDataEx"] = (77,)
    assert driver.load_module(b"\x7fELF\0\0", "f") == driver.load_module(b"text", "f") == 77
    assert [c[1] for c in d.calls if c[0] == "cuModuleLoadDataEx"] == [b"\x7fELF\0\0", b"text\0"]


# ---- launches from machine code
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
TOGETHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Machine:
    """C functions as a driver has them. ``answers``: results of the launches to come."""

    def __init__(self):
        self.calls, self.answers = [], []
        self.keep = [LAUNCH(self.launch), TOGETHER(self.together), MEMSET(self.memset), COPY(self.copy)]
        self.keep += [*(CONTEXT(self.context(n)) for n in ("set", "push", "pop"))]
        self.found = Addresses(*(ctypes.cast(f, ctypes.c_void_p).value for f in self.keep))

    def answer(self):
        return self.answers.pop(0) if self.answers else 0

    def launch(self, *args):
        self.calls.append(("launch", *args))
        return self.answer()

    def together(self, *args):
        words = [ctypes.c_int64.from_address(args[-1][k]).value for k in range(3)]
        self.calls.append(("together", *args[:-1], words))
        return self.answer()

    def memset(self, *args):
        self.calls.append(("memset", *args))
        return self.answer()

    def copy(self, *args):
        self.calls.append(("copy", *args))
        return self.answer()

    def context(self, name):
        def call(context):
            self.calls.append((name, context if name != "pop" else None))
            return 0

        return call


ARGS = (1 << 40, 2, 3, 4, 5, 6, 7, 8, 9 << 40, 10 << 40, 11 << 40)


@pytest.mark.parametrize(
    "answers, result, calls",
    [
        ([0], 0, ["launch"]),
        ([719], 719, ["launch"]),
        ([201, 0], 0, ["launch", "set", "launch"]),
        ([201, 701], 701, ["launch", "set", "launch"]),
        ([400, 0], 0, ["launch", "push", "launch", "pop"]),
        ([400, 400], 400, ["launch", "push", "launch", "pop"]),
    ],
)
def test_a_launch_makes_the_context_current_where_it_is_not(answers, result, calls):
    machine = Machine()
    made = launchers(0x123456789A, machine.found)
    machine.answers = list(answers)
    assert LAUNCH(made.launch)(*ARGS) == result
    assert [c[0] for c in machine.calls] == calls
    assert all(c[1:] == ARGS for c in machine.calls if c[0] == "launch")
    assert all(c[1] == 0x123456789A for c in machine.calls if c[0] in ("set", "push"))
    for name, call, args in (
        ("memset", MEMSET(made.memset), (1 << 40, 2, 3 << 32, 4 << 40)),
        ("copy", COPY(made.copy), (1 << 40, 2 << 40, 3 << 32, 4 << 40)),
    ):
        machine.calls, machine.answers = [], list(answers)
        assert call(*args) == result
        assert [c[0].replace(name, "launch") for c in machine.calls] == calls
        assert machine.calls[0][1:] == machine.calls[-1 if calls[-1] == "launch" else -2][1:] == args


def test_a_cooperative_launch_takes_the_address_of_each_parameter():
    machine = Machine()
    words, size = (ctypes.c_int64 * 3)(7, -1, 1 << 50), ctypes.c_int64(24)
    extra = (ctypes.c_uint64 * 5)(1, ctypes.addressof(words), 2, ctypes.addressof(size), 0)
    machine.answers = [201, 720]
    call = LAUNCH(launchers(0x123456789A, machine.found).together)
    assert call(*ARGS[:-2], None, ctypes.addressof(extra)) == 720
    assert [c[0] for c in machine.calls] == ["together", "set", "together"]
    assert machine.calls[0] == machine.calls[2] == ("together", *ARGS[:-2], [7, -1, 1 << 50])


def test_launchers_are_made_once_for_a_context():
    machine = Machine()
    assert launchers(5, machine.found) is launchers(5, machine.found) is not launchers(6, machine.found)


def test_a_copy_that_the_driver_would_wait_in_is_made_when_its_stream_has_come_there(d, driver):
    """Else no thread can make or destroy a stream or an event until then."""
    wait = "cuStreamSynchronize"
    for copy, names in {
        lambda: driver.download(1, 2, 8, 5): [wait, "cuMemcpyDtoHAsync", wait],
        lambda: driver.upload(1, 2, nvidia.AT_ONCE, 5): ["cuMemcpyHtoDAsync"],
        lambda: driver.upload(1, 2, nvidia.AT_ONCE + 1, 5): [wait, "cuMemcpyHtoDAsync"],
    }.items():
        d.calls.clear()
        copy()
        assert d.names() == names
