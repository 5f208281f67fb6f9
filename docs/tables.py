"""The tables of the docs that are made from the code. ``python docs/tables.py`` rewrites them; a test checks that they are current.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from qdrun.compiler.frontend.intrinsics import Intrinsic
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import ALL
from qdrun.compiler.lang import math as qd_math
from qdrun.compiler.lang.options import Options
from qdrun.compiler.transforms.derivatives import ADJOINT, FLAT, NEEDS

DOCS = Path(__file__).parent
DOMAINS = {"any": "any", "number": "numbers", "real": "reals", "int": "integers", "bool": "truth values"}
RESULTS = {"same": "as the operands", "bool": "`u1`", "given": "as asked"}


def rows(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ("---",) * len(head), *lines])


def derivative_of(code: str) -> str:
    """What reverse mode does with an operation, in words, and what its backward code keeps."""
    if code in FLAT:
        return "zero: the gradient stops"
    if code not in ADJOINT or TABLE[code].domain in ("int", "bool"):
        return "none: no function of reals"
    kept = {n for names in NEEDS[code] for n in names}
    words = ["the operands" if {0, 1} <= kept else "an operand" if kept - {"r"} else "", "the result" if "r" in kept else ""]
    return "yes; needs " + (" and ".join(filter(None, words)) or "nothing")


def operations() -> str:
    """Every pure operation of the IR with operands."""
    lines = [
        (f"`{code}`", DOMAINS[info.domain], RESULTS[info.result], derivative_of(code))
        for code, info in TABLE.items()
        if info.pure and info.arity > 0
    ]
    return rows(("operation", "takes", "gives", "derivative"), lines)


def functions() -> str:
    """The functions of ``qd`` that work in kernels and from Python."""
    import qdrun as qd

    found = {name: value for name in dir(qd) if isinstance(value := getattr(qd, name), Intrinsic)}
    return rows(("function", "what it computes"), [(f"`qd.{n}`", f.__doc__ or "") for n, f in sorted(found.items())])


def math_functions() -> str:
    """The functions that only ``qd.math`` has."""
    import qdrun as qd

    found = {n: v for n in qd_math.__all__ if isinstance(v := getattr(qd_math, n), Intrinsic) and n not in dir(qd)}
    return rows(("function", "what it computes"), [(f"`qd.math.{n}`", f.__doc__ or "") for n, f in sorted(found.items())])


def types() -> str:
    """The scalar types."""
    kinds = {"f": "real", "i": "signed integer", "u": "unsigned integer", "b": "truth value"}
    lines = [(f"`qd.{t.name}`", kinds[t.kind], str(t.size), "yes" if t.is_real else "no") for t in ALL.values()]
    return rows(("type", "kind", "bytes", "can carry a gradient"), lines)


def options() -> str:
    """The keywords of ``qd.init``, from the docstring of ``Options``."""
    names = [f.name for f in fields(Options)]
    parts = re.split(rf"\b({'|'.join(names)}): ", " ".join((Options.__doc__ or "").split()))
    said = dict(zip(parts[1::2], parts[2::2]))
    lines = [(f"`{f.name}`", f"`{f.default}`", said.get(f.name, "").strip()) for f in fields(Options)]
    return rows(("option", "default", "meaning"), lines)


TABLES: dict[str, Callable[[], str]] = {
    "operations": operations,
    "functions": functions,
    "math functions": math_functions,
    "types": types,
    "options": options,
}


def filled(text: str) -> str:
    """The text of a page with its tables made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w ]+) -->\n.*?<!-- end -->", table, text, flags=re.S)


def main() -> None:
    """Rewrite the tables of every page."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main()
