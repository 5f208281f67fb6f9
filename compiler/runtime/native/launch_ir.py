"""The native launcher: one function for all kernels, driven by tables. ``launch.py`` builds them.

The current program has a dict from kernels to lists of launches. A launch is a tuple whose first item is a bytes object, the table: words
T_*, then A_WORDS words for each argument. The first one that describes the call makes it. A call that none describes goes to Python,
which converts, compiles or raises: this code raises nothing of its own.
"""

from __future__ import annotations

from ...codegen.abi import CTX_WEIGHT
from ...codegen.builder import I64, Builder, Ptr, Value, external, function
from .guard_ir import disjoint, prepared
from .log_ir import C_COPIES, L_FOLLOWS, L_KEEP, L_NOTE, next_launch
from .pack_ir import (
    A_KEY,
    A_KIND,
    A_SIZE,
    A_WATCH,
    A_WORDS,
    KIND_ARRAY,
    KIND_MEMBERS,
    KIND_SAME,
    KIND_WATCHED,
    M_WORDS,
    P_NONE,
    P_NUMPY,
    P_PROGRAM,
    P_VAR,
    clear_error,
    given_array,
    has_type,
    length,
    member,
    pack_array,
    pack_number,
    pack_numpy,
    process,
)
from .watch_ir import W_ARRAYS, W_ARRAYS_AT, pack_watched

# words of the table
(T_ENTRY, T_CONTEXT, T_FLAGS, T_ON_STATUS, T_NARGS, T_RELEASE, T_WORDS, T_STATE, T_SHARES, T_GUARD, T_PREPARE) = range(11)
T_AHEAD, T_ON_AHEAD, T_HELD, T_ANSWER, T_ARGS = 11, 12, 13, 14, 15

# the flags of a program: whether launches go through Python; whether those go there, too, that a tape records
F_SLOW, F_CLOSED, F_WORDS = range(3)

# the state of a program: whether a native launch runs that shares memory; whether one in Python does, or waits; native launches that run;
# what was launched since ``on_ahead`` was called last, in microseconds; the log that launches follow, while a tape records (0: none)
S_NATIVE, S_PYTHON, S_RUNNING, S_AHEAD, S_LOG, S_WORDS = range(6)

PYTHON = 1
"""The result of a launcher that does not make the call: another one may, or Python. No object has this address."""

inc_ref = external("Py_IncRef", "void", "ptr")
dec_ref = external("Py_DecRef", "void", "ptr")
_call_no_args = external("PyObject_CallNoArgs", "ptr", "ptr")
_vectorcall = external("PyObject_Vectorcall", "ptr", "ptr", "ptr", "i64", "ptr")
_bytes_of = external("PyBytes_FromStringAndSize", "ptr", "ptr", "i64")
_save_thread = external("PyEval_SaveThread", "ptr")
_restore_thread = external("PyEval_RestoreThread", "void", "ptr")
_context_get = external("PyContextVar_Get", "i32", "ptr", "ptr", "ptr")
_dict_get = external("PyDict_GetItemWithError", "ptr", "ptr", "ptr")
_get_attr = external("PyObject_GetAttr", "ptr", "ptr", "ptr")


def _add(state: Value, k: int, by: Value | int) -> None:
    state[k] = state[k] + by


@function("i1")
def pack(f: Builder, o: Ptr, arg: Ptr, slot: Ptr, cursor: Ptr) -> None:
    """Pack one argument into the buffer. False: the table does not describe it; no Python error is set."""
    kind = arg[A_KIND]
    with f.if_(kind == KIND_ARRAY):
        with f.if_(has_type(o, P_NUMPY)):
            f.ret(f.call(pack_numpy, o, arg, slot))
        own = f.call(given_array, o)
        f.ret(False, when=own == 0)
        f.ret(f.call(pack_array, own, arg, slot))
    with f.if_(kind == KIND_SAME):
        f.ret(o == arg[A_KEY])
    with f.if_(kind == KIND_WATCHED):
        f.ret(f.call(pack_watched, o, arg, slot))
    with f.if_(kind == KIND_MEMBERS):
        f.ret(f.call(pack_members, o, arg, slot, cursor))
    f.ret(f.call(pack_number, o, arg, slot))


@function("i1")
def pack_members(f: Builder, o: Ptr, arg: Ptr, slot: Ptr, cursor: Ptr) -> None:
    """Pack the attributes of an object, one after the other. They are kept from ``cursor`` on: another thread may replace them."""
    f.ret(False, unless=member(o, "TYPE") == arg[A_KEY])
    table, to = arg[A_WATCH], f.var(slot)
    row = f.var(table.words(1))
    with f.range(table[0]) as _:
        name, how, place = row.value[0], row.value.words(1), cursor.load("ptr")
        value = f.call(_get_attr, o, name)
        with f.if_(value == 0):
            f.call(clear_error)
            f.ret(False)
        place.store(value)
        cursor.store(place.words(1))
        f.ret(False, unless=f.call(pack, value, how, to.value, cursor))
        to.value, row.value = to.value.words(how[A_SIZE]), row.value.words(M_WORDS)
    f.ret(True)


@function("void")
def hold(f: Builder, table: Ptr, n: I64, held: Ptr) -> None:
    """Take references to the arrays of all watched arguments."""
    to = f.var(held)
    with f.range(n) as i:
        arg = table.words(T_ARGS).words(i * A_WORDS)
        f.again(unless=arg[A_KIND] == KIND_WATCHED)
        watch = arg[A_WATCH]
        with f.range(watch[W_ARRAYS]) as k:
            array = watch[W_ARRAYS_AT][k]
            f.call(inc_ref, array)
            to.value[0] = array
            to.value = to.value.words(1)


def _renew(f: Builder, handler: Value, buffer: Value, words: Value, flag: Value) -> None:
    """Have Python prepare a launch from its words. Leave the call to Python if it does not agree, or has stopped native launches."""
    given, args = f.call(_bytes_of, buffer.words(1), (words - 1) << 3), f.stack(1, "ptr")
    f.ret(0, when=given == 0)
    args.store(given)
    answer = f.call(_vectorcall, handler, args, 1, 0)
    f.call(dec_ref, given)
    f.ret(0, when=answer == 0)
    f.call(dec_ref, answer)
    f.ret(PYTHON, unless=answer == process(f, P_NONE))
    f.ret(PYTHON, unless=flag[0] == 0)  # Python may have closed the program, or begun to record


def _run(f: Builder, table: Value, state: Value, buffer: Value) -> None:
    kernel = table[T_ENTRY]
    _add(state, S_RUNNING, 1)
    with f.if_(table[T_RELEASE] != 0):
        thread = f.call(_save_thread)
        f.call_address(kernel, "void", buffer)
        f.call(_restore_thread, thread)
    with f.else_():
        f.call_address(kernel, "void", buffer)
    _add(state, S_RUNNING, -1)


@function("ptr")
def go(f: Builder, table: Ptr, buffer: Ptr, words: I64, flag: Ptr) -> None:
    """Launch with the words in the buffer, and return what ``attempt`` returns."""
    state, shares, context = table[T_STATE], table[T_SHARES], buffer[0]
    f.ret(PYTHON, unless=f.call(disjoint, table[T_GUARD], buffer))
    renewed = f.var(False, "i1")
    with f.loop():
        # a kernel with memory that its launches share waits in Python for those that run; the interpreter's lock is held up to here
        f.ret(PYTHON, unless=(state[S_NATIVE] | state[S_PYTHON]) & shares == 0)
        f.leave(when=f.call(prepared, table[T_GUARD], buffer))
        handler = table[T_PREPARE]
        f.ret(PYTHON, when=renewed.value | (handler == 0))
        _renew(f, handler, buffer, words, flag)
        renewed.value = True
    _add(state, S_NATIVE, shares)
    _run(f, table, state, buffer)
    with f.if_(context[0].load() != 0):  # the status record
        raised = f.call(_call_no_args, table[T_ON_STATUS])
        _add(state, S_NATIVE, 0 - shares)
        f.ret(raised)
    # a device with a queue: now and then Python waits for what was put into it long ago, without the interpreter's lock
    most_ahead = table[T_AHEAD]
    with f.if_(most_ahead != 0):
        _add(state, S_AHEAD, context[CTX_WEIGHT])
        ahead = state[S_AHEAD]
        with f.if_(ahead >= most_ahead):
            _add(state, S_AHEAD, 0 - ahead)
            waited = f.call(_call_no_args, table[T_ON_AHEAD])
            with f.if_(waited == 0):
                _add(state, S_NATIVE, 0 - shares)
                f.ret(0)
            f.call(dec_ref, waited)
    answer = table[T_ANSWER]
    with f.if_(answer != 0):  # what the kernel returns is read before another launch may overwrite it
        fetched = f.call(_call_no_args, answer)
        _add(state, S_NATIVE, 0 - shares)
        f.ret(fetched)
    _add(state, S_NATIVE, 0 - shares)
    none = process(f, P_NONE)
    f.call(inc_ref, none)
    f.ret(none)


@function("ptr")
def go_logged(f: Builder, table: Ptr, buffer: Ptr, words: I64, flag: Ptr, logged: Ptr, kernel: Ptr, args: Ptr) -> None:
    """``go``, and note it in the log. ``logged``: the launch of the log; null: no log is open."""
    with f.if_(logged == 0):
        f.ret(f.call(go, table, buffer, words, flag))
    log = table[T_STATE][S_LOG]
    f.call_address(log[L_KEEP], "void", log, logged.words(C_COPIES))
    result = f.call(go, table, buffer, words, flag)
    now = table[T_STATE][S_LOG]
    with f.if_((now != 0) & (result != PYTHON)):
        f.call_address(now[L_NOTE], "void", now, logged, kernel, args, result)
    f.ret(result)


@function("ptr")
def attempt(f: Builder, launch: Ptr, kernel: Ptr, args: Ptr, n: I64, which: I64) -> None:
    """Make a call by one launch of the list. Returns a new reference, null after an error, or ``PYTHON``."""
    table = member(launch, "TUPLE_ITEMS") + f.constants["BYTES_DATA"]
    f.ret(PYTHON, unless=n == table[T_NARGS])
    flag, logged = table[T_FLAGS].words(which), f.var(0, "ptr")
    with f.if_(flag[0] != 0):  # a tape may record, whose log this follows
        f.ret(PYTHON, unless=table[T_FLAGS][F_CLOSED] == 0)
        logged.value = f.call(next_launch, table[T_STATE][S_LOG], table)
        f.ret(PYTHON, when=logged.value == 0)
    words, count = table[T_WORDS], table[T_HELD]
    buffer, held = f.stack(words), f.stack(count)
    buffer[0] = table[T_CONTEXT]
    cursor, slot, row = f.var(held), f.var(buffer.words(1)), f.var(table.words(T_ARGS))
    packed = f.var(True, "i1")
    with f.range(n) as i:
        arg, place = row.value, slot.value
        with f.if_(~f.call(pack, args[i], arg, place, cursor.at)):
            packed.value = False
            f.leave()
        row.value, slot.value = arg.words(A_WORDS), place.words(arg[A_SIZE])
    with f.if_(logged.value != 0), f.if_(packed.value):
        packed.value = f.call_address(table[T_STATE][S_LOG][L_FOLLOWS], "i1", logged.value, buffer.words(1))
    result = f.var(PYTHON, "ptr")
    with f.if_(packed.value):
        with f.if_(count == 0):
            f.ret(f.call(go_logged, table, buffer, words, flag, logged.value, kernel, args))
        # the arrays that objects hold now stay until the end: while the launch runs, or Python prepares it, they may be replaced
        f.call(hold, table, n, cursor.value)
        cursor.value = held.words(count)
        result.value = f.call(go_logged, table, buffer, words, flag, logged.value, kernel, args)
    last, at = cursor.value, f.var(held)
    with f.loop():
        one = at.value
        f.leave(when=one == last)
        f.call(dec_ref, one[0])
        at.value = one.words(1)
    f.ret(result.value)


@function("ptr")
def first_launch(f: Builder, program: Ptr, kernel: Ptr, at: I64, which: I64, args: Ptr, n: I64) -> None:
    """Make a call by the first launch of a kernel in a program that takes the arguments."""
    f.ret(PYTHON, unless=has_type(program, P_PROGRAM))
    launches, token, i = (program + at).load("ptr"), member(kernel, "TOKEN_AT"), f.var(0)
    f.ret(PYTHON, when=(launches == 0) | (token == 0))
    with f.loop():
        # a launch may run Python, which may close the program: the list is looked up after each, and the launch is kept
        found = f.call(_dict_get, launches, token)
        with f.if_(found == 0):
            f.call(clear_error)
            f.ret(PYTHON)
        k = i.value
        f.ret(PYTHON, unless=k < length(found))
        launch = member(found, "LIST_ITEMS")[k]
        f.call(inc_ref, launch)
        result = f.call(attempt, launch, kernel, args, n, which)
        f.call(dec_ref, launch)
        f.ret(result, unless=result == PYTHON)
        i.value = k + 1


@function("ptr")
def native(f: Builder, kernel: Ptr, at: I64, which: I64, args: Ptr, n: I64) -> None:
    """Make a call in the current program. ``at``: the offset of its launches; ``which``: the flag (``F_*``) that stops them."""
    found = f.stack(1, "ptr")
    with f.if_(f.call(_context_get, process(f, P_VAR), 0, found) < 0):
        f.call(clear_error)
        f.ret(PYTHON)
    program = found.load("ptr")
    f.ret(PYTHON, when=program == 0)
    result = f.call(first_launch, program, kernel, at, which, args, n)
    f.call(dec_ref, program)
    f.ret(result)
