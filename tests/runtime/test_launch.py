import contextvars
import ctypes
import gc
import struct
import sys
import threading
import weakref

import numpy as np
import pytest

from qdrun.compiler.codegen.abi import STATUS_WORDS
from qdrun.compiler.errors import QdrunAssertionError
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Const, Loc
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u1, u8, u64
from qdrun.compiler.runtime.native import launch, objects
from qdrun.compiler.runtime.native.launch import ArgSpec, Same, WatchedArg, arg_row, make_launch
from qdrun.compiler.runtime.native.launch_ir import F_WORDS
from qdrun.compiler.runtime.native.watch import ITSELF, Watch, WatchEntry, WatchRow, dict_offset
from qdrun.compiler.runtime.native.watch_ir import (
    ENTRY_AGAIN,
    ENTRY_ARRAY,
    ENTRY_NUMBER,
    ENTRY_SAME,
    ENTRY_TYPE,
    ROW_DICT,
    ROW_FIRST,
    ROW_LIST,
)

from .helpers_runtime import compiled, context, run_plainly
from .native_rig import NATIVE, VARIABLE, Array, Kernel, Program

# copies 12 words of the argument buffer into the context, from word 16 on
COPY = """
define void @qd_k(ptr %args) {
  %context = load ptr, ptr %args
  %to = getelementptr i64, ptr %context, i64 16
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %args, i64 WORDS, i1 false)
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
FAIL = """
define void @qd_k(ptr %args) {
  %context = load ptr, ptr %args
  %status = load ptr, ptr %context
  store i64 1, ptr %status
  %value = getelementptr i64, ptr %status, i64 3
  store i64 -7, ptr %value
  ret void
}
"""
LOC = Loc("user.py", 12, 4, 10, "    assert x > 0", "k")
MESSAGE = Assert(Const(False, u1), "x is {}", (Const(0, i32),), LOC)


KEY = object()
NAMES = {"f32": f32, "f64": f64, "i8": i8, "i32": i32, "i64": i64, "u8": u8, "u64": u64, "u1": u1, "f16": f16}


def scalar(dtype):
    return ArgDecl("s", "scalar", dtype)


def array(ndim=2, element=(), dtype=f32, grad=False):
    return ArgDecl("a", "ndarray", dtype, ndim, element, grad)


class Rig:
    def __init__(self, *args, text=COPY, messages=(), keep_gil=False):
        specs = [ArgSpec(a, KEY) if isinstance(a, ArgDecl) and a.kind == "ndarray" else a for a in args]
        specs = [ArgSpec(a) if isinstance(a, ArgDecl) else a for a in specs]
        total = 8 * (1 + sum(map(launch._words_of, specs)))
        self.kernel, self.slow = compiled(text.replace("WORDS", str(total)), messages), []
        self.context, self.flags, self.program = context(), (ctypes.c_int64 * F_WORDS)(), Program()
        VARIABLE.set(self.program)
        self.call = Kernel(self.fallback)
        self.add(specs, keep_gil)

    def add(self, specs, keep_gil=False):
        flags, address = ctypes.addressof(self.flags), self.context.address
        made = make_launch(self.kernel, address, specs, self.on_status, flags, self, keep_gil=keep_gil)
        assert NATIVE and made is not None
        self.program.native_launches.setdefault(self.call.token, []).append(made)
        self.program.native_gradients.setdefault(self.call.token, []).append(made)

    def fallback(self, *args, **kw):
        self.slow.append((args, kw))
        return "slow"

    def on_status(self):
        self.context.status[0] = 0
        raise ArithmeticError("the kernel failed")

    def words(self, n):
        return list(self.context.words[16 : 16 + n])


def test_this_interpreter_has_the_expected_layout():
    assert objects.layout_problem() is None


@pytest.mark.parametrize("keep_gil", [False, True])
def test_arguments_arrive_in_their_words(keep_gil):
    r = Rig(array(), scalar(f32), scalar(i32), scalar(f64), scalar(u1), scalar(u64), keep_gil=keep_gil)
    x = np.zeros((3, 5), np.float32)
    assert r.call(x, 1.5, -3, 2.5, True, 2**64 - 1) is None
    w = r.words(9)
    assert w[0] == r.context.address and w[1:4] == [x.ctypes.data, 3, 5]
    assert struct.pack("q", w[4]) == struct.pack("<f4x", 1.5) and w[5] == -3
    assert struct.pack("q", w[6]) == struct.pack("d", 2.5) and w[7:] == [1, -1]
    assert not r.slow


def test_our_own_array_gives_its_packed_words():
    r = Rig(array(grad=True), scalar(i64))
    a = Array()
    a._key, a._packed = KEY, struct.pack("4q", 11, 3, 5, 22)
    assert r.call(a, 9) is None and r.words(6)[1:] == [11, 3, 5, 22, 9]
    a._key = object()
    assert r.call(a, 9) == "slow"
    a._key, a._packed = KEY, b"short"
    assert r.call(a, 9) == "slow"
    a._packed = [1]
    assert r.call(a, 9) == "slow"
    del a._packed
    assert r.call(a, 9) == "slow" and r.call(Array(), 9) == "slow"
    assert r.call(np.zeros((3, 5), np.float32), 9) == "slow"  # has no gradient


def test_elements_of_an_array_must_have_the_declared_shape():
    r = Rig(array(1, (3, 2)))
    assert r.call(np.zeros((7, 3, 2), np.float32)) is None and r.words(3)[2] == 7
    for shape in ((7, 2, 3), (7, 3), (7, 3, 3), (1, 7, 3, 2)):
        assert r.call(np.zeros(shape, np.float32)) == "slow"


class SubArray(np.ndarray):
    pass


X = np.zeros((4, 4), np.float32)
READ_ONLY = np.zeros((4, 4), np.float32)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(65, np.uint8)[1:].view(np.float32).reshape(4, 4)
WRONG = {
    "too few": (X,),
    "too many": (X, 1.0, 2.0),
    "none": (),
    "an integer for a float": (X, 1),
    "a numpy scalar": (X, np.float32(1)),
    "a list": ([[1.0]], 1.0),
    "None": (None, 1.0),
    "transposed": (np.zeros((4, 5), np.float32).T, 1.0),
    "strided": (np.zeros((4, 8), np.float32)[:, ::2], 1.0),
    "another dtype": (X.astype(np.float64), 1.0),
    "another byte order": (X.astype(">f4"), 1.0),
    "another rank": (X[0], 1.0),
    "read-only": (READ_ONLY, 1.0),
    "unaligned": (UNALIGNED, 1.0),
    "a subclass": (X.view(SubArray), 1.0),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mismatch_goes_to_the_fallback_with_the_same_arguments(case):
    r, args = Rig(array(), scalar(f32)), WRONG[case]
    r.context.words[16] = 77
    assert r.call(*args) == "slow"
    ((got, kw),) = r.slow
    assert len(got) == len(args) and all(a is b for a, b in zip(got, args)) and kw == {}
    assert r.context.words[16] == 77, "the kernel ran"


def test_keywords_go_to_the_fallback():
    r = Rig(array(), scalar(f32))
    assert r.call(X, s=1.0) == "slow" and r.slow[0][1] == {"s": 1.0}


@pytest.mark.parametrize(
    "name, fits, not_fits",
    [
        ("i8", [-128, 127, 0, -1], [128, -129, True, 1.0]),
        ("u8", [0, 255], [-1, 256]),
        ("i32", [-(2**31), 2**31 - 1, -1], [2**31, -(2**31) - 1, 2**70, False]),
        ("i64", [-(2**63), 2**63 - 1, -1], [2**63, -(2**63) - 1, 10**30]),
        ("u64", [0, 2**63, 2**64 - 1], [-1, 2**64]),
        ("u1", [True, False], [0, 1]),
        ("f64", [1e300, float("inf")], [1, "1"]),
        ("f16", [], [1.0]),
    ],
)
def test_only_numbers_that_fit_are_taken_natively(name, fits, not_fits):
    r = Rig(scalar(NAMES[name]))
    for value in fits:
        assert r.call(value) is None, value
        assert struct.pack("q", r.words(2)[1])[: NAMES[name].size] == NAMES[name].numpy.type(value).tobytes()
    for value in not_fits:
        assert r.call(value) == "slow", value
    assert sys.exc_info() == (None, None, None)


def test_a_flag_sends_every_call_to_the_fallback():
    r = Rig()
    assert r.call() is None
    r.flags[0] = 1
    assert r.call() == "slow" and r.call.grad() == "slow gradient" and r.call.taped() is None
    r.flags[1] = 1
    assert r.call.taped() == "slow although taped"
    r.flags[:] = [0, 0]
    assert r.call() is r.call.grad() is None


def test_a_call_takes_the_launches_of_the_current_program():
    r, other = Rig(scalar(i32)), Program()
    VARIABLE.set(other)
    assert r.call(1) == "slow"
    VARIABLE.set(None)
    assert r.call(1) == "slow"
    VARIABLE.set(r.program)
    assert r.call(1) is None
    assert contextvars.Context().run(r.call, 1) == "slow"  # no program at all
    results = []
    thread = threading.Thread(target=lambda: results.append(r.call(1)))
    thread.start()
    thread.join()
    assert results == ["slow"]
    first, r.context = r.context, context()
    r.program = other
    r.add([ArgSpec(scalar(i32))])
    for program, value in ((other, 5), (r.program, 6), (other, 7)):
        VARIABLE.set(program)
        assert r.call(value) is None and r.words(2) == [r.context.address, value]
    assert first.words[17] == 1


def test_launches_are_tried_in_their_order():
    r = Rig(scalar(i32))
    r.add([ArgSpec(scalar(f64))])
    assert r.call(3) is None and r.words(2)[1] == 3
    assert r.call(2.5) is None and struct.pack("q", r.words(2)[1]) == struct.pack("d", 2.5)
    assert r.call("x") == "slow" and r.call(1, 2) == "slow"


def test_errors_of_the_fallback_and_of_the_kernel_reach_the_caller():
    r = Rig(text=FAIL)
    with pytest.raises(ArithmeticError, match="kernel failed"):
        r.call()
    bad = Kernel(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bad()


def test_no_reference_is_lost_or_kept():
    r = Rig(array(), scalar(f32), scalar(i64))
    a, number, big = Array(), 1234.5, 10**15
    a._key, a._packed = KEY, struct.pack("3q", 1, 2, 3)
    objects = (None, X, a, number, big, r.program, r.call, KEY, a._packed, "slow")

    def calls(n):
        for _ in range(n):
            r.call(X, number, big)
            r.call(a, number, big)
            r.call(X, number, X)
            r.slow.clear()

    calls(1000)
    before = [sys.getrefcount(x) for x in objects]
    calls(100_000)
    after = [sys.getrefcount(x) for x in objects]
    drift = [n - m for n, m in zip(after, before)]
    assert all(abs(x) < 100 for x in drift), drift  # None is everywhere: other code moves its count a little
    assert drift[1:] == [0] * (len(objects) - 1)


def test_nothing_keeps_a_program_and_its_launches():
    class Owner:
        pass

    program, flags, c, owner = Program(), (ctypes.c_int64 * F_WORDS)(), context(), Owner()
    kernel, call = compiled(COPY.replace("WORDS", "8")), Kernel(lambda: "slow")
    program.native_launches[call.token] = [make_launch(kernel, c.address, [], lambda: None, ctypes.addressof(flags), owner)]
    VARIABLE.set(program)
    assert call() is None
    alive = weakref.ref(program), weakref.ref(owner)
    VARIABLE.set(None)
    del program, owner
    gc.collect()
    assert [x() for x in alive] == [None, None] and call() == "slow"


# ---- objects that are known at compile time


class Holder:
    pass


def test_an_argument_may_have_to_be_one_object():
    one, other = object(), object()
    r = Rig(Same(id(one), one), scalar(i32))
    assert r.call(one, 7) is None and r.words(2)[1] == 7
    assert r.call(other, 7) == "slow"


def test_methods_are_launched_with_their_object():
    class Owner:
        pass

    s, t = Owner(), Owner()
    r = Rig(Same(id(s), s), scalar(i32))
    Owner.k = r.call
    assert s.k(5) is None and r.words(2)[1] == 5 and t.k(5) == "slow" and r.slow.pop()[0] == (t, 5)
    bound = s.k
    assert bound(6) is None and r.words(2)[1] == 6 and bound.instance is s and bound.kernel is r.call is Owner.k
    assert t.k is not bound and t.k.instance is t and bound.instance is s
    assert s.k.grad(8) is None and r.words(2)[1] == 8 and t.k.grad(8) == "slow gradient"
    gradient = s.k.grad
    assert gradient(9) is None and r.words(2)[1] == 9
    assert s.k(s=1) == "slow" and r.slow[-1] == ((s,), {"s": 1})


def test_a_bound_kernel_does_not_keep_its_object():
    s = Holder()
    Holder.k = Kernel(lambda: None)
    assert s.k.instance is s
    alive = weakref.ref(s)
    del s
    gc.collect()
    assert alive() is None


def array_of(*words):
    a = Array()
    a._key, a._packed = KEY, struct.pack(f"{len(words)}q", *words)
    return a


def watched(s, arrays, numbers=(), rows=()):
    """An argument whose object has these arrays and numbers among its attributes."""
    places, out = {id(a): k for k, a in enumerate(arrays)}, []
    for name, value in vars(s).items():
        if id(value) in places:
            again = any(e.kind == ENTRY_ARRAY and e.value == places[id(value)] for e in out)
            out.append(WatchEntry(ENTRY_AGAIN if again else ENTRY_ARRAY, name, places[id(value)]))
        elif name in numbers:
            out.append(WatchEntry(ENTRY_NUMBER, name, numbers.index(name)))
        elif isinstance(value, (list, Holder)):
            out.append(WatchEntry(ENTRY_SAME, name, value))
        else:
            out.append(WatchEntry(ENTRY_TYPE, name, type(value)))
    watch, how = Watch(s), arg_row(ArgSpec(array(1), KEY))
    hows = [arg_row(ArgSpec(scalar(f64))) for _ in numbers]
    watch.fill([WatchRow(ROW_DICT, s, tuple(out), dict_offset(s)), *rows], [(a, how) for a in arrays], hows)
    return WatchedArg(watch, 2 * len(arrays) + len(numbers))


def test_an_object_is_watched_for_what_comes_with_each_launch():
    s, a, b = Holder(), array_of(1, 2), array_of(3, 4)
    s.a, s.n, s.b, s.dt = a, 3, b, 0.5
    arg = watched(s, [a, b], ["dt"])
    r = Rig(arg)
    assert r.call(s) is None and r.words(5)[1:] == [1, 2, 3, 4]
    assert struct.pack("q", r.words(6)[5]) == struct.pack("d", 0.5)
    s.n, s.dt = 1000, 2.5  # a constant of the kernel, and a number
    s.a = array_of(5, 6)
    assert r.call(s) is None and r.words(5)[1:] == [5, 6, 3, 4] and struct.pack("q", r.words(6)[5]) == struct.pack("d", 2.5)
    s.a, s.b = s.b, s.a
    assert r.call(s) is None and r.words(5)[1:] == [3, 4, 5, 6]
    assert r.call(Holder()) == "slow" and not arg.watch.missed


def _set(name, value):
    return lambda s: setattr(s, name, value)


CHANGES = {
    "one array in two places": lambda s: setattr(s, "b", s.a),
    "no array": _set("a", 1.0),
    "another type": _set("n", 3.0),
    "a number of another type": _set("dt", 1),
    "a new attribute": _set("c", 1),
    "an attribute less": lambda s: delattr(s, "n"),
    "another order": lambda s: (delattr(s, "a"), setattr(s, "a", array_of(1, 2))),
    "another list": _set("items", [0]),
    "a longer list of arrays": lambda s: s.arrays.append(array_of(7, 8)),
    "no array in a list": lambda s: s.arrays.__setitem__(0, 1.0),
    "another first item": lambda s: s.items.__setitem__(0, "x"),
    "another last item": lambda s: s.items.append("x"),
    "no item": lambda s: s.items.clear(),
    "another dict": lambda s: setattr(s, "__dict__", {"a": 1}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_python_must_look_at_is_noticed(change):
    s, a, b, c = Holder(), array_of(1, 2), array_of(3, 4), array_of(5, 6)
    s.a, s.n, s.b, s.dt, s.items, s.arrays = a, 3, b, 0.5, [1, 2], [c]
    lists = [
        WatchRow(ROW_FIRST, s.items, (WatchEntry(ENTRY_TYPE, None, int),)),
        WatchRow(ROW_LIST, s.arrays, (WatchEntry(ENTRY_ARRAY, None, 2),)),
    ]
    arg = watched(s, [a, b, c], ["dt"], lists)
    r = Rig(arg)
    s.items.append(3)
    s.arrays[0] = array_of(9, 9)
    assert r.call(s) is None and r.words(7)[1:] == [1, 2, 3, 4, 9, 9]
    CHANGES[change](s)
    assert r.call(s) == "slow" and arg.watch.missed and r.call(s) == "slow"


def test_a_dict_is_watched_item_by_item():
    s, a, b = Holder(), array_of(1, 2), array_of(3, 4)
    s.a, held = a, {"n": 1, 7: b}
    row = WatchRow(
        ROW_DICT, held, (WatchEntry(ENTRY_TYPE, "n", int), WatchEntry(ENTRY_ARRAY, next(k for k in held if k == 7), 1)), ITSELF
    )
    r = Rig(watched(s, [a, b], rows=[row]))
    assert r.call(s) is None and r.words(5)[1:] == [1, 2, 3, 4]
    held["n"], held[7] = 2, array_of(5, 6)
    assert r.call(s) is None and r.words(5)[1:] == [1, 2, 5, 6]
    held["n"] = array_of(8, 8)
    assert r.call(s) == "slow"


# waits until word 20 of the context is not zero
WAIT = """
define void @qd_k(ptr %args) {
  %context = load ptr, ptr %args
  %at = getelementptr i64, ptr %context, i64 20
  %begun = getelementptr i64, ptr %context, i64 21
  store atomic i64 1, ptr %begun seq_cst, align 8
  br label %loop
loop:
  %n = load atomic i64, ptr %at seq_cst, align 8
  %go = icmp ne i64 %n, 0
  br i1 %go, label %end, label %loop
end:
  ret void
}
"""


def test_an_array_that_is_replaced_during_its_launch_stays_until_the_end():
    s, other = Holder(), array_of(5, 6)
    s.a, s.b = array_of(1, 2), array_of(3, 4)
    r = Rig(watched(s, [s.a, s.b]), text=WAIT)
    alive, current = weakref.ref(s.a), contextvars.copy_context()
    thread = threading.Thread(target=current.run, args=(r.call, s))
    thread.start()
    while not r.context.words[21]:
        pass
    s.a = other
    during = alive() is not None
    r.context.words[20] = 1
    thread.join()
    assert during and alive() is None and not r.slow
    alive, s.b = weakref.ref(s.b), None
    assert alive() is None


def test_an_array_in_two_places_stays_in_both():
    s, a = Holder(), array_of(1, 2)
    s.a = s.b = a
    arg = watched(s, [a])
    r = Rig(arg)
    assert r.call(s) is None and r.words(3)[1:] == [1, 2]
    s.b = array_of(3, 4)
    assert r.call(s) == "slow" and arg.watch.missed


def test_a_kernel_reports_and_stays_usable():
    c = context()
    made = compiled(FAIL, [MESSAGE])
    for _ in range(2):
        with pytest.raises(QdrunAssertionError, match="x is -7") as e:
            run_plainly(made, c)
        assert "user.py:12" in str(e.value) and "^" in str(e.value) and list(c.status) == [0] * STATUS_WORDS
