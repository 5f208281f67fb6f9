"""SPIR-V of device texts: every operation on every type, atomics, sums of blocks, batches and random programs pass spirv-val; what modules
declare and what is refused.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from codegen_harness import field, parallel
from test_grid_rows import gradient, tapes
from test_operations import CASES, N
from test_reductions_ptx import CASES as SEARCHES

from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.llvm.target import Unsupported
from qdrun.compiler.codegen.spirv import opcodes
from qdrun.compiler.codegen.spirv.features import ALL_WIDTHS, EVERYTHING, Features
from qdrun.compiler.codegen.spirv.opcodes import Capability, StorageClass
from qdrun.compiler.codegen.spirv.target import spirv_target
from qdrun.compiler.codegen.spirv.translate import translate
from qdrun.compiler.compile import pipeline
from qdrun.compiler.errors import QdrunRuntimeError, QdrunTypeError
from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Const, Kernel, Op, Reduction
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import ALL, f16, f32, f64, i8, i16, i32, i64, u1
from qdrun.compiler.ir.verify import verify_kernel

sys.path.insert(0, str(Path(__file__).parents[1]))
from irgen import generate
from spirv_check import check

LEAN = replace(
    EVERYTHING,
    fused=frozenset(),
    float32_atomic_add=False,
    float64_atomic_add=False,
    round_to_even=frozenset(),
    fence_waits=True,
    folds_wrongly=True,
    cuts_loops=True,
)
"""A device that lacks all that code can do without."""
PHI = 245
"""``OpPhi``"""
PLAIN = {Capability.Shader, Capability.Int64, Capability.PhysicalStorageBufferAddresses}


def text_of(kernel: Kernel, far=frozenset()) -> str:
    verify_kernel(kernel)
    return emit_grid(kernel, spirv_target(EVERYTHING), far=far).device


def both(name: str, text: str) -> dict[str, bytes]:
    """The modules for a device with every feature, and for one with as few as code can do with."""
    return {f"{name} {which}": translate(text, features).data for which, features in (("", EVERYTHING), ("lean", LEAN))}


def instructions(data: bytes) -> list[tuple[int, list[int]]]:
    """Each instruction of a module: its number and its operands."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    at, out = 5, []
    while at < len(words):
        size = words[at] >> 16
        out.append((words[at] & 0xFFFF, list(words[at + 1 : at + size])))
        at += size
    return out


def capabilities(data: bytes) -> set[int]:
    return {operands[0] for op, operands in instructions(data) if op == opcodes.Opcode.Capability}


def operations(dtype) -> Kernel:
    """Every operation on a type, and a cast to every type."""
    xs, cond = [field(f"x{k}", dtype, N) for k in range(3)], field("c", u1, N)
    task, i, b = parallel(N)
    values, c = [b.gload(x, (i,)) for x in xs], b.gload(cond, (i,))
    for code in [c for c, d in CASES if d is dtype]:
        args = (c, *values[1:]) if code == "select" else values[: TABLE[code].arity]
        out = b.op(code, *args, dtype=i32 if code in ("popcnt", "clz") else None)
        b.gstore(field(code, out.dtype, N), (i,), out)
    for other in ALL.values():
        b.gstore(field("cast", other, N), (i,), b.cast(values[0], other))
        if other.bits == dtype.bits and other is not dtype:
            b.gstore(field("bits", other, N), (i,), b.op("bitcast", values[0], dtype=other))
    return Kernel("all", [], [task])


def test_every_operation_of_every_type_is_valid():
    made = {}
    for dtype in ALL.values():
        made |= both(str(dtype), text_of(operations(dtype)))
    check(made)


def atomics(dtype) -> Kernel:
    """Every atomic on a type."""
    x, value, out = field("x", dtype, 4), field("v", dtype, N), field("out", dtype, N)
    task, i, b = parallel(N)
    v = b.gload(value, (i,))
    at = b.op("mod", i, const_i32(4))
    codes = ["add", "sub", "mul", "min", "max", "xchg"] + ["and", "or", "xor"] * (not dtype.is_real)
    for code in codes:
        b.gstore(out, (i,), b.atomic(code, x, (at,), v))
    if dtype.is_int:
        b.put(Op("atomic", (at, v, b.gload(value, (at,))), dtype, (x, "cas")))
    return Kernel("atomics", [], [task])


def test_every_atomic_of_every_type_is_valid():
    made = {}
    for dtype in ALL.values():
        made |= both(str(dtype), text_of(atomics(dtype)))
    check(made)


def sums(dtype, codes=("add", "min", "max")) -> Kernel:
    """Reductions of one value per block, with a failure before them."""
    from qdrun.compiler.ir.nodes import Assert

    x = field("x", dtype, 1000)
    task, i, b = parallel(1000)
    task.body.clear()
    value = b.gload(x, (i,))
    b.put(Assert(b.op("lt", value, Const(5, dtype)), "no: {}", (value,)))
    for code in codes:
        local = b.local(Const(0, dtype), code)
        b.store(local, b.op(code, b.load(local), value))
        task.reductions.append(Reduction(local, field("total", dtype), (), code))
    return Kernel("sums", [], [task])


def test_sums_and_searches_of_blocks_are_valid():
    made = {}
    for dtype in (f16, f32, f64, i16, i32, i64):
        made |= both(str(dtype), text_of(sums(dtype)))
    for name, make in SEARCHES.items():
        made |= both(name, text_of(pipeline.reduced(pipeline.simplified(make().kernel))))
    check(made)


def random_kernel(seed: int) -> Kernel:
    made = generate(seed, 60).kernel
    for number, decl in enumerate(made.args):
        decl.index = number
    return made


def test_random_programs_are_valid():
    made = {}
    for seed in range(60):
        made |= {str(seed): translate(text_of(random_kernel(seed)), LEAN if seed % 2 else EVERYTHING).data}
    check(made)


def siblings() -> Kernel:
    """The gradient of six loops beside each other, each with six conditions of the data, with states of several types."""
    import qdrun as qd

    qd.init(arch=qd.cpu, cpu_max_num_threads=1, default_fp=qd.f32)
    x, y = qd.field(qd.f32, 64, needs_grad=True), qd.field(qd.f32, 64, needs_grad=True)
    wide = qd.field(qd.f64, 64, needs_grad=True)

    @qd.kernel
    def work(n: qd.i32):
        for i in x:
            v, w, count = x[i], wide[i], qd.i64(0)
            for _ in qd.static(range(6)):
                for k in range(n):
                    for part in qd.static(range(6)):
                        if v > 0.1 * part + 0.01 * k:
                            v = v * v * 0.3 + qd.cast(w, qd.f32)
                            count += 1
                    w = w * w - 0.1 * qd.cast(count, qd.f64)
            y[i] = v + qd.cast(w, qd.f32)

    ir = work.variant((3,), {})[0].compiled_kernel.ir
    return pipeline.reduced(pipeline.gradient(ir, segmented=True).kernel)


def test_loops_beside_each_other_are_valid():
    """What a loop uses is defined before all loops."""
    kernel = siblings()
    assert sum(len(task.stacks) for task in kernel.tasks) >= 6
    check(both("siblings", text_of(kernel, tapes(kernel))))


def branching(branches: int) -> Kernel:
    """The gradient of a loop with so many conditions of the data, each of which changes both states."""
    import qdrun as qd

    qd.init(arch=qd.cpu, cpu_max_num_threads=1, default_fp=qd.f32)
    x, y = qd.field(qd.f32, 64, needs_grad=True), qd.field(qd.f32, 64, needs_grad=True)

    @qd.kernel
    def work(n: qd.i32):
        for i in x:
            v, w = x[i], 0.5 * x[i]
            for _ in range(n):
                for part in qd.static(range(branches)):
                    if v > 0.1 * part:
                        v = v * w * 0.3
                        w = w + v * v
            y[i] = v + w

    ir = work.variant((3,), {})[0].compiled_kernel.ir
    return pipeline.reduced(pipeline.gradient(ir, segmented=True).kernel)


def test_no_branch_carries_counters_of_stacks():
    """Row 33: a slot is addressed by the number of the iteration. More branches bring no variable of integers and no joined value."""
    branches, integers = [], []
    for number in (2, 3, 4):
        kernel = branching(number)
        assert sum(len(task.stacks) for task in kernel.tasks)
        data = translate(text_of(kernel, tapes(kernel)), EVERYTHING).data
        check({f"{number} branches": data})
        found = instructions(data)
        opcodes_of = Counter(op for op, _ in found)
        assert not opcodes_of[PHI]
        branches.append(opcodes_of[opcodes.Opcode.SelectionMerge])
        whole = {o[0] for op, o in found if op == opcodes.Opcode.TypeInt}
        pointers = {
            o[0] for op, o in found if op == opcodes.Opcode.TypePointer and o[1] == StorageClass.Function and o[2] in whole
        }
        integers.append(sum(op == opcodes.Opcode.Variable and o[0] in pointers for op, o in found))
    assert branches[0] < branches[1] < branches[2] and integers[0] == integers[1] == integers[2] > 0


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_no_array_of_a_function_grows_with_an_adstack(dtype, serial, gated):
    """Stacks lie in the heap. The only arrays of a function are tables of constants."""
    import qdrun as qd

    kernel = gradient(getattr(qd, dtype), gated, serial)
    data = translate(text_of(kernel, tapes(kernel)), EVERYTHING).data
    check({"gradient": data})
    arrays = {operands[0] for op, operands in instructions(data) if op == opcodes.Opcode.TypeArray}
    pointed = {o[2] for op, o in instructions(data) if op == opcodes.Opcode.TypePointer and o[1] == StorageClass.Function}
    assert not arrays & pointed


def test_words_are_pushed_up_to_sixteen_and_else_read_by_their_address():
    facts = {}
    for count in (3, 15, 16, 40):
        args = [ArgDecl(f"a{k}", "scalar", f32, index=k) for k in range(count)]
        x = field("x", f32, 10)
        task, i, b = parallel(10)
        total = b.gload(x, (i,))
        for decl in args:
            total = b.op("add", total, b.op("arg", dtype=f32, attr=decl))
        b.gstore(x, (i,), total)
        made = translate(text_of(Kernel("k", args, [task])), EVERYTHING)
        check({"words": made.data})
        (entry,) = made.functions
        facts[entry.words] = entry.pushed
        sizes = Counter(op for op, _ in instructions(made.data))
        assert sizes[opcodes.Opcode.EntryPoint] == 1 and (Capability.Int64 in capabilities(made.data))
    assert facts == {4: True, 16: True, 17: False, 41: False}


def test_a_module_declares_what_it_uses():
    def of(dtype) -> set[int]:
        x = field("x", dtype, 10)
        task, i, b = parallel(10)
        b.gstore(x, (i,), b.op("add", b.gload(x, (i,)), Const(1, dtype)))
        return capabilities(translate(text_of(Kernel("k", [], [task])), replace(EVERYTHING, **NO_MODES)).data)

    assert of(f32) == of(i32) == of(i64) == PLAIN
    assert of(f64) == PLAIN | {Capability.Float64}
    assert of(f16) == PLAIN | {Capability.Float16, Capability.StorageBuffer16BitAccess}
    assert of(i8) == PLAIN | {Capability.Int8, Capability.StorageBuffer8BitAccess}
    assert of(i16) == PLAIN | {Capability.Int16, Capability.StorageBuffer16BitAccess}


NO_MODES = dict.fromkeys(("denorm_preserve", "round_to_even", "signed_zero"), frozenset())


def test_floats_are_exact_where_the_device_can_be_told():
    x = field("x", f32, 10)
    task, i, b = parallel(10)
    b.gstore(x, (i,), b.op("mul", b.gload(x, (i,)), Const(3.0, f32)))
    text = text_of(Kernel("k", [], [task]))

    def modes(features: Features) -> list[list[int]]:
        data = translate(text, features).data
        check({"modes": data})
        return [operands[1:] for op, operands in instructions(data) if op == opcodes.Opcode.ExecutionMode]

    assert modes(EVERYTHING) == [[4459, 32], [4461, 32], [4462, 32]]  # of the width that is used, and no other
    assert modes(replace(EVERYTHING, **NO_MODES)) == []
    assert modes(replace(EVERYTHING, denorm_preserve=ALL_WIDTHS - {32})) == [[4461, 32], [4462, 32]]


NEEDED = {
    "float64": (f64, "64-bit floats", "shaderFloat64"),
    "float16": (f16, "16-bit floats", "shaderFloat16"),
    "int16": (i16, "16-bit integers", "shaderInt16"),
    "int8": (u1, "8-bit integers", "shaderInt8"),
    "storage16": (i16, "16-bit values in memory", "storageBuffer16BitAccess"),
    "storage8": (i8, "8-bit values in memory", "storageBuffer8BitAccess"),
}


@pytest.mark.parametrize("feature", NEEDED)
def test_what_the_device_lacks_is_named_with_kernel_and_line(feature):
    dtype, what, vulkan = NEEDED[feature]
    x = field("x", dtype, 10)
    task, i, b = parallel(5)
    twice = b.op("mul", i, const_i32(2))
    b.gstore(x, (twice,), b.gload(x, (twice,)))
    text = text_of(Kernel("copies", [], [task]))
    with pytest.raises(QdrunTypeError) as e:
        translate(text, replace(EVERYTHING, **{feature: False}))
    number = next(n for n, line in enumerate(text.splitlines(), 1) if " = load " in line and "align" in line)
    line = text.splitlines()[number - 1].strip()
    first, hint = str(e.value).splitlines()
    said = f"({vulkan}; line {number} of its device text: {line})"
    assert first == f"kernel qd_copies uses {what}, which this device does not have {said}"
    assert hint == "  do: use other types in this kernel, or another device"


def test_64_bit_atomics_need_a_feature_and_f32_sums_do_not():
    def of(dtype, **less) -> set[int]:
        x = field("x", dtype)
        task, _, b = parallel(10)
        b.atomic("add", x, (), Const(1, dtype))
        return capabilities(translate(text_of(Kernel("k", [], [task])), replace(EVERYTHING, **NO_MODES, **less)).data)

    assert of(f32) == PLAIN | {Capability.AtomicFloat32AddEXT}
    assert of(f32, float32_atomic_add=False) == PLAIN
    assert of(f64) == PLAIN | {Capability.Float64, Capability.AtomicFloat64AddEXT}
    assert of(f64, float64_atomic_add=False) == PLAIN | {Capability.Float64, Capability.Int64Atomics}
    for dtype, less in ((i64, {}), (f64, {"float64_atomic_add": False})):
        with pytest.raises(QdrunTypeError, match="64-bit atomics"):
            of(dtype, int64_atomics=False, **less)


def test_an_array_on_chip_has_no_layout():
    """Two words are pushed, and two lie on chip: only the block that is pushed has a layout."""
    text = """; kernel k for vulkan
define void @f(ptr %p0, i64 %p1) "threads"="any" {
entry:
  %h1 = addrspacecast ptr addrspace(3) @qd_array_0_0 to ptr
  %r1 = atomicrmw add ptr %h1, i64 %p1 syncscope("device") monotonic
  store i64 %r1, ptr %p0, align 8
  ret void
}
@qd_array_0_0 = internal addrspace(3) global [16 x i8] poison, align 16
"""
    made = translate(text, EVERYTHING)
    check({"on chip": made.data})
    assert made.functions[0].shared == 16
    laid_out = {
        o[0] for op, o in instructions(made.data) if op == opcodes.Opcode.Decorate and o[1] == opcodes.Decoration.ArrayStride
    }
    on_chip = {o[2] for op, o in instructions(made.data) if op == opcodes.Opcode.TypePointer and o[1] == StorageClass.Workgroup}
    assert laid_out and on_chip and not laid_out & on_chip


def test_a_kernel_without_device_functions_has_a_valid_module():
    made = translate(text_of(Kernel("nothing", [], [])), EVERYTHING)
    check({"nothing": made.data})
    assert made.functions == () and any(op == opcodes.Opcode.EntryPoint for op, _ in instructions(made.data))


def test_an_operation_that_is_not_translated_is_refused_with_its_line():
    text = '; kernel k for vulkan\ndefine void @f(ptr %p0) "threads"="any" {\nentry:\n'
    text += "  %r1 = load i32, ptr %p0\n  %r2 = call i32 @llvm.bitreverse.i32(i32 %r1)\n  ret void\n}"
    with pytest.raises(QdrunRuntimeError, match=r"line 5 of a device text cannot be translated.*bitreverse"):
        translate(text, EVERYTHING)


def test_operations_of_a_wave_are_refused_before_there_is_a_text():
    target = replace(spirv_target(EVERYTHING), wave=32)
    x = field("x", i32)
    task, _, b = parallel(100)
    b.atomic("add", x, (), const_i32(1))
    with pytest.raises(Unsupported, match="threads of a wave"):
        emit_grid(Kernel("k", [], [task]), target)


def long_kernel(statements: int) -> Kernel:
    """So many statements, a condition after every tenth."""
    x = field("x", f32, 64)
    task, i, b = parallel(64)
    values = [b.gload(x, (i,))]
    last = b.local(Const(0.0, f32), "last")
    for k in range(statements):
        value = b.op(("add", "mul", "sub", "max", "min")[k % 5], values[-1], values[max(0, len(values) - 1 - k * 7 % 20)])
        values.append(value)
        if k % 10 == 9:
            with b.if_(b.op("gt", value, Const(0.5, f32))):
                b.store(last, value)
    b.gstore(x, (i,), b.load(last))
    return Kernel("long", [], [task])


@pytest.mark.slow
def test_a_kernel_of_20000_statements_is_valid():
    data = translate(text_of(long_kernel(20_000)), LEAN).data
    bound = struct.unpack_from("<5I", data)[3]
    assert 20_000 < bound < 200_000  # Vulkan's limit is 4,194,303
    check({"long": data})


def operands_of(dtype, code: str) -> tuple[list[tuple[int, list[int]]], dict[int, tuple[int, list[int]]]]:
    """A kernel that converts the result of an operation to i64 or f32: its instructions, and those that give a number by what they give."""
    x, y = field("x", dtype, 10), field("y", f32 if dtype is f16 else i64, 10)
    task, i, b = parallel(10)
    value = b.gload(x, (i,))
    args = [value, Const(-1, dtype)] if code == "mul" and dtype is not f16 else [value] * TABLE[code].arity
    b.gstore(y, (i,), b.cast(b.op(code, *args), y.dtype))
    data = translate(text_of(Kernel("k", [], [task])), EVERYTHING).data
    check({f"{code} {dtype}": data})
    found = instructions(data)
    return found, {words[1]: (op, words) for op, words in found if len(words) > 2}


@pytest.mark.parametrize("dtype", [i8, i16], ids=str)
@pytest.mark.parametrize("code", ["neg", "abs", "mul"])  # mul: by -1
def test_a_narrow_integer_is_subtracted_from_a_zero_that_the_driver_cannot_know(dtype, code):
    """NVIDIA's compiler forgets that the least number is its own negative."""
    found, made = operands_of(dtype, code)
    zeros = [
        made[words[2]] for op, words in found if op == opcodes.Opcode.ISub and made[words[2]][0] == opcodes.Opcode.UConvert
    ]
    assert zeros and not any(op in (opcodes.Opcode.Not, 126) for op, _ in found)  # 126: OpSNegate
    assert all(made[words[2]][0] == opcodes.Opcode.ISub for _, words in zeros), "what is known of the launch alone"


def test_what_is_rounded_to_f16_is_hidden_from_the_driver():
    """NVIDIA's compiler leaves out a conversion from f32 to f16 and back."""
    found, made = operands_of(f16, "mul")
    back = [made[words[2]][0] for op, words in found if op == opcodes.Opcode.FConvert]
    assert opcodes.Opcode.FConvert not in back and opcodes.Opcode.FMul in back
