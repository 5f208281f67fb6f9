"""The grammar of device texts (docs/device-text.md): what it refuses, and that all of it is used.

That everything the tests emit is in it, ``tests/conftest.py`` sees to.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ptx_harness import TYPES, module_of

from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.spirv.features import EVERYTHING
from qdrun.compiler.codegen.spirv.target import spirv_target
from qdrun.compiler.codegen.text.hardware import translated_target
from qdrun.compiler.ir.nodes import Kernel
from qdrun.tests.devices.processor.hardware import emulated_target

sys.path.insert(0, str(Path(__file__).parents[1]))
from device_text import faults
from irgen import generate

TEXT = """define void @f(ptr %regs, ptr %words) nounwind {
entry:
  %r1 = load i64, ptr %regs
  br label %next
next:
  ret void
}
"""


TARGETS = {
    "cuda": cuda_target(),
    "fast": replace(cuda_target(), fast_math=True),
    "gfx942": amdgpu_target("gfx942"),
    "gfx1100": amdgpu_target("gfx1100"),
    "emulated": emulated_target(),
    "translated": translated_target("vulkan"),
    "fast vulkan": replace(spirv_target(EVERYTHING), fast_math=True),
}


def kernel(seed: int) -> Kernel:
    """A random kernel."""
    made = generate(seed, 60).kernel
    for number, decl in enumerate(made.args):
        decl.index = number
    return made


def test_a_text_in_the_grammar_has_no_faults():
    assert faults(TEXT, "emulated") == []


@pytest.mark.parametrize(
    "line",
    [
        "%r2 = phi ptr [ %regs, %entry ], [ %words, %next ]",
        "switch i64 %r1, label %next []",
        "%r2 = freeze i64 %r1",
        "%r2 = getelementptr [4 x i64], ptr %regs, i64 0, i64 1",
        "%r2 = fadd <4 x float> %r1, %r1",
        "%r2 = fadd fast float %r1, %r1",
        "store volatile i64 %r1, ptr %regs",
        "call void @unknown(i64 %r1)",
    ],
)
def test_a_line_that_fits_no_form_is_found(line):
    text = TEXT.replace("  br label %next", f"  {line}\n  br label %next")
    assert faults(text, "emulated") == [line]


def test_the_lines_of_one_backend_are_not_those_of_another():
    assert faults(TEXT, "cuda") == ["define void @f(ptr %regs, ptr %words) nounwind {"]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("  ret void\n", "", "} (of a block without an end)"),
        ("next:\n", "", "ret void (behind the end of its block)"),
    ],
)
def test_blocks_end_with_one_terminator(old, new, found):
    assert faults(TEXT.replace(old, new), "emulated") == [found]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("name", TARGETS)
def test_random_programs_are_in_the_grammar(name, seed):
    target = TARGETS[name]
    assert faults(emit_grid(kernel(seed), target).device, target.name) == []


@pytest.mark.parametrize("fast", [False, True])
def test_every_operation_of_every_type_is_in_the_grammar(fast):
    found = faults(module_of(TYPES, fast_math=fast).text(""), "cuda")
    assert [line for line in found if not line.startswith("define ptx_kernel")] == []  # the harness has parameters of its own
