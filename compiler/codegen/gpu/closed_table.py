"""What LLVM's code generator for a GPU supports, as a closed table with which a module's text is compared before LLVM compiles it.

On other intrinsics and operations LLVM terminates the process, deletes the kernel, or emits a call of a missing function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import QdrunRuntimeError

_F, _I = "f16 f32 f64", "i8 i16 i32 i64"
_TO_INT = " ".join(f"{i}.{f}" for i in _I.split() for f in _F.split())
INTRINSICS: dict[str, str] = {
    **dict.fromkeys("sqrt fabs floor ceil trunc round rint copysign minnum maxnum minimum maximum fma fmuladd".split(), _F),
    **dict.fromkeys("ctpop ctlz cttz abs smax smin umax umin fshl fshr".split(), _I),
    **dict.fromkeys("fptosi.sat fptoui.sat".split(), _TO_INT),
}
"""The LLVM intrinsics that every GPU's code generator supports: their types, as their names end."""

_SYMBOL = re.compile(r'@("[^"]*"|[\w.$-]+)')
_DEFINED = re.compile(r'^(?:define\b[^@\n]*@("[^"]*"|[\w.$-]+)\s*\(|@("[^"]*"|[\w.$-]+)\s*=)', re.M)
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.A)
_TYPES = re.compile(r"\b(fp128|x86_fp80|ppc_fp128|x86_amx)\b")
_SCOPE = re.compile(r'syncscope\("([^"]*)"\)')


@dataclass(frozen=True, slots=True)
class ClosedTable:
    """The table of a backend.

    Attributes:
        gpus: whose they are, for messages.
        intrinsics: the types of each of LLVM's intrinsics, as its name ends.
        own: the backend's own intrinsics, by their full names.
        scopes: of atomics and fences.
        approximate: intrinsics that exist as approximations only, as ``intrinsics``: the call must have the flag ``afn``.
        external: the functions of the device's own library.
    """

    gpus: str
    intrinsics: Mapping[str, str]
    own: frozenset[str]
    scopes: frozenset[str]
    approximate: Mapping[str, str] = field(default_factory=dict)
    external: frozenset[str] = frozenset()

    def knows(self, name: str) -> bool:
        """Whether an intrinsic, by its full name, has instructions."""
        if name in self.own:
            return True
        base = name.removeprefix("llvm.")
        for table in (self.intrinsics, self.approximate):
            for known, types in table.items():
                if base == known or (base.startswith(known + ".") and base[len(known) + 1 :] in types.split()):
                    return base != known or not types
        return False

    def faults(self, text: str) -> list[str]:
        """The unsupported intrinsics and operations in a device module's text."""
        defined = {a or b for a, b in _DEFINED.findall(text)}
        found: list[str] = []
        for name in sorted(set(_SYMBOL.findall(text))):
            if name.startswith("llvm."):
                if not self.knows(name):
                    found.append(f"`{name}`")
            elif name not in defined and name not in self.external:
                found.append(f"`{name}`, which is not defined")
            elif not _NAME.fullmatch(name):
                found.append(f"the name `{name}`: letters, digits and _ only")
        if self.approximate:
            bare = re.compile(rf"call (?!afn )[^@\n]*@(llvm\.(?:{'|'.join(self.approximate)})\.(?:f16|f32))\b")
            found += [f"`{name}` without `afn`" for name in sorted(set(bare.findall(text)))]
        found += [f"the scope `{scope}`" for scope in sorted(set(_SCOPE.findall(text)) - self.scopes)]
        return found + [f"the type {t}" for t in sorted(set(_TYPES.findall(text)))]

    def check(self, text: str, kernel: str) -> None:
        """Refuse a device module that LLVM cannot compile.

        Args:
            text: LLVM text of the module.
            kernel: its name, for the message.

        Raises:
            QdrunRuntimeError: names the kernel and the unsupported part.
        """
        unknown = self.faults(text)
        if unknown:
            raise QdrunRuntimeError(
                f"the GPU code of kernel `{kernel}` contains operations that LLVM cannot compile for {self.gpus}:"
                f" {', '.join(unknown[:5])}\n  do: this is a bug in qdrun; report it with the kernel's source"
            )
