"""Machine code and the reference interpreter leave the same bytes behind, for random structured programs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from codegen_harness import Compiled

from qdrun.compiler.errors import QdrunError
from qdrun.compiler.ir.nodes import ArgDecl
from qdrun.compiler.ir.types import f32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime.python.interpret import run_kernel

sys.path.insert(0, str(Path(__file__).parents[1]))
from irgen import generate


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 150))])
def test_machine_code_agrees_with_the_interpreter(seed, optimise):
    program = generate(seed, 60)
    kernel = program.kernel
    for number, decl in enumerate(kernel.args):
        decl.index = number
    verify_kernel(kernel)
    want = program.memory()
    failed = False
    try:
        run_kernel(kernel, want, {program.scalar: 3})
    except QdrunError:
        failed = True
    have = program.memory()
    run = Compiled(kernel, optimise=optimise)
    args = []
    for decl in kernel.args:
        place = next((p for p in program.places if p.buffer.owner is decl), None)
        args.append(
            3 if decl.kind == "scalar" else have.array(place) if place in program._used() else np.zeros(4, decl.dtype.numpy)
        )
    fields = {b: have.bytes(b) for b in run.layout.buffers}
    status = run(*args, fields=fields)
    assert bool(status[0]) == failed
    for p in program._used():
        if not isinstance(p.buffer.owner, ArgDecl) and p.buffer.kind != "field":
            continue
        a, b = have.array(p), want.array(p)
        same = (a.view(f"u{p.dtype.size}") == b.view(f"u{p.dtype.size}")) | (
            np.isnan(a) & np.isnan(b) if p.dtype is f32 else False
        )
        assert same.all(), (p.name, a, b)
