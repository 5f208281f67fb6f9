"""PTX of operations, one kernel each, compiled in a process of their own: LLVM may end it. Down to machine code where a tool is there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace

from qdrun.compiler.codegen.cuda.hardware import cuda_target
from qdrun.compiler.codegen.gpu.hardware import GpuTarget
from qdrun.compiler.codegen.llvm import arith
from qdrun.compiler.codegen.llvm.function import Fn, LlvmModule
from qdrun.compiler.codegen.llvm.target import memory_type
from qdrun.compiler.ir.nodes import Const, Op
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import DType, f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64

TYPES = (f16, f32, f64, i8, i16, i32, i64, u1, u8, u16, u32, u64)
KINDS = {"any": "fiub", "number": "fiu", "real": "f", "int": "iub", "bool": "b"}

COMPILE = """
import sys
from qdrun.compiler.codegen.gpu import closed_table
from qdrun.compiler.runtime.cuda.ptx import compile_ptx
if "unchecked" in sys.argv:
    closed_table.ClosedTable.check = lambda table, text, name: None
ptx = compile_ptx(sys.stdin.read(), "a test", sys.argv[1])
if "machine" in sys.argv:
    from cuda.bindings import nvjitlink as link
    handle = link.create(1, ["-arch=" + sys.argv[1]])
    try:
        link.add_data(handle, link.InputType.PTX, ptx.encode(), len(ptx), "test")
        link.complete(handle)
    except link.nvJitLinkError as e:
        log = bytearray(link.get_error_log_size(handle))
        link.get_error_log(handle, log)
        sys.exit(f"{e}: {log.decode()}")
    assert link.get_linked_cubin_size(handle) > 1000
print(ptx)
"""


def can_link() -> bool:
    """Whether machine code can be made without a GPU."""
    try:
        if importlib.util.find_spec("cuda.bindings.nvjitlink") is None:
            return False
        from cuda.bindings import nvjitlink

        return nvjitlink.version() is not None
    except Exception:
        return False


def compile_text(text: str, *how: str, cpu: str = "sm_90") -> subprocess.CompletedProcess[str]:
    """PTX on the standard output."""
    return subprocess.run([sys.executable, "-c", COMPILE, cpu, *how], input=text, capture_output=True, text=True, check=False)


def operations(d: DType) -> list[tuple[str, list[DType], DType]]:
    """Every pure operation with operands of one type: its code, the types of its operands and of its result."""
    found: list[tuple[str, list[DType], DType]] = []
    for code, info in TABLE.items():
        if not info.pure or info.arity < 1 or d.kind not in KINDS[info.domain]:
            continue
        if code == "select":
            found.append((code, [u1, d, d], d))
        elif code in ("cast", "bitcast"):
            found += [(code, [d], t) for t in TYPES if code == "cast" or t.bits == d.bits]
        else:
            results = (i32,) if info.result == "given" else (u1 if info.result == "bool" else d,)
            found += [(code, [d] * info.arity, t) for t in results]
    return found


def kernel_of(module: LlvmModule, name: str, code: str, operands: list[DType], result: DType) -> None:
    """A device function that loads the operands, applies the operation and stores."""
    convention = "amdgpu_kernel" if module.target.name == "amdgpu" else "ptx_kernel"
    f = Fn(module, 1)
    regs: list[str] = []
    for k, t in enumerate(operands):
        raw = f.t(f"load {memory_type(t)}, ptr %p{k}")
        regs.append(f.t(f"icmp ne i8 {raw}, 0") if t is u1 else raw)
    out = arith.pure(f, Op(code, tuple(Const(0, t) for t in operands), result), regs, False)
    if result is u1:
        out = f.t(f"zext i1 {out} to i8")
    f.put(f"store {memory_type(result)} {out}, ptr %o")
    head = f"define {convention} void @{name}(ptr %o, ptr %p0, ptr %p1, ptr %p2) {{\nentry:"
    module.functions.append("\n".join([head, *f.slots, *f.head, *f.lines, "  ret void", "}"]))


def module_of(types: tuple[DType, ...], base: GpuTarget | None = None, **target: object) -> LlvmModule:
    """Every operation of these types. ``base``: the GPU; None: NVIDIA's."""
    module = LlvmModule(replace(base or cuda_target(), **target))  # type: ignore[arg-type]
    for d in types:
        for k, (code, operands, result) in enumerate(operations(d)):
            kernel_of(module, f"{code}_{d.name}_{k}", code, operands, result)
    return module
