"""Formats of printed values: those of Python's format language, and those of C's ``printf``, which begin with ``%``."""

from __future__ import annotations

import math
import re
import string
from typing import Any

_C = re.compile(r"%(?P<flags>[-+ #0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<kind>[diouxXeEfFgGaAc])")
_SPEC_OF_C = re.compile(r"(?P<how>[-+ #0]*\d*(?P<precision>\.\d*)?)(?:hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaA])")
_PYTHON = re.compile(r"[+ ]?#?0?\d*(?:\.\d+)?")
_DIGITS = 13
"""Hexadecimal digits of the fraction of an f64."""


def spec_of(given: str) -> str:
    """The format that a user wrote, without C's sizes of types: ``5lld`` is ``5d``. What Python has no form for, or another meaning, is
    C's: ``-5d`` is left-aligned, ``.3d`` has three digits, ``a`` is a hexadecimal real.
    """
    found = _SPEC_OF_C.fullmatch(given)
    if found is None:
        return given
    how, kind = found["how"], {"i": "d", "u": "d"}.get(found["kind"], found["kind"])
    is_c = kind in "aA" or not _PYTHON.fullmatch(how) or (found["precision"] is not None and kind in "doxX")
    return f"%{how}{kind}" if is_c else how + kind


def formatted(value: Any, spec: str) -> str:
    """A value in a format.

    Raises:
        ValueError: the format is not one of the value's type.
        TypeError: the value is no number, and the format is C's.
    """
    found = _C.fullmatch(spec)
    if found is None:
        return format(value, spec)
    kind = found["kind"]
    if kind in "diouxXc" and isinstance(value, float):
        raise ValueError(f"`{spec}` is a format of integers")
    if kind in "aA":
        return _hexadecimal(float(value), found)
    flags, digits = found["flags"], "" if found["precision"] is None else f".{found['precision']}"
    if not math.isfinite(value) or (kind in "diouxX" and digits):
        flags = flags.replace("0", "")  # C has no zeros before these
    if kind in "oxX":
        flags = flags.replace("+", "").replace(" ", "")  # nor a sign
    return f"%{flags}{found['width']}{digits}{kind}" % value


def _hexadecimal(x: float, how: re.Match[str]) -> str:
    """C's ``%a``: 2.5 is ``0x1.4p+1``. Without a precision it has the digits that it needs; with one it is rounded to it, ties to even."""
    flags, precision = how["flags"], how["precision"]
    sign = "-" if math.copysign(1.0, x) < 0 and not math.isnan(x) else "+" if "+" in flags else " " if " " in flags else ""
    prefix, body = ("0x", _digits(abs(x), precision, "#" in flags)) if math.isfinite(x) else ("", str(abs(x)))
    gap = int(how["width"] or 0) - len(sign + prefix + body)
    if "-" in flags:
        text = sign + prefix + body + " " * gap
    elif "0" in flags and prefix:
        text = sign + prefix + "0" * gap + body
    else:
        text = " " * gap + sign + prefix + body
    return text.upper() if how["kind"] == "A" else text


def _digits(x: float, precision: str | None, point: bool) -> str:
    """The digits of a finite number that is not negative, and its exponent."""
    mantissa, exponent = x.hex()[2:].split("p")
    whole, _, fraction = mantissa.partition(".")
    bits = int(whole + fraction.ljust(_DIGITS, "0"), 16)
    if precision is None:
        kept = fraction.rstrip("0")
    else:
        places = int(precision or 0)
        if places < _DIGITS:
            bits = _rounded(bits, 4 * (_DIGITS - places))
            whole, kept = f"{bits >> 4 * places:x}", f"{bits & (1 << 4 * places) - 1:0{places}x}" if places else ""
        else:
            kept = fraction.ljust(places, "0")
    return f"{whole}{'.' if kept or point else ''}{kept}p{exponent}"


def _rounded(bits: int, drop: int) -> int:
    """``bits / 2 ** drop``, ties to even."""
    low, half = bits & (1 << drop) - 1, 1 << drop - 1
    up = low > half or (low == half and bits >> drop & 1)
    return (bits >> drop) + bool(up)


class Formatter(string.Formatter):
    """``str.format`` with these formats."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """A value in a format."""
        return formatted(value, format_spec)
