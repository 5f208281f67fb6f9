"""The form of a source: its first line is a comment with what a launch must know of each kernel in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

_MARK = "// qdrun "


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What a launch must know of a kernel.

    Attributes:
        shared: bytes of on-chip memory of a block, besides what the launch asks for.
        by_address: its one word is the address of its words, in the device's memory.
        threads: of its largest block.
        words: how many it has.
    """

    shared: int = 0
    by_address: bool = False
    threads: int = 1
    words: int = 0


def head_of(facts: Mapping[str, KernelFacts]) -> str:
    """The first line, for kernels by their names."""
    return _MARK + json.dumps({name: asdict(f) for name, f in facts.items()}, sort_keys=True) + "\n"


def facts_of(source: str) -> dict[str, KernelFacts]:
    """What the first line says; empty if it says nothing."""
    first = source.partition("\n")[0]
    if not first.startswith(_MARK):
        return {}
    return {name: KernelFacts(**found) for name, found in json.loads(first[len(_MARK) :]).items()}
