"""The text is the same for every CPU: arm64 code comes out of it too. In a subprocess, for LLVM may abort the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from codegen_harness import field, parallel

from qdrun.compiler.codegen.llvm.kernel import emit_kernel
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.ir.builder import const_i32
from qdrun.compiler.ir.nodes import Kernel
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u16

COMPILE = """
import sys
import llvmlite.binding as L
L.initialize_all_targets()
L.initialize_all_asmprinters()
triple, features = sys.argv[1:3]
machine = L.Target.from_triple(triple).create_target_machine(features=features, opt=2, reloc="pic")
module = L.parse_assembly(sys.stdin.read())
module.triple, module.data_layout = triple, str(machine.target_data)
module.verify()
L.create_pass_builder(machine, L.PipelineTuningOptions(2)).getModulePassManager().run(module, L.create_pass_builder(machine, L.PipelineTuningOptions(2)))
print(len(machine.emit_object(module)))
"""


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


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", [f16, f32, f64, i8, u16, i32, i64])
@pytest.mark.parametrize(
    ("triple", "features"),
    [
        ("aarch64-unknown-linux-gnu", ""),
        ("arm64-apple-darwin", ""),
        ("x86_64-pc-windows-msvc", "+avx2,+fma,+f16c"),
        ("x86_64-unknown-linux-gnu", ""),
    ],
)
def test_every_operation_compiles_for(triple, features, dtype, lanes):
    text = emit_kernel(everything(dtype), Target(lanes=lanes))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, triple, features], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert int(done.stdout) > 500
