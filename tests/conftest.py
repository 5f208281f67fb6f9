"""Every pass checks the IR that it produces, in all tests and in the processes that they start (see ``docs/ir.md``).

``--arch cuda`` or ``--arch emulated`` runs tests that ask for the processor on a GPU, or on the emulated one; ``--arch amdgpu`` on the
emulator of AMD's instructions (gfx942), ``--arch vulkan`` on Mesa's llvmpipe, and ``--arch metal`` on what clang makes of Metal's
language, for a GPU that has f64, unless ``--device`` names something else. What ``not_on_a_device.txt`` names is about the processor
itself and is skipped, with its reason; so is what ``not_on_amdgpu.txt``, ``not_on_vulkan.txt`` or ``not_on_metal.txt`` names, with these.
``--device`` chooses the GPU. With ``QDRUN_VULKAN_VALIDATION=1`` a test fails of which the validation layer says something.

LLVM optimises only a part of the kernels, and Mesa's llvmpipe some of ``vulkan_driver/test_suite_on_llvmpipe.py`` alone; all of them
with ``QDRUN_TESTS_OPTIMISED=1``.
"""

import atexit
import fnmatch
import functools
import gc
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("qdrun", deadline=None)  # machines are busy
settings.load_profile("qdrun")
os.environ.setdefault("QDRUN_VERIFY", "1")
os.environ.setdefault("QDRUN_FIRST_CHECK", "0")  # each test has a job of its own: a process for each would take minutes
# The cache of compiled kernels is the tests' own: the user's is left as it is. It is kept: a second run compiles what has changed.
os.environ.setdefault("QDRUN_CACHE_DIR", str(Path.home() / ".cache" / "qdrun-tests"))
# So is what runs remember of this machine, and the account of its memory: tests beside others wait for nobody.
if "QDRUN_MACHINE_DIR" not in os.environ:
    os.environ["QDRUN_MACHINE_DIR"] = tempfile.mkdtemp(prefix="qm", dir="/tmp")
    os.environ["XDG_STATE_HOME"] = os.environ["QDRUN_MACHINE_DIR"] + "/state"
    atexit.register(shutil.rmtree, os.environ["QDRUN_MACHINE_DIR"], ignore_errors=True)
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray looks when it is loaded, by whichever test comes first, and never again
if "QDRUN_TESTS_OPTIMISED" not in os.environ:
    os.environ.setdefault("GALLIVM_PERF", "nopt")  # llvmpipe optimises no shader: half of the time of its tests
TESTS = Path(__file__).parent
gc.disable()  # until all tests are collected: the half a million objects of that live to the end
# Until all tests are collected bytecode is kept: the processes that tests start compile our modules no more. What tests write is not.
NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def _check_device_texts():
    """Every text that the code generator writes for a GPU is in the grammar of docs/device-text.md."""
    sys.path.insert(0, str(TESTS))
    try:
        from device_text import check
    finally:
        sys.path.remove(str(TESTS))

    from qdrun.compiler.codegen.gpu.hardware import GpuTarget
    from qdrun.compiler.codegen.llvm.function import LlvmModule

    text = LlvmModule.text

    @functools.wraps(text)
    def checked(self, head):
        out = text(self, head)
        # Not a text that a test has made by hand, or for hardware of its own.
        of_backend = isinstance(self.target, GpuTarget) and type(self.target.hardware).__module__.startswith("qdrun.")
        if of_backend and head.startswith("; kernel"):
            check(out, self.target.name)
        return out

    LlvmModule.text = checked


def _check_modules():
    """Every SPIR-V module that the backend makes of a device text is valid."""
    sys.path.insert(0, str(TESTS))
    try:
        from spirv_check import check
    finally:
        sys.path.remove(str(TESTS))

    from qdrun.compiler.runtime.vulkan.code import build

    translate, known = build.translate, set()

    @functools.wraps(translate)
    def checked(text, features):
        made = translate(text, features)
        if made.data not in known:
            check({text.partition("\n")[0]: made.data})
            known.add(made.data)
        return made

    build.translate = checked


def _less_work():
    """The folder of compiled kernels, of tens of thousands of files by then, is looked through for old ones once in this process, and the
    tree of commands is made once. Launches are native from the first one on, whether the launcher is on disk or not.
    """
    import typer.testing

    from qdrun.compiler.lang import kernel
    from qdrun.compiler.runtime import cache

    kernel.PATIENCE = 0

    cache._SWEEP_EVERY = sys.maxsize
    typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_addoption(parser):
    archs = ("cpu", "cuda", "emulated", "amdgpu", "vulkan", "metal")
    parser.addoption("--arch", choices=archs, default="cpu", help="where tests for the CPU run")
    parser.addoption("--device", default=None, help="which GPU: its number, UUID or PCI address")


def pytest_configure(config):
    os.environ["QDRUN_TEST_ARCH"] = config.getoption("--arch")
    arch, device = config.getoption("--arch"), config.getoption("--device")
    if arch == "emulated":
        _redirect("cuda", "emulated")
    elif arch == "amdgpu":
        _redirect("amdgpu", device or "emulated:gfx942")
    elif arch == "vulkan":
        _redirect("vulkan", device or "llvmpipe")
    elif arch == "metal":
        _redirect("metal", device or "emulated:f64")
    elif arch == "cuda":
        _redirect("cuda", device)


def _redirect(backend, device):
    """``qd.init`` makes programs on a device where a test asks for the CPU, or for CUDA."""
    import qdrun
    from qdrun.compiler import face
    from qdrun.compiler.lang import init as module_of_init

    init = module_of_init.init

    @functools.wraps(init)
    def elsewhere(arch=None, *defaults, **options):
        if arch not in (None, "cpu", "cuda", backend):
            return init(arch, *defaults, **options)
        if backend not in ("cuda", arch) and str(options.get("device", "")).startswith("emulated"):
            options.pop("device")  # the test's own: it stands for an NVIDIA GPU
        return init(backend, *defaults, **({"device": device} if device is not None else {}) | options)

    for module in (module_of_init, face, qdrun):
        module.init = elsewhere


def pytest_collection_finish():
    _check_device_texts()
    _check_modules()
    _less_work()
    gc.collect()
    gc.freeze()  # else each full collection visits them: a fifth of the time of short tests
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # compilers make many objects and few cycles: a twentieth of the time
    sys.dont_write_bytecode = NO_BYTECODE


def reasons(file="not_on_a_device.txt"):
    """What does not run on a device: patterns of test names, and why."""
    lines = (TESTS / file).read_text(encoding="utf-8").splitlines()
    return [tuple(part.strip() for part in line.split("#", 1)) for line in lines if line.strip() and not line.startswith("#")]


WAITS = ("tests/runner/", "tests/examples/", "tests/vulkan_driver/test_runner.py")
"""Files whose slow tests mostly wait for other processes."""


def dealt(items, workers):
    """Tests in the order in which pytest-xdist gives each worker an equal part of them.

    One part begins with the files that wait for other processes, the others with the rest of the files that have slow tests. So the
    processors have work while a test waits, and at the end there are short tests to share.
    """
    by_file = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    parts, short, count = [[] for _ in range(workers)], [], 0
    for file, tests in by_file.items():
        if not any(test.get_closest_marker("slow") for test in tests):
            short += tests
        elif file.startswith(WAITS):
            parts[0] += tests
        else:
            parts[1 + count % (workers - 1)] += tests
            count += 1
    size = len(items) // workers
    for part in parts:
        room = max(0, size - len(part))
        part += short[:room]
        del short[:room]
    order = [*itertools.chain(*parts), *short]
    assert {*map(id, order)} == {*map(id, items)} and len(order) == len(items), "none is lost or there twice"
    return order


def pytest_collection_modifyitems(config, items):
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = dealt(items, workers)
    if config.getoption("--arch") == "cpu":
        return
    own = TESTS / f"not_on_{config.getoption('--arch')}.txt"
    # What lies on chip elsewhere lies in the heap on AMD's and Apple's GPUs, as in the memory of the processor.
    others = [row for row in reasons() if config.getoption("--arch") not in ("amdgpu", "metal") or "on chip" not in row[1]]
    known = others + (reasons(own.name) if own.exists() else [])
    for item in items:
        name = f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"
        for pattern, why in known:
            if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
                item.add_marker(pytest.mark.skip(reason=f"not on a device: {why}"))
                break


def pytest_terminal_summary(terminalreporter, config):
    """With ``--arch amdgpu``: which instructions this process has executed. ``QDRUN_AMD_INSTRUCTIONS`` names a file for the list."""
    if config.getoption("--arch") != "amdgpu":
        return
    from qdrun.tests.devices.amdgpu import coverage
    from qdrun.tests.devices.processor.machine import emulated_machine

    executed = emulated_machine().executed
    terminalreporter.write_line(coverage.line(executed))
    if "QDRUN_AMD_INSTRUCTIONS" in os.environ:
        rows = (f"{name} {count}" for name, count in sorted(executed.items()))
        Path(os.environ["QDRUN_AMD_INSTRUCTIONS"]).write_text("\n".join(rows) + "\n", encoding="utf-8")


LONG_KERNELS = ("tests/jobs/test_diffmpm2d.py", "tests/jobs/test_fwi_circle.py")
"""Where kernels run for longer than LLVM takes for them."""


def optimised(item):
    """One in how many texts of kernels is optimised. Slow tests mostly try random programs, and ``tests/fuzz`` tries more of them."""
    if "QDRUN_TESTS_OPTIMISED" in os.environ or item.nodeid.startswith(LONG_KERNELS):
        return 1
    return 8 if item.get_closest_marker("slow") else 4


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A worker of pytest-xdist that has lost its GPU ends, so that a fresh one runs what is left."""
    from qdrun.tests import kept_code

    kept_code.keep(optimised(item))
    done = yield
    if _lost_device and os.environ.get("PYTEST_XDIST_WORKER"):
        time.sleep(0.2)  # the report goes first
        os._exit(1)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    from qdrun.tests import leftovers

    item.stash[_BEFORE] = leftovers.state(_shared_ray)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """A test leaves its process as it was: otherwise tests after it fail or not by their order."""
    from qdrun.tests import leftovers

    result = yield
    left = leftovers.changed(item.stash[_BEFORE], leftovers.state(_shared_ray))
    assert not left, f"the test has left changed: {'; '.join(left)}"
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Where the validation layer of Vulkan listens, it must not say anything."""
    module = sys.modules.get("qdrun.compiler.runtime.vulkan.instance")
    before = len(module.messages()) if module else 0
    result = yield
    module = sys.modules.get("qdrun.compiler.runtime.vulkan.instance")
    said = module.messages()[before:] if module else []
    assert not said, f"the validation layer: {said[:3]}"
    return result


_REFUSED = re.compile(r"has no f64|keeps [fi]64 states|by an atomic of 8 bytes")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """On a GPU without f64 most tests need what it does not have: they are skipped where a kernel of theirs is refused."""
    if pyfuncitem.config.getoption("--arch") != "metal":
        return (yield)
    try:
        return (yield)
    except Exception as e:
        if type(e).__name__ == "QdrunTypeError" and _REFUSED.search(str(e)):
            pytest.skip(f"not on this device: {str(e).splitlines()[0]}")
        raise


_lost_device: list[str] = []
_shared_ray: list[object] = []
_BEFORE = pytest.StashKey[dict[str, object]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Remember that the device is gone for this process."""
    if call.excinfo is not None and getattr(call.excinfo.value, "restart", False):
        _lost_device.append(item.nodeid)
    report = yield
    if report.failed and "QDRUN_FAILED_LOG" in os.environ:  # at once: a run that is cut off says what it has found
        with open(os.environ["QDRUN_FAILED_LOG"], "a", encoding="utf-8") as log:
            log.write(f"{item.nodeid}\n    {' / '.join(str(call.excinfo.value).splitlines()[:3]) if call.excinfo else ''}\n")
    return report


@pytest.fixture(scope="session")
def ray_folder():
    """A short folder for Ray's sockets and a token of its own; the user's are left alone."""
    folder = tempfile.mkdtemp(prefix="qr", dir="/tmp")
    token = Path(folder, "token")
    token.write_text("0123456789abcdef" * 4)
    saved = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")}
    os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_MODE": "token"}
    yield folder
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def local_ray(ray_folder):
    """A Ray with two cores and two pretended GPUs, open in this process until all tests are over: `submit` uses the one that is open."""
    import ray

    from qdrun.runner.ray_adapter import compat

    options = {
        "num_cpus": 2,
        "num_gpus": 2,
        "include_dashboard": False,
        "log_to_driver": False,
        "object_store_memory": 100 << 20,
    }
    with compat.small_head(), compat.started_with():
        ray.init(address="local", logging_level="ERROR", **options)
    _shared_ray.append(ray)
    yield ray
    _shared_ray.clear()
    ray.shutdown()


@pytest.fixture
def one_worker(local_ray, monkeypatch):
    """`local_ray`, with one worker for each run: to start a second one takes longer than the trials of most tests."""
    from qdrun.runner.ledger import inventory

    host = inventory._host
    monkeypatch.setattr(inventory, "_host", lambda backend, threads, lanes, node: host(backend, threads, 1, node))
    return local_ray
