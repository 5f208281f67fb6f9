"""The native launcher in LLVM text: one function for all kernels, driven by tables. ``launch.py`` builds them.

The current program has a dict from kernels to lists of launches. A launch is a tuple whose first item is a bytes object, the table: words
T_*, then A_WORDS words for each argument. The first one that describes the call makes it. A call that none describes goes to Python,
which converts, compiles or raises: this code raises nothing of its own.
"""

from __future__ import annotations

import re

from ..codegen.abi import CTX_WEIGHT
from .guard_ir import GUARD_IR, GUARD_WORDS
from .pack_ir import PACK_IR, PACK_VALUES
from .watch_ir import WATCH_IR, WATCH_VALUES

# words of the table
(T_ENTRY, T_CONTEXT, T_FLAGS, T_ON_STATUS, T_NARGS, T_RELEASE, T_WORDS, T_STATE, T_SHARES, T_GUARD, T_PREPARE) = range(11)
T_AHEAD, T_ON_AHEAD, T_ARGS = 11, 12, 13

# the flags of a program: whether launches go through Python; whether those go there, too, that a tape records
F_SLOW, F_CLOSED, F_WORDS = range(3)

# the state of a program: whether a native launch runs that shares memory; whether one in Python does, or waits; native launches that run;
# what was launched since ``on_ahead`` was called last, in microseconds
S_NATIVE, S_PYTHON, S_RUNNING, S_AHEAD = range(4)
S_WORDS = 4

LAUNCHER_IR = r"""
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
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
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)

define internal void @count(ptr %state, i64 %k, i64 %by) alwaysinline {
  %p = getelementptr i64, ptr %state, i64 %k
  %old = load i64, ptr %p
  %new = add i64 %old, %by
  store i64 %new, ptr %p
  ret void
}

; one launch of the list; an address that is no object's: it is for another one, or for Python
define internal ptr @try(ptr %entry_object, ptr %args, i64 %n, i64 %which) {
entry:
  %found = alloca ptr
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
  %ok = call i1 @pack(ptr %o, ptr %arg, ptr %slot)
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
  %empty = icmp eq ptr %of_program, null
  br i1 %empty, label %release, label %find
find:
  br label %loop
loop:
  ; a launch may run Python, which may close the program: the list is looked up after each, and the program and the launch are kept
  %i = phi i64 [0, %find], [%i1, %next]
  %list = call ptr @PyDict_GetItemWithError(ptr %of_program, ptr %kernel)
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

define internal i1 @no_keywords(ptr %keywords) alwaysinline {
  %none = icmp eq ptr %keywords, null
  br i1 %none, label %yes, label %count
count:
  %pn = getelementptr i8, ptr %keywords, i64 $HEAD$
  %n = load i64, ptr %pn
  %empty = icmp eq i64 %n, 0
  ret i1 %empty
yes:
  ret i1 true
}

; what Python makes of the call
define internal ptr @slow(ptr %self, ptr %args, ptr %keywords) {
  %name_i = call i64 @word(ptr @qd_process, i64 $P_SLOW$)
  %name = inttoptr i64 %name_i to ptr
  %method = call ptr @PyObject_GetAttr(ptr %self, ptr %name)
  %none = icmp eq ptr %method, null
  br i1 %none, label %error, label %call
call:
  %r = call ptr @PyObject_Call(ptr %method, ptr %args, ptr %keywords)
  call void @Py_DecRef(ptr %method)
  ret ptr %r
error:
  ret ptr null
}

; the same as @native with an object before the other arguments
define internal ptr @native_of(ptr %kernel, i64 %at, ptr %instance, ptr %args, i64 %n) {
  %n1 = add i64 %n, 1
  %all = alloca ptr, i64 %n1
  store ptr %instance, ptr %all
  %rest = getelementptr ptr, ptr %all, i64 1
  %bytes = shl i64 %n, 3
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %rest, ptr align 8 %args, i64 %bytes, i1 false)
  %r = call ptr @native(ptr %kernel, i64 %at, i64 0, ptr %all, i64 %n1)
  ret ptr %r
}

; ---- the slots of classes: calls of kernels, of their gradients, and of both bound to an object

define ptr @launch(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %r = call ptr @native(ptr %self, i64 $LAUNCHES_AT$, i64 $F_SLOW$, ptr %args, i64 %n)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

define ptr @reverse(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %kernel = call ptr @at(ptr %self, i64 $GRADIENT_KERNEL_AT$)
  %r = call ptr @native(ptr %kernel, i64 $GRADIENTS_AT$, i64 $F_SLOW$, ptr %args, i64 %n)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

define ptr @launch_bound(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %kernel = call ptr @at(ptr %self, i64 $BOUND_KERNEL_AT$)
  %instance = call ptr @at(ptr %self, i64 $BOUND_INSTANCE_AT$)
  %r = call ptr @native_of(ptr %kernel, i64 $LAUNCHES_AT$, ptr %instance, ptr %args, i64 %n)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

define ptr @reverse_bound(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %kernel = call ptr @at(ptr %self, i64 $BOUND_KERNEL_AT$)
  %instance = call ptr @at(ptr %self, i64 $BOUND_INSTANCE_AT$)
  %r = call ptr @native_of(ptr %kernel, i64 $GRADIENTS_AT$, ptr %instance, ptr %args, i64 %n)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

; ``obj.k.grad(..)``: the first argument is the bound kernel
define ptr @reverse_of(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %first, label %slow
first:
  %b = load ptr, ptr %args
  %is_bound = call i1 @has_type(ptr %b, i64 $P_BOUND$)
  br i1 %is_bound, label %go, label %slow
go:
  %kernel = call ptr @at(ptr %b, i64 $BOUND_KERNEL_AT$)
  %instance = call ptr @at(ptr %b, i64 $BOUND_INSTANCE_AT$)
  %rest = getelementptr ptr, ptr %args, i64 1
  %m = sub i64 %n, 1
  %r = call ptr @native_of(ptr %kernel, i64 $GRADIENTS_AT$, ptr %instance, ptr %rest, i64 %m)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

; a launch that a tape records
define ptr @launch_taped(ptr %self, ptr %given, ptr %keywords) {
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
  %kernel = call ptr @at(ptr %self, i64 $GRADIENT_KERNEL_AT$)
  %r = call ptr @native(ptr %kernel, i64 $LAUNCHES_AT$, i64 $F_CLOSED$, ptr %args, i64 %n)
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}

; ``obj.k``: a bound kernel; ``cls.k``: the kernel
define ptr @bind(ptr %self, ptr %instance, ptr %class) {
  %of_class = icmp eq ptr %instance, null
  br i1 %of_class, label %plain, label %look
look:
  %none_i = call i64 @word(ptr @qd_process, i64 $P_NONE$)
  %instance_i = ptrtoint ptr %instance to i64
  %of_none = icmp eq i64 %instance_i, %none_i
  br i1 %of_none, label %plain, label %make
plain:
  call void @Py_IncRef(ptr %self)
  ret ptr %self
make:
  ; the one object that is kept for this, unless somebody else has it: a bound kernel rarely lives longer than its call
  %spare_i = call i64 @word(ptr @qd_process, i64 $P_SPARE$)
  %spare = inttoptr i64 %spare_i to ptr
  %references = load i64, ptr %spare
  %idle = icmp eq i64 %references, 1
  br i1 %idle, label %reuse, label %allocate
reuse:
  call void @Py_IncRef(ptr %spare)
  %old_kernel = call ptr @at(ptr %spare, i64 $BOUND_KERNEL_AT$)
  %old_instance = call ptr @at(ptr %spare, i64 $BOUND_INSTANCE_AT$)
  %same_kernel = icmp eq ptr %old_kernel, %self
  %same_instance = icmp eq ptr %old_instance, %instance
  %same = and i1 %same_kernel, %same_instance
  br i1 %same, label %known, label %fill
known:
  ret ptr %spare
allocate:
  %type_i = call i64 @word(ptr @qd_process, i64 $P_BOUND$)
  %type = inttoptr i64 %type_i to ptr
  %made = call ptr @PyType_GenericAlloc(ptr %type, i64 0)
  %no_memory = icmp eq ptr %made, null
  br i1 %no_memory, label %error, label %fill
fill:
  %b = phi ptr [%spare, %reuse], [%made, %allocate]
  %lost_kernel = phi ptr [%old_kernel, %reuse], [null, %allocate]
  %lost_instance = phi ptr [%old_instance, %reuse], [null, %allocate]
  call void @Py_IncRef(ptr %self)
  call void @Py_IncRef(ptr %instance)
  %pk = getelementptr i8, ptr %b, i64 $BOUND_KERNEL_AT$
  store ptr %self, ptr %pk
  %pi = getelementptr i8, ptr %b, i64 $BOUND_INSTANCE_AT$
  store ptr %instance, ptr %pi
  call void @Py_DecRef(ptr %lost_kernel) ; null is nothing
  call void @Py_DecRef(ptr %lost_instance)
  ret ptr %b
error:
  ret ptr null
}
"""

EXPORTS = ("launch", "launch_taped", "reverse", "launch_bound", "reverse_bound", "reverse_of", "bind")
IMPORTS = tuple(re.findall(r"^declare .*@(Py\w+)\(", WATCH_IR + LAUNCHER_IR, re.MULTILINE))


def launcher_text(offsets: dict[str, int]) -> str:
    """The launcher's module for an interpreter whose objects have these byte offsets."""
    values = {k: v for k, v in globals().items() if isinstance(v, int)} | {"CTX_WEIGHT": CTX_WEIGHT}
    values |= GUARD_WORDS | PACK_VALUES | WATCH_VALUES | offsets
    text = PACK_IR + WATCH_IR + GUARD_IR + LAUNCHER_IR
    return re.sub(r"\$(\w+)\$", lambda name: str(values[name[1]]), text)
