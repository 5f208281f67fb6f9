"""Samples of device code, compiled for AMD's chips: nothing lies in a thread's memory, and nothing is called.

``QDRUN_TEST_PROGRAMS=300 pytest -m slow tests/codegen/test_amd_samples.py`` compiles so many random programs. Their results are
compared with the interpreter's where the emulator runs them.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from amdgcn_harness import compile_all

from qdrun.compiler.codegen.amdgpu.hardware import amdgpu_target
from qdrun.compiler.codegen.gpu.grid.kernel import emit_grid
from qdrun.compiler.codegen.gpu.grid.rows import tapes_of
from qdrun.compiler.ir.nodes import Kernel, Op

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))
from irgen import generate

from benchmarks.amd_code import gradients_of

CHIPS = ("gfx90a", "gfx942", "gfx1100")
PROGRAMS = int(os.environ.get("QDRUN_TEST_PROGRAMS", "8"))


def kernel(seed: int) -> Kernel:
    """A random kernel."""
    made = generate(seed, 60).kernel
    for number, decl in enumerate(made.args):
        decl.index = number
    return made


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_random_programs_need_no_memory_of_a_thread(chip):
    target = amdgpu_target(chip)
    texts = [(emit_grid(kernel(seed), target).device, chip) for seed in range(PROGRAMS)]
    for (text, _), made in zip(texts, compile_all(texts, "listing")):
        assert len(made.kernels) == text.count("define amdgpu_kernel")
        assert not {name for name, k in made.kernels.items() if k["scratch_bytes"] or k["wave"] != 64}
        assert "s_swappc" not in made.listing


@pytest.fixture(scope="module")
def diffmpm() -> list[tuple[Kernel, frozenset[Op]]]:
    """The kernels of its gradient, with their plain atomics."""
    return gradients_of("diffmpm")


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "most"), [("gfx942", 170), ("gfx1100", 160)])
def test_the_gradient_of_diffmpm_stays_in_registers(diffmpm, chip, most):
    """Its atomics are additions of f32 by one instruction. ``most``: registers of a thread, of 512 and 256."""
    texts = [(emit_grid(k, amdgpu_target(chip), plain, tapes_of(k)).device, chip) for k, plain in diffmpm]
    found = compile_all(texts, "listing")
    facts = {name: k for made in found for name, k in made.kernels.items()}
    assert {"qd_p2g_grad_0", "qd_g2p_grad_0", "qd_grid_op_grad_0"} <= set(facts)
    assert {k["scratch_bytes"] for k in facts.values()} == {0}
    assert 60 < max(k["vgprs"] for k in facts.values()) < most
    listings = "".join(made.listing for made in found)
    assert not re.search(r"cmpswap|cmpst|s_swappc", listings)
    assert "global_atomic_add_f32" in listings
