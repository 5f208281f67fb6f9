"""A way around a fault of LLVM 22's code generator for x86 (llvm/llvm-project#179489).

Where a masked store has a truncated value and a constant mask with exactly one lane, that generator makes a plain store of the value
before its truncation: an ``i32`` that becomes an ``i8`` overwrites the three elements behind it. Such masks come from lanes, and from
LLVM's own vectoriser: ``if i == 5 or i == 17`` in a loop of constant length is enough. Code generation may also split a mask into
halves, so every constant mask of a store of integers is hidden, whatever its number of lanes.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm

DONE = "constant store masks hidden"
"""A part of the key of cached code: what was compiled without this is not found."""

_STORE = re.compile(
    r"(?m)^(  (?:tail |notail )?call void @llvm\.masked\.store\.v(\d+)i\d+\.p\d+\(.*, <\d+ x i1> )<(i1 [^<>]*)>\)"
)


def hide_masks(text: str) -> str:
    """Optimised LLVM text, with each constant mask of a masked store of integers behind an empty piece of assembly. Its result is the mask
    again, but the code generator takes it for unknown.
    """
    done = 0

    def hidden(found: re.Match[str]) -> str:
        nonlocal done
        done += 1
        call, lanes, flags = found[1], int(found[2]), found[3].split(", ")
        bits = sum((flag == "i1 true") << k for k, flag in enumerate(flags))
        wide, name = max(32, lanes), f"%qd.mask{done}"
        lines = [f'  {name}.bits = call i{wide} asm "", "=r,0"(i{wide} {bits})']
        narrow = f"{name}.bits"
        if lanes < wide:
            narrow = f"{name}.lanes"
            lines.append(f"  {narrow} = trunc i{wide} {name}.bits to i{lanes}")
        lines.append(f"  {name} = bitcast i{lanes} {narrow} to <{lanes} x i1>")
        return "\n".join([*lines, f"{call}{name})"])

    return _STORE.sub(hidden, text)


def mend(module: Any, context: Any) -> Any:
    """The module to generate x86 code from: ``module`` itself where no masked store of integers has a constant mask, else a new one.

    Args:
        module: an optimised module; closed if it is replaced.
        context: the LLVM context that it lives in.
    """
    if not any(f.name.startswith("llvm.masked.store.") for f in module.functions):
        return module
    before = str(module)
    after = hide_masks(before)
    if after == before:
        return module
    module.close()
    return llvm.parse_assembly(after, context)
