"""One LLVM function under construction, as lines of text, and the module-wide set of declarations."""

from __future__ import annotations

from ...ir.types import DType, f16, f32, f64, i64, u1
from .target import LLVM_TYPES, Target

UNPACKED = ", unpacked"
"""The end of the first line of a module whose straight-line code LLVM does not vectorise (SLP)."""
ROLLED = '!"llvm.loop.unroll.runtime.disable"'
"""A loop is not unrolled unless its count is a literal."""

_GROUP, _FIRST_LOOP = 3, 4  # numbers of metadata
PARALLEL = f'!"llvm.loop.parallel_accesses", !{_GROUP}'
"""No two iterations of a loop touch one element with accesses that carry ``IN_PARALLEL``, unless both read it."""
IN_PARALLEL = f", !llvm.access.group !{_GROUP}"


def unrolled(times: int) -> str:
    """A loop is unrolled that often."""
    return f'!"llvm.loop.unroll.count", i32 {times}'


class LlvmModule:
    """Declarations and helper functions that the functions of one module share."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.declarations: dict[str, str] = {}
        self.helpers: dict[str, str] = {}
        self.functions: list[str] = []
        self.loops: list[str] = []  # what LLVM is told of each loop that it is told something of

    def declare(self, name: str, text: str) -> None:
        """Declare an external function once."""
        self.declarations.setdefault(name, text)

    def text(self, head: str) -> str:
        """The whole module."""
        parts = [head, *self.functions, *self.helpers.values(), *self.declarations.values()]
        if self.target.triple:
            parts.insert(1, f'target triple = "{self.target.triple}"')
        if self.target.layout:
            parts.insert(1, f'target datalayout = "{self.target.layout}"')
        return "\n".join(parts) + '\n!0 = !{}\n!1 = !{!"branch_weights", i32 1, i32 100000}\n' + self._loops()

    def _loops(self) -> str:
        """The metadata of loops: a node per loop, as LLVM requires, and one per property."""
        behind = _FIRST_LOOP + len(self.loops)
        said = {what: 2 if what == ROLLED else behind + k for k, what in enumerate(dict.fromkeys(self.loops))}
        facts = [f"!{n} = !{{{what}}}\n" for what, n in said.items()] + [f"!{_GROUP} = distinct !{{}}\n"] * (PARALLEL in said)
        return "".join(
            facts + [f"!{n} = distinct !{{!{n}, !{said[what]}}}\n" for n, what in enumerate(self.loops, _FIRST_LOOP)]
        )


class Fn:
    """Lines of one function: ``slots`` and ``head`` (invariant loads) run once at the top, ``lines`` is the code after them.

    Registers are plain text. Every emission method takes ``v``: whether the value is one per lane (varying) or one for all
    (uniform). With one lane nothing is varying, so scalar code is simply the uniform path.
    """

    def __init__(self, module: LlvmModule, lanes: int) -> None:
        self.module, self.lanes = module, lanes
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.head: list[str] = []
        self.hoisted: dict[object, str] = {}
        self.access = ""  # what LLVM is told of each load and store, in loops that it may make vectors of
        self._n = 0

    # -- text
    def t(self, rhs: str) -> str:
        """A new register defined by ``rhs``."""
        self._n = n = self._n + 1
        reg = f"%r{n}"
        self.lines.append(f"  {reg} = {rhs}")
        return reg

    def put(self, line: str) -> None:
        """An instruction without a result."""
        self.lines.append("  " + line)

    def label(self, hint: str) -> str:
        """A new label."""
        self._n += 1
        return f"{hint}{self._n}"

    def at(self, label: str) -> None:
        """Start the block of a label."""
        self.lines.append(label + ":")

    def jump(self, label: str) -> None:
        """An unconditional branch."""
        self.lines.append(f"  br label %{label}")

    def branch(self, cond: str, yes: str, no: str, unlikely: bool = False) -> None:
        """A conditional branch; ``unlikely``: the first way is almost never taken."""
        self.lines.append(f"  br i1 {cond}, label %{yes}, label %{no}{', !prof !1' if unlikely else ''}")

    def again(self, cond: str, body: str, out: str, said: str) -> None:
        """The branch at the bottom of a loop, and what LLVM is told of the loop: ``ROLLED``, ``PARALLEL``, ``unrolled(n)`` or nothing."""
        self.branch(cond, body, out)
        if said:
            self.lines[-1] += f", !llvm.loop !{_FIRST_LOOP + len(self.module.loops)}"
            self.module.loops.append(said)

    def hoist(self, key: object, rhs: str) -> str:
        """A value computed once, at the top of the function."""
        reg = self.hoisted.get(key)
        if reg is None:
            self._n += 1
            reg = self.hoisted[key] = f"%h{self._n}"
            self.head.append(f"  {reg} = {rhs}")
        return reg

    def slot(self, ty: str) -> str:
        """A new stack slot (LLVM turns it into registers)."""
        self._n += 1
        reg, space = f"%s{self._n}", self.module.target.slot_space
        if space:
            self.slots.append(f"  {reg}.own = alloca {ty}, addrspace({space})")
            self.slots.append(f"  {reg} = addrspacecast ptr addrspace({space}) {reg}.own to ptr")
        else:
            self.slots.append(f"  {reg} = alloca {ty}")
        return reg

    # -- types
    def ty(self, dtype: DType, v: bool) -> str:
        """A register type."""
        return f"<{self.lanes} x {LLVM_TYPES[dtype.name]}>" if v else LLVM_TYPES[dtype.name]

    def vec(self, scalar: str, v: bool) -> str:
        """A scalar LLVM type, widened to all lanes if varying."""
        return f"<{self.lanes} x {scalar}>" if v else scalar

    def suffix(self, dtype: DType, v: bool) -> str:
        """The suffix of intrinsics for the type."""
        base = f"f{dtype.bits}" if dtype.is_real else f"i{dtype.bits}"
        return f"v{self.lanes}{base}" if v else base

    def lit(self, text: str, dtype: DType, v: bool) -> str:
        """A scalar literal's text for use at this shape."""
        return f"splat ({LLVM_TYPES[dtype.name]} {text})" if v else text

    # -- calls
    def intrinsic(self, name: str, dtype: DType, v: bool, *args: str, extra: str = "", extra_ty: str = "") -> str:
        """A call of ``llvm.<name>`` whose operands and result have one type (``extra``: one more operand)."""
        ty, full = self.ty(dtype, v), f"llvm.{name}.{self.suffix(dtype, v)}"
        types = ", ".join([ty] * len(args) + ([extra_ty] if extra_ty else []))
        self.module.declare(full, f"declare {ty} @{full}({types})")
        tail = f", {extra_ty} {extra}" if extra_ty else ""
        return self.t(f"call {ty} @{full}({', '.join([f'{ty} {a}' for a in args])}{tail})")

    def broadcast(self, reg: str, scalar: str) -> str:
        """Broadcast one value to all lanes as a vector."""
        ty = f"<{self.lanes} x {scalar}>"
        one = self.t(f"insertelement {ty} poison, {scalar} {reg}, i64 0")
        return self.t(f"shufflevector {ty} {one}, {ty} poison, <{self.lanes} x i32> zeroinitializer")

    # -- conversions
    def convert(self, x: str, src: DType, dst: DType, v: bool) -> str:
        """A value cast from one type to another; integers wrap, floats truncate and saturate."""
        if src is dst:
            return x
        if dst is u1:
            zero = self.lit("0.0" if src.is_real else "0", src, v)
            return self.t(f"{'fcmp une' if src.is_real else 'icmp ne'} {self.ty(src, v)} {x}, {zero}")
        if src.is_real:
            return self._float_to_float(x, src, dst, v) if dst.is_real else self._float_to_int(x, src, dst, v)
        return self._int_to_float(x, src, dst, v) if dst.is_real else self._int_to_int(x, src, dst, v)

    def _to(self, op: str, x: str, src: DType, dst: DType, v: bool) -> str:
        return self.t(f"{op} {self.ty(src, v)} {x} to {self.ty(dst, v)}")

    def _int_to_int(self, x: str, src: DType, dst: DType, v: bool) -> str:
        if src.bits == dst.bits:
            return x
        op = "trunc" if src.bits > dst.bits else "sext" if src.kind == "i" else "zext"
        return self._to(op, x, src, dst, v)

    def _int_to_float(self, x: str, src: DType, dst: DType, v: bool) -> str:
        op = "sitofp" if src.kind == "i" else "uitofp"
        if dst is not f16:
            return self._to(op, x, src, dst, v)
        # through a type that holds every integer that f16 can round: no double rounding
        if src.bits <= 16:
            return self.convert(self._to(op, x, src, f32, v), f32, f16, v)
        if self.module.target.doubles:
            return self.convert(self._to(op, x, src, f64, v), f64, f16, v)
        return self.convert(self._to(op, self._within(x, src, 1 << 17, v), src, f32, v), f32, f16, v)

    def _within(self, x: str, src: DType, most: int, v: bool) -> str:
        """An integer, or the nearest one to it within [-most, most]."""
        ty, sign, flag = self.ty(src, v), "s" if src.kind == "i" else "u", self.ty(u1, v)
        for order, end in (("gt", most), ("lt", -most)) if src.kind == "i" else (("gt", most),):
            limit = self.lit(str(end), src, v)
            x = self.t(f"select {flag} {self.t(f'icmp {sign}{order} {ty} {x}, {limit}')}, {ty} {limit}, {ty} {x}")
        return x

    def _float_to_int(self, x: str, src: DType, dst: DType, v: bool) -> str:
        """Truncates; out of range saturates, NaN gives 0 (a plain fptosi would be undefined)."""
        if src is f16:
            x, src = self._to("fpext", x, f16, f32, v), f32
        saturating = self.module.target.f32_to_i32
        if saturating and src is f32 and dst.bits == 32:
            name = saturating.format("i" if dst.kind == "i" else "ui")
            self.module.declare(name, f"declare i32 @{name}(float)")
            return self.t(f"call i32 @{name}(float {x})")
        name = f"llvm.fpto{'s' if dst.kind == 'i' else 'u'}i.sat.{self.suffix(dst, v)}.{self.suffix(src, v)}"
        self.module.declare(name, f"declare {self.ty(dst, v)} @{name}({self.ty(src, v)})")
        return self.t(f"call {self.ty(dst, v)} @{name}({self.ty(src, v)} {x})")

    def _float_to_float(self, x: str, src: DType, dst: DType, v: bool) -> str:
        if src.bits < dst.bits:
            return self._to("fpext", x, src, dst, v)
        if src is f64 and dst is f16:
            x, src = self._round_to_odd(x, v), f32
        return self._to("fptrunc", x, src, dst, v)

    def _round_to_odd(self, x: str, v: bool) -> str:
        """f64 to f32 such that a second rounding to f16 is exact; the direct conversion would need a run-time library."""
        f, d, i = self.ty(f32, v), self.ty(f64, v), self.vec("i32", v)
        near = self._to("fptrunc", x, f64, f32, v)
        back = self._to("fpext", near, f32, f64, v)
        far = self.t(f"fcmp ogt {d} {self.intrinsic('fabs', f64, v, back)}, {self.intrinsic('fabs', f64, v, x)}")
        inexact = self.t(f"fcmp one {d} {back}, {x}")
        bits = self.t(f"bitcast {f} {near} to {i}")
        bits = self.t(f"sub {i} {bits}, {self.t(f'zext {self.ty(u1, v)} {far} to {i}')}")
        bits = self.t(f"or {i} {bits}, {self.t(f'zext {self.ty(u1, v)} {inexact} to {i}')}")
        return self.t(f"bitcast {i} {bits} to {f}")

    def halves(self, word: str) -> tuple[str, str]:
        """The lower and the upper 4 bytes of an i64, as i32."""
        return self.t(f"trunc i64 {word} to i32"), self.t(f"trunc i64 {self.t(f'lshr i64 {word}, 32')} to i32")

    def from_halves(self, low: str, high: str) -> str:
        """The i64 of them."""
        low, high = (self.t(f"zext i32 {x} to i64") for x in (low, high))
        return self.t(f"or i64 {low}, {self.t(f'shl i64 {high}, 32')}")

    def to_word(self, x: str, dtype: DType) -> str:
        """A uniform value as 8 bytes: a float as f64 bits, an integer as i64."""
        if dtype.is_real and not self.module.target.doubles:
            return self._double_bits(self.convert(x, dtype, f32, False))
        if dtype.is_real:
            return self.t(f"bitcast double {self.convert(x, dtype, f64, False)} to i64")
        return self.convert(x, dtype, i64, False)

    def _double_bits(self, x: str) -> str:
        """The bits of an f32 as f64, as i64: by integers, which keep subnormal numbers, too."""
        self.module.declare("llvm.ctlz.i32", "declare i32 @llvm.ctlz.i32(i32, i1)")
        raw = self.t(f"bitcast float {x} to i32")
        size = self.t(f"and i32 {raw}, {2**31 - 1}")
        zeros = self.t(f"sub i32 {self.t(f'call i32 @llvm.ctlz.i32(i32 {size}, i1 false)')}, 8")
        shift = self.t(f"select i1 {self.t(f'icmp ult i32 {size}, {1 << 23}')}, i32 {zeros}, i32 0")  # of a subnormal number
        above = self.t(f"select i1 {self.t(f'icmp uge i32 {size}, {255 << 23}')}, i32 {2 * 896}, i32 896")  # infinite or NaN
        exponent = self.t(f"zext i32 {self.t(f'sub i32 {above}, {shift}')} to i64")
        digits = self.t(f"zext i32 {self.t(f'shl i32 {size}, {shift}')} to i64")
        bits = self.t(f"add i64 {self.t(f'shl i64 {digits}, 29')}, {self.t(f'shl i64 {exponent}, 52')}")
        bits = self.t(f"select i1 {self.t(f'icmp eq i32 {size}, 0')}, i64 0, i64 {bits}")
        sign = self.t(f"zext i32 {self.t(f'lshr i32 {raw}, 31')} to i64")
        return self.t(f"or i64 {bits}, {self.t(f'shl i64 {sign}, 63')}")
