"""What ``python -m qdrun.compat`` did beside the program's own output: one summary at the end of a run."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from ...program.layout.tree import leaves_of
from ...program.program import CURRENT, Program
from ...refused import USED
from .windows import session

MISSING: Counter[str] = Counter()
"""Names that programs asked a facade for, and that do not exist here."""
FALLBACKS: Counter[tuple[str, str]] = Counter()
"""(backend that ``ti.init`` named, backend in its place)."""
_last: list[weakref.ref[Program]] = []


def took(wanted: Any, program: Program) -> Program:
    """Note the program that ``ti.init`` made."""
    _last[:] = [weakref.ref(program)]
    if wanted is not None and str(wanted) != str(program.arch) and not (str(wanted) == "gpu" and str(program.arch) != "cpu"):
        FALLBACKS[str(wanted), str(program.arch)] += 1
    return program


def _padded(program: Program) -> list[str]:
    """Fields that Taichi makes larger than their shape: sizes that are no powers of two."""
    fields = [leaf for leaf in leaves_of(program.root) if not leaf.hidden and not leaf.role]
    return [f.name or "a field" for f in fields if any(n & (n - 1) for n in getattr(f, "shape", ()))]


def lines() -> list[str]:
    """The summary, a fact a line."""
    out = session.CURRENT[0].lines()
    out += [f"there is no {wanted} here: the program ran on {used}" for wanted, used in FALLBACKS]
    for what, names in (("used, and not available", USED), ("asked for, and unknown", MISSING)):
        if names:
            out.append(f"{what}: " + ", ".join(f"{name} ({n} times)" if n > 1 else name for name, n in sorted(names.items())))
    program = next((p for ref in _last if (p := ref()) is not None), CURRENT.get())
    if program is not None and not program.closed and not program.options.check_out_of_bound:
        padded = _padded(program)
        if padded:
            out.append(
                f"indices were not checked; Taichi pads {padded[0]}{f' and {len(padded) - 1} more' if padded[1:] else ''} to powers of two,"
                " which hides indices out of range\n  do: run with --debug, or ti.init(debug=True), which names the line of each"
            )
    return out


def text(outcome: str) -> str:
    """The summary of a run. ``outcome``: how it ended."""
    return "\n".join(f"qdrun.compat: {line}" for line in [outcome, *lines()])
