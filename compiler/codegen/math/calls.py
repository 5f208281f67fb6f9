"""Chooses between code in line and calls of our mathematical functions, for each function of a module.

The code of a sine has branches and keeps a dozen constants in registers. A block with hundreds of them takes LLVM's register allocator a
time that grows with their square, and gains nothing: one call takes a small part of the time of the function that it calls.
"""

from __future__ import annotations

import re

from ..llvm.function import LlvmModule
from .library import sin_cos

MOST_LINES = 6_000
"""Lines that the code in line may add to one function: 80 sines, or 40 powers, take LLVM about a second."""

_PAIR = re.compile(r"  (%\w+) = call (.+?) @qd_(sin|cos)_(\w+)\((.*)\)$")


def settle(module: LlvmModule) -> None:
    """Make calls of the functions that would grow too much with the code of all that they call."""
    inlined = {name: text for name, text in module.helpers.items() if " noinline " not in text.partition("\n")[0]}
    lines = {name: text.count("\n") for name, text in inlined.items()}
    module.functions[:] = [
        _out_of_line(module, text) if sum(text.count(f"@{name}(") * n for name, n in lines.items()) > MOST_LINES else text
        for text in module.functions
    ]


def _out_of_line(module: LlvmModule, text: str) -> str:
    paired = _paired(module, text)
    names = "|".join(map(re.escape, module.helpers))
    return re.sub(rf"(?m)^(  .* call .* @(?:{names})\(.*\))$", r"\1 noinline", paired)


def _paired(module: LlvmModule, text: str) -> str:
    """A sine and a cosine of one value in one block share a call, as they share most of their work in line.

    Most sines of a gradient have a cosine.
    """
    wanted: dict[tuple[int, str, str], set[str]] = {}  # by block, type and argument
    found: list[tuple[str, tuple[int, str, str], re.Match[str] | None]] = []
    block = 0
    for line in text.split("\n"):
        block += line.endswith(":")
        match = _PAIR.match(line) if " @qd_" in line else None
        if match and match[4][0] != "v" and not module.target.libm:
            match = None  # a scalar sine without C's library is another function, which shares nothing with its cosine
        key = (block, match[4], match[5]) if match else (block, "", "")
        if match:
            wanted.setdefault(key, set()).add(match[3])
        found.append((line, key, match))
    made: dict[tuple[int, str, str], str] = {}
    out: list[str] = []
    for line, key, match in found:
        if match is None or len(wanted[key]) == 1:
            out.append(line)
            continue
        register, ty, name, suffix, argument = match.groups()
        both = made.get(key)
        if both is None:
            both = made[key] = f"{register}.both"
            out.append(f"  {both} = call {{ {ty}, {ty} }} @{sin_cos(module, suffix)}({argument})")
        out.append(f"  {register} = extractvalue {{ {ty}, {ty} }} {both}, {int(name == 'cos')}")
    return "\n".join(out)
