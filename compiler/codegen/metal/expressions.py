"""Operations on values as expressions of Metal Shading Language.

Every expression with an operator stands in parentheses. What the language leaves open is not left to it: narrow integers are computed as
unsigned ones of 32 bits, conversions of floats to integers end at the ends of the type, comparisons say what holds with a NaN.
"""

from __future__ import annotations

from ...errors import QdrunRuntimeError
from ..text.lines import Binary, CallInst, CastInst, Compare
from .values import FLOATS, NARROW, SIGNED, TYPES, integer, word_of

_INTEGER = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "udiv": "/",
    "urem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "lshr": ">>",
}
_SIGNED = {"sdiv": "/", "srem": "%", "ashr": ">>"}
_FLOAT = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}
_TRUTH = {"and": "&&", "or": "||", "xor": "!=", "add": "!=", "sub": "!="}
_ORDER = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ROUNDING = frozenset("floor ceil trunc rint round fabs copysign fma".split())
_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_COUNTS = {"ctpop": "popcount", "ctlz": "clz", "cttz": "ctz"}


def unsupported(what: str) -> QdrunRuntimeError:
    """The error of something that a device text for Metal may not contain."""
    return QdrunRuntimeError(
        f"a device text for Metal contains {what}\n  do: this is a bug in qdrun; report it with the kernel's source"
    )


def binary(line: Binary, a: str, b: str) -> str:
    """An operation of two values."""
    ty, op = line.type, line.op
    if ty in FLOATS:
        return f"({a} {_FLOAT[op]} {b})"
    if ty == "i1":
        return f"({a} {_TRUTH[op]} {b})"
    kind, signed = TYPES[ty], SIGNED[ty]
    if op in _SIGNED:
        count = b if op == "ashr" else f"{signed}({b})"
        return f"{kind}({signed}({a}) {_SIGNED[op]} {count})"
    if ty in NARROW:
        return f"{kind}(uint({a}) {_INTEGER[op]} uint({b}))"
    return f"({a} {_INTEGER[op]} {b})"


def compare(line: Compare, a: str, b: str) -> str:
    """A comparison."""
    if line.op == "icmp":
        if line.order in ("eq", "ne"):
            return f"({a} {_ORDER[line.order]} {b})"
        if line.order[0] == "s":
            a, b = f"{SIGNED[line.type]}({a})", f"{SIGNED[line.type]}({b})"
        return f"({a} {_ORDER[line.order[1:]]} {b})"
    order = line.order
    if order == "ord":
        return f"({a} == {a} && {b} == {b})"
    if order == "uno":
        return f"({a} != {a} || {b} != {b})"
    if order == "one":
        return f"({a} < {b} || {a} > {b})"
    if order == "ueq":
        return f"!({a} < {b} || {a} > {b})"
    if order == "une":
        return f"({a} != {b})"
    if order[0] == "o":
        return f"({a} {_ORDER[order[1:]]} {b})"
    against = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}[order]
    return f"!({a} {against} {b})"


def cast(line: CastInst, x: str) -> str:
    """A conversion."""
    source, ty, op = line.source, line.type, line.op
    if source == ty or op in ("ptrtoint", "inttoptr"):
        return x
    if op == "bitcast":
        return f"as_type<{TYPES[ty]}>({x})"
    if source == "i1":
        if op in ("sext", "sitofp"):
            one = integer(ty, -1) if op == "sext" else f"{TYPES[ty]}(-1.0f)"
            return f"({x} ? {one} : {integer(ty, 0) if op == 'sext' else f'{TYPES[ty]}(0.0f)'})"
        return f"{TYPES[ty]}({x})"
    if op == "trunc" and ty == "i1":
        return f"(({x} & {integer(source, 1)}) != 0)"
    if op == "sext":
        return f"{TYPES[ty]}({SIGNED[ty]}({SIGNED[source]}({x})))"
    if op == "sitofp":
        return f"{TYPES[ty]}({SIGNED[source]}({x}))"
    if op in ("trunc", "zext", "uitofp", "fpext", "fptrunc"):
        return f"{TYPES[ty]}({x})"
    raise unsupported(f"the conversion `{op}`")


def intrinsic(line: CallInst, args: list[str]) -> str:
    """A call of one of LLVM's functions."""
    name, ty = line.name.split(".")[1], line.type
    if name in _ROUNDING:
        return f"{name}({', '.join(args)})"
    if name == "sqrt":
        return f"half(precise::sqrt(float({args[0]})))" if ty == "half" else f"precise::sqrt({args[0]})"
    if name in ("minnum", "maxnum"):
        return f"{'fmin' if name == 'minnum' else 'fmax'}({', '.join(args)})"
    if name in ("minimum", "maximum"):
        return _extreme(name, ty, *args)
    if name in _COUNTS:
        return f"{_COUNTS[name]}({args[0]})"
    if name == "abs":
        return f"{TYPES[ty]}({SIGNED[ty]}({args[0]}) < 0 ? 0u - {args[0]} : {args[0]})"
    if name in ("smin", "smax"):
        return f"{TYPES[ty]}({name[1:]}({', '.join(f'{SIGNED[ty]}({a})' for a in args)}))"
    if name in ("umin", "umax"):
        return f"{name[1:]}({', '.join(args)})"
    if name in ("fshl", "fshr"):
        return _funnel(name, ty, *args)
    if name in ("fptosi", "fptoui"):
        return _to_integer(name == "fptosi", ty, line.types[0], args[0])
    raise unsupported(f"the function `{line.name}`")


def _extreme(name: str, ty: str, a: str, b: str) -> str:
    """The smaller or larger float: a NaN if one is, and of two zeros that with the sign."""
    word = word_of(ty)
    order, bit = ("<", "|") if name == "minimum" else (">", "&")
    zeros = f"as_type<{TYPES[ty]}>({word}(as_type<{word}>({a}) {bit} as_type<{word}>({b})))"
    return f"({a} != {a} || {b} != {b} ? {a} + {b} : {a} == {b} ? {zeros} : {a} {order} {b} ? {a} : {b})"


def _funnel(name: str, ty: str, high: str, low: str, count: str) -> str:
    """The high half of two words side by side, shifted to the left; ``fshr``: the low half, shifted to the right."""
    if ty in NARROW:
        raise unsupported(f"the function `{name}` of narrow integers")
    bits = _BITS[ty]
    by = f"({count} & {integer(ty, bits - 1)})"
    rest = f"({integer(ty, bits)} - {by})"
    if name == "fshl":
        return f"({by} == {integer(ty, 0)} ? {high} : ({high} << {by}) | ({low} >> {rest}))"
    return f"({by} == {integer(ty, 0)} ? {low} : ({high} << {rest}) | ({low} >> {by}))"


def _to_integer(signed: bool, ty: str, source: str, x: str) -> str:
    """A float cut to an integer; beyond the type, its end; a NaN is 0."""
    bits = _BITS[ty]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if source == "half":
        x = f"float({x})"
    inside = f"{TYPES[ty]}({SIGNED[ty] if signed else TYPES[ty]}({x}))"
    suffix = "" if source == "double" else "f"
    below = f"{x} <= {float(low)!r}{suffix} ? {integer(ty, low)}"
    above = f"{x} >= {float(high + 1)!r}{suffix} ? {integer(ty, high)}"
    return f"({x} != {x} ? {integer(ty, 0)} : {below} : {above} : {inside})"
