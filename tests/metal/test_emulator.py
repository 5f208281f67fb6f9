"""What the emulated Apple GPU finds that a real one would not tell."""

import ctypes

import numpy as np
import pytest

from qdrun.compiler.codegen.metal.source import KernelFacts, head_of
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.tests.devices.metal import executor
from qdrun.tests.devices.processor.arena import BadAddress
from qdrun.tests.devices.processor.blocks import Diverged

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
BARRIER = "threadgroup_barrier(mem_flags::mem_device);"
INPUTS = (
    "constant ulong* qw [[buffer(0)]], threadgroup uchar* qs [[threadgroup(0)]], uint qt [[thread_position_in_threadgroup]]"
)


@pytest.fixture(scope="module")
def codes():
    """Kernels that do something wrong, compiled together."""
    bodies = {
        "below": "*reinterpret_cast<device uint*>(qw[0] - 4ul) = 1u;",
        "above": "*reinterpret_cast<device ulong*>(qw[0] + 60ul) = 1ul;",
        "odd": "*reinterpret_cast<device uint*>(qw[0] + 2ul) = 1u;",
        "quarter": "*reinterpret_cast<device uint4*>((qw[0] & ~15ul) + 24ul) = uint4(1u, 2u, 3u, 4u);",
        "fine": "*reinterpret_cast<device uint*>(qw[0] + 60ul) = qt;",
        "chip": "*reinterpret_cast<threadgroup uint*>(qs + 64u) = 1u;",
        "overflow": "*reinterpret_cast<device int*>(qw[0]) = int(qw[1]) + 1;",
        "divide": "*reinterpret_cast<device uint*>(qw[0]) = 5u / uint(qw[2]);",
        "shift": "*reinterpret_cast<device uint*>(qw[0]) = 1u << uint(qw[3]);",
        "cast": "*reinterpret_cast<device int*>(qw[0]) = int(3e10f * float(qw[1]));",
        "some": "if (qt < 3u) { threadgroup_barrier(mem_flags::mem_device); }",
        "others": f"if (qt < 3u) {{\n {BARRIER}\n }} else {{\n {BARRIER}\n }}",
        "turn": (
            "*reinterpret_cast<threadgroup uint*>(qs + qt * 4u) = qt;\n threadgroup_barrier(mem_flags::mem_threadgroup);\n"
            "*reinterpret_cast<device uint*>(qw[0] + ulong(qt) * 4ul) = *reinterpret_cast<threadgroup uint*>(qs + (7u - qt) * 4u);"
        ),
        "race": (
            "*reinterpret_cast<threadgroup uint*>(qs + qt * 4u) = qt;\n"
            "*reinterpret_cast<device uint*>(qw[0] + ulong(qt) * 4ul) = *reinterpret_cast<threadgroup uint*>(qs + (7u - qt) * 4u);\n"
            "threadgroup_barrier(mem_flags::mem_threadgroup);"
        ),
    }
    facts = dict.fromkeys(bodies, KernelFacts(shared=64, threads=8))
    text = "".join(f"kernel void {n}({INPUTS})\n{{\n{body}\n}}\n" for n, body in bodies.items())
    return executor.MetalExecutor().load(executor.image_of(head_of(facts) + HEAD + text, "k"), "k")


def run(codes, name):
    data = np.zeros(64, np.uint8)
    words = (ctypes.c_uint64 * 4)(data.ctypes.data, 2**31 - 1, 0, 32)
    codes[name].run_on(ctypes.addressof(words), 3, 8, 0, executor.ends_of([(data.ctypes.data, 64)]))
    return data.view(np.uint32)


@pytest.mark.parametrize("name", ["below", "above", "odd", "quarter", "chip"])
def test_an_access_outside_of_live_memory_or_not_aligned_is_an_error(codes, name):
    with pytest.raises(BadAddress):
        run(codes, name)
    assert run(codes, "fine")[15] == 7, "the device goes on"


@pytest.mark.parametrize("name", ["overflow", "divide", "shift", "cast"])
def test_an_operation_without_a_defined_result_is_an_error(codes, name):
    with pytest.raises(QdrunRuntimeError, match=f"{name}: an operation has no defined result in Metal's language"):
        run(codes, name)


@pytest.mark.parametrize("name", ["some", "others"])
def test_threads_that_miss_a_barrier_are_an_error(codes, name):
    with pytest.raises(Diverged):
        run(codes, name)


def test_threads_meet_at_barriers_and_a_missing_one_shows(codes):
    assert run(codes, "turn")[:8].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    found = run(codes, "race")[:8].tolist()
    assert found[:4] != [7, 6, 5, 4], "what was not written yet is poison"


def test_a_source_that_clang_refuses_names_the_kernel():
    with pytest.raises(
        QdrunRuntimeError, match=r"the Metal source of kernel `k` cannot be compiled: .*undeclared identifier 'nothing'"
    ):
        executor.image_of(f"{HEAD}kernel void k({INPUTS})\n{{\nnothing(qt);\n}}\n", "k")
