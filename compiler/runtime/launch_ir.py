"""The native launcher in LLVM text: one function for all kernels, driven by a table. ``launch.py`` builds tables.

``self`` is a tuple whose first item is a bytes object, the table: words T_*, then A_WORDS words for each argument. Anything that the
table does not describe goes to the Python fallback, which converts, compiles or raises: this code raises nothing of its own.
"""

from __future__ import annotations

from ..codegen.abi import CTX_WEIGHT
from .guard_ir import GUARD_IR, GUARD_WORDS

# words of the table
(T_ENTRY, T_CONTEXT, T_SLOW_FLAG, T_VAR, T_PROGRAM, T_FALLBACK, T_ON_STATUS, T_NONE, T_NARGS, T_RELEASE, T_WORDS) = range(11)
T_NUMPY, T_FLOAT, T_INT, T_BOOL, T_BYTES, T_TRUE, T_HOST, T_WRAPPER, T_STATE, T_SHARES, T_GUARD, T_PREPARE = range(11, 23)
T_AHEAD, T_ON_AHEAD = 23, 24
T_ARGS = 25

# words of an argument: kind, numpy's dtype object, dimensions, element dimensions (0..2) and their extents, key, words, range
A_KIND, A_DESCR, A_NDIM, A_ELEMENT, A_E0, A_E1, A_KEY, A_SIZE, A_LOW, A_HIGH = range(10)
A_WORDS = 10
KIND_F32, KIND_F64, KIND_INT, KIND_U64, KIND_BOOL, KIND_ARRAY = range(1, 7)

# the state of a program: whether a native launch runs that shares memory; whether one in Python does, or waits; native launches that run;
# what was launched since ``on_ahead`` was called last, in microseconds
S_NATIVE, S_PYTHON, S_RUNNING, S_AHEAD = range(4)
S_WORDS = 4

# numpy's flags: C-contiguous, aligned, writeable
ARRAY_FLAGS = 0x0001 | 0x0100 | 0x0400

LAUNCHER_IR = r"""
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)
declare i64 @PyLong_AsUnsignedLongLong(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)

define internal i64 @word(ptr %base, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %base, i64 %k
  %w = load i64, ptr %p
  ret i64 %w
}

define internal ptr @at(ptr %base, i64 %offset) alwaysinline {
  %p = getelementptr i8, ptr %base, i64 %offset
  %x = load ptr, ptr %p
  ret ptr %x
}

define internal i1 @has_type(ptr %o, ptr %table, i64 %k) alwaysinline {
  %type = call ptr @at(ptr %o, i64 $TYPE$)
  %want = getelementptr ptr, ptr %table, i64 %k
  %w = load ptr, ptr %want
  %same = icmp eq ptr %type, %w
  ret i1 %same
}

; address and extents of a numpy array of the wanted dtype, rank, element and layout
define internal i1 @numpy_array(ptr %o, ptr %arg, ptr %slot) {
entry:
  %want_descr = call i64 @word(ptr %arg, i64 $A_DESCR$)
  %descr = call ptr @at(ptr %o, i64 $ARRAY_DESCR$)
  %descr_i = ptrtoint ptr %descr to i64
  %same_descr = icmp eq i64 %descr_i, %want_descr
  %pflags = getelementptr i8, ptr %o, i64 $ARRAY_FLAGS_AT$
  %flags = load i32, ptr %pflags
  %have = and i32 %flags, $ARRAY_FLAGS$
  %good_flags = icmp eq i32 %have, $ARRAY_FLAGS$
  %ndim = call i64 @word(ptr %arg, i64 $A_NDIM$)
  %element = call i64 @word(ptr %arg, i64 $A_ELEMENT$)
  %total = add i64 %ndim, %element
  %pnd = getelementptr i8, ptr %o, i64 $ARRAY_ND$
  %nd32 = load i32, ptr %pnd
  %nd = sext i32 %nd32 to i64
  %same_nd = icmp eq i64 %nd, %total
  %good1 = and i1 %same_descr, %good_flags
  %good2 = and i1 %good1, %same_nd
  br i1 %good2, label %first, label %no
first:
  %dims = call ptr @at(ptr %o, i64 $ARRAY_DIMS$)
  %data = call ptr @at(ptr %o, i64 $HEAD$)
  store ptr %data, ptr %slot
  br label %copy
copy:
  %j = phi i64 [0, %first], [%j1, %body]
  %copied = icmp eq i64 %j, %ndim
  br i1 %copied, label %tail, label %body
body:
  %extent = call i64 @word(ptr %dims, i64 %j)
  %j1 = add i64 %j, 1
  %to = getelementptr i64, ptr %slot, i64 %j1
  store i64 %extent, ptr %to
  br label %copy
tail:
  %m = phi i64 [0, %copy], [%m1, %same]
  %all = icmp eq i64 %m, %element
  br i1 %all, label %yes, label %compare
compare:
  %from = add i64 %ndim, %m
  %have_e = call i64 @word(ptr %dims, i64 %from)
  %column = add i64 %m, $A_E0$
  %want_e = call i64 @word(ptr %arg, i64 %column)
  %equal = icmp eq i64 %have_e, %want_e
  br i1 %equal, label %same, label %no
same:
  %m1 = add i64 %m, 1
  br label %tail
yes:
  ret i1 true
no:
  ret i1 false
}

; the words that our own array keeps ready
define internal i1 @packed_array(ptr %o, ptr %table, ptr %arg, ptr %slot) {
entry:
  %want = call i64 @word(ptr %arg, i64 $A_KEY$)
  %key = call ptr @at(ptr %o, i64 $KEY_AT$)
  %key_i = ptrtoint ptr %key to i64
  %same = icmp eq i64 %key_i, %want
  br i1 %same, label %look, label %no
look:
  %packed = call ptr @at(ptr %o, i64 $PACKED_AT$)
  %unset = icmp eq ptr %packed, null
  br i1 %unset, label %no, label %check
check:
  %is_bytes = call i1 @has_type(ptr %packed, ptr %table, i64 $T_BYTES$)
  br i1 %is_bytes, label %measure, label %no
measure:
  %words = call i64 @word(ptr %arg, i64 $A_SIZE$)
  %want_n = shl i64 %words, 3
  %pn = getelementptr i8, ptr %packed, i64 $HEAD$
  %n = load i64, ptr %pn
  %fits = icmp eq i64 %n, %want_n
  br i1 %fits, label %copy, label %no
copy:
  %from = getelementptr i8, ptr %packed, i64 $BYTES_DATA$
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %slot, ptr %from, i64 %n, i1 false)
  ret i1 true
no:
  ret i1 false
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; one argument into the buffer; false: not described by the table, no Python error is set
define internal i1 @pack(ptr %o, ptr %table, ptr %arg, ptr %slot) alwaysinline {
entry:
  %kind = call i64 @word(ptr %arg, i64 $A_KIND$)
  switch i64 %kind, label %no [i64 $KIND_F32$, label %f32
                               i64 $KIND_F64$, label %f64
                               i64 $KIND_INT$, label %int
                               i64 $KIND_U64$, label %u64
                               i64 $KIND_BOOL$, label %bool
                               i64 $KIND_ARRAY$, label %array]
f32:
  %is32 = call i1 @has_type(ptr %o, ptr %table, i64 $T_FLOAT$)
  br i1 %is32, label %f32a, label %no
f32a:
  %pv32 = getelementptr i8, ptr %o, i64 $HEAD$
  %v32 = load double, ptr %pv32
  %narrow = fptrunc double %v32 to float
  store i64 0, ptr %slot
  store float %narrow, ptr %slot
  ret i1 true
f64:
  %is64 = call i1 @has_type(ptr %o, ptr %table, i64 $T_FLOAT$)
  br i1 %is64, label %f64a, label %no
f64a:
  %pv64 = getelementptr i8, ptr %o, i64 $HEAD$
  %v64 = load double, ptr %pv64
  store double %v64, ptr %slot
  ret i1 true
int:
  %is_int = call i1 @has_type(ptr %o, ptr %table, i64 $T_INT$)
  br i1 %is_int, label %int1, label %no
int1:
  %v = call i64 @PyLong_AsLongLong(ptr %o)
  %suspect = icmp eq i64 %v, -1
  br i1 %suspect, label %ask, label %range
range:
  %low = call i64 @word(ptr %arg, i64 $A_LOW$)
  %high = call i64 @word(ptr %arg, i64 $A_HIGH$)
  %above = icmp sge i64 %v, %low
  %below = icmp sle i64 %v, %high
  %inside = and i1 %above, %below
  br i1 %inside, label %int2, label %no
int2:
  store i64 %v, ptr %slot
  ret i1 true
u64:
  %is_u = call i1 @has_type(ptr %o, ptr %table, i64 $T_INT$)
  br i1 %is_u, label %u1, label %no
u1:
  %u = call i64 @PyLong_AsUnsignedLongLong(ptr %o)
  %suspect_u = icmp eq i64 %u, -1
  br i1 %suspect_u, label %ask_u, label %u2
u2:
  store i64 %u, ptr %slot
  ret i1 true
ask:
  %e = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %e, null
  br i1 %raised, label %clear, label %range
ask_u:
  %eu = call ptr @PyErr_Occurred()
  %raised_u = icmp ne ptr %eu, null
  br i1 %raised_u, label %clear, label %u2
clear:
  call void @PyErr_Clear()
  ret i1 false
bool:
  %is_bool = call i1 @has_type(ptr %o, ptr %table, i64 $T_BOOL$)
  br i1 %is_bool, label %bool1, label %no
bool1:
  %true_i = call i64 @word(ptr %table, i64 $T_TRUE$)
  %o_i = ptrtoint ptr %o to i64
  %truth = icmp eq i64 %o_i, %true_i
  %tw = zext i1 %truth to i64
  store i64 %tw, ptr %slot
  ret i1 true
array:
  %is_np = call i1 @has_type(ptr %o, ptr %table, i64 $T_NUMPY$)
  br i1 %is_np, label %np, label %other
np:
  %np_ok = call i1 @numpy_array(ptr %o, ptr %arg, ptr %slot)
  ret i1 %np_ok
other:
  %is_own = call i1 @has_type(ptr %o, ptr %table, i64 $T_HOST$)
  br i1 %is_own, label %own, label %wrapper
own:
  %own_ok = call i1 @packed_array(ptr %o, ptr %table, ptr %arg, ptr %slot)
  ret i1 %own_ok
wrapper:
  %is_wrapper = call i1 @has_type(ptr %o, ptr %table, i64 $T_WRAPPER$)
  br i1 %is_wrapper, label %wrapped, label %no
wrapped:
  %inner = call ptr @at(ptr %o, i64 $INNER_AT$)
  %no_inner = icmp eq ptr %inner, null
  br i1 %no_inner, label %no, label %inner_type
inner_type:
  %inner_own = call i1 @has_type(ptr %inner, ptr %table, i64 $T_HOST$)
  br i1 %inner_own, label %inner_pack, label %no
inner_pack:
  %inner_ok = call i1 @packed_array(ptr %inner, ptr %table, ptr %arg, ptr %slot)
  ret i1 %inner_ok
no:
  ret i1 false
}

define internal void @count(ptr %state, i64 %k, i64 %by) alwaysinline {
  %p = getelementptr i64, ptr %state, i64 %k
  %old = load i64, ptr %p
  %new = add i64 %old, %by
  store i64 %new, ptr %p
  ret void
}

define ptr @launch(ptr %self, ptr %args, i64 %n, ptr %names) {
entry:
  %found = alloca ptr
  %table_object = call ptr @at(ptr %self, i64 $TUPLE_ITEMS$)
  %table = getelementptr i8, ptr %table_object, i64 $BYTES_DATA$
  %want = call i64 @word(ptr %table, i64 $T_NARGS$)
  %count_ok = icmp eq i64 %n, %want
  %no_names = icmp eq ptr %names, null
  %shape_ok = and i1 %count_ok, %no_names
  br i1 %shape_ok, label %flag, label %slow
flag:
  %flag_i = call i64 @word(ptr %table, i64 $T_SLOW_FLAG$)
  %flag_p = inttoptr i64 %flag_i to ptr
  %raised = load i64, ptr %flag_p
  %calm = icmp eq i64 %raised, 0
  br i1 %calm, label %program, label %slow
program:
  %var_i = call i64 @word(ptr %table, i64 $T_VAR$)
  %var = inttoptr i64 %var_i to ptr
  %rc = call i32 @PyContextVar_Get(ptr %var, ptr null, ptr %found)
  %broken = icmp slt i32 %rc, 0
  br i1 %broken, label %error, label %compare
compare:
  %current = load ptr, ptr %found
  %unset = icmp eq ptr %current, null
  br i1 %unset, label %slow, label %release
release:
  call void @Py_DecRef(ptr %current)
  %current_i = ptrtoint ptr %current to i64
  %expected = call i64 @word(ptr %table, i64 $T_PROGRAM$)
  %same = icmp eq i64 %current_i, %expected
  br i1 %same, label %build, label %slow
build:
  %words = call i64 @word(ptr %table, i64 $T_WORDS$)
  %buffer = alloca i64, i64 %words, align 16
  %context_i = call i64 @word(ptr %table, i64 $T_CONTEXT$)
  store i64 %context_i, ptr %buffer
  %arg0 = getelementptr i64, ptr %table, i64 $T_ARGS$
  %slot0 = getelementptr i64, ptr %buffer, i64 1
  br label %loop
loop:
  %i = phi i64 [0, %build], [%i1, %packed]
  %arg = phi ptr [%arg0, %build], [%arg1, %packed]
  %slot = phi ptr [%slot0, %build], [%slot1, %packed]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %arranged, label %one
one:
  %po = getelementptr ptr, ptr %args, i64 %i
  %o = load ptr, ptr %po
  %ok = call i1 @pack(ptr %o, ptr %table, ptr %arg, ptr %slot)
  br i1 %ok, label %packed, label %slow
packed:
  %size = call i64 @word(ptr %arg, i64 $A_SIZE$)
  %slot1 = getelementptr i64, ptr %slot, i64 %size
  %arg1 = getelementptr i64, ptr %arg, i64 $A_WORDS$
  %i1 = add i64 %i, 1
  br label %loop
arranged:
  %no_overlap = call i1 @apart(ptr %table, ptr %buffer)
  br i1 %no_overlap, label %go, label %slow
go:
  %again = phi i1 [false, %arranged], [true, %renewed]
  ; a kernel with memory that its launches share waits in Python for those that run; the interpreter's lock is held up to here
  %state_i = call i64 @word(ptr %table, i64 $T_STATE$)
  %state = inttoptr i64 %state_i to ptr
  %shares = call i64 @word(ptr %table, i64 $T_SHARES$)
  %taken0 = call i64 @word(ptr %state, i64 $S_NATIVE$)
  %taken1 = call i64 @word(ptr %state, i64 $S_PYTHON$)
  %taken = or i64 %taken0, %taken1
  %waits = and i64 %taken, %shares
  %goes = icmp eq i64 %waits, 0
  br i1 %goes, label %guarded, label %slow
guarded:
  %ready = call i1 @prepared(ptr %table, ptr %buffer)
  br i1 %ready, label %start, label %renew
renew:
  ; Python prepares this launch from its words, once: without a handler, or when that does not like them, it makes all of the call
  %prepare_i = call i64 @word(ptr %table, i64 $T_PREPARE$)
  %no_handler = icmp eq i64 %prepare_i, 0
  %give_up = or i1 %again, %no_handler
  br i1 %give_up, label %slow, label %prepare
prepare:
  %prepare_f = inttoptr i64 %prepare_i to ptr
  %given_words = sub i64 %words, 1
  %given_bytes = shl i64 %given_words, 3
  %given = call ptr @PyBytes_FromStringAndSize(ptr %slot0, i64 %given_bytes)
  %no_memory = icmp eq ptr %given, null
  br i1 %no_memory, label %error, label %ask
ask:
  store ptr %given, ptr %found
  %answer_p = call ptr @PyObject_Vectorcall(ptr %prepare_f, ptr %found, i64 1, ptr null)
  call void @Py_DecRef(ptr %given)
  %refused = icmp eq ptr %answer_p, null
  br i1 %refused, label %error, label %answered
answered:
  call void @Py_DecRef(ptr %answer_p)
  %answer_i = ptrtoint ptr %answer_p to i64
  %none_0 = call i64 @word(ptr %table, i64 $T_NONE$)
  %agreed = icmp eq i64 %answer_i, %none_0
  br i1 %agreed, label %renewed, label %slow
renewed:
  ; that may have closed the program, or begun to record
  %raised_now = load i64, ptr %flag_p
  %calm_now = icmp eq i64 %raised_now, 0
  br i1 %calm_now, label %go, label %slow
start:
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %shares)
  call void @count(ptr %state, i64 $S_RUNNING$, i64 1)
  %entry_i = call i64 @word(ptr %table, i64 $T_ENTRY$)
  %kernel = inttoptr i64 %entry_i to ptr
  %release_gil = call i64 @word(ptr %table, i64 $T_RELEASE$)
  %free = icmp ne i64 %release_gil, 0
  br i1 %free, label %run_free, label %run_held
run_free:
  %thread = call ptr @PyEval_SaveThread()
  call void %kernel(ptr %buffer)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %ran
run_held:
  call void %kernel(ptr %buffer)
  br label %ran
ran:
  call void @count(ptr %state, i64 $S_RUNNING$, i64 -1)
  %given_back = sub i64 0, %shares
  %context = inttoptr i64 %context_i to ptr
  %status = load ptr, ptr %context
  %code = load i64, ptr %status
  %well = icmp eq i64 %code, 0
  br i1 %well, label %none, label %failed
none:
  ; a device with a queue: now and then Python waits for what was put into it long ago, without the interpreter's lock
  %most_ahead = call i64 @word(ptr %table, i64 $T_AHEAD$)
  %no_queue = icmp eq i64 %most_ahead, 0
  br i1 %no_queue, label %over, label %count_ahead
count_ahead:
  %weight = call i64 @word(ptr %context, i64 $CTX_WEIGHT$)
  call void @count(ptr %state, i64 $S_AHEAD$, i64 %weight)
  %ahead = call i64 @word(ptr %state, i64 $S_AHEAD$)
  %far = icmp sge i64 %ahead, %most_ahead
  br i1 %far, label %wait_ahead, label %over
wait_ahead:
  %minus_ahead = sub i64 0, %ahead
  call void @count(ptr %state, i64 $S_AHEAD$, i64 %minus_ahead)
  %on_ahead_i = call i64 @word(ptr %table, i64 $T_ON_AHEAD$)
  %on_ahead = inttoptr i64 %on_ahead_i to ptr
  %waited = call ptr @PyObject_CallNoArgs(ptr %on_ahead)
  %wait_failed = icmp eq ptr %waited, null
  br i1 %wait_failed, label %wait_raised, label %waited_well
wait_raised:
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %given_back)
  ret ptr null
waited_well:
  call void @Py_DecRef(ptr %waited)
  br label %over
over:
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %given_back)
  %none_i = call i64 @word(ptr %table, i64 $T_NONE$)
  %result = inttoptr i64 %none_i to ptr
  call void @Py_IncRef(ptr %result)
  ret ptr %result
failed:
  %on_status_i = call i64 @word(ptr %table, i64 $T_ON_STATUS$)
  %on_status = inttoptr i64 %on_status_i to ptr
  %answer = call ptr @PyObject_CallNoArgs(ptr %on_status)
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %given_back)
  ret ptr %answer
slow:
  %fallback_i = call i64 @word(ptr %table, i64 $T_FALLBACK$)
  %fallback = inttoptr i64 %fallback_i to ptr
  %converted = call ptr @PyObject_Vectorcall(ptr %fallback, ptr %args, i64 %n, ptr %names)
  ret ptr %converted
error:
  ret ptr null
}
"""

IMPORTS = (
    "PyObject_Vectorcall",
    "PyObject_CallNoArgs",
    "PyBytes_FromStringAndSize",
    "PyLong_AsLongLong",
    "PyLong_AsUnsignedLongLong",
    "PyErr_Occurred",
    "PyErr_Clear",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "Py_DecRef",
    "PyContextVar_Get",
)


def launcher_text(offsets: dict[str, int]) -> str:
    """The launcher's module for an interpreter whose objects have these byte offsets."""
    values = {k: v for k, v in globals().items() if isinstance(v, int)} | {"CTX_WEIGHT": CTX_WEIGHT} | GUARD_WORDS | offsets
    text = GUARD_IR + LAUNCHER_IR
    for name, value in values.items():
        text = text.replace(f"${name}$", str(value))
    return text
