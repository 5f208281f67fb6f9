"""LLVM text that the runtime's tests run, and a context to run it in."""

import ctypes
import subprocess
import sys
from types import SimpleNamespace

from qdrun.compiler.codegen.abi import STATUS_WORDS, ContextLayout
from qdrun.compiler.runtime import jit
from qdrun.compiler.runtime.cpu import device, pool
from qdrun.compiler.runtime.status import raise_status

# counts every element; raises a flag when a worker number is out of range or used by two threads at once
BODIES = r"""
define void @count(ptr %f, i64 %b, i64 %e, i64 %w) {
entry:
  br label %l
l:
  %i = phi i64 [%b, %entry], [%i1, %l]
  %p = getelementptr i64, ptr %f, i64 %i
  %v = load i64, ptr %p
  %v1 = add i64 %v, 1
  store i64 %v1, ptr %p
  %i1 = add i64 %i, 1
  %c = icmp slt i64 %i1, %e
  br i1 %c, label %l, label %o
o:
  ret void
}
; frame: [0] workers, [1] errors, [2] chunk, [8..] busy flag of each worker
define void @exclusive(ptr %f, i64 %b, i64 %e, i64 %w) {
entry:
  %pn = getelementptr i64, ptr %f, i64 0
  %n = load i64, ptr %pn
  %perr = getelementptr i64, ptr %f, i64 1
  %pchunk = getelementptr i64, ptr %f, i64 2
  %chunk = load i64, ptr %pchunk
  %rest = urem i64 %b, %chunk
  %aligned = icmp eq i64 %rest, 0
  %size = sub i64 %e, %b
  %small = icmp sle i64 %size, %chunk
  %inside = icmp ult i64 %w, %n
  %g1 = and i1 %aligned, %small
  %good = and i1 %g1, %inside
  br i1 %good, label %take, label %bad
take:
  %k = add i64 %w, 8
  %slot = getelementptr i64, ptr %f, i64 %k
  %pair = cmpxchg ptr %slot, i64 0, i64 1 acq_rel monotonic
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %spin, label %bad
spin:
  %t = phi i64 [0, %take], [%t1, %spin]
  %t1 = add i64 %t, 1
  %pv = getelementptr i64, ptr %f, i64 3
  %x = load volatile i64, ptr %pv
  %more = icmp slt i64 %t1, 200
  br i1 %more, label %spin, label %give
give:
  store atomic i64 0, ptr %slot release, align 8
  ret void
bad:
  %one = atomicrmw add ptr %perr, i64 1 monotonic
  ret void
}
; frame: [0] pool, [1] address of the inner frame, [2] address of qd_parallel_for, [3] address of count
define void @nested(ptr %f, i64 %b, i64 %e, i64 %w) {
  %pool = load ptr, ptr %f
  %p1 = getelementptr ptr, ptr %f, i64 1
  %inner = load ptr, ptr %p1
  %n = sub i64 %e, %b
  %start = getelementptr i64, ptr %inner, i64 %b
  call void @qd_parallel_for(ptr %pool, ptr @count, ptr %start, i64 %n, i64 3)
  ret void
}
declare void @qd_parallel_for(ptr, ptr, ptr, i64, i64)
"""


def load_bodies():
    imports = {"qd_parallel_for": pool.parallel_for_addresses()["qd_parallel_for"]}
    return jit.load(jit.compile_text(BODIES, "bodies"), ["count", "exclusive", "nested"], imports, "bodies")


def parallel_for():
    ints = ctypes.c_int64, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *ints)(
        pool.parallel_for_addresses()["qd_parallel_for"]
    )


def parallel_for_up_to():
    """The same with one more argument: the number of workers."""
    ints = ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
    address = pool.parallel_for_addresses()["qd_parallel_for_up_to"]
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *ints)(address)


def compiled(text, messages=(), prints=(), name="k"):
    """``text`` defines ``void @qd_k(ptr args)``."""
    code, _ = device.load_text(text, name, ["qd_k"], device.CompileOptions(offline_cache=False))
    layout = ContextLayout({}, {}, 16)
    return device.Compiled(
        name, code.addresses["qd_k"], layout, list(messages), ["task"] * len(messages), list(prints), 1, 0.0, False, code
    )


def context():
    words, status = (ctypes.c_int64 * 64)(), (ctypes.c_int64 * STATUS_WORDS)()
    words[0] = ctypes.addressof(status)
    return SimpleNamespace(words=words, status=status, address=ctypes.addressof(words), status_address=ctypes.addressof(status))


def run_plainly(kernel, c):
    """Run a kernel without arguments through ctypes, in a context, and raise what it reports."""
    ctypes.CFUNCTYPE(None, ctypes.c_char_p)(kernel.address)(c.address.to_bytes(8, "little"))
    raise_status(kernel, c.status_address)


def run_python(code, **env):
    """Run code in a new process; its output. A crash there is a failure here."""
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **env}, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
