"""Random programs, and values at any byte, on Mesa's llvmpipe: byte by byte as in the interpreter. The memory of this process is the
device's there.
"""

from __future__ import annotations

import ctypes as C
import sys
from pathlib import Path

import numpy as np
import pytest

import qdrun as qd
from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.spirv.target import spirv_target
from qdrun.compiler.ir.nodes import Buffer, Const, Kernel, Place
from qdrun.compiler.ir.types import f16, f32, f64, i8, i16, i32, i64
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime import cache
from qdrun.compiler.runtime.gpu.driver import Texts

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))
from codegen_harness import field, parallel
from grid_harness import RING_WORDS, SCRATCH_WORDS, GridCompiled
from irgen import generate
from test_grid import run_like_the_interpreter


class VulkanCompiled(GridCompiled):
    """A kernel for blocks of one thread, launched by the driver's own recorder."""

    def __init__(self, kernel, rig) -> None:
        verify_kernel(kernel)
        self.kernel, self.rig, driver = kernel, rig, rig.driver
        code = self.code = emit_grid(kernel, spirv_target(driver._here.features, 1))
        texts = Texts(kernel.name, code.device, code.host, code.entry, tuple(code.functions), code.features)
        module = driver.load_module(driver.build(texts, rig.info, False).data, kernel.name)
        functions = [driver.function(module, name) for name in code.functions]
        self.handles = np.array([f.handle for f in functions], np.int64)
        imports = {"qd_launch": driver.launch_address, "qd_memset": driver.memset_address}
        self.host, _ = cache.load_cached(code.host, kernel.name, [code.entry], imports, 2)
        self.entry = C.CFUNCTYPE(None, C.c_void_p)(self.host.addresses[code.entry])
        self.table = np.zeros(abi.TABLE_WORDS, np.int64)
        self.table[:5] = rig.stream, 1, 1, 0, 8 * SCRATCH_WORDS
        self.layout = abi.context_layout(kernel)
        self.status = np.zeros(abi.STATUS_WORDS, np.int64)
        self.returned = np.zeros(max(1, len(kernel.returns)), np.int64)
        self.tmp, self.scratch, self.ring = (np.zeros(n, np.int64) for n in (4096, SCRATCH_WORDS, RING_WORDS))
        self.ring[abi.RING_SIZE] = RING_WORDS - abi.RING_RECORDS
        self.driver = self
        self.launches: list = []

    def __call__(self, *args, **rest):
        entry = self.entry
        self.entry = lambda words: (entry(words), self.rig.driver.synchronize(self.rig.stream))
        return super().__call__(*args, **rest)


@pytest.fixture
def llvmpipe(rig):
    if "llvmpipe" not in rig.info.name:
        pytest.skip("the memory of this process is not the device's")
    return rig


@pytest.mark.parametrize(("stride", "offset"), [(12, 4), (10, 2), (11, 0), (9, 1)])
def test_values_lie_at_any_byte(llvmpipe, stride, offset):
    """Vulkan has aligned accesses only: others are made of parts."""
    n = 40
    data = {d: Place(str(d), d, Buffer("field"), 1, (n,), (stride,), offset) for d in (f16, f32, f64, i8, i16, i32, i64)}
    task, i, b = parallel(n)
    for place in data.values():
        b.gstore(place, (i,), b.op("neg", b.gload(place, (i,))))
    run = VulkanCompiled(Kernel("k", [], [task]), llvmpipe)
    before = {d: np.random.default_rng(stride).integers(0, 120, n * stride + 8, np.uint8) for d in data}
    after = {d: x.copy() for d, x in before.items()}
    run(fields={place.buffer: after[d] for d, place in data.items()})
    for d, want in before.items():
        values = np.ndarray(n, d.numpy, want, offset, (stride,))
        values[:] = -values.copy()
        assert np.array_equal(after[d], want), d


WHERE_THE_DRIVER_KNEW_A_ZERO = (720289, 720671, 721968, 740343)


@pytest.mark.parametrize("seed", [*range(7000, 7030), *WHERE_THE_DRIVER_KNEW_A_ZERO])
def test_a_random_program_agrees_with_the_interpreter(llvmpipe, seed):
    program = generate(seed, 60)
    for number, decl in enumerate(program.kernel.args):
        decl.index = number
    run_like_the_interpreter(program, VulkanCompiled(program.kernel, llvmpipe), zeros=True)


@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
def test_a_zero_that_the_driver_can_find_is_no_other_than_one_in_memory(llvmpipe, dtype):
    """Its compiler takes 0 * x and 0 / x for 0, and x / 0 for whatever it likes, once it knows the zero: from any operation, variable or
    store. The sign of a zero counts, too.
    """
    values = [np.inf, -np.inf, np.nan, -0.0, -1.5, 300.0]
    n, x, kept = len(values), field("x", dtype, len(values)), field("kept", dtype, len(values))
    task, i, b = parallel(n)
    v = b.gload(x, (i,))
    variable = b.local(Const(0.0, dtype), "variable")
    b.store(variable, Const(0.0, dtype))
    b.gstore(kept, (i,), Const(0.0, dtype))
    negative = b.op("select", b.op("ge", i, Const(0, i32)), Const(-0.0, dtype), Const(1.0, dtype))
    zeros = {
        "an operation": (b.op("abs", Const(-0.0, dtype)), 0.0),
        "an integer": (b.cast(b.op("and", i, Const(0, i32)), dtype), 0.0),
        "a variable": (b.load(variable), 0.0),
        "a store": (b.gload(kept, (i,)), 0.0),
        "a choice": (negative, -0.0),
    }
    out = {}
    for name, (zero, sign) in zeros.items():
        for code, args in (("mul", (v, zero)), ("mul", (zero, v)), ("div", (v, zero)), ("div", (zero, v)), ("add", (v, zero))):
            place = field(f"out{len(out)}", dtype, n)
            b.gstore(place, (i,), b.op(code, *args))
            out[place.buffer] = name, code, args[0] is v, sign
    data = {buffer: np.zeros(n, dtype.numpy) for buffer in (x.buffer, kept.buffer, *out)}
    data[x.buffer][:] = values
    VulkanCompiled(Kernel("k", [], [task]), llvmpipe)(fields=data)
    numbers = np.array(values, dtype.numpy)
    with np.errstate(all="ignore"):
        for buffer, (name, code, first, sign) in out.items():
            zero = np.full(n, sign, dtype.numpy)
            want = {"mul": np.multiply, "div": np.divide, "add": np.add}[code](*((numbers, zero) if first else (zero, numbers)))
            np.testing.assert_array_equal(data[buffer], want, f"{code} with the zero of {name}")
            signs = ~np.isnan(want)
            assert (np.signbit(data[buffer]) == np.signbit(want))[signs].all(), (name, code, first)


def test_a_sine_of_a_literal_in_a_loop_is_compiled_soon(start):
    """llvmpipe takes time that doubles with each step of an expression of literals, such as the products of a sine."""
    start(default_fp=qd.f64)
    x, total = qd.field(qd.f64, shape=5), qd.field(qd.f64, shape=())

    @qd.kernel
    def work(m: qd.i32):
        for i in range(m % 3 + 1):
            a = qd.sin(qd.f64(0.311)) % 0.7
            a += 0.3 * x[(2 - i % 3) % 5]
            total[None] -= a

    work(2)
    np.testing.assert_allclose(total[None], -3 * np.sin(0.311), rtol=1e-15)
