"""The print ring: device code appends a record for each print statement that runs, and the launcher reads them when it waits.

A record takes its words with one atomic addition. One that finds no room is counted and dropped; nothing is written after it. After
that no record adds to the counter, so that it does not overflow.
"""

from __future__ import annotations

from ...ir.nodes import Print
from ..abi import (
    CTX_PRINT,
    RECORD_CONTEXT,
    RECORD_COUNT,
    RECORD_SITE,
    RECORD_VALUES,
    RING_LOST,
    RING_RECORDS,
    RING_SIZE,
    RING_USED,
)
from .grid.emitter import GridEmitter
from .hardware import ParamWord


def append(e: GridEmitter, s: Print, values: list[str]) -> None:
    """Append the values (i64) of a print statement; a program without a ring prints nothing.

    Reports take a quarter of the ring and are dropped after that: a launch may make millions of one, and the host prints the first.
    """
    ring = e.context(CTX_PRINT, "ptr")
    there, take, write, lost, done = map(e.label, ("ring", "take", "record", "lost", "printed"))
    size = RECORD_VALUES + len(values)
    e.branch(e.t(f"icmp ne ptr {ring}, null"), there, done)
    e.at(there)
    used, room = _word(e, ring, RING_USED), e.t(f"load i32, ptr {_word(e, ring, RING_SIZE)}")
    now = e.t(f"load atomic i32, ptr {used} {e.scope}monotonic, align 4")
    full = done if s.once else lost
    e.branch(e.t(f"icmp ule i32 {now}, {e.t(f'lshr i32 {room}, 2') if s.once else room}"), take, full)
    e.at(take)
    begin = e.t(f"atomicrmw add ptr {used}, i32 {size} {e.scope}monotonic")
    e.branch(e.t(f"icmp ule i32 {e.t(f'add i32 {begin}, {size}')}, {room}"), write, full)
    e.at(write)
    at = e.t(f"zext i32 {begin} to i64")
    record = e.t(f"getelementptr i64, ptr {ring}, i64 {e.t(f'add i64 {at}, {RING_RECORDS}')}")
    head = {RECORD_CONTEXT: e.parameter(ParamWord("self")), RECORD_SITE: str(e.info.sites[s]), RECORD_COUNT: str(len(values))}
    for k, x in [*head.items(), *enumerate(values, RECORD_VALUES)]:
        e.put(f"store i64 {x}, ptr {_word(e, record, k)}")
    e.jump(done)
    if not s.once:
        e.at(lost)
        e.t(f"atomicrmw add ptr {_word(e, ring, RING_LOST)}, i32 1 {e.scope}monotonic")
        e.jump(done)
    e.at(done)


def _word(e: GridEmitter, base: str, word: int) -> str:
    return e.t(f"getelementptr i64, ptr {base}, i64 {word}")
