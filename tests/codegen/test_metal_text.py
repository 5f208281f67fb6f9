"""Sources for Apple's GPUs: their form, how many lines they take, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from metal_harness import has_clang

import qdrun as qd
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.grid.rows import tapes_of
from qdrun.compiler.codegen.metal.hardware import metal_target
from qdrun.compiler.codegen.metal.source import KernelFacts, facts_of
from qdrun.compiler.codegen.metal.translate import translate
from qdrun.compiler.codegen.text.lines import SIZES
from qdrun.compiler.compile import pipeline
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.tests.devices.metal import executor

FLOAT = r"(?:v\w+|\(-?[\d.e+-]+f\)|[\d.e+-]+f)"


def source_of(kernel, *args, reverse=False):
    """The source of a kernel, or of its gradient."""
    ir = kernel.variant(args, {})[0].compiled_kernel.ir
    made = pipeline.gradient(ir, segmented=True).kernel if reverse else ir
    made = pipeline.reduced(made)
    return translate(emit_grid(made, metal_target(), far=tapes_of(made)).device, made.name)


def recurrences(states):
    """A kernel whose loop keeps so many numbers."""
    qd.init(arch=qd.cpu, cpu_max_num_threads=1, default_fp=qd.f32)
    x, y = (qd.Vector.field(states, qd.f32, shape=64, needs_grad=True) for _ in range(2))

    @qd.kernel
    def grow(n: qd.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = v * v * 0.3 + 0.1
            y[i] = v

    return grow


def test_a_source_asks_for_what_the_compiler_must_not_do():
    source = source_of(recurrences(1), 3)
    lines = source.splitlines()
    assert lines[1:5] == [
        "#include <metal_stdlib>",
        "using namespace metal;",
        "#pragma METAL fp math_mode(safe)",
        "#pragma METAL fp contract(off)",
    ]
    assert facts_of(source)["qd_grow_0"] == KernelFacts(0, False, 128, source.count("= qw["))
    assert "[[max_total_threads_per_threadgroup(128)]] kernel void qd_grow_0(constant ulong* qw [[buffer(0)]], " in source


def test_no_statement_has_two_operations_on_floats():
    """Should a compiler fuse what stands in one expression after all, there is nothing to fuse."""
    source = source_of(recurrences(3), 3, reverse=True)
    assert len(re.findall(rf"const float \w+ = \({FLOAT} \* {FLOAT}\);", source)) >= 6
    for line in source.splitlines():
        assert len(re.findall(rf"{FLOAT} [*+/-] {FLOAT}", line)) <= 1, line


def test_a_push_is_two_lines_for_each_state_without_a_branch_or_a_counter():
    """Rows 32 and 33: a slot is addressed by the number of the iteration, and that it exists was planned."""
    sources = {n: source_of(recurrences(n), 3, reverse=True) for n in (2, 3, 4)}
    stores = {n: len(re.findall(r"^ *\*reinterpret_cast<device float\*>\(", s, re.M)) for n, s in sources.items()}
    steps = {n: len(re.findall(r"^ *const ulong vr\d+ = \(vp\d+ \* 4ul\);", s, re.M)) for n, s in sources.items()}
    branches = {n: s.count("if (") for n, s in sources.items()}
    pushes = stores[4] - stores[3]  # and one sum into the adjoint of the argument
    assert pushes == stores[3] - stores[2] >= 8
    assert stores[4] + steps[4] - stores[3] - steps[3] <= 2 * pushes + 8, "reads of the tapes take as many"
    assert branches[2] == branches[3] == branches[4]
    lines = {n: s.count("\n") for n, s in sources.items()}
    assert lines[4] - lines[3] == lines[3] - lines[2] <= 60


def device_text(*lines):
    body = "".join(f"  {line}\n" for line in lines)
    return f'; kernel k for metal, blocks of 64\ndefine void @k_0(ptr %p0, i64 %p1) "threads"="any" {{\nentry:\n{body}  ret void\n}}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%r1 = frobnicate i32 5", "line 4 of a device text cannot be translated, as it has no form of docs/device-text.md"),
        ("%r1 = atomicrmw add ptr %p0, i16 1 monotonic", "a device text for Metal contains an atomic of the type i16"),
        ("%r1 = call i8 @llvm.fshl.i8(i8 1, i8 2, i8 3)", "contains the function `fshl` of narrow integers"),
        (
            "%r1 = call float @llvm.pow.f32(float 0x3FF0000000000000, float 0x3FF0000000000000)",
            "contains the function `llvm.pow.f32`",
        ),
    ],
)
def test_what_has_no_translation_is_refused_with_the_kernel(line, why):
    with pytest.raises(QdrunRuntimeError) as e:
        translate(device_text(line), "k")
    assert "kernel `k` cannot be translated to Metal Shading Language" in str(e.value) and why in str(e.value)


def test_literals_have_their_bits_and_no_sign_of_their_own():
    """What is written as a number is one whose digits give the same bits; all else is written as bits."""
    words = {
        "0x3FB99999A0000000": "0.1f",
        "0xBFF8000000000000": "(-1.5f)",
        "0x46293E5940000000": "1e+30f",
        "0x8000000000000000": "as_type<float>(2147483648u)",
        "0x7FF8000000000000": "as_type<float>(2143289344u)",
        "0xFFF0000000000000": "as_type<float>(4286578688u)",
        "0x36A0000000000000": "as_type<float>(1u)",
    }
    lines = [f"store float {w}, ptr %p0" for w in words]
    found = re.findall(r"reinterpret_cast<device float\*>\(vp0\) = (.*);", translate(device_text(*lines), "k"))
    assert found[:2] + found[3:] == [text for text in words.values() if "e+30" not in text]
    assert np.float32(float(found[2][:-1])) == np.float32(1e30)


def test_a_slot_is_read_where_its_value_is_used_unless_it_changes_in_between():
    lines = (
        "%s1 = alloca i64",
        "store i64 %p1, ptr %s1",
        "%r1 = load i64, ptr %s1",
        "store i64 5, ptr %s1",
        "%r2 = load i64, ptr %s1",
        "%r3 = add i64 %r1, %r2",
        "store i64 %r3, ptr %p0",
    )
    body = translate(device_text(*lines), "k").partition("  ulong vs1;\n")[2]
    assert [line.strip() for line in body.splitlines()] == [
        "vs1 = vp1;",
        "const ulong vr1 = vs1;",
        "vs1 = 5ul;",
        "*reinterpret_cast<device ulong*>(vp0) = (vr1 + vs1);",
        "}",
    ]


@pytest.mark.skipif(not has_clang(), reason="clang is not installed")
@pytest.mark.parametrize("align", [1, 2, 4])
def test_accesses_below_the_natural_alignment_have_parts(align):
    """Fields of packed structs: the language knows no accesses like that."""
    lines, types = [], ("i16", "half", "i32", "float", "i64", "double")
    for k, ty in enumerate(t for t in types if SIZES[t] > align):
        for what, p in (("source", 0), ("to", 1)):
            lines.append(f"%{what}{k} = getelementptr i8, ptr %p{p}, i64 {8 * k + align}")
        lines += [f"%v{k} = load {ty}, ptr %source{k}, align {align}", f"store {ty} %v{k}, ptr %to{k}, align {align}"]
    text = device_text(*lines).replace("i64 %p1", "ptr %p1")
    data = np.random.default_rng().integers(0, 256, (2, 64), np.uint8)
    expected = data[1].copy()
    for k, ty in enumerate(t for t in types if SIZES[t] > align):
        at = slice(8 * k + align, 8 * k + align + SIZES[ty])
        expected[at] = data[0][at]
    code = executor.MetalExecutor().load(executor.image_of(translate(text, "k"), "k"), "k")["k_0"]
    words = np.array([data[0].ctypes.data, data[1].ctypes.data], np.uint64)
    code.run_on(words.ctypes.data, 1, 1, 0, executor.ends_of([(data.ctypes.data, data.nbytes)]))
    assert (data[1] == expected).all()
