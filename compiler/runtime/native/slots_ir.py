"""The type slots of classes with native launches, in LLVM text; use functions of ``launch_ir.py``."""

from __future__ import annotations

_SLOT = r"""define ptr @{name}(ptr %self, ptr %given, ptr %keywords) {{
  %plain = call i1 @no_keywords(ptr %keywords)
  br i1 %plain, label %items, label %slow
items:
  %args = getelementptr i8, ptr %given, i64 $TUPLE_ITEMS$
  %pn = getelementptr i8, ptr %given, i64 $HEAD$
  %n = load i64, ptr %pn
{body}
  %python = icmp eq ptr %r, inttoptr (i64 1 to ptr)
  br i1 %python, label %slow, label %done
slow:
  %s = call ptr @slow(ptr %self, ptr %given, ptr %keywords)
  ret ptr %s
done:
  ret ptr %r
}}

"""
"""The call slot of a class: what ``body`` makes of the ``%n`` arguments at ``%args`` is ``%r``, 1 where Python must do it."""

_BOUND = r"""  %kernel = call ptr @at(ptr %self, i64 $BOUND_KERNEL_AT$)
  %instance = call ptr @at(ptr %self, i64 $BOUND_INSTANCE_AT$)
  %r = call ptr @native_of(ptr %kernel, i64 ${table}$, ptr %instance, ptr %args, i64 %n)"""

_OF_GRADIENT = r"""  %kernel = call ptr @at(ptr %self, i64 $GRADIENT_KERNEL_AT$)
  %r = call ptr @native(ptr %kernel, i64 ${table}$, i64 ${flag}$, ptr %args, i64 %n)"""

# ``obj.k.grad(..)``: the first argument is the bound kernel
_REVERSE_OF = r"""  %some = icmp sgt i64 %n, 0
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
  %r = call ptr @native_of(ptr %kernel, i64 $GRADIENTS_AT$, ptr %instance, ptr %rest, i64 %m)"""

# calls of kernels, of their gradients, and of both bound to an object; ``launch_taped``: a launch that a tape records
_BODIES = {
    "launch": "  %r = call ptr @native(ptr %self, i64 $LAUNCHES_AT$, i64 $F_SLOW$, ptr %args, i64 %n)",
    "reverse": _OF_GRADIENT.format(table="GRADIENTS_AT", flag="F_SLOW"),
    "launch_bound": _BOUND.format(table="LAUNCHES_AT"),
    "reverse_bound": _BOUND.format(table="GRADIENTS_AT"),
    "reverse_of": _REVERSE_OF,
    "launch_taped": _OF_GRADIENT.format(table="LAUNCHES_AT", flag="F_CLOSED"),
}

_HELPERS = r"""
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyType_GenericAlloc(ptr, i64)

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

"""

_BIND = r"""; ``obj.k``: a bound kernel; ``cls.k``: the kernel
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
  %type_i = call i64 @word(ptr @qd_process, i64 $P_BOUND$)
  %type = inttoptr i64 %type_i to ptr
  %made = call ptr @PyType_GenericAlloc(ptr %type, i64 0)
  %no_memory = icmp eq ptr %made, null
  br i1 %no_memory, label %error, label %fill
fill:
  call void @Py_IncRef(ptr %self)
  call void @Py_IncRef(ptr %instance)
  %pk = getelementptr i8, ptr %made, i64 $BOUND_KERNEL_AT$
  store ptr %self, ptr %pk
  %pi = getelementptr i8, ptr %made, i64 $BOUND_INSTANCE_AT$
  store ptr %instance, ptr %pi
  ret ptr %made
error:
  ret ptr null
}
"""

SLOTS_IR = _HELPERS + "".join(_SLOT.format(name=name, body=body) for name, body in _BODIES.items()) + _BIND
EXPORTS = (*_BODIES, "bind")
