"""The check of an object with per-launch members by the native launcher: see ``watch.py`` for the compared values."""

from __future__ import annotations

from ...codegen.builder import I64, Builder, Ptr, external, function
from .pack_ir import A_KEY, A_SIZE, A_WATCH, A_WORDS, length, member, own_array, pack_array, pack_number

# a watch: rows; arrays that the object holds now, and how each is packed; words of its numbers; whether an array is in two places;
# whether something was not as expected, and Python has not looked since
W_ROWS, W_ROWS_AT, W_ARRAYS, W_ARRAYS_AT, W_ARGS_AT, W_NUMBERS, W_NUMBERS_AT, W_ALIASES, W_MISSED, W_WORDS = range(10)
# a row: an object with a dict, a dict, or a list; where the object has the address of its dict (-1: it is the dict), and the version of
# that when it was last looked at; how many entries it has, and where. A list of ROW_FIRST may be longer: its last item is as the last
# entry says.
R_KIND, R_OWNER, R_DICT_AT, R_TAG, R_COUNT, R_ENTRIES_AT, R_WORDS = range(7)
ROW_DICT, ROW_LIST, ROW_FIRST = range(3)
# an entry: the key in the dict; what its value must be: anything, an object of this type, this object, the array of this number, another
# place of that array, a number (with its place among the words, and how it is packed)
E_KIND, E_KEY, E_VALUE, E_ARG, E_WORDS = range(5)
ENTRY_ANY, ENTRY_TYPE, ENTRY_SAME, ENTRY_ARRAY, ENTRY_AGAIN, ENTRY_NUMBER = range(6)

_dict_next = external("PyDict_Next", "i32", "ptr", "ptr", "ptr", "ptr")


@function("i1")
def expected(f: Builder, watch: Ptr, entry: Ptr, value: Ptr, changed: Ptr) -> None:
    """Whether one value of a row is what it must be. ``changed`` is set where an array was replaced."""
    kind, wanted = entry[E_KIND], entry[E_VALUE]
    f.ret(True, when=kind == ENTRY_ANY)
    with f.if_(kind == ENTRY_TYPE):
        f.ret(member(value, "TYPE") == wanted)
    with f.if_(kind == ENTRY_SAME):
        f.ret((value == wanted) & (member(value, "TYPE") == entry[E_ARG]))
    with f.if_(kind == ENTRY_ARRAY):
        own, place = f.call(own_array, value), watch[W_ARRAYS_AT].words(wanted)
        f.ret(False, when=own == 0)
        with f.if_(place.load("ptr") != own):
            place.store(own)
            changed.store(True, "i1")
        f.ret(True)
    with f.if_(kind == ENTRY_AGAIN):  # after the array's first place, which is earlier in the rows
        f.ret(f.call(own_array, value) == watch[W_ARRAYS_AT][wanted])
    with f.if_(kind == ENTRY_NUMBER):
        f.ret(f.call(pack_number, value, entry[E_ARG], watch[W_NUMBERS_AT].words(wanted)))
    f.ret(False)


@function("i1")
def same_dict(f: Builder, watch: Ptr, row: Ptr, changed: Ptr) -> None:
    """Whether a dict, or that of an object, has the expected keys and values. One that was not written to since is not read."""
    at, key, value, owner = f.stack(), f.stack(1, "ptr"), f.stack(1, "ptr"), row[R_OWNER]
    offset = row[R_DICT_AT]
    is_dict = offset == -1
    of_object = (owner + is_dict.select(0, offset)).load()
    held = is_dict.select(owner, of_object)
    f.ret(False, when=held == 0)
    f.ret(False, unless=held & 1 == 0)  # some interpreters keep there, with a mark, what is no dict yet
    tag = (held + f.constants["TAG_AT"]).load()
    if f.constants["TAG_AT"]:
        f.ret(True, when=tag == row[R_TAG])
    at[0] = 0
    entries, count, i = row[R_ENTRIES_AT], row[R_COUNT], f.var(0)
    with f.loop():
        more = f.call(_dict_next, held, at, key, value) != 0
        full, entry = i.value == count, entries.words(i.value * E_WORDS)
        f.leave(unless=more)
        f.ret(False, when=full)
        f.ret(False, unless=key[0] == entry[E_KEY])
        f.ret(False, unless=f.call(expected, watch, entry, value.load("ptr"), changed))
        i.value = i.value + 1
    f.ret(False, unless=i.value == count)
    row[R_TAG] = tag
    f.ret(True)


@function("i1")
def same_list(f: Builder, watch: Ptr, row: Ptr, changed: Ptr) -> None:
    """Whether a list has the expected items."""
    owner = row[R_OWNER]
    size, items, count, entries = length(owner), member(owner, "LIST_ITEMS"), row[R_COUNT], row[R_ENTRIES_AT]
    may_grow = (row[R_KIND] == ROW_FIRST) & (size >= count) & (count > 0)
    f.ret(False, unless=(size == count) | may_grow)
    with f.range(count) as i:
        f.ret(False, unless=f.call(expected, watch, entries.words(i * E_WORDS), items[i], changed))
    f.ret(True, when=size == count)
    f.ret(f.call(expected, watch, entries.words((count - 1) * E_WORDS), items[size - 1], changed))


@function("i1")
def distinct(f: Builder, arrays: Ptr, n: I64) -> None:
    """Whether no array is in two places that were different arrays."""
    with f.range(n) as i, f.range(n, i + 1) as j:
        f.ret(False, when=arrays[i] == arrays[j])
    f.ret(True)


@function("i1")
def same_rows(f: Builder, watch: Ptr) -> None:
    """Whether all that the object holds is as expected."""
    changed, rows = f.var(False, "i1"), watch[W_ROWS_AT]
    with f.range(watch[W_ROWS]) as k:
        row = rows.words(k * R_WORDS)
        with f.if_(row[R_KIND] == ROW_DICT):
            f.ret(False, unless=f.call(same_dict, watch, row, changed.at))
        with f.else_():
            f.ret(False, unless=f.call(same_list, watch, row, changed.at))
    f.ret(True, unless=changed.value)
    # an array in two places may now be in one of them only, and rows that did not change were not looked at
    f.ret(False, unless=watch[W_ALIASES] == 0)
    f.ret(f.call(distinct, watch[W_ARRAYS_AT], watch[W_ARRAYS]))


@function("i1")
def pack_watched(f: Builder, o: Ptr, arg: Ptr, slot: Ptr) -> None:
    """Pack what an object holds. False: another object, or something in it is not as it was."""
    f.ret(False, unless=o == arg[A_KEY])
    watch = arg[A_WATCH]
    f.ret(False, unless=watch[W_MISSED] == 0)
    with f.if_(~f.call(same_rows, watch)):
        watch[W_MISSED] = 1
        f.ret(False)
    arrays, how, to = watch[W_ARRAYS_AT], f.var(watch[W_ARGS_AT], "ptr"), f.var(slot)
    with f.range(watch[W_ARRAYS]) as i:
        row, place = how.value, to.value
        f.ret(False, unless=f.call(pack_array, arrays[i], row, place))
        how.value, to.value = row.words(A_WORDS), place.words(row[A_SIZE])
    f.copy(to.value, watch[W_NUMBERS_AT], watch[W_NUMBERS] << 3)
    f.ret(True)
