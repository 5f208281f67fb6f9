"""Device text as Metal Shading Language: one source for a kernel's device functions.

A device function is a kernel whose words are the buffer 0, as ``setBytes`` gives them. One that is packed has the address of its words as
its one word. On-chip memory is one array, whose size each launch sets: the module's variables come first, what the launch asks for behind
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ...errors import QdrunRuntimeError
from ..text.control_flow import Unstructured
from ..text.lines import CallInst, OnChip
from ..text.read import DeviceText, Table, TextFunction, read
from ..text.structure import structured
from . import accesses
from .body import NUMBERS, ModuleAddresses, MslBody, name_of
from .source import KernelFacts, head_of
from .values import TYPES, literal

MOST_THREADS = 1024
"""Of a block."""
_BLOCK = re.compile(r"; .*, blocks of (\d+)")
"""The first line of a text: threads of a block whose size the launch decides, at most."""
ON_CHIP_BYTES = 32 << 10
"""Of every device."""

_HEAD = """#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
"""
_INPUTS = {
    "qs": "threadgroup uchar* qs [[threadgroup(0)]]",
    "qt": "uint qt [[thread_position_in_threadgroup]]",
    "qb": "uint qb [[threadgroup_position_in_grid]]",
    "qg": "uint qg [[threadgroups_per_grid]]",
    "ql": "uint ql [[threads_per_threadgroup]]",
}
"""What a kernel is given besides its words; a function that needs one of them gets it from its caller."""


def translate(text: str, name: str) -> str:
    """The source of a kernel.

    Args:
        text: device text, as ``TranslatedHardware`` writes it.
        name: the kernel, for messages.

    Raises:
        QdrunRuntimeError: something in the text has no translation; names the kernel.
    """
    try:
        module = _MslModule(read(text))
        source = module.source()
    except (QdrunRuntimeError, Unstructured) as e:
        raise QdrunRuntimeError(f"kernel `{name}` cannot be translated to Metal Shading Language: {e}") from e
    needed = max((f.shared for f in module.facts.values()), default=0)
    if needed > ON_CHIP_BYTES:
        raise QdrunRuntimeError(
            f"a loop of kernel `{name}` needs {needed:,} bytes of on-chip memory for a block; Apple's GPUs have {ON_CHIP_BYTES:,}\n"
            "  do: declare smaller simt.block.SharedArray, or give the loop a smaller block_dim"
        )
    return source


class OnChipLayout(NamedTuple):
    """Where the variables of a function begin in the on-chip memory of a block, and the bytes of all of them."""

    places: dict[str, str]
    size: int


class _MslModule:
    """The translation of a text."""

    def __init__(self, text: DeviceText) -> None:
        self.text = text
        self.facts: dict[str, KernelFacts] = {}
        head = _BLOCK.fullmatch(text.lines[0]) if text.lines else None
        self.block = int(head[1]) if head else MOST_THREADS
        self.layouts = self._layouts()
        self.inputs = {name: self._inputs(f, {}) for name, f in text.functions.items()}
        self.helpers: set[tuple[str, str, str]] = set()

    def _layouts(self) -> dict[str, OnChipLayout]:
        """The on-chip memory of each function: first what functions have that others call, then the function's own."""
        used = {n: {x.variable for x in _lines(f) if isinstance(x, OnChip)} for n, f in self.text.functions.items()}
        common = set[str]().union(*(used[n] for n, f in self.text.functions.items() if not f.entry))
        out: dict[str, OnChipLayout] = {}
        for name in self.text.functions:
            wanted = [v for v in self.text.variables.values() if v.name in used[name] | common]
            places, at = {}, 0
            for v in sorted(wanted, key=lambda v: (v.dynamic, v.name not in common)):
                places[v.name] = f"{at}u"
                at += -(-v.size // 16) * 16
            out[name] = OnChipLayout(places, at)
        return out

    def _inputs(self, f: TextFunction, seen: dict[str, set[str]]) -> tuple[str, ...]:
        """What a function, or one that it calls, reads of ``_INPUTS``."""
        found: set[str] = set()
        for line in _lines(f):
            if isinstance(line, OnChip):
                found.add("qs")
            elif isinstance(line, CallInst) and line.name in NUMBERS:
                found.add(NUMBERS[line.name])
            elif isinstance(line, CallInst) and line.name in self.text.functions:
                if line.name not in seen:
                    seen[line.name] = set(self._inputs(self.text.functions[line.name], seen))
                found |= seen[line.name]
        return tuple(n for n in _INPUTS if n in found)

    def source(self) -> str:
        """The whole source."""
        functions = [self._function(f) for f in self._in_order()]
        for f in self.text.entries:
            self.facts[f.name] = KernelFacts(self._shared(f), f.packed, f.threads or self.block, f.words)
        helpers = dict.fromkeys(accesses.helper(*h) for h in sorted(self.helpers))
        parts = [head_of(self.facts), _HEAD, *map(_table, self.text.tables.values()), *helpers, *functions]
        return "".join(parts)

    def _shared(self, f: TextFunction) -> int:
        return self.layouts[f.name].size if "qs" in self.inputs[f.name] else 0

    def _in_order(self) -> list[TextFunction]:
        """Each function after those that it calls."""
        out: dict[str, TextFunction] = {}

        def add(f: TextFunction) -> None:
            if f.name in out:
                return
            for line in _lines(f):
                if isinstance(line, CallInst) and line.name in self.text.functions:
                    add(self.text.functions[line.name])
            out[f.name] = f

        for f in self.text.entries:
            add(f)
        return list(out.values())

    def _function(self, f: TextFunction) -> str:
        body = MslBody(ModuleAddresses(self.layouts[f.name].places, self.inputs))
        body.run(structured(f))
        self.helpers |= body.helpers
        inputs = self.inputs[f.name]
        if f.entry:
            given = ["constant ulong* qw [[buffer(0)]]"] if f.parameters else []
            given += [_INPUTS[n] for n in inputs]
            threads = f.threads or self.block
            head = f"[[max_total_threads_per_threadgroup({threads})]] kernel void {f.name}({', '.join(given)})"
            words = [f"  const ulong {name_of(r)} = qw[{k}];" for k, (_, r) in enumerate(f.parameters)]
        else:
            given = [f"{TYPES[ty]} {name_of(r)}" for ty, r in f.parameters]
            given += [_INPUTS[n].partition(" [[")[0] for n in inputs]
            head, words = f"static {TYPES[f.result]} {f.name}({', '.join(given)})", []
        declared = [f"  {kind} {', '.join(names)};" for kind, names in body.declared.items()]
        return "\n".join([head, "{", *words, *declared, *body.lines, "}", ""])


def _lines(f: TextFunction) -> Iterator[object]:
    for block in f.blocks.values():
        yield from block.lines


def _table(t: Table) -> str:
    values = ", ".join(literal(t.type, v) for v in t.values)
    return f"constant {TYPES[t.type]} {t.name}[{len(t.values)}] = {{{values}}};\n"
