"""Integer powers: a helper function per type, by squaring.

A negative exponent gives what truncating the exact result gives: 1 for a base of 1, 1 or -1 for a base of -1, else 0.
"""

from __future__ import annotations

from ...ir.types import DType
from .function import Fn


def integer_power(f: Fn, d: DType, v: bool, a: str, b: str) -> str:
    """``a ** b`` for integers. A small literal exponent becomes multiplications."""
    ty = f.ty(d, v)
    text = b[b.rfind(" ") + 1 : -1] if b.startswith("splat") else b
    if text.isdigit() and int(text) <= 16:
        return _unrolled(f, ty, a, int(text), f.lit("1", d, v))
    name = f"qd_pow_{d.name}" + (f"_v{f.lanes}" if v else "")
    f.module.helpers.setdefault(name, _helper(name, f, d, v))
    return f.t(f"call {ty} @{name}({ty} {a}, {ty} {b})")


def _unrolled(f: Fn, ty: str, a: str, n: int, one: str) -> str:
    out = ""
    while n:
        if n & 1:
            out = f.t(f"mul {ty} {out}, {a}") if out else a
        n >>= 1
        if n:
            a = f.t(f"mul {ty} {a}, {a}")
    return out or one


def _helper(name: str, f: Fn, d: DType, v: bool) -> str:
    """The loop runs once per bit of the greatest exponent; lanes that are done multiply by one."""
    ty, flag = f.ty(d, v), f.vec("i1", v)
    zero, one, minus = f.lit("0", d, v), f.lit("1", d, v), f.lit("-1", d, v)
    inline = "" if f.module.target.libm else "alwaysinline "  # a call on a GPU goes through memory
    if v:
        any_ = f"  %bits = bitcast {flag} %more to i{f.lanes}\n  %go = icmp ne i{f.lanes} %bits, 0"
    else:
        any_ = "  %go = icmp ne i1 %more, false"
    tail = f"  ret {ty} %out1"
    if d.kind == "i":
        tail = f"""\
  %negative = icmp slt {ty} %b, {zero}
  %is1 = icmp eq {ty} %a, {one}
  %ism = icmp eq {ty} %a, {minus}
  %low = and {ty} %b, {one}
  %odd = icmp ne {ty} %low, {zero}
  %pm = select {flag} %odd, {ty} {minus}, {ty} {one}
  %x1 = select {flag} %ism, {ty} %pm, {ty} {zero}
  %x2 = select {flag} %is1, {ty} {one}, {ty} %x1
  %res = select {flag} %negative, {ty} %x2, {ty} %out1
  ret {ty} %res"""
    return f"""\
define internal {ty} @{name}({ty} %a, {ty} %b) {inline}nounwind willreturn memory(none) {{
entry:
  br label %loop
loop:
  %base = phi {ty} [ %a, %entry ], [ %base1, %loop ]
  %left = phi {ty} [ %b, %entry ], [ %left1, %loop ]
  %out = phi {ty} [ {one}, %entry ], [ %out1, %loop ]
  %bit = and {ty} %left, {one}
  %take = icmp ne {ty} %bit, {zero}
  %factor = select {flag} %take, {ty} %base, {ty} {one}
  %out1 = mul {ty} %out, %factor
  %base1 = mul {ty} %base, %base
  %left1 = lshr {ty} %left, {one}
  %more = icmp ne {ty} %left1, {zero}
{any_}
  br i1 %go, label %loop, label %done
done:
{tail}
}}"""
