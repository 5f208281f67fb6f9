"""What is translated for Apple's GPUs, compiled by clang, leaves the same bytes as the interpreter: random programs, and every operation on
every type.

``QDRUN_METAL_PROGRAMS``: how many programs, new ones each time. By default the same 60.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest
import test_operations
from metal_harness import MetalCompiled, has_clang, load
from test_grid import run_like_the_interpreter

from qdrun.compiler.codegen.metal.hardware import metal_target
from qdrun.compiler.ir.types import ALL

sys.path.insert(0, str(Path(__file__).parents[1]))
from irgen import generate

PROGRAMS = int(os.environ.get("QDRUN_METAL_PROGRAMS", "0"))
pytestmark = pytest.mark.skipif(not has_clang(), reason="clang is not installed")


def test_random_programs_agree_with_the_interpreter():
    made = {}
    for seed in random.sample(range(1 << 20), PROGRAMS) or range(1000, 1060):
        program = generate(seed, 60)
        program.kernel.name = f"k{seed}"
        for number, decl in enumerate(program.kernel.args):
            decl.index = number
        made[seed] = program, MetalCompiled(program.kernel)
    load(*(c for _, c in made.values()))
    for seed, (program, run) in made.items():
        try:
            run_like_the_interpreter(program, run, zeros=True)
        except Exception as e:
            e.add_note(f"seed {seed}")
            raise


@pytest.fixture
def on_metal(monkeypatch):
    def run(kernel, arrays, how):
        assert how == "metal"
        compiled = MetalCompiled(kernel, target=metal_target(1, wide=True))
        load(compiled)
        compiled(fields=arrays)

    monkeypatch.setattr(test_operations, "run", run)


@pytest.mark.parametrize("dtype", ALL.values(), ids=str)
def test_every_operation_computes_what_the_table_says(on_metal, dtype):
    for code in [c for c, d in test_operations.CASES if d is dtype]:
        test_operations.test_an_operation_computes_what_the_table_says(code, dtype, "metal")


def test_casts_wrap_integers_and_saturate_floats(on_metal):
    for source in ALL.values():
        for to in ALL.values():
            test_operations.test_a_cast_wraps_integers_and_saturates_floats(source, to, "metal")
