"""Arithmetic on one float type at one width, for writing mathematical functions. No fast-math flags: the error-free steps rely on it."""

from __future__ import annotations

from ...ir.types import DType, f32, f64, i32, i64, u1
from ..llvm.function import Fn
from ..llvm.target import float_text
from .constants import F32, F64, Constants


class Lanes:
    """Emits into ``f``; values are registers of one shape."""

    def __init__(self, f: Fn, d: DType, v: bool) -> None:
        self.f, self.d, self.v = f, d, v
        self.single = d is f32
        self.int: DType = i32 if self.single else i64
        self.k: Constants = F32 if self.single else F64
        self.mantissa, self.bias = (23, 127) if self.single else (52, 1023)
        self.float_ty, self.int_ty, self.flag_ty = f.ty(d, v), f.ty(self.int, v), f.ty(u1, v)

    def c(self, value: float) -> str:
        """A float literal."""
        return self.f.lit(float_text(value, self.d), self.d, self.v)

    def ci(self, value: int) -> str:
        """An integer literal."""
        return self.f.lit(str(value), self.int, self.v)

    def _bin(self, op: str, a: str, b: str) -> str:
        return self.f.t(f"{op} {self.float_ty} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """Sum."""
        return self._bin("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        """Difference."""
        return self._bin("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        """Product."""
        return self._bin("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """Quotient."""
        return self._bin("fdiv", a, b)

    def quotient(self, a: str, b: str) -> str:
        """A quotient that may be off by two units of the last place, and is 0 when the divisor exceeds 2**126: where it hardly counts.
        Only the GPU's f32 division makes use of it.
        """
        return self.f.t(f"fdiv {'afn ' if self.single else ''}{self.float_ty} {a}, {b}")

    def neg(self, a: str) -> str:
        """Negation."""
        return self.f.t(f"fneg {self.float_ty} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        """The sum a * b + c, rounded once."""
        return self.f.intrinsic("fma", self.d, self.v, a, b, c)

    def unary(self, name: str, a: str) -> str:
        """An intrinsic of one operand: fabs, sqrt, floor, rint."""
        return self.f.intrinsic(name, self.d, self.v, a)

    def copysign(self, a: str, b: str) -> str:
        """|a| with the sign of b"""
        return self.f.intrinsic("copysign", self.d, self.v, a, b)

    def cmp(self, code: str, a: str, b: str) -> str:
        """A float comparison by its LLVM name."""
        return self.f.t(f"fcmp {code} {self.float_ty} {a}, {b}")

    def icmp(self, code: str, a: str, b: str) -> str:
        """An integer comparison by its LLVM name."""
        return self.f.t(f"icmp {code} {self.int_ty} {a}, {b}")

    def logic(self, op: str, a: str, b: str) -> str:
        """and, or, xor of flags."""
        return self.f.t(f"{op} {self.flag_ty} {a}, {b}")

    def select(self, cond: str, a: str, b: str) -> str:
        """A float by a flag."""
        return self.f.t(f"select {self.flag_ty} {cond}, {self.float_ty} {a}, {self.float_ty} {b}")

    def iselect(self, cond: str, a: str, b: str) -> str:
        """An integer by a flag."""
        return self.f.t(f"select {self.flag_ty} {cond}, {self.int_ty} {a}, {self.int_ty} {b}")

    def i(self, op: str, a: str, b: str) -> str:
        """An integer operation by its LLVM name."""
        return self.f.t(f"{op} {self.int_ty} {a}, {b}")

    def to_int(self, a: str) -> str:
        """A small float that is whole, as an integer."""
        return self.f.t(f"fptosi {self.float_ty} {a} to {self.int_ty}")

    def nearest(self, x: str, scale: float) -> tuple[str, str]:
        """The whole number nearest to ``x * scale``, as a float and as an i32 (one value, not lanes): without conversions, which are slow
        on GPUs. The product must be far smaller than the mantissa's range; of a larger one, or a NaN, the i32 is any number.
        """
        magic = 1.5 * 2.0**self.mantissa  # behind it the float's last bit is worth 1
        shifted = self.fma(x, self.c(scale), self.c(magic))
        bits = self.bits(shifted)
        low = bits if self.single else self.f.t(f"trunc i64 {bits} to i32")
        offset = 0x4B400000 if self.single else 0  # the low word of the f64 constant is zero
        return self.sub(shifted, self.c(magic)), self.f.t(f"sub i32 {low}, {offset}")

    def to_float(self, a: str) -> str:
        """An integer as a float."""
        return self.f.t(f"sitofp {self.int_ty} {a} to {self.float_ty}")

    def bits(self, a: str) -> str:
        """The bits of a float."""
        return self.f.t(f"bitcast {self.float_ty} {a} to {self.int_ty}")

    def from_bits(self, a: str) -> str:
        """The float with these bits."""
        return self.f.t(f"bitcast {self.int_ty} {a} to {self.float_ty}")

    def poly(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Horner's rule."""
        out = self.c(coefficients[-1])
        for value in coefficients[-2::-1]:
            out = self.fma(out, x, self.c(value))
        return out

    def widen(self, a: str) -> str:
        """f32 to f64."""
        return self.f.convert(a, f32, f64, self.v)

    def negative(self, a: str) -> str:
        """Whether the sign bit is set."""
        return self.icmp("slt", self.bits(a), self.ci(0))

    # -- pairs: a value and what its rounding lost
    def two_sum(self, a: str, b: str) -> tuple[str, str]:
        """The exact sum as a pair, for |a| >= |b|."""
        s = self.add(a, b)
        return s, self.sub(b, self.sub(s, a))

    def two_prod(self, a: str, b: str) -> tuple[str, str]:
        """The exact product as a pair."""
        p = self.mul(a, b)
        return p, self.fma(a, b, self.neg(p))
