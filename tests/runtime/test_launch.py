import contextvars
import ctypes
import struct
import sys
import threading

import numpy as np
import pytest

from qdrun.compiler.codegen.abi import STATUS_WORDS
from qdrun.compiler.errors import QdrunAssertionError, QdrunRuntimeError
from qdrun.compiler.ir.nodes import ArgDecl, Assert, Const, Loc
from qdrun.compiler.ir.types import f16, f32, f64, i8, i32, i64, u1, u8, u64
from qdrun.compiler.runtime import launch
from qdrun.compiler.runtime.launch import ArgSpec, PackedLauncher, make_fast, pack_args

from .helpers_runtime import compiled, context

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


class Array:
    __slots__ = ("_key", "_packed", "alpha")


KEY = object()
NAMES = {"f32": f32, "f64": f64, "i8": i8, "i32": i32, "i64": i64, "u8": u8, "u64": u64, "u1": u1, "f16": f16}


def scalar(dtype):
    return ArgDecl("s", "scalar", dtype)


def array(ndim=2, element=(), dtype=f32, grad=False):
    return ArgDecl("a", "ndarray", dtype, ndim, element, grad)


class Rig:
    def __init__(self, *decls, text=COPY, messages=(), keep_gil=False):
        total = 8 * (1 + sum(launch.arg_words(d) for d in decls))
        self.kernel = compiled(text.replace("WORDS", str(total)), messages)
        self.context, self.flag, self.program = context(), ctypes.c_int64(0), object()
        self.var = contextvars.ContextVar("program")
        self.var.set(self.program)
        self.decls, self.slow = decls, []
        specs = [ArgSpec(d, KEY, Array) if d.kind == "ndarray" else ArgSpec(d) for d in decls]
        flag, address = ctypes.addressof(self.flag), self.context.address
        self.call = make_fast(
            self.kernel, address, specs, self.fallback, self.on_status, flag, self.var, self.program, keep_gil=keep_gil
        )
        assert self.call is not None

    def fallback(self, *args, **kw):
        self.slow.append((args, kw))
        return "slow"

    def on_status(self):
        self.context.status[0] = 0
        raise ArithmeticError("the kernel failed")

    def words(self, n):
        return list(self.context.words[16 : 16 + n])


def test_this_interpreter_has_the_expected_layout():
    assert launch.layout_problem() is None


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
        assert (
            struct.pack("q", r.words(2)[1])[: NAMES[name].size] == launch.scalar_bytes(value, NAMES[name])[: NAMES[name].size]
        )
    for value in not_fits:
        assert r.call(value) == "slow", value
    assert sys.exc_info() == (None, None, None)


def test_the_slow_flag_sends_every_call_to_the_fallback():
    r = Rig()
    assert r.call() is None
    r.flag.value = 1
    assert r.call() == "slow"
    r.flag.value = 0
    assert r.call() is None


def test_with_another_program_current_the_fallback_decides():
    r = Rig()
    r.var.set(object())
    assert r.call() == "slow"
    r.var.set(r.program)
    assert r.call() is None
    assert contextvars.Context().run(r.call) == "slow"  # no program at all
    results = []
    thread = threading.Thread(target=lambda: results.append(r.call()))
    thread.start()
    thread.join()
    assert results == ["slow"]


def test_errors_of_the_fallback_and_of_the_kernel_reach_the_caller():
    r = Rig(text=FAIL)
    with pytest.raises(ArithmeticError, match="kernel failed"):
        r.call()
    r.fallback = lambda: 1 / 0
    bad = make_fast(
        r.kernel, r.context.address, [], r.fallback, r.on_status, ctypes.addressof(ctypes.c_int64(0)), r.var, object()
    )
    assert bad is not None
    with pytest.raises(ZeroDivisionError):
        bad()


def test_no_reference_is_lost_or_kept():
    r = Rig(array(), scalar(f32), scalar(i64))
    a, number, big = Array(), 1234.5, 10**15
    a._key, a._packed = KEY, struct.pack("3q", 1, 2, 3)
    objects = (None, X, a, number, big, r.program, r.var, KEY, a._packed, "slow")

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


def test_the_callable_keeps_what_its_table_names_alive_and_lets_go_of_it():
    import gc
    import weakref

    class Program:
        pass

    program, var, flag, c = Program(), contextvars.ContextVar("v"), ctypes.c_int64(1), context()
    kernel = compiled(COPY.replace("WORDS", "8"))
    call = make_fast(kernel, c.address, [], lambda: "slow", lambda: None, ctypes.addressof(flag), var, program)
    alive = weakref.ref(program)
    del program
    gc.collect()
    assert call is not None and alive() is not None and call() == "slow"
    del call
    gc.collect()
    assert alive() is None


def test_the_packed_launcher_runs_alone():
    decls = [array(1, (2,)), scalar(f16), scalar(u8)]
    c, x = context(), np.zeros((6, 2), np.float32)
    run = PackedLauncher(compiled(COPY.replace("WORDS", "40")), c.address, decls)
    run(x, 1.5, 200)
    assert list(c.words[17:19]) == [x.ctypes.data, 6] and c.words[19] == 0x3E00 and c.words[20] == 200
    with pytest.raises(QdrunRuntimeError, match="bytes of arguments"):
        run.launch(b"12345678")


def test_the_packed_launcher_raises_what_the_kernel_reports_and_stays_usable():
    c = context()
    run = PackedLauncher(compiled(FAIL, [MESSAGE]), c.address, [])
    for _ in range(2):
        with pytest.raises(QdrunAssertionError, match="x is -7") as e:
            run()
        assert "user.py:12" in str(e.value) and "^" in str(e.value) and list(c.status) == [0] * STATUS_WORDS


def test_packing_says_what_does_not_fit():
    for value, decl, says in (
        (300, scalar(u8), "300 does not fit into u8"),
        (X.astype(np.float64), array(), "dtype float64"),
        (X[0], array(), "2 dimensions"),
        (X.T[:2], array(), "C-contiguous"),
        (X, array(grad=True), "needs a gradient"),
    ):
        with pytest.raises(QdrunRuntimeError, match=says):
            pack_args([value], [decl])
    with pytest.raises(QdrunRuntimeError, match="1 arguments are wanted"):
        pack_args([], [scalar(f32)])
    assert pack_args([(X, X)], [array(grad=True)])[-8:] == struct.pack("q", X.ctypes.data)
    assert pack_args([1e300], [scalar(f32)]) == struct.pack("<f4x", float("inf"))
