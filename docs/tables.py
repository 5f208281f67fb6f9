"""The tables of the docs that are made from the code. ``python docs/tables.py`` rewrites them; a test checks that they are current.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from math import isnan
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from qdrun.compiler import face
from qdrun.compiler.face import graph
from qdrun.compiler.frontend.library.functions import Intrinsic
from qdrun.compiler.frontend.library.methods import METHODS
from qdrun.compiler.ir.builder import StatementBuilder
from qdrun.compiler.ir.nodes import Const, Op, Operand
from qdrun.compiler.ir.ops import TABLE
from qdrun.compiler.ir.types import ALL, DType, f64, u1
from qdrun.compiler.lang import math as qd_math
from qdrun.compiler.lang import profiler, simt
from qdrun.compiler.lang.autograd import ad
from qdrun.compiler.lang.compat import tools
from qdrun.compiler.lang.data import types as qd_types
from qdrun.compiler.lang.data.element_types import MatrixType
from qdrun.compiler.lang.data.matrix import Matrix
from qdrun.compiler.lang.simt.matrix_tiles import tile_type
from qdrun.compiler.options import Arch, Options
from qdrun.compiler.passes.reverse.derivatives import FLAT, RULES
from qdrun.compiler.program.layout.tree import Axes
from qdrun.library import algorithms, linalg
from qdrun.runner.config.schema import config_schema

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
    if code not in RULES or TABLE[code].domain in ("int", "bool"):
        return "none: no function of reals"
    kept = {n for partial in RULES[code] for n in partial.needs}
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
    found = {n: v for n in qd_math.__all__ if isinstance(v := getattr(qd_math, n), Intrinsic) and vars(face).get(n) is not v}
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


class Edge(NamedTuple):
    """A point where a derivative needs a word: the operands there, and what each of them gets for g = 1 (None: no derivative)."""

    words: str
    at: tuple[float, ...]
    gives: tuple[float | None, ...]


class Facts(NamedTuple):
    """What a formula does not say: where it holds, ranges of operands to check it at, its edges."""

    domain: str = "all"
    ranges: tuple[tuple[float, float], ...] = ((-2.0, 2.0),)
    edges: tuple[Edge, ...] = ()


WIDE, POSITIVE = (-2.0, 2.0), (0.2, 2.0)
INF, NAN = float("inf"), float("nan")
FACTS: dict[str, Facts] = {
    "add": Facts(ranges=(WIDE, WIDE)),
    "sub": Facts(ranges=(WIDE, WIDE)),
    "neg": Facts(),
    "mul": Facts(ranges=(WIDE, WIDE)),
    "div": Facts("y != 0", (WIDE, POSITIVE), (Edge("at y = 0", (1.0, 0.0), (INF, -INF)),)),
    "mod": Facts("y != 0", ((0.1, 0.9), (1.1, 1.9)), (Edge("a whole x / y: the slopes above it", (2.0, 1.0), (1.0, -2.0)),)),
    "crem": Facts("y != 0", ((0.1, 0.9), (1.1, 1.9)), (Edge("a whole x / y: the slopes above it", (2.0, 1.0), (1.0, -2.0)),)),
    "min": Facts(ranges=(WIDE, WIDE), edges=(Edge("a tie: all to y", (1.0, 1.0), (0.0, 1.0)),)),
    "max": Facts(ranges=(WIDE, WIDE), edges=(Edge("a tie: all to y", (1.0, 1.0), (0.0, 1.0)),)),
    "pow": Facts(
        "x > 0; a negative x with a whole y has a derivative by x",
        (POSITIVE, WIDE),
        (
            Edge("x = 0, y = 2", (0.0, 2.0), (0.0, 0.0)),
            Edge("x = 0, y = 1/2", (0.0, 0.5), (INF, 0.0)),
            Edge("y = 0", (0.0, 0.0), (0.0, -INF)),
            Edge("x < 0", (-2.0, 3.0), (12.0, NAN)),
        ),
    ),
    "atan2": Facts("not both 0", (WIDE, POSITIVE), (Edge("both 0", (0.0, 0.0), (NAN, NAN)),)),
    "attach": Facts(ranges=(WIDE, WIDE)),
    "abs": Facts(edges=(Edge("at 0", (0.0,), (0.0,)),)),
    "sin": Facts(),
    "cos": Facts(),
    "tan": Facts("cos(x) != 0", ((-1.2, 1.2),)),
    "asin": Facts("-1 < x < 1", ((-0.9, 0.9),), (Edge("at 1", (1.0,), (INF,)), Edge("beyond", (1.5,), (NAN,)))),
    "acos": Facts("-1 < x < 1", ((-0.9, 0.9),), (Edge("at 1", (1.0,), (-INF,)), Edge("beyond", (1.5,), (NAN,)))),
    "sinh": Facts(),
    "cosh": Facts(),
    "tanh": Facts(edges=(Edge("far away", (1000.0,), (0.0,)),)),
    "exp": Facts(),
    "expm1": Facts(),
    "log": Facts("x > 0", (POSITIVE,), (Edge("at 0", (0.0,), (INF,)), Edge("below", (-1.0,), (NAN,)))),
    "log1p": Facts("x > -1", ((-0.8, 2.0),), (Edge("at -1", (-1.0,), (INF,)), Edge("below", (-2.0,), (NAN,)))),
    "erf": Facts(edges=(Edge("far away", (1000.0,), (0.0,)),)),
    "erfc": Facts(edges=(Edge("far away", (1000.0,), (0.0,)),)),
    "sqrt": Facts("x > 0", (POSITIVE,), (Edge("at 0", (0.0,), (INF,)), Edge("below", (-1.0,), (NAN,)))),
    "rsqrt": Facts("x > 0", (POSITIVE,), (Edge("at 0", (0.0,), (-INF,)), Edge("below", (-1.0,), (NAN,)))),
    "cast": Facts("from real to real; to and from an integer the gradient stops"),
    "select": Facts(ranges=((0.0, 1.0), WIDE, WIDE)),
}
WRITTEN: dict[str, tuple[str, ...]] = {
    "atan2": ("g * y / (x * x + y * y)", "-g * x / (x * x + y * y)"),
    "tanh": ("g / cosh(x) ** 2",),
    "erf": ("g * 2 / sqrt(pi) * exp(-x * x)",),
    "erfc": ("-g * 2 / sqrt(pi) * exp(-x * x)",),
}
"""Rules whose code scales or splits its operands so that no digits are lost: what they compute."""
OPERANDS = {1: ("x",), 2: ("x", "y"), 3: ("c", "x", "y")}
INFIX = {"lt": ("<", 1), "gt": (">", 1), "eq": ("==", 1), "add": ("+", 2), "sub": ("-", 2), "mul": ("*", 3), "div": ("/", 3)}


def operand_of(code: str, k: int) -> Op:
    """A named operand of an operation, to build rules with."""
    arity = TABLE[code].arity
    return Op("arg", (), u1 if code == "select" and k == 0 else f64, OPERANDS[arity][k])


def formula(x: Operand, level: int = 0) -> str:
    """A value as text, in brackets if it binds less than ``level``. What a rule adds for a zero g (``0 if g == 0 else ..``) is left
    out: the page says it once for all.
    """
    if isinstance(x, Const):
        return f"{x.value:g}"
    if x.op == "arg":
        return str(x.attr)
    a = x.args
    if x.op == "select":
        cond, then, other = formula(a[0]), formula(a[1], 1), formula(a[2])
        if cond in ("g == 0", "g * 0.5 == 0") and then == "0":
            return formula(a[2], level)
        text, own = f"{then} if {cond} else {other}", 0
    elif x.op in INFIX:
        sign, own = INFIX[x.op]
        text = f"{formula(a[0], own)} {sign} {formula(a[1], own + 1)}"
    elif x.op == "neg":
        text, own = f"-{formula(a[0], 3)}", 3
    else:
        text, own = f"{x.op}({', '.join(map(formula, a))})", 5
    return f"({text})" if own < level else text


def rule_of(code: str, k: int) -> Operand | None:
    """What operand ``k`` of an operation gets, as a value over its operands, the result ``r`` and the adjoint ``g``."""
    rule = RULES[code][k].adjoint
    if rule is None:
        return None
    args = tuple(operand_of(code, n) for n in range(TABLE[code].arity))
    r, g = (Op("arg", (), f64, name) for name in "rg")
    return rule(StatementBuilder([]), g, args, r)


def derivatives() -> str:
    """The rule of each operation, written out from ``RULES``, with its domain and its edges."""
    lines = []
    for code in RULES:
        names, facts = OPERANDS[TABLE[code].arity], FACTS[code]
        rules = [(names[k], rule_of(code, k)) for k in range(len(names))]
        texts = WRITTEN.get(code) or [formula(x) if x is not None else "" for _, x in rules]
        shown = "; ".join(f"{name}: `{text}`" for name, text in zip(names, texts) if text)
        edges = "; ".join(f"{e.words}: {', '.join(worth(v) for v in e.gives if v is not None)}" for e in facts.edges)
        lines.append((f"`{code}({', '.join(names)})`", shown, facts.domain, edges or "none"))
    lines += [(f"`{code}`", "zero: the gradient stops", "all", "none") for code in TABLE if code in FLAT]
    return rows(("operation", "what each operand gets", "domain", "at its edges, for g = 1"), lines)


def worth(value: float) -> str:
    """A number for the page."""
    return "NaN" if isnan(value) else "infinite" if value == INF else "-infinite" if value == -INF else f"{value:g}"


AT_JUMPS, INTEGERS, DRAW, HINT = "zero: constant between jumps", "none: of integers", "none: a random draw", "none: a hint"
CHOSEN, HELD = "yes, by the chosen value", "yes, by the value that is [held at the end](gradients.md#minima-maxima-products)"
OWN = "yes, on an [element of the iteration](gradients.md#minima-maxima-products)"
DERIVATIVES = {
    **dict.fromkeys(("ceil", "floor", "round", "sign", "step", "isinf", "isnan", "one", "zero"), AT_JUMPS),
    **dict.fromkeys(("bit_cast", "bit_shr", "clz", "ffs", "popcnt", "fns", "atomic_and", "atomic_or", "atomic_xor"), INTEGERS),
    **dict.fromkeys(("atomic_cas", "argsort"), INTEGERS),
    **dict.fromkeys(("random", "randn"), DRAW),
    **dict.fromkeys(("block_local", "cache_read_only", "no_activate"), HINT),
    **dict.fromkeys(("min", "max", "clamp", "select"), CHOSEN),
    **dict.fromkeys(("atomic_min", "atomic_max", "atomic_mul"), HELD),
    **dict.fromkeys(("atomic_add", "atomic_sub", "volatile_load"), "yes"),
    **dict.fromkeys(("all", "any", "get_shape"), "none: of truth values and integers"),
    **{"eye": "none: a constant", "cast": "yes, from real to real", "frexp": "yes, of the mantissa", "atomic_exchange": OWN},
    **{"stop_grad": "zero: it stops here", "assume_in_range": "yes, by `val`", "unique": "refused"},
    **{"HashGrid": "none: of integers", "histogram": "yes, of the weights", "reduce_by_key": "yes, of the values"},
}
"""What reverse mode does with a function of kernels or of arrays; "yes" for those that are not here."""
GROUPS = {
    "frontend.library": "numbers",
    "frontend": "marks",
    "lang.compat": "other packages",
    "lang.data": "data",
    "program.layout": "data",
    "lang": "programs",
    "program": "programs",
    "options": "programs",
    "errors": "errors",
}
"""The tables of docs/names.md by the folders below ``qdrun.compiler`` that define names; the first one that fits."""
CONSTRUCTED = ("Vector", "Matrix", "Struct", "Tape", "FwdMode", "PrefixSumExecutor", "SharedArray")
"""The classes that users construct: their signatures are shown."""


class LastName:
    """A default of a parameter that is shown by its last name."""

    def __init__(self, value: object) -> None:
        self.name = getattr(value, "name", None) or type(value).__name__

    def __repr__(self) -> str:
        return self.name


def signature_of(value: object) -> str:
    """The parameters of a function with their defaults, without annotations; empty for what is not called."""
    if (
        not callable(value)
        or (isinstance(value, type) and value.__name__ not in CONSTRUCTED)
        or isinstance(value, DType | MatrixType)
    ):
        return ""
    shown = []
    for p in inspect.signature(value).parameters.values():
        if p.name == "self":
            continue
        plain = p.default is p.empty or type(p.default) in (str, int, float, bool, tuple, type(None))
        shown.append(p.replace(annotation=p.empty, default=p.default if plain else LastName(p.default)))
    return str(inspect.Signature(shown))


def sentence_of(value: object) -> str:
    """The first sentence of a docstring, as the cell of a table."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    first = re.match(r".*?[^.][.](?= [A-Z`]|$)", text)
    return (first[0] if first else text).replace("``", "`").replace("|", "\\|")


def derivative_of_name(name: str, value: object) -> str:
    """What reverse mode does with a function of kernels or of arrays, in words; empty for all other names."""
    differentiable = isinstance(value, Intrinsic) or value is getattr(Matrix, name, None)
    return DERIVATIVES.get(name, "yes" if differentiable or of_module(value).startswith("library.algorithms") else "")


def of_module(value: object) -> str:
    """The module that defines a name, below ``qdrun.compiler``."""
    return getattr(value, "__module__", "").removeprefix("qdrun.compiler.").removeprefix("qdrun.")


def name_rows(prefix: str, named: dict[str, object]) -> str:
    """A table of names with signature and first sentence, and with the derivative if one of them has any."""
    lines = [
        (f"`{prefix}{name}{signature_of(value)}`", sentence_of(value), derivative_of_name(name, value))
        for name, value in sorted(named.items(), key=lambda item: (item[0].lower(), item[0]))
    ]
    if not any(derivative for *_, derivative in lines):
        return rows(("name", "what it is"), [line[:2] for line in lines])
    return rows(("name", "what it is", "derivative"), [(*line[:2], line[2] or "none") for line in lines])


def public_names() -> dict[str, object]:
    """The names of ``qd`` that are no module and no constant, with their values."""
    constants = (ModuleType, DType, Axes, Arch, str)
    return {n: v for n, v in vars(face).items() if not n.startswith("_") and not isinstance(v, constants)}


def names_of(group: str) -> str:
    """The names of ``qd`` that are defined in the modules of a group."""
    return name_rows("qd.", {n: v for n, v in public_names().items() if group_of(v) == group})


def group_of(value: object) -> str:
    """The table in which a name of ``qd`` is listed."""
    return next(group for folder, group in GROUPS.items() if f"{of_module(value)}.".startswith(f"{folder}."))


def names_in(module: ModuleType, prefix: str) -> str:
    """The names of a module that are not those of ``qd``, and no constants."""
    found = {n: getattr(module, n) for n in module.__all__}
    skipped = (ModuleType, DType, MatrixType, float)
    return name_rows(prefix, {n: v for n, v in found.items() if not isinstance(v, skipped) and vars(face).get(n) is not v})


def tiles() -> str:
    """What tiles of ``qd.simt`` are made by, and their methods."""
    kind = simt.Tile16x16
    methods = {n: f for n, f in tile_type(kind.SIZE, f64).methods.items() if not n.startswith("_")}
    return name_rows("qd.simt.Tile16x16.", {"zeros": kind.zeros, "eye": kind.eye, **methods})


def methods_of_matrices() -> str:
    """The methods of vectors and matrices."""
    return name_rows("m.", {n: getattr(Matrix, n) for n in METHODS})


def config_keys() -> str:
    """Every key of a config that holds a value."""
    schema = config_schema()
    return rows(("key", "values", "default", "meaning"), list(_keys(schema, schema, "")))


def _keys(schema: dict[str, Any], section: dict[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    for name, described in section["properties"].items():
        inner = [part for part in _alternatives(schema, described) if "properties" in part and part.get("title") != "Axis"]
        others = [words_of_type(schema, part) for part in _alternatives(schema, described) if part not in inner]
        shown = "" if described.get("default") is None else f"`{json.dumps(described['default'])}`"
        said = (
            (described.get("description") or (inner[0].get("description") if inner else "") or "")
            .replace("``", "`")
            .replace("None:", "null:")
        )
        words = ", ".join(dict.fromkeys(w for w in others if w)) or ("a section" if inner else "")
        said = said or f"see `{prefix.rstrip('.')}`"
        yield f"`{prefix}{name}`", words, "" if inner else shown, said.replace("|", "\\|")
        for part in inner:
            yield from _keys(schema, part, f"{prefix}{name}.")


def _alternatives(schema: dict[str, Any], described: dict[str, Any]) -> list[dict[str, Any]]:
    """The forms of a value, with references followed; null is none of them."""
    if "$ref" in described:
        return _alternatives(schema, schema["$defs"][described["$ref"].rpartition("/")[2]])
    if "anyOf" in described:
        return [part for one in described["anyOf"] for part in _alternatives(schema, one)]
    return [] if described.get("type") == "null" else [described]


PLURALS = {"a text": "texts", "a number": "numbers", "a whole number": "whole numbers", "a map": "maps"}


def words_of_type(schema: dict[str, Any], part: dict[str, Any]) -> str:
    """A form of a value in words."""
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    if part.get("type") == "array":
        inside = _alternatives(schema, part["items"]) if "items" in part else []
        kind = words_of_type(schema, inside[0]) if len(inside) == 1 and "enum" not in inside[0] else ""
        return f"a list of {PLURALS.get(kind) or kind.replace('a list', 'lists', 1)}" if kind else "a list"
    words = {
        "string": "a text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "`true`, `false`",
        "object": "a map",
    }
    return words.get(str(part.get("type")), "any value")


def gallery() -> str:
    """The jobs of the gallery as ``python -m benchmarks.gallery --json`` has measured them; of each job and device the last line counts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in (DOCS / "gallery.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["job"], {})["cpu" if one["backend"] == "cpu" else "card"] = one
    head = ("job", "compared", "reference", "ours", "largest difference, CPU", "card", "seconds, CPU", "card")
    head += ("bytes planned", "bytes used", "trials/s, CPU", "card")
    return rows(head, [job_of_gallery(name, sides) for name, sides in sorted(found.items()) if "cpu" in sides])


def job_of_gallery(name: str, sides: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """One row: the first number of the reference, and how far the farthest number is from its own."""
    cpu, card = sides["cpu"], sides.get("card")
    (what, value, ours), *more = cpu["numbers"]
    what += f", and {len(more)} more" if more else ""
    numbers = (what, f"{value:.9g}", f"{ours:.9g}", farthest(cpu), farthest(card))
    times = (f"{cpu['seconds']:.2g}", f"{card['seconds']:.2g}" if card else "", f"{cpu['planned']:,}", f"{cpu['used']:,}")
    return f"[`{name}`](#{name})", *numbers, *times, best_rate(cpu), best_rate(card) if card else ""


def farthest(side: dict[str, Any] | None) -> str:
    """The largest difference from the reference, relative to its largest value; empty where nothing was compared."""
    if side is None or not side["numbers"]:
        return ""
    far = max(abs(a - b) for _, a, b in side["numbers"]) / max(abs(a) for _, a, _ in side["numbers"])
    return f"{far:.0e}" if far else "0"


def best_rate(side: dict[str, Any]) -> str:
    """Trials a second, alone or in the best batch, and then its size."""
    found = {"alone": 1.0 / side["seconds"], **side["rates"]}
    best = max(found, key=found.__getitem__)
    return f"{in_three_digits(found[best])} ({best if best == 'alone' else f'{int(best):,}'})"


def in_three_digits(value: float) -> str:
    """As 0.174, 11.5 or 24,300."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100.0 else f"{value:.3g}"


TABLES: dict[str, Callable[[], str]] = {
    "gallery": gallery,
    "derivatives": derivatives,
    "operations": operations,
    "functions": functions,
    "math functions": math_functions,
    "types": types,
    "options": options,
    **{f"names of {group}": partial(names_of, group) for group in dict.fromkeys(GROUPS.values())},
    "names of ad": partial(names_in, ad, "qd.ad."),
    "names of math": partial(names_in, qd_math, "qd.math."),
    "names of algorithms": partial(names_in, algorithms, "qd.algorithms."),
    "names of linalg": partial(names_in, linalg, "qd.linalg."),
    "names of profiler": partial(names_in, profiler, "qd.profiler."),
    "names of tools": partial(names_in, tools, "qd.tools."),
    "names of graph": partial(names_in, graph, "qd.graph."),
    "names of tiles": tiles,
    "names of blocks": partial(names_in, simt.block, "qd.simt.block."),
    "names of subgroups": partial(names_in, simt.subgroup, "qd.simt.subgroup."),
    "names of warps": partial(names_in, simt.warp, "qd.simt.warp."),
    "names of grids": partial(names_in, simt.grid, "qd.simt.grid."),
    "names of types": partial(names_in, qd_types, "qd.types."),
    "methods of matrices": methods_of_matrices,
    "config keys": config_keys,
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
