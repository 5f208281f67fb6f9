"""Adstack rows: a worker takes one the first time it needs one in a launch of a task, and keeps it until the task ends.

The claims of a launch of a parallel task are words in the frame of the kernel's entry: word 0 counts the rows that are taken, word
1 + w is 0 until worker w has a row, then its number + 1. A row is claimed with one atomic increment; a serial task has row 0.
"""

from __future__ import annotations

from ...ir.nodes import ClaimRow
from ..abi import CTX_HEAP, PLANES
from .emitter import Emitter

FRAME_CLAIMS = 3


def new_claims(e: Emitter) -> str:
    """In the entry: the zeroed claims of a task that at most ``threads`` workers run."""
    threads = e.param("threads")
    claims = e.t(f"alloca i64, i64 {e.t(f'add i64 {threads}, 1')}")
    number, body, out = e.slot("i64"), e.label("unclaimed"), e.label("claims")
    e.put(f"store i64 0, ptr {number}")
    e.jump(body)
    e.at(body)
    n = e.t(f"load i64, ptr {number}")
    # atomic: LLVM would call the C library's memset
    e.put(f"store atomic i64 0, ptr {e.t(f'getelementptr i64, ptr {claims}, i64 {n}')} monotonic, align 8")
    e.put(f"store i64 {e.t(f'add i64 {n}, 1')}, ptr {number}")
    e.branch(e.t(f"icmp slt i64 {n}, {threads}"), body, out)
    e.at(out)
    return claims


def claim(e: Emitter, s: ClaimRow) -> None:
    """Give the worker a row, if it has none, and find its stacks. A claim of a whole task is made before the first iteration."""
    if e.claimed:
        return
    if e.task.parallel:
        row = _row(e, s)
    else:
        check(e, s, "0")
        row = "0"
    find_stacks(e, row)


def find_stacks(e: Emitter, row: str) -> None:
    """The addresses of the stacks of a row."""
    for stack in e.task.stacks:
        for plane in sorted({v.dtype.plane for v in stack.locals}):
            _base(e, stack.name, plane, row)


def claim_at_once(e: Emitter) -> None:
    """Claim before the first iteration when every iteration would."""
    s = next((s for s in e.task.body if isinstance(s, ClaimRow)), None)
    if s is not None and e.task.parallel:
        claim(e, s)
        e.claimed = True


def _row(e: Emitter, s: ClaimRow) -> str:
    claims = e.hoist("claims", f"load ptr, ptr {e.hoist('claims*', f'getelementptr i64, ptr %frame, i64 {FRAME_CLAIMS}')}")
    number = e.hoist("worker+1", "add i64 %worker, 1")
    mine = e.hoist("claim", f"getelementptr i64, ptr {claims}, i64 {number}")
    take, have = e.label("take"), e.label("have")
    e.branch(e.t(f"icmp eq i64 {e.t(f'load i64, ptr {mine}')}, 0"), take, have, unlikely=True)
    e.at(take)
    row = e.t(f"atomicrmw add ptr {claims}, i64 1 monotonic")
    check(e, s, row)
    e.put(f"store i64 {e.t(f'add i64 {row}, 1')}, ptr {mine}")
    e.jump(have)
    e.at(have)
    return e.t(f"sub i64 {e.t(f'load i64, ptr {mine}')}, 1")


def check(e: Emitter, s: ClaimRow, row: str) -> None:
    """A row that was not planned is reported, never used."""
    none, fine = e.label("norow"), e.label("row")
    e.branch(e.t(f"icmp sge i64 {row}, {e.param('rows')}"), none, fine, unlikely=True)
    e.at(none)
    e.report_failure(s, (), "")
    e.leave()
    e.at(fine)


def _base(e: Emitter, name: str, plane: str, row: str) -> None:
    """The address of slot 0, field 0 of a stack's plane. The lanes of a row lie side by side in every word."""
    heap = e.context(CTX_HEAP + PLANES.index(plane), "ptr")
    first = e.param(f"{name}.{plane}")
    if row != "0":
        stride = e.param(f"stride.{plane}")
        first = e.t(f"add i64 {e.t(f'mul i64 {row}, {stride}')}, {first}")
    byte = e.t(f"mul i64 {first}, {e.bytes_side_by_side(int(plane[1]))}")
    e.stacks[name, plane] = e.t(f"getelementptr i8, ptr {heap}, i64 {byte}")
