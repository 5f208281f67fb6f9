"""A GPU as a program's device, on a driver that runs nothing and on the emulated one."""

import contextlib
import ctypes
import gc

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen.abi import (
    CTX_FUNCTIONS,
    CTX_GPU,
    CTX_PRINT,
    CTX_SCRATCH,
    TABLE_LAUNCHES,
    TABLE_PROCESSORS,
    TABLE_STREAM,
)
from qdrun.compiler.errors import DeviceError, OutOfMemory, QdrunRuntimeError
from qdrun.compiler.ir.nodes import Buffer, Const, GlobalStore, Kernel, Place, Print, Task
from qdrun.compiler.ir.types import f32, i32
from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.compiled import CompileOptions
from qdrun.compiler.runtime.gpu.code import GpuCode, frame_bytes
from qdrun.compiler.runtime.gpu.device import GpuDevice
from qdrun.compiler.runtime.gpu.find import find
from qdrun.compiler.runtime.gpu.memory import deferred_release
from qdrun.compiler.runtime.gpu.memory.device_memory import CHUNK, release_abandoned
from qdrun.compiler.runtime.native.launch_ir import S_WORDS
from qdrun.tests.devices.processor.driver import EmulatedDriver

from .fake_driver import INFOS, FakeDriver


def store_kernel(name="k", value=1.5, tasks=1):
    place = Place("x", f32, Buffer("field"), 1, (4,), (4,))
    body = GlobalStore(place, (Const(2, i32),), Const(value, f32))
    return Kernel(name, [], [Task(f"{name}_{t}", [body]) for t in range(tasks)])


@pytest.fixture
def fake():
    device = GpuDevice(FakeDriver())
    yield device
    device.close()


@pytest.fixture
def fresh(monkeypatch):
    """No other test has opened a device, or left code on it."""
    monkeypatch.setattr(deferred_release, "_devices", {})
    monkeypatch.setattr(cache, "LOADED", cache.CodeTable(recent=0))


@pytest.fixture
def emulated():
    device = GpuDevice(EmulatedDriver(), "emulated")
    yield device
    device.driver.machine.heal()
    device.close()


# ---- which device
@pytest.mark.parametrize(
    "which, index",
    [
        *((None, 0), (0, 0), (1, 1), ("1", 1), ("GPU-0bbb", 1), ("gpu-0AAA0000-0000-0000-0000-000000000000", 0)),
        *(("0000:3b:00.0", 0), ("3B:00.0", 0), ("0001:af:00.0", 1)),
    ],
)
def test_a_device_is_found_by_number_uuid_or_pci_id(which, index):
    assert find(FakeDriver(), which).index == index


@pytest.mark.parametrize("which", [2, -1, "GPU-", "GPU-1", "GPU-0", "af:00.0", "H200", ""])
def test_a_name_that_is_none_or_two_is_refused_with_the_list(which):
    with pytest.raises(DeviceError) as e:
        find(FakeDriver(), which)
    assert all(f"{i.index}: {i.name}, {i.uuid}, {i.pci}" in str(e.value) for i in INFOS)
    assert f"called {which!r}; this process has" in str(e.value)


def test_no_device_at_all():
    with pytest.raises(DeviceError, match=r"this process has no device\n  do: see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"):
        find(FakeDriver(infos=()))


def test_the_second_emulated_device():
    device = GpuDevice(EmulatedDriver(), "emulated:1")
    assert device.info.index == 1 and device.identity != GpuDevice(EmulatedDriver(), "emulated").identity
    device.close()


# ---- memory
def test_bytes_are_counted_as_they_were_asked_for(fake):
    own = fake.memory.reserved
    a, b, w = fake.allocate(100, "fields"), fake.allocate(1 << 20, "adstack"), fake.host_words(8, "context")
    assert fake.usage() == {"fields": 100, "adstack": 1 << 20, "context": 64} and fake.used_bytes == 100 + (1 << 20) + 64
    assert {x.ptr % 64 for x in (a, b, w)} == {0}
    assert fake.memory.reserved == own + CHUNK + (1 << 20)
    occupied = fake.occupied()
    assert occupied.used == fake.used_bytes and occupied.reserved >= own + CHUNK + (1 << 20) and occupied.total == 1 << 30
    for x in (a, b, w):
        fake.free(x)
    assert fake.usage() == {} and fake.memory.reserved == own + CHUNK


def test_memory_is_zero_and_words_are_the_hosts(fake):
    odd, even = fake.allocate(5001, "fields"), fake.allocate(5000, "fields")
    assert not fake.driver.blocks[odd.ptr].any() and not fake.driver.blocks[even.ptr].any()
    assert [c[3:] for c in fake.driver.calls if c[0] == "memset"][-2:] == [(5001, 1), (1250, 4)]
    w = fake.host_words(3, "context")
    assert w.view.tolist() == [0] * 24 and w.view.ctypes.data == w.ptr and w.mirror is None


def test_the_limit_holds_for_device_and_pinned_memory():
    device = GpuDevice(FakeDriver(), byte_limit=1000)
    device.allocate(900, "fields")
    with pytest.raises(OutOfMemory, match=r"adstack needs 200 bytes; 900 are in use \(fields 900\); the limit is 1,000$"):
        device.allocate(200, "adstack")
    with pytest.raises(OutOfMemory, match="context needs 104 bytes"):
        device.host_words(13, "context")
    device.host_words(12, "context")
    device.close()


def test_a_full_device_says_what_is_free_and_whose_it_is():
    driver = FakeDriver()
    device = GpuDevice(driver)
    own = driver.limit - driver.memory_info()[0]
    driver.limit = own + (1 << 20)
    kept = device.allocate(1 << 19, "fields")
    with pytest.raises(OutOfMemory) as e:
        device.allocate(1 << 20, "adstack")
    assert str(e.value) == (
        "adstack needs 1,048,576 bytes; 524,288 are in use (fields 524,288); Test GPU has no more: "
        f"524,288 of {driver.limit:,} bytes are free, {own + (1 << 19):,} are reserved by this program"
    )
    device.free(kept)
    device.allocate(1 << 20, "adstack")  # and the device lives on
    device.close()


def test_while_a_graph_is_recorded_nothing_is_allocated_and_frees_wait(fake):
    a, kernel = fake.allocate(1 << 20, "fields"), store_kernel(value=40.0)
    fake.begin_graph()
    for call, what in (
        (lambda: fake.allocate(64, "adstack"), "adstack needs 64 bytes"),
        (lambda: fake.host_words(8, "context"), "context needs 64 bytes"),
        (lambda: fake.compile(kernel, CompileOptions()), "kernel `k` is compiled"),
        (fake.synchronize, "the host waits for the device"),
    ):
        with pytest.raises(QdrunRuntimeError, match=f"^{what} while a graph is recorded\n  do: "):
            call()
    fake.free(a)
    assert "free" not in fake.driver.names() and fake.used_bytes == 0
    fake.end_graph()
    assert fake.driver.names()[-2:] == ["capture_end", "free"]  # a free that came before would be part of the graph
    fake.allocate(64, "adstack")


def test_a_recording_that_fails_frees_what_was_waiting(fake):
    a = fake.allocate(1 << 20, "fields")
    fake.begin_graph()
    fake.free(a)
    fake.driver.failures["capture_end"] = 901
    with pytest.raises(DeviceError, match=r"ended the recording \(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\)") as e:
        fake.end_graph()
    assert not e.value.restart and fake.driver.names()[-1] == "free"
    fake.allocate(64, "adstack")


def test_closing_gives_everything_back():
    device = GpuDevice(FakeDriver())
    device.allocate(10, "fields")
    device.allocate(1 << 20, "fields")
    device.close()
    device.close()
    pinned = device._pinned.reserved
    assert sum(b.size for b in device.driver.blocks.values()) <= pinned and device.driver.names().count("close") == 1
    assert device.used_bytes == 0


def test_a_device_that_nobody_closes_gives_everything_back_when_it_is_gone():
    driver = FakeDriver()
    device = GpuDevice(driver)
    for n in (10, 1 << 20):
        device.allocate(n, "fields")
    words = device.host_words(4, "context").ptr
    pinned = device._pinned
    assert pinned.owns(words)
    del device
    driver.calls.clear()
    gc.collect()
    assert driver.calls == []  # the collector may run anywhere: the driver is not called in it
    release_abandoned()
    assert driver.names()[-1] == "close" and not pinned.owns(words)
    assert sum(b.size for b in driver.blocks.values()) in (0, pinned.reserved)  # pinned words stay with the process


def test_what_a_program_that_nobody_closes_cannot_give_back_is_said_and_the_rest_is_given_back(fresh):
    driver = FakeDriver()
    device, other = GpuDevice(driver), GpuDevice(driver)
    device.allocate(1 << 20, "fields")
    here = device._holdings.shared
    del device
    gc.collect()
    driver.failures["synchronize"] = 999_999
    with pytest.warns(RuntimeWarning, match=r"^a program that was never closed could not free everything(.|\n)*999999"):
        other.allocate(1 << 20, "fields")
    assert here.open == 1 and [b.size for b in driver.blocks.values()].count(1 << 20) == 1
    other.close()
    assert here.open == 0


def test_code_that_cannot_be_unloaded_is_said_and_the_rest_is_unloaded(fresh):
    driver = FakeDriver()
    device = GpuDevice(driver)
    for name in ("k1", "k2", "k3"):
        _ = device.compile(store_kernel(name), CompileOptions(offline_cache=False)).functions
    gc.collect()
    cache.LOADED.release()
    gc.collect()
    driver.failures["unload"] = 999_999
    with pytest.warns(RuntimeWarning, match=r"bytes of unused code stay loaded: .*999999"):
        device.close()
    assert driver.names().count("unload") == 3


def test_a_program_that_nobody_closes_is_collected():
    def work():
        program = qd.init(arch=qd.cuda, device="emulated")
        x = qd.field(qd.f32, shape=1 << 16)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        fill()
        assert x[7] == 1.0
        qd.init(arch=qd.cpu)
        return program.device._holdings

    holdings = work()
    gc.collect()
    GpuDevice(EmulatedDriver(), "emulated").close()  # the next device sees to it
    assert holdings.memory.reserved == 0
    qd.reset()


# ---- code
def test_a_module_is_loaded_once_for_all_programs_of_a_device(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "LOADED", cache.CodeTable())  # others have compiled the same kernel
    one, two, other = (
        GpuDevice(EmulatedDriver(), "emulated"),
        GpuDevice(EmulatedDriver(), "emulated"),
        GpuDevice(EmulatedDriver(), "emulated:1"),
    )
    kernel = store_kernel(value=41.0)
    a, b, c = (d.compile(kernel, CompileOptions()) for d in (one, two, other))
    assert a.code is b.code and b.from_cache and not a.from_cache
    assert c.code is not a.code and c.functions[0].handle != a.functions[0].handle
    assert a.object_bytes and a.lanes == 1 and a.function_names == ("qd_k_0",)
    for d in (one, two, other):
        d.close()


def test_a_kernel_is_restored_by_its_key(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path))
    device = GpuDevice(EmulatedDriver(), "emulated")
    made = device.compile(store_kernel(value=42.0), CompileOptions())
    found = device.restore(made, made.code.key, ["qd_k"])
    assert found is not None and found.address and found.functions[0].handle and found.gpu.handles
    with pytest.raises(QdrunRuntimeError, match="was restored, and its IR is not at hand"):
        device.variant(found, frozenset({"0:a"}))
    assert device.variant(found, frozenset()) is found
    assert device.restore(made, "0" * 64 + " " + "1" * 64, ["qd_k"]) is None
    device.close()


def test_functions_and_stack_frames_are_known_before_a_launch():
    device = GpuDevice(FakeDriver())
    made = device.compile(store_kernel(tasks=2, value=43.0), CompileOptions(offline_cache=False))
    assert made.frames == (0, 2048) and [f.registers for f in made.functions] == [40, 40]
    assert frame_bytes(made, device.info) == 4 * 256 * 1024
    assert device.driver.names()[-3:] == ["load_module", "function", "function"]
    device.close()


def test_code_that_does_not_fit_the_device_is_out_of_memory(fresh, fake):
    made = fake.compile(store_kernel(value=44.0), CompileOptions(offline_cache=False))
    words = np.zeros(made.layout.words, np.uint64)
    fake.driver.failures["load_module"] = 2
    with pytest.raises(OutOfMemory, match="the code of kernel `k` does not fit: the device has no more memory"):
        fake.fill_context(words, made)
    fake.driver.failures["function"] = 500
    with pytest.raises(DeviceError):
        fake.fill_context(words, made)
    assert fake.driver.names()[-1] == "unload" and not made.gpu.loaded
    fake.fill_context(words, made)  # the next one who asks for it tries again
    assert made.gpu.loaded and words[CTX_FUNCTIONS] == made.gpu.handles


def test_code_stays_while_a_program_is_open_and_goes_with_the_last_one(fresh):
    driver = FakeDriver()
    device, other = GpuDevice(driver), GpuDevice(driver)
    made = device.compile(store_kernel(value=45.0), CompileOptions(offline_cache=False))
    assert made.functions
    del made
    gc.collect()
    assert device.compile(store_kernel(value=45.5), CompileOptions(offline_cache=False)).functions
    device.close()
    assert "unload" not in driver.names()  # it would wait for the other program
    other.close()
    assert "unload" in driver.names()


@pytest.mark.slow
def test_much_code_that_nobody_uses_goes_at_once(fresh, monkeypatch):
    device = GpuDevice(FakeDriver())
    for value in (45.1, 45.2, 45.3):
        assert device.compile(store_kernel(value=value), CompileOptions(offline_cache=False)).functions
        gc.collect()
    assert "unload" not in device.driver.names()
    monkeypatch.setattr(deferred_release, "MOST_UNUSED", 10)
    assert device.compile(store_kernel(value=45.4), CompileOptions(offline_cache=False)).functions
    assert device.driver.names().count("unload") >= 3  # all of them: everybody waits for the first only
    device.close()


def test_code_that_is_used_last_is_kept_by_its_bytes(fresh, monkeypatch):
    device = GpuDevice(FakeDriver())
    sizes = []
    for value in (45.61, 45.62, 45.63):
        made = device.compile(store_kernel(value=value), CompileOptions(offline_cache=False))
        sizes.append(
            len(made.code.object_bytes) + len(made.code._tracker.object_bytes)
        )  # the host's entry is code by itself, too
    memo = cache.CodeTable(most_bytes=2 * max(sizes))
    monkeypatch.setattr(cache, "LOADED", memo)
    for value in (45.61, 45.62, 45.61, 45.63):
        assert device.compile(store_kernel(value=value), CompileOptions(offline_cache=False)).functions
    gc.collect()
    assert (
        len({id(x) for x in memo._loaded.values() if isinstance(x, GpuCode)}) == 2 and len(device._holdings.shared.unused) >= 1
    )
    before = device.driver.names().count("load_module")
    assert device.compile(store_kernel(value=45.61), CompileOptions(offline_cache=False)).functions
    assert device.driver.names().count("load_module") == before
    device.close()


def test_a_full_device_gives_code_up_that_nobody_uses(fresh, monkeypatch):
    monkeypatch.setattr(cache, "LOADED", cache.CodeTable())
    device = GpuDevice(FakeDriver())
    assert device.compile(store_kernel(value=45.7), CompileOptions(offline_cache=False)).functions
    gc.collect()
    assert "unload" not in device.driver.names()  # nobody uses it, and it is kept for the next one
    with pytest.raises(OutOfMemory):
        device.allocate(2 << 30, "fields")
    assert device.driver.names().count("unload") >= 1
    device.close()


def test_the_words_of_a_context(fake):
    made = fake.compile(store_kernel(value=46.0), CompileOptions(offline_cache=False))
    words = np.zeros(32, np.uint64)
    fake.fill_context(words, made)
    assert words[CTX_GPU] == fake.table.ctypes.data and words[CTX_SCRATCH] == fake.scratch_address
    assert words[CTX_FUNCTIONS] == made.gpu.handles and words[CTX_PRINT] == 0
    assert fake.table[TABLE_STREAM] == fake.stream and fake.table[TABLE_PROCESSORS] == 4
    printing = fake.compile(Kernel("p", [], [Task("p_0", [Print(("hello\n",))])]), CompileOptions(offline_cache=False))
    fake.fill_context(words, printing)
    assert words[CTX_PRINT] != 0


# ---- failures
def test_a_failure_that_stays_ends_the_device_and_names_the_kernel(fake):
    made = fake.compile(store_kernel("bad", value=47.0), CompileOptions(offline_cache=False))
    words = np.zeros(32, np.uint64)
    fake.fill_context(words, made)
    fake.table[8 + int(fake.table[TABLE_LAUNCHES]) % 16] = words.ctypes.data  # what a launch leaves
    fake.table[TABLE_LAUNCHES] += 1
    fake.driver.failures["synchronize"] = 700
    with pytest.raises(DeviceError, match=r"^kernel `bad` failed on Test GPU: it read or wrote memory") as e:
        fake.synchronize()
    assert e.value.restart and e.value.result == "CUDA_ERROR_ILLEGAL_ADDRESS"
    calls = len(fake.driver.calls)
    later = (
        fake.synchronize,
        lambda: fake.allocate(8, "fields"),
        lambda: fake.host_words(1, "context"),
        lambda: fake.upload(1, 1, 1),
        lambda: fake.download(1, 1, 1),
        lambda: fake.compile(store_kernel(), CompileOptions()),
    )
    for call in later:
        with pytest.raises(DeviceError, match=r"^the device has failed before: kernel `bad` failed") as e:
            call()
        assert e.value.restart
    assert len(fake.driver.calls) == calls  # the driver is not asked again


def test_several_kernels_may_have_failed(fake):
    contexts = [np.zeros(32, np.uint64) for _ in range(3)]
    for k, words in enumerate(contexts):
        fake.fill_context(words, fake.compile(store_kernel(f"k{k}", value=50.0 + k), CompileOptions(offline_cache=False)))
        fake.table[8 + k] = words.ctypes.data
        fake.table[TABLE_LAUNCHES] += 1
        if k == 0:
            fake.synchronize()  # all went well until here
    fake.driver.failures["download"] = 719
    with pytest.raises(
        DeviceError, match=r"^one of the kernels `k1`, `k2` failed on Test GPU \(CUDA_LAUNCH_BLOCKING=1 tells which\)"
    ):
        fake.download(np.zeros(1).ctypes.data, 1, 8)


def test_a_refused_launch_names_its_kernel_and_the_device_lives_on(fake):
    e = fake.launch_error(701, "k")
    assert (
        str(e).startswith("kernel `k` could not be launched: a block needs more registers or shared memory") and not e.restart
    )
    fake.synchronize()
    fake.table[TABLE_LAUNCHES] += 1  # another kernel is running
    e = fake.launch_error(700, "innocent")
    assert e.restart and "innocent" not in str(e)
    with pytest.raises(DeviceError, match="has failed before"):
        fake.synchronize()


def test_a_launch_that_waits_for_its_kernel_names_it(fake, monkeypatch):
    fake.table[TABLE_LAUNCHES] += 3
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert str(fake.launch_error(716, "guilty")).startswith(
        "kernel `guilty` failed on Test GPU: it used an address that is not"
    )


def test_a_first_launch_that_fails_is_its_own(fake):
    assert str(fake.launch_error(715, "only")).startswith("kernel `only` failed on Test GPU: it met an instruction")


def test_a_launch_without_room_for_stacks_is_out_of_memory(fake):
    e = fake.launch_error(2, "deep")
    assert isinstance(e, OutOfMemory) and not fake.dead
    assert str(e).startswith(
        "kernel `deep` could not be launched: no room for the stacks of its threads: the device has no more memory"
    )


def test_a_dead_device_closes_without_asking_the_driver(fake):
    fake.allocate(1 << 20, "fields")
    fake.driver.failures["synchronize"] = 719
    with pytest.raises(DeviceError):
        fake.synchronize()
    fake.driver.calls.clear()
    fake.close()
    assert fake.driver.calls == [] and fake.used_bytes == 0


def test_a_failure_that_passes_leaves_the_device_alone(fake):
    fake.driver.failures["upload"] = 1
    with pytest.raises(DeviceError) as e:
        fake.upload(1, 1, 8)
    assert not e.value.restart
    fake.synchronize()


def test_a_forked_process_cannot_use_its_parents_device(fake):
    fake.forked()
    with pytest.raises(DeviceError, match=r"a GPU cannot be used by a forked process\n  do: start processes with"):
        fake.allocate(8, "fields")
    fake.driver.calls.clear()
    fake.close()
    assert fake.driver.calls == []


# ---- end to end, on the emulated device
def test_an_illegal_address_in_a_kernel_ends_the_program_by_name():
    with qd.init(arch=qd.cuda, device="emulated") as program:
        x = qd.field(qd.f32, shape=4)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        fill()
        qd.sync()
        fill()
        program.device.driver.machine.fail_next("synchronize", 700)
        try:
            with pytest.raises(DeviceError, match="kernel `fill` failed on emulated device: it read or wrote memory") as e:
                qd.sync()
            assert e.value.restart
            with pytest.raises(DeviceError, match="has failed before"):
                x.to_numpy()
        finally:
            program.device.driver.machine.heal()


def test_a_launch_that_the_driver_refuses_raises_at_the_launch():
    with qd.init(arch=qd.cuda, device="emulated") as program:
        x = qd.field(qd.f32, shape=4)

        @qd.kernel
        def fill():
            for i in x:
                x[i] = 1.0

        program.device.driver.machine.fail_next("launch", 701)
        with pytest.raises(DeviceError, match="kernel `fill` could not be launched: a block needs more registers") as e:
            fill()
        assert not e.value.restart
        fill()
        assert x.to_numpy().tolist() == [1.0] * 4


def test_prints_come_at_sync_and_lost_ones_are_counted(capsys, monkeypatch):
    from qdrun.compiler.runtime.gpu import device

    monkeypatch.setattr(device, "RING_WORDS", 40)
    with qd.init(arch=qd.cuda, device="emulated"):

        @qd.kernel
        def say(n: qd.i32):
            for i in range(n):
                print("i", i)

        say(3)
        assert capsys.readouterr().out == ""
        qd.sync()
        assert sorted(capsys.readouterr().out.splitlines()) == ["i 0", "i 1", "i 2"]
        say(30)
        qd.sync()
        said = capsys.readouterr().out.splitlines()
        kept = [line for line in said if line.startswith("i ")]
        assert 0 < len(kept) < 30 and said[-1] == f"... {30 - len(kept)} prints are lost: call qd.sync() more often"
        say(1)
        qd.sync()
        assert capsys.readouterr().out == "i 0\n"


def test_the_emulated_driver_has_every_call_of_the_protocol():
    from qdrun.compiler.runtime.gpu.driver import Driver

    driver = EmulatedDriver()
    wanted = [n for n in vars(Driver) if not n.startswith("_")]
    assert len(wanted) > 25 and "conditions" in wanted
    assert driver.conditions is not None and not [n for n in wanted if n != "conditions" and not callable(getattr(driver, n))]


# ---- the program that launches
class Client:
    """A program, as far as a device knows it, that notes what it is asked."""

    def __init__(self):
        self.state, self.asked = (ctypes.c_int64 * S_WORDS)(), []

    @contextlib.contextmanager
    def alone(self):
        self.asked.append("alone")
        yield

    def waited(self):
        self.asked.append("waited")

    def freed(self, memory):
        pass


def test_a_device_tells_its_client_what_has_changed(fresh):
    device, client = GpuDevice(FakeDriver()), Client()
    device.synchronize()
    with device.exclusive():
        device.attach(client)
    assert client.asked == []
    device.synchronize()
    with device.exclusive():
        assert client.asked == ["waited", "alone"]
    device.close()
