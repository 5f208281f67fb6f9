"""The intrinsics and operations that LLVM's code generator supports on NVIDIA's GPUs.

Found by compiling each entry with LLVM 22 for sm_75 and sm_90; tests/codegen/test_nvptx_table.py compiles them again.
"""

from __future__ import annotations

from ..gpu.closed_table import INTRINSICS as COMMON
from ..gpu.closed_table import ClosedTable

INTRINSICS: dict[str, str] = {
    **COMMON,
    "exp2": "f16 f32",  # always the approximate instruction
    "assume": "",
}
"""The types of each LLVM intrinsic, as its name ends."""

APPROXIMATE: dict[str, str] = {"sin": "f16 f32", "cos": "f16 f32"}
"""Intrinsics that exist as approximations only: the call must have the flag ``afn``."""

NVVM = frozenset(
    f"llvm.nvvm.{name}"
    for name in (
        *(f"read.ptx.sreg.{r}.{axis}" for r in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
        *("read.ptx.sreg.laneid", "read.ptx.sreg.lanemask.lt", "read.ptx.sreg.clock64", "read.ptx.sreg.globaltimer"),
        *("barrier.cta.sync.aligned.all", "barrier0", "bar.warp.sync", "membar.cta", "membar.gl", "membar.sys"),
        *(f"shfl.sync.{how}.{ty}" for how in ("idx", "up", "down", "bfly") for ty in ("i32", "f32")),
        *("vote.ballot.sync", "vote.any.sync", "vote.all.sync", "activemask", "match.any.sync.i32", "match.any.sync.i64"),
        *("ex2.approx.f", "ex2.approx.ftz.f", "lg2.approx.f", "lg2.approx.ftz.f", "rcp.approx.ftz.f", "rsqrt.approx.f"),
        *("f2i.rz", "f2ui.rz"),
    )
)
"""NVIDIA's own. A misspelt one would silently become a call."""

EXTERNAL = frozenset(("vprintf", "__assertfail"))
"""The functions of the device's own library."""

SCOPES = frozenset(("device", "block"))
"""Of atomics and fences."""

NVPTX = ClosedTable("NVIDIA's GPUs", INTRINSICS, NVVM, SCOPES, APPROXIMATE, EXTERNAL)
"""The whole table."""
