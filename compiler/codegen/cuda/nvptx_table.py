"""The intrinsics and operations that LLVM's code generator supports on NVIDIA's GPUs.

On others it terminates the process, or emits PTX that calls a missing function. So a module's text is compared with this closed table
before LLVM compiles it.

Found by compiling each entry with LLVM 22 for sm_75 and sm_90; tests/codegen/test_nvptx_table.py compiles them again.
"""

from __future__ import annotations

import re

from ...errors import QdrunRuntimeError

_F, _I = "f16 f32 f64", "i8 i16 i32 i64"
_TO_INT = " ".join(f"{i}.{f}" for i in _I.split() for f in _F.split())
INTRINSICS: dict[str, str] = {
    **dict.fromkeys("sqrt fabs floor ceil trunc round rint copysign minnum maxnum minimum maximum fma fmuladd".split(), _F),
    **dict.fromkeys("ctpop ctlz cttz abs smax smin umax umin fshl fshr".split(), _I),
    **dict.fromkeys("fptosi.sat fptoui.sat".split(), _TO_INT),
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

_SYMBOL = re.compile(r'@("[^"]*"|[\w.$-]+)')
_DEFINED = re.compile(r'^(?:define\b[^@\n]*@("[^"]*"|[\w.$-]+)\s*\(|@("[^"]*"|[\w.$-]+)\s*=)', re.M)
_BARE = re.compile(rf"call (?!afn )[^@\n]*@(llvm\.(?:{'|'.join(APPROXIMATE)})\.(?:f16|f32))\b")
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.A)
_TYPES = re.compile(r"\b(fp128|x86_fp80|ppc_fp128|x86_amx)\b")


def knows(name: str) -> bool:
    """Whether an intrinsic, by its full name, has instructions."""
    if name in NVVM:
        return True
    base = name.removeprefix("llvm.")
    for table in (INTRINSICS, APPROXIMATE):
        for known, types in table.items():
            if base == known or (base.startswith(known + ".") and base[len(known) + 1 :] in types.split()):
                return base != known or not types
    return False


def faults(text: str) -> list[str]:
    """The unsupported intrinsics and operations in a device module's text."""
    defined = {a or b for a, b in _DEFINED.findall(text)}
    found: list[str] = []
    for name in sorted(set(_SYMBOL.findall(text))):
        if name.startswith("llvm."):
            if not knows(name):
                found.append(f"`{name}`")
        elif name not in defined and name not in EXTERNAL:
            found.append(f"`{name}`, which is not defined")
        elif not _NAME.fullmatch(name):
            found.append(f"the name `{name}`: letters, digits and _ only")
    found += [f"`{name}` without `afn`" for name in sorted(set(_BARE.findall(text)))]
    return found + [f"the type {t}" for t in sorted(set(_TYPES.findall(text)))]


def check(text: str, kernel: str) -> None:
    """Refuse a device module that LLVM cannot compile.

    Args:
        text: LLVM text of the module.
        kernel: its name, for the message.

    Raises:
        QdrunRuntimeError: names the kernel and the unsupported part.
    """
    unknown = faults(text)
    if unknown:
        raise QdrunRuntimeError(
            f"the GPU code of kernel `{kernel}` contains operations that LLVM cannot compile for NVIDIA's GPUs: {', '.join(unknown[:5])}\n"
            "  do: this is a bug in qdrun; report it with the kernel's source"
        )
