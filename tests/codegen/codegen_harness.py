"""A private way to run a kernel: text -> machine code in this process, a context and arguments laid out by abi.py."""

from __future__ import annotations

import ctypes as C
import functools
import re

import llvmlite.binding as L
import numpy as np

from qdrun.compiler.codegen import abi
from qdrun.compiler.codegen.llvm.kernel import emit_kernel, symbol
from qdrun.compiler.codegen.llvm.target import Target
from qdrun.compiler.ir.builder import StatementBuilder, const_i32
from qdrun.compiler.ir.nodes import ArgDecl, Axis, Buffer, Kernel, Op, Place, Task
from qdrun.compiler.ir.types import i32
from qdrun.compiler.ir.verify import verify_kernel
from qdrun.compiler.runtime import cache, jit

L.initialize_native_target()
L.initialize_native_asmprinter()

# What adds the entries of a log, for one type.
ADDER = """
define void @qd_add_in_order_DTYPE(ptr %pool, ptr %turn, i64 %begin, ptr %log) {
entry:
  %count = load i64, ptr %log
  br label %test
test:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %out
one:
  %k1 = add i64 %k, 1
  %at = getelementptr [2 x i64], ptr %log, i64 %k1
  %p = load ptr, ptr %at
  %v = getelementptr i64, ptr %at, i64 1
  %by = load TYPE, ptr %v
  %old = load TYPE, ptr %p
  %new = fadd TYPE %old, %by
  store TYPE %new, ptr %p
  br label %test
out:
  store i64 0, ptr %log
  ret void
}
"""

# The chunks of a parallel loop in order, or backwards, one worker number after the other: what any pool could do.
POOL = """
define void @qd_parallel_for(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk) {
entry:
  %backwards = icmp ne ptr %pool, null
  %m1 = sub i64 %chunk, 1
  %up = add i64 %n, %m1
  %count = udiv i64 %up, %chunk
  %lastk = sub i64 %count, 1
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]
  %rk = sub i64 %lastk, %k
  %c = select i1 %backwards, i64 %rk, i64 %k
  %begin = mul i64 %c, %chunk
  %e0 = add i64 %begin, %chunk
  %over = icmp sgt i64 %e0, %n
  %end = select i1 %over, i64 %n, i64 %e0
  %worker = and i64 %k, 1
  call void %fn(ptr %frame, i64 %begin, i64 %end, i64 %worker)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @qd_parallel_for_up_to(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk, i64 %limit) {
  call void @qd_parallel_for(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk)
  ret void
}
define void @qd_parallel_for_in_order(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk, i64 %limit) {
  call void @qd_parallel_for(ptr %pool, ptr %fn, ptr %frame, i64 %n, i64 %chunk)
  ret void
}
@qd_printed = global [4096 x i64] zeroinitializer
define void @qd_print(ptr %ctx, i64 %site, ptr %values, i64 %n) {
entry:
  %used = load i64, ptr @qd_printed
  %full = icmp sgt i64 %used, 4000
  br i1 %full, label %out, label %room
room:
  %at = add i64 %used, 1
  %p = getelementptr i64, ptr @qd_printed, i64 %at
  store i64 %site, ptr %p
  %q = getelementptr i64, ptr %p, i64 1
  %bytes = mul i64 %n, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %values, i64 %bytes, i1 false)
  %next = add i64 %at, %n
  store i64 %next, ptr @qd_printed
  br label %out
out:
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


def native_machine():
    target = L.Target.from_default_triple()
    return target.create_target_machine(
        cpu=L.get_host_cpu_name(),
        features=L.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
        codemodel="default",
        reloc="pic",
    )


def compile_text(text: str, optimise: bool = True, imports: dict[str, int] | None = None):
    """The code of a module, compiled and linked as the product does; what was compiled before comes from the tests' cache."""
    exports = re.findall(r'^define (?!internal|private)[^@]*@"?([\w.$]+)"?\(', text, re.M)
    exports += re.findall(r"^@([\w.$]+) = (?!internal|private|external)\S*\s*(?:global|constant)", text, re.M)
    return Engine(cache.load_cached(text, "a test", exports, imports or {}, 2 if optimise else 0)[0])


class Engine:
    """The addresses of a module."""

    def __init__(self, code: jit.LoadedCode) -> None:
        self.code = code

    def address(self, name: str) -> int:
        return self.code.addresses[name]


@functools.cache
def pool() -> Engine:
    adders = [ADDER.replace("DTYPE", name).replace("TYPE", ty) for name, ty in (("f32", "float"), ("f64", "double"))]
    return compile_text("".join([POOL, *adders]))


class Compiled:
    """A kernel ready to run; fields are numpy arrays given by buffer."""

    def __init__(self, kernel: Kernel, lanes: int = 1, plain=frozenset(), optimise: bool = True) -> None:
        verify_kernel(kernel)
        self.kernel = kernel
        self.text = emit_kernel(kernel, Target(lanes=lanes), plain)
        self.engine = compile_text(self.text, optimise, pool().code.addresses)
        self.entry = C.CFUNCTYPE(None, C.c_void_p)(self.engine.address(symbol(kernel)))
        self.layout = abi.context_layout(kernel)
        self.status = np.zeros(abi.STATUS_WORDS, np.int64)
        self.returned = np.zeros(max(1, len(kernel.returns)), np.int64)
        self.tmp = np.zeros(4096, np.int64)

    def __call__(self, *args, fields=None, params=None, heap=None, backwards=False, seed=0):
        ctx = np.zeros(self.layout.words, np.int64)
        ctx[abi.CTX_STATUS], ctx[abi.CTX_POOL] = self.status.ctypes.data, int(backwards)
        ctx[abi.CTX_TMP], ctx[abi.CTX_RET] = self.tmp.ctypes.data, self.returned.ctypes.data
        ctx[abi.CTX_SEED] = np.uint64(seed).astype(np.int64)
        for number, plane in enumerate(abi.PLANES):
            if heap and plane in heap:
                ctx[abi.CTX_HEAP + number] = heap[plane].ctypes.data
        for key, word in self.layout.params.items():
            ctx[word] = (params or {})[key]
        for buffer, word in self.layout.buffers.items():
            ctx[word] = fields[buffer].ctypes.data
        words = [ctx.ctypes.data]
        for decl, value in zip(self.kernel.args, args):
            if decl.kind == "scalar":
                words.append(int.from_bytes(np.array(value, decl.dtype.numpy).tobytes().ljust(8, b"\0"), "little"))
            else:
                words += [value.ctypes.data, *value.shape[: decl.ndim]]
        packed = np.array(words, np.uint64)
        self.status[:] = 0
        self.entry(packed.ctypes.data)
        return self.status


def field(name, dtype, *shape, kind="field", offset=0):
    """A place with its own buffer, row-major."""
    strides, step = [], dtype.size
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return Place(name, dtype, Buffer(kind), len(shape), shape, tuple(strides), offset)


def array(name, dtype, ndim, index=0, element=()):
    """An ndarray argument and its place."""
    decl = ArgDecl(name, "ndarray", dtype, ndim, element, index=index)
    return decl, Place(name, dtype, Buffer("arg", decl), ndim, None, None, 0, dtype.size * int(np.prod(element or (1,))))


def parallel(n, name="t"):
    """A task of one axis over range(n), its index and a builder in its body. ``n``: int or operand."""
    task = Task(name, [])
    task.axes.append(Axis(Op("index", (), i32), const_i32(0), const_i32(n) if isinstance(n, int) else n))
    return task, task.axes[0].index, StatementBuilder(task.body)
