"""The builder of native code: what it builds runs, and mistakes are refused."""

from __future__ import annotations

import ctypes

import pytest

from qdrun.compiler.codegen.builder import I32, I64, Builder, NativeModule, Ptr, external, function
from qdrun.compiler.runtime import jit


@function("i64")
def twice(f: Builder, x: I64) -> None:
    f.ret(x * 2)


@function("i64")
def mixed(f: Builder, items: Ptr, n: I64, limit: I32) -> None:
    """The sum of even items, doubled, less the odd ones; stops before the item that exceeds the limit."""
    total = f.var(0)
    with f.range(n) as i:
        item = items[i]
        f.leave(when=item > limit.to("i64"))
        f.again(when=item == 0)
        with f.if_(item & 1 == 0):
            total.value = total.value + f.call(twice, item)
        with f.else_():
            total.value = total.value - item
            f.ret(-1, when=item == 99)
    items[0] = total.value
    f.ret(f.call_address(f.symbol(twice), "i64", items.load("ptr")))


def _run(entry, result, *types):
    made = NativeModule([entry], {"WORD": 1})
    code = jit.load(jit.compile_text(made.text, "built"), list(made.exports), {}, "built")
    return code, ctypes.CFUNCTYPE(result, *types)(code.addresses[entry.name])


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [([4, 3, 0, 2], 50, 2 * (8 - 3 + 4)), ([4, 60, 2], 50, 16), ([], 50, None), ([2, 99], 100, -1), ([-5, 2], 50, 18)],
)
def test_loops_and_branches_do_what_they_say(values, limit, expected):
    code, mix = _run(mixed, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    items = (ctypes.c_int64 * 5)(*values)
    assert mix(ctypes.addressof(items), len(values), limit) == (expected if expected is not None else 0)
    del code


def test_atomics_change_memory():
    @function("i64")
    def change(f: Builder, at: Ptr) -> None:
        before = at.words(f.constants["WORD"]).update("add", 5, "seq_cst")
        won, lost = (at.exchange_if(3, new, "acq_rel monotonic") for new in (7, 8))
        f.ret((won & ~lost).select(before, -1))

    code, run = _run(change, ctypes.c_int64, ctypes.c_void_p)
    words = (ctypes.c_int64 * 2)(3, 40)
    assert (run(ctypes.addressof(words)), *words) == (40, 7, 45)
    del code


def test_mistakes_are_refused():
    def refused(error, match, emit, result="void"):
        with pytest.raises(error, match=match):
            NativeModule([function(result, name="wrong")(emit)])

    def behind(f: Builder, x: I64) -> None:
        f.ret()
        twice_as_much = x * 2
        f.ret(when=twice_as_much == 0)

    def types(f: Builder, x: I64, y: I32) -> None:
        f.ret(when=x == y)

    def endless(f: Builder, x: I64) -> None:
        f.var(x)

    def arguments(f: Builder, x: I64) -> None:
        f.call(twice, x, x)

    def namesake(f: Builder, x: I64) -> None:
        f.call(external("twice", "i64", "i64"), f.call(twice, x))

    def truth(f: Builder, x: I64) -> None:
        f.ret(when=0 < x < 5)  # type: ignore[operator]

    refused(TypeError, "known when the code runs: use f.if_", truth)
    refused(AssertionError, "wrong: code behind the end of a block", behind)
    refused(TypeError, "wrong: i32 %p1 where i64 is wanted", types)
    refused(AssertionError, "wrong ends without a result", endless, "i64")
    refused(AssertionError, "twice takes 1 arguments", arguments)
    refused(AssertionError, "two functions are called twice", namesake)
