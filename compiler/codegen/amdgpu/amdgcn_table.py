"""The intrinsics and operations that LLVM's code generator supports on AMD's GPUs, as far as device code uses them.

Found by compiling each entry with LLVM 22 for gfx90a, gfx942 and gfx1100; tests/codegen/test_amdgcn_table.py compiles them again.
``permlane64`` is not among them: before gfx11 LLVM ends the process on it.
"""

from __future__ import annotations

from ..gpu.closed_table import INTRINSICS, ClosedTable

AMDGCN = frozenset(
    f"llvm.amdgcn.{name}"
    for name in (
        *("workitem.id.x", "workgroup.id.x", "implicitarg.ptr"),
        *("s.barrier", "wave.barrier", "ballot.i64", "ds.bpermute"),
    )
)
"""AMD's own. With ``ballot.i32`` LLVM ends the process in waves of 64 threads."""

SCOPES = frozenset(("agent", "workgroup", "wavefront"))
"""Of atomics and fences."""

TABLE = ClosedTable("AMD's GPUs", INTRINSICS, AMDGCN, SCOPES)
"""The whole table."""
