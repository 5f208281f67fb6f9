"""The check of a guard by the native launcher: see ``guard.py``."""

from __future__ import annotations

from ...codegen.builder import Builder, Ptr, function

# a guard (``guard.py``): whether launches may pass; words with the values that they must have: how many, where; pairs of arrays that must
# lie apart: for each of the two the number of its first word, dimensions, element bytes
G_ARMED, G_COMPARED, G_COMPARED_AT, G_PAIRS, G_PAIRS_AT, G_WORDS = range(6)
_FIRST, _NDIM, _ELEMENT, _ROW = range(4)
G_NEAR = 1 << 16
"""A compared word below this address lies in the argument buffer, so many bytes from its start: no memory has such an address."""


@function("i64")
def end_of(f: Builder, buffer: Ptr, row: Ptr) -> None:
    """The end of the memory of an array argument."""
    words, size = buffer.words(row[_FIRST]), f.var(row[_ELEMENT])
    with f.range(row[_NDIM]) as k:
        size.value = size.value * words.words(1)[k]
    f.ret(words[0] + size.value)


@function("i1")
def disjoint(f: Builder, guard: Ptr, buffer: Ptr) -> None:
    """Whether the arrays that must not overlap lie apart. ``guard``: may be null, as that of ``prepared``."""
    f.ret(True, when=guard == 0)
    pairs = guard[G_PAIRS_AT]
    with f.range(guard[G_PAIRS]) as k:
        a = pairs.words(k * (2 * _ROW))
        b = a.words(_ROW)
        begin_a, begin_b = buffer[a[_FIRST]], buffer[b[_FIRST]]
        b_after = ~begin_b.below(f.call(end_of, buffer, a))
        a_after = ~begin_a.below(f.call(end_of, buffer, b))
        f.ret(False, unless=b_after | a_after)
    f.ret(True)


@function("i1")
def prepared(f: Builder, guard: Ptr, buffer: Ptr) -> None:
    """Whether all that was prepared for a launch is what it was."""
    f.ret(True, when=guard == 0)
    f.ret(False, when=guard[G_ARMED] == 0)
    rows = guard[G_COMPARED_AT]
    with f.range(guard[G_COMPARED]) as k:
        row = rows.words(k << 1)
        base = row[0].below(G_NEAR).select(buffer.to("i64", "ptrtoint"), 0)
        f.ret(False, unless=(base + row[0]).load(order="acquire") == row[1])
    f.ret(True)
