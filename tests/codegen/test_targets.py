"""The text is the same for every CPU: arm64 code comes out of it too. In a subprocess, for LLVM may abort the process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from codegen_harness import field, parallel

from qdrun.compiler.codegen.llvm.cost import suggested_lanes
from qdrun.compiler.codegen.llvm.kernel import emit_kernel
from qdrun.compiler.codegen.llvm.target import SimdWidth, Target
from qdrun.compiler.ir.builder import const_i32, const_i64
from qdrun.compiler.ir.nodes import ClaimRow, Kernel, Op, Print, Stack, StackPut
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u16

COMPILE = """
import json, sys
import llvmlite.binding as L
L.initialize_all_targets()
L.initialize_all_asmprinters()
triple, features = sys.argv[1:3]
for name, text in json.load(sys.stdin).items():
    print(name, end=" ", flush=True)
    machine = L.Target.from_triple(triple).create_target_machine(features=features, opt=2, reloc="pic")
    module = L.parse_assembly(text)
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    passes = L.create_pass_builder(machine, L.PipelineTuningOptions(2))
    passes.getModulePassManager().run(module, passes)
    print(len(machine.emit_object(module)), flush=True)
"""
TYPES, OTHER_TYPES = (f32, i32), (f16, f64, i8, u16, i64)


def everything(dtype) -> Kernel:
    """A kernel with every operation a type has, a loop, and atomics."""
    n = 64
    xs = [field(f"x{k}", dtype, n) for k in range(3)]
    y = field("y", dtype, n)
    task, i, b = parallel(n)
    args = [b.gload(x, (i,)) for x in xs]
    kinds = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}
    total = b.local(args[0])
    with b.loop(const_i32(0), i):
        for code, info in TABLE.items():
            if info.pure and info.arity in (1, 2) and dtype.kind in kinds[info.domain] and code != "bitcast":
                given = dtype if info.result == "given" else None
                out = b.op(code, *args[: info.arity], dtype=given)
                b.store(total, b.op("add", b.load(total), b.cast(out, dtype)))
    for code in ("add", "mul", "min", "xchg"):
        b.atomic(code, y, (b.op("mod", i, const_i32(3)),), b.load(total))
    return Kernel("everything", [], [task])


@pytest.mark.parametrize(
    ("triple", "features", "dtypes"),
    [
        ("aarch64-unknown-linux-gnu", "", TYPES),
        ("x86_64-unknown-linux-gnu", "", TYPES),
        pytest.param("aarch64-unknown-linux-gnu", "", OTHER_TYPES, marks=pytest.mark.slow),
        pytest.param("x86_64-unknown-linux-gnu", "", OTHER_TYPES, marks=pytest.mark.slow),
        pytest.param("arm64-apple-darwin", "", TYPES, marks=pytest.mark.slow),  # the instructions are those of Linux
        pytest.param("x86_64-pc-windows-msvc", "+avx2,+fma,+f16c", (*TYPES, f16), marks=pytest.mark.slow),
    ],
)
def test_every_operation_compiles_for(triple, features, dtypes):
    texts = {f"{d}x{lanes}": emit_kernel(everything(d), Target(lanes=lanes)) for d in dtypes for lanes in (1, 8)}
    command = [sys.executable, "-c", COMPILE, triple, features]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-800:]  # the last name is that of the module that failed
    sizes = dict(line.split() for line in done.stdout.splitlines())
    assert list(sizes) == list(texts) and all(int(size) > 500 for size in sizes.values())


def test_lanes_are_suggested_for_functions_on_a_cpu_that_fuses():
    x, y = field("x", f32, 64), field("y", i32, 64)
    task, i, b = parallel(64)
    v = b.local(b.gload(x, (i,)))
    with b.loop(const_i32(0), const_i32(9)):
        b.store(v, b.op("sin", b.load(v)))
    b.gstore(x, (i,), b.load(v))
    other, j, c = parallel(64)
    c.gstore(y, (j,), c.op("mod", c.gload(y, (j,)), const_i32(7)))
    short, m, d = parallel(64)
    d.gstore(x, (m,), d.op("sin", d.gload(x, (m,))))
    functions, plain, once = Kernel("f", [], [task]), Kernel("g", [], [other]), Kernel("h", [], [short])
    assert suggested_lanes(functions, (), "x86_64-linux", "+avx2,+fma") == SimdWidth(16)
    assert suggested_lanes(functions, (), "x86_64-linux", "+avx512f,+avx2,+fma") == SimdWidth(32)
    assert suggested_lanes(functions, (), "x86_64-linux", "+sse4.2") == SimdWidth()
    assert suggested_lanes(plain, (), "x86_64-linux", "+avx2,+fma") == SimdWidth()
    assert (
        suggested_lanes(once, (), "x86_64-linux", "+avx2,+fma") == SimdWidth()
    )  # no loop: not worth the second copy of the code
    all_three = Kernel("k", [], [other, task, short])
    assert suggested_lanes(all_three, (), "x86_64-linux", "+avx2,+fma") == SimdWidth(16, narrow=frozenset((0, 2)))


def states(n, atomic=None, print_=False, code="sin", gathers=0, divisions=0):
    """A task with an adstack and arithmetic in a loop, and an atomic of some kind on an element that other iterations may meet."""
    x, far = field("x", f32, n), field("far", f32, n)
    task, i, b = parallel(n)
    b.put(ClaimRow())
    v = b.local(b.gload(x, (i,)))
    with b.loop(const_i64(0), const_i64(9)) as lp:
        stack = Stack(lp, "tape", (v,), "s0")
        b.put(StackPut(stack, lp.index, (b.load(v),)))
        b.store(v, b.op("sin", b.load(v)) if code == "sin" else b.op(code, b.load(v), b.load(v)))
        where = b.op("add", i, b.cast(lp.index, i32))
        for _ in range(divisions):
            where = b.op("mod", where, const_i32(n))
        for _ in range(gathers):
            b.store(v, b.op("max", b.load(v), b.gload(far, (where,))))
    if atomic:
        b.put(Op("atomic", (const_i32(3), b.load(v)), f32, (far, atomic)))
    if print_:
        b.put(Print(("v", b.load(v))))
    b.gstore(x, (i,), b.load(v))
    task.stacks, task.params = [stack], ["s0.f4", "stride.f4", "rows", "threads", "lanes"]
    return Kernel("k", [], [task])


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (states(4096), 32),
        (states(4096, "max"), 32),
        (states(4096, "add"), 32),  # each lane adds to a copy of the element
        (states(4096, "mul"), 1),  # its order would be another one in fewer lanes, and so the bits
        (states(8), 1),
        (states(4096, print_=True), 1),
        (states(4096, code="mul"), 32),
        (states(4096, code="mul", gathers=2), 32),
        (states(4096, code="mul", divisions=1, gathers=1), 1),
        (states(4096, divisions=1, gathers=1), 32),
    ],
)
def test_lanes_that_a_plan_may_choose_change_no_bits(kernel, width):
    assert suggested_lanes(kernel, (), "x86_64-linux", "+avx512f,+avx2,+fma") == SimdWidth(width)


def looped(build, trips=32, count=64):
    """A kernel of one parallel loop with a serial loop, whose body ``build(b, index, k, v)`` writes."""
    task, i, b = parallel(count)
    v = b.local(b.gload(field("x", f32, 64), (i,)))
    with b.loop(const_i32(0), const_i32(trips)) as k:
        build(b, i, k.index, v)
    b.gstore(field("y", f32, 64), (i,), b.load(v))
    return Kernel("k", [], [task])


def lanes_of(kernel):
    return suggested_lanes(kernel, (), "x86_64-linux", "+avx512f,+avx2,+fma").width


def test_lanes_are_suggested_where_an_iteration_waits_for_the_last():
    table, out = field("table", f32, 64), field("out", f32, 64)

    def root(b, i, k, v):
        b.store(v, b.op("sqrt", b.op("div", b.load(v), b.load(v))))

    def gathered(b, i, k, v):
        at = b.op("mod", b.op("add", i, k), const_i32(64))
        b.store(v, b.op("add", b.load(v), b.gload(table, (at,))))

    def independent(b, i, k, v):
        x = b.gload(table, (k,))
        b.gstore(out, (b.op("add", i, k),), b.op("mul", x, x))

    assert lanes_of(looped(root)) == 32
    assert lanes_of(looped(root, trips=3)) == 1, "LLVM unrolls it, and vectorises the loop around it"
    assert lanes_of(looped(root, count=4)) == 1, "most lanes would have no iteration"
    assert lanes_of(looped(gathered)) == 1, "the remainder takes turns"
    assert lanes_of(looped(independent)) == 1, "LLVM vectorises it"
