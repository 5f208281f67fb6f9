"""The packing of one argument into the buffer of a native launch, in LLVM text: see ``launch_ir.py``."""

from __future__ import annotations

# words of an argument: kind, numpy's dtype object, dimensions, element dimensions (0..2) and their extents, key, words, range.
# KIND_SAME: the object whose address is the key, no words. KIND_WATCHED: that object, and what ``watch.py`` has kept of it (A_WATCH).
# KIND_MEMBERS: an object of the type whose address is the key, and a table of its attributes (A_WATCH): how many, and for each its name
# and how it is packed.
A_KIND, A_DESCR, A_NDIM, A_ELEMENT, A_E0, A_E1, A_KEY, A_SIZE, A_LOW, A_HIGH = range(10)
A_WATCH = A_DESCR
A_WORDS = 10
M_WORDS = 1 + A_WORDS
KIND_F32, KIND_F64, KIND_INT, KIND_U64, KIND_BOOL, KIND_ARRAY, KIND_SAME, KIND_WATCHED, KIND_MEMBERS = range(1, 10)

# the process: objects of the interpreter, by address
P_VAR, P_PROGRAM, P_NONE, P_NUMPY, P_FLOAT, P_INT, P_BOOL, P_BYTES, P_TRUE, P_HOST, P_WRAPPER, P_VIEW = range(12)
P_SLOW, P_BOUND, P_WORDS = range(12, 15)

# numpy's flags: C-contiguous, aligned, writeable
ARRAY_FLAGS = 0x0001 | 0x0100 | 0x0400

PACK_VALUES = {name: value for name, value in globals().items() if isinstance(value, int)}

PACK_IR = r"""
@qd_process = external global i8

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

define internal i1 @has_type(ptr %o, i64 %k) alwaysinline {
  %type = call ptr @at(ptr %o, i64 $TYPE$)
  %want = getelementptr ptr, ptr @qd_process, i64 %k
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
define internal i1 @packed_array(ptr %o, ptr %arg, ptr %slot) {
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
  %is_bytes = call i1 @has_type(ptr %packed, i64 $P_BYTES$)
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

; our own array that an object is or stands for, or null
define internal ptr @own_array(ptr %o) {
entry:
  %is_own = call i1 @has_type(ptr %o, i64 $P_HOST$)
  br i1 %is_own, label %own, label %wrapper
own:
  ret ptr %o
wrapper:
  %is_wrapper = call i1 @has_type(ptr %o, i64 $P_WRAPPER$)
  br i1 %is_wrapper, label %wrapped, label %no
wrapped:
  %inner = call ptr @at(ptr %o, i64 $INNER_AT$)
  %no_inner = icmp eq ptr %inner, null
  br i1 %no_inner, label %no, label %inner_type
inner_type:
  %inner_own = call i1 @has_type(ptr %inner, i64 $P_HOST$)
  br i1 %inner_own, label %inner_is, label %no
inner_is:
  ret ptr %inner
no:
  ret ptr null
}

; the same, or what stands for a part of one. That may go with the part: it is not remembered
define internal ptr @given_array(ptr %o) {
entry:
  %own = call ptr @own_array(ptr %o)
  %other = icmp eq ptr %own, null
  br i1 %other, label %view, label %yes
yes:
  ret ptr %own
view:
  %is_view = call i1 @has_type(ptr %o, i64 $P_VIEW$)
  br i1 %is_view, label %viewed, label %no
viewed:
  %part = call ptr @at(ptr %o, i64 $PART_AT$)
  ret ptr %part
no:
  ret ptr null
}

; the attributes of an object, one after the other; what they are is kept from %cursor on, while another thread may replace them
define internal i1 @members(ptr %o, ptr %arg, ptr %slot, ptr %cursor) {
entry:
  %type = call ptr @at(ptr %o, i64 $TYPE$)
  %type_i = ptrtoint ptr %type to i64
  %want = call i64 @word(ptr %arg, i64 $A_KEY$)
  %is_type = icmp eq i64 %type_i, %want
  br i1 %is_type, label %begin, label %no
begin:
  %table_i = call i64 @word(ptr %arg, i64 $A_WATCH$)
  %table = inttoptr i64 %table_i to ptr
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  br label %loop
loop:
  %i = phi i64 [0, %begin], [%i1, %packed]
  %row = phi ptr [%first, %begin], [%row1, %packed]
  %to = phi ptr [%slot, %begin], [%to1, %packed]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %yes, label %one
one:
  %name_i = load i64, ptr %row
  %name = inttoptr i64 %name_i to ptr
  %value = call ptr @PyObject_GetAttr(ptr %o, ptr %name)
  %lacks = icmp eq ptr %value, null
  br i1 %lacks, label %clear, label %keep
keep:
  %place = load ptr, ptr %cursor
  store ptr %value, ptr %place
  %after = getelementptr ptr, ptr %place, i64 1
  store ptr %after, ptr %cursor
  %part = getelementptr i64, ptr %row, i64 1
  %ok = call i1 @pack(ptr %value, ptr %part, ptr %to, ptr %cursor)
  br i1 %ok, label %packed, label %no
packed:
  %size = call i64 @word(ptr %part, i64 $A_SIZE$)
  %to1 = getelementptr i64, ptr %to, i64 %size
  %row1 = getelementptr i64, ptr %row, i64 $M_WORDS$
  %i1 = add i64 %i, 1
  br label %loop
clear:
  call void @PyErr_Clear()
  ret i1 false
yes:
  ret i1 true
no:
  ret i1 false
}

; one argument into the buffer; false: not described by the table, no Python error is set
define internal i1 @pack(ptr %o, ptr %arg, ptr %slot, ptr %cursor) {
entry:
  %kind = call i64 @word(ptr %arg, i64 $A_KIND$)
  switch i64 %kind, label %no [i64 $KIND_F32$, label %f32
                               i64 $KIND_F64$, label %f64
                               i64 $KIND_INT$, label %int
                               i64 $KIND_U64$, label %u64
                               i64 $KIND_BOOL$, label %bool
                               i64 $KIND_ARRAY$, label %array
                               i64 $KIND_SAME$, label %same
                               i64 $KIND_WATCHED$, label %watched
                               i64 $KIND_MEMBERS$, label %members]
members:
  %members_ok = call i1 @members(ptr %o, ptr %arg, ptr %slot, ptr %cursor)
  ret i1 %members_ok
same:
  %this = call i64 @word(ptr %arg, i64 $A_KEY$)
  %given = ptrtoint ptr %o to i64
  %is_this = icmp eq i64 %given, %this
  ret i1 %is_this
watched:
  %watched_ok = call i1 @watched(ptr %o, ptr %arg, ptr %slot)
  ret i1 %watched_ok
f32:
  %is32 = call i1 @has_type(ptr %o, i64 $P_FLOAT$)
  br i1 %is32, label %f32a, label %no
f32a:
  %pv32 = getelementptr i8, ptr %o, i64 $HEAD$
  %v32 = load double, ptr %pv32
  %narrow = fptrunc double %v32 to float
  store i64 0, ptr %slot
  store float %narrow, ptr %slot
  ret i1 true
f64:
  %is64 = call i1 @has_type(ptr %o, i64 $P_FLOAT$)
  br i1 %is64, label %f64a, label %no
f64a:
  %pv64 = getelementptr i8, ptr %o, i64 $HEAD$
  %v64 = load double, ptr %pv64
  store double %v64, ptr %slot
  ret i1 true
int:
  %is_int = call i1 @has_type(ptr %o, i64 $P_INT$)
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
  %is_u = call i1 @has_type(ptr %o, i64 $P_INT$)
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
  %is_bool = call i1 @has_type(ptr %o, i64 $P_BOOL$)
  br i1 %is_bool, label %bool1, label %no
bool1:
  %true_i = call i64 @word(ptr @qd_process, i64 $P_TRUE$)
  %o_i = ptrtoint ptr %o to i64
  %truth = icmp eq i64 %o_i, %true_i
  %tw = zext i1 %truth to i64
  store i64 %tw, ptr %slot
  ret i1 true
array:
  %is_np = call i1 @has_type(ptr %o, i64 $P_NUMPY$)
  br i1 %is_np, label %np, label %other
np:
  %np_ok = call i1 @numpy_array(ptr %o, ptr %arg, ptr %slot)
  ret i1 %np_ok
other:
  %own = call ptr @given_array(ptr %o)
  %foreign = icmp eq ptr %own, null
  br i1 %foreign, label %no, label %own_pack
own_pack:
  %own_ok = call i1 @packed_array(ptr %own, ptr %arg, ptr %slot)
  ret i1 %own_ok
no:
  ret i1 false
}
"""
