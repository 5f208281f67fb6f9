"""The native launcher in LLVM text: one function for all kernels, driven by tables. ``launch.py`` builds them.

The current program has a dict from kernels to lists of launches. A launch is a tuple whose first item is a bytes object, the table: words
T_*, then A_WORDS words for each argument. The first one that describes the call makes it. A call that none describes goes to Python,
which converts, compiles or raises: this code raises nothing of its own.
"""

from __future__ import annotations

import re

from ...codegen.abi import CTX_WEIGHT
from .guard_ir import GUARD_IR, GUARD_WORDS
from .pack_ir import PACK_IR, PACK_VALUES
from .slots_ir import SLOTS_IR
from .watch_ir import WATCH_IR, WATCH_VALUES

# words of the table
(T_ENTRY, T_CONTEXT, T_FLAGS, T_ON_STATUS, T_NARGS, T_RELEASE, T_WORDS, T_STATE, T_SHARES, T_GUARD, T_PREPARE) = range(11)
T_AHEAD, T_ON_AHEAD, T_HELD, T_ANSWER, T_ARGS = 11, 12, 13, 14, 15

# the flags of a program: whether launches go through Python; whether those go there, too, that a tape records
F_SLOW, F_CLOSED, F_WORDS = range(3)

# the state of a program: whether a native launch runs that shares memory; whether one in Python does, or waits; native launches that run;
# what was launched since ``on_ahead`` was called last, in microseconds
S_NATIVE, S_PYTHON, S_RUNNING, S_AHEAD = range(4)
S_WORDS = 4

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
declare ptr @PyDict_GetItemWithError(ptr, ptr)

define internal void @count(ptr %state, i64 %k, i64 %by) alwaysinline {
  %p = getelementptr i64, ptr %state, i64 %k
  %old = load i64, ptr %p
  %new = add i64 %old, %by
  store i64 %new, ptr %p
  ret void
}

; a launch whose words are in the buffer; what it gives is what @try gives
define internal ptr @go(ptr %table, ptr %buffer, i64 %words, ptr %flag_p) {
entry:
  %found = alloca ptr
  %context_i = load i64, ptr %buffer
  %slot0 = getelementptr i64, ptr %buffer, i64 1
  %no_overlap = call i1 @apart(ptr %table, ptr %buffer)
  br i1 %no_overlap, label %go, label %slow
go:
  %again = phi i1 [false, %entry], [true, %renewed]
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
  %none_0 = call i64 @word(ptr @qd_process, i64 $P_NONE$)
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
  ; what the kernel returns is read before another launch may overwrite it
  %answer_i0 = call i64 @word(ptr %table, i64 $T_ANSWER$)
  %nothing = icmp eq i64 %answer_i0, 0
  br i1 %nothing, label %no_answer, label %fetch
fetch:
  %fetch_f = inttoptr i64 %answer_i0 to ptr
  %fetched = call ptr @PyObject_CallNoArgs(ptr %fetch_f)
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %given_back)
  ret ptr %fetched
no_answer:
  call void @count(ptr %state, i64 $S_NATIVE$, i64 %given_back)
  %none_i = call i64 @word(ptr @qd_process, i64 $P_NONE$)
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
  ret ptr inttoptr (i64 1 to ptr)
error:
  ret ptr null
}

; one launch of the list; an address that is no object's: it is for another one, or for Python
define internal ptr @try(ptr %entry_object, ptr %args, i64 %n, i64 %which) {
entry:
  %table_object = call ptr @at(ptr %entry_object, i64 $TUPLE_ITEMS$)
  %table = getelementptr i8, ptr %table_object, i64 $BYTES_DATA$
  %want = call i64 @word(ptr %table, i64 $T_NARGS$)
  %count_ok = icmp eq i64 %n, %want
  br i1 %count_ok, label %flag, label %slow
flag:
  %flags_i = call i64 @word(ptr %table, i64 $T_FLAGS$)
  %flags = inttoptr i64 %flags_i to ptr
  %flag_p = getelementptr i64, ptr %flags, i64 %which
  %raised = load i64, ptr %flag_p
  %calm = icmp eq i64 %raised, 0
  br i1 %calm, label %build, label %slow
build:
  %words = call i64 @word(ptr %table, i64 $T_WORDS$)
  %buffer = alloca i64, i64 %words, align 16
  %context_i = call i64 @word(ptr %table, i64 $T_CONTEXT$)
  store i64 %context_i, ptr %buffer
  %arg0 = getelementptr i64, ptr %table, i64 $T_ARGS$
  %slot0 = getelementptr i64, ptr %buffer, i64 1
  %nheld = call i64 @word(ptr %table, i64 $T_HELD$)
  %held = alloca ptr, i64 %nheld
  %cursor = alloca ptr
  store ptr %held, ptr %cursor
  br label %loop
loop:
  %i = phi i64 [0, %build], [%i1, %packed]
  %arg = phi ptr [%arg0, %build], [%arg1, %packed]
  %slot = phi ptr [%slot0, %build], [%slot1, %packed]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %keep, label %one
one:
  %po = getelementptr ptr, ptr %args, i64 %i
  %o = load ptr, ptr %po
  %ok = call i1 @pack(ptr %o, ptr %arg, ptr %slot, ptr %cursor)
  br i1 %ok, label %packed, label %give_up
packed:
  %size = call i64 @word(ptr %arg, i64 $A_SIZE$)
  %slot1 = getelementptr i64, ptr %slot, i64 %size
  %arg1 = getelementptr i64, ptr %arg, i64 $A_WORDS$
  %i1 = add i64 %i, 1
  br label %loop
keep:
  ; the arrays that objects hold now stay until the end: while the launch runs, or Python prepares it, they may be replaced
  %none_held = icmp eq i64 %nheld, 0
  br i1 %none_held, label %plain, label %hold
plain:
  %r0 = call ptr @go(ptr %table, ptr %buffer, i64 %words, ptr %flag_p)
  ret ptr %r0
hold:
  %of_watches = load ptr, ptr %cursor
  call void @hold(ptr %table, i64 %n, ptr %of_watches)
  %all_held = getelementptr ptr, ptr %held, i64 %nheld
  %r1 = call ptr @go(ptr %table, ptr %buffer, i64 %words, ptr %flag_p)
  br label %drop
give_up:
  %some_held = load ptr, ptr %cursor
  br label %drop
drop:
  %result = phi ptr [%r1, %hold], [inttoptr (i64 1 to ptr), %give_up]
  %last_held = phi ptr [%all_held, %hold], [%some_held, %give_up]
  br label %next_held
next_held:
  %h = phi ptr [%held, %drop], [%h1, %drop_one]
  %dropped = icmp eq ptr %h, %last_held
  br i1 %dropped, label %end, label %drop_one
drop_one:
  %x = load ptr, ptr %h
  call void @Py_DecRef(ptr %x)
  %h1 = getelementptr ptr, ptr %h, i64 1
  br label %next_held
end:
  ret ptr %result
slow:
  ret ptr inttoptr (i64 1 to ptr)
}

; the first launch of a kernel in the current program that takes the arguments; an address that is no object's: none does
define internal ptr @native(ptr %kernel, i64 %at, i64 %which, ptr %args, i64 %n) {
entry:
  %found = alloca ptr
  %var_i = call i64 @word(ptr @qd_process, i64 $P_VAR$)
  %var = inttoptr i64 %var_i to ptr
  %rc = call i32 @PyContextVar_Get(ptr %var, ptr null, ptr %found)
  %broken = icmp slt i32 %rc, 0
  br i1 %broken, label %clear, label %current
current:
  %now = load ptr, ptr %found
  %unset = icmp eq ptr %now, null
  br i1 %unset, label %none, label %typed
typed:
  %is_program = call i1 @has_type(ptr %now, i64 $P_PROGRAM$)
  br i1 %is_program, label %look, label %release
look:
  %of_program = call ptr @at(ptr %now, i64 %at)
  %token = call ptr @at(ptr %kernel, i64 $TOKEN_AT$)
  %empty = icmp eq ptr %of_program, null
  %nameless = icmp eq ptr %token, null
  %nothing = or i1 %empty, %nameless
  br i1 %nothing, label %release, label %find
find:
  br label %loop
loop:
  ; a launch may run Python, which may close the program: the list is looked up after each, and the program and the launch are kept
  %i = phi i64 [0, %find], [%i1, %next]
  %list = call ptr @PyDict_GetItemWithError(ptr %of_program, ptr %token)
  %unknown = icmp eq ptr %list, null
  br i1 %unknown, label %release_clear, label %some
some:
  %psize = getelementptr i8, ptr %list, i64 $HEAD$
  %size = load i64, ptr %psize
  %more = icmp slt i64 %i, %size
  br i1 %more, label %one, label %release
one:
  %items = call ptr @at(ptr %list, i64 $LIST_ITEMS$)
  %pentry = getelementptr ptr, ptr %items, i64 %i
  %entry_object = load ptr, ptr %pentry
  call void @Py_IncRef(ptr %entry_object)
  %r = call ptr @try(ptr %entry_object, ptr %args, i64 %n, i64 %which)
  call void @Py_DecRef(ptr %entry_object)
  %not_this = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %not_this, label %next, label %done
next:
  %i1 = add i64 %i, 1
  br label %loop
done:
  call void @Py_DecRef(ptr %now)
  ret ptr %r
release_clear:
  call void @PyErr_Clear()
  br label %release
release:
  call void @Py_DecRef(ptr %now)
  br label %none
clear:
  call void @PyErr_Clear()
  br label %none
none:
  ret ptr inttoptr (i64 1 to ptr)
}
"""

IMPORTS = tuple(re.findall(r"^declare .*@(Py\w+)\(", WATCH_IR + LAUNCHER_IR + SLOTS_IR, re.MULTILINE))


def launcher_text(offsets: dict[str, int]) -> str:
    """The launcher's module for an interpreter whose objects have these byte offsets."""
    values = {k: v for k, v in globals().items() if isinstance(v, int)} | {"CTX_WEIGHT": CTX_WEIGHT}
    values |= GUARD_WORDS | PACK_VALUES | WATCH_VALUES | offsets
    text = PACK_IR + WATCH_IR + GUARD_IR + LAUNCHER_IR + SLOTS_IR
    return re.sub(r"\$(\w+)\$", lambda name: str(values[name[1]]), text)
