"""Combines the atomics of all threads of a warp on one element into one atomic.

The device does additions to one element one after the other. Where the element is the same for all threads, whatever they do (its indices
come from literals, arguments and memory that the task does not write), the lanes of a warp that arrive together are counted, or their
values are folded, and the first of them does one atomic for all. Where the old value is wanted, each lane gets what it would have got
if the lanes had come one after the other.

The lanes are those that are there (``activemask``): no others are waited for, so it is right in any branch and loop, and all of them go
on to the last shuffle. The calls are convergent and not merged: LLVM leaves them in the branch in which they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.nodes import Op
from ....ir.types import DType, i32
from ....ir.walk import atomic_of
from ...llvm import arith, memory
from ..lanes import from_lane
from .emitter import GridEmitter


@dataclass(frozen=True, slots=True)
class ActiveLanes:
    """Registers of the lanes that are there: their mask, and how many of them come before this one."""

    mask: str
    rank: str


def atomic(e: GridEmitter, s: Op, ptr: str, values: list[str]) -> str | None:
    """Do an atomic together with the other lanes. Returns the old value of this lane (undefined if it is unused).

    None: every lane does its own; on a GPU without operations of a warp (``GpuTarget.wave`` is 1) always.
    """
    way = e.uniform.way(s)
    if not way:
        return None
    place, code = atomic_of(s)
    d, wanted = place.dtype, s in e.uniform.used
    mask, below = e.hardware.lanes(e), e.hardware.lanes_below(e)
    bits = e.ty(e.target.mask, False)
    before = e.t(f"and {bits} {mask}, {below}")
    lanes = ActiveLanes(mask, _count(e, before))
    if way == "count":
        count = _widened(e, _count(e, mask), d)
        total = e.t(f"mul {e.ty(d, False)} {values[0]}, {count}")
    else:
        total = _fold(e, "add" if code == "sub" else code, d, values[0], lanes)
    old, first, join = e.slot(e.ty(d, False)), e.label("first"), e.label("warp")
    e.put(f"store {e.ty(d, False)} zeroinitializer, ptr {old}")
    e.branch(e.t(f"icmp eq {bits} {before}, 0"), first, join)
    e.at(first)
    e.put(f"store {e.ty(d, False)} {memory.exchange(e, code, place, ptr, [total])}, ptr {old}")
    e.jump(join)
    e.at(join)
    mine = e.t(f"load {e.ty(d, False)}, ptr {old}")
    if not wanted:
        return mine
    start = from_lane(e, d, mine, _lowest(e, mask), mask)
    step = e.t(f"mul {e.ty(d, False)} {values[0]}, {_widened(e, lanes.rank, d)}")
    return e.t(f"{code} {e.ty(d, False)} {start}, {step}")


def _count(e: GridEmitter, mask: str) -> str:
    """The number of lanes in a mask, i32."""
    return e.convert(e.intrinsic("ctpop", e.target.mask, False, mask), e.target.mask, i32, False)


def _lowest(e: GridEmitter, mask: str) -> str:
    """The first lane of a mask that has one, i32."""
    found = e.intrinsic("cttz", e.target.mask, False, mask, extra="true", extra_ty="i1")
    return e.convert(found, e.target.mask, i32, False)


def _widened(e: GridEmitter, count: str, d: DType) -> str:
    """A number of lanes in the type of the place."""
    return count if d.bits == 32 else e.t(f"zext i32 {count} to {e.ty(d, False)}")


def _fold(e: GridEmitter, code: str, d: DType, value: str, lanes: ActiveLanes) -> str:
    """The values of all lanes; right in the first one. In each round a lane takes in what the next one has, and every second one drops
    out: of any set of lanes, in as many rounds as it has bits in its size.
    """
    ty, bits, mask = e.ty(d, False), e.ty(e.target.mask, False), lanes.mask
    from_here = e.t(f"xor {bits} {e.hardware.lanes_below(e)}, -1")
    after = e.t(f"shl {bits} {from_here}, 1")
    own = e.t(f"xor {bits} {from_here}, {after}")
    total, left, rank = e.slot(ty), e.slot(bits), e.slot("i32")
    e.put(f"store {ty} {value}, ptr {total}")
    e.put(f"store {bits} {e.t(f'and {bits} {mask}, {after}')}, ptr {left}")
    e.put(f"store i32 {lanes.rank}, ptr {rank}")
    test, turn, out = e.label("test"), e.label("round"), e.label("folded")
    e.jump(test)
    e.at(test)
    others = e.t(f"load {bits}, ptr {left}")
    some = e.t(f"icmp ne {bits} {others}, 0")
    e.branch(e.t(f"icmp ne {bits} {e.hardware.ballot(e, mask, some)}, 0"), turn, out)
    e.at(turn)
    following = e.t(f"select i1 {some}, {bits} {others}, {bits} {own}")
    mine = e.t(f"load {ty}, ptr {total}")
    theirs = from_lane(e, d, mine, _lowest(e, following), mask)
    both = arith.binary(e, code, d, False, mine, theirs)
    e.put(f"store {ty} {arith.select(e, d, False, some, both, mine)}, ptr {total}")
    number = e.t(f"load i32, ptr {rank}")
    stays = e.t(f"icmp eq i32 {e.t(f'and i32 {number}, 1')}, 0")
    e.put(f"store {bits} {e.t(f'and {bits} {others}, {e.hardware.ballot(e, mask, stays)}')}, ptr {left}")
    e.put(f"store i32 {e.t(f'lshr i32 {number}, 1')}, ptr {rank}")
    e.jump(test)
    e.at(out)
    return e.t(f"load {ty}, ptr {total}")
