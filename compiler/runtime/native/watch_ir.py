"""The check of an object with per-launch members by the native launcher, in LLVM text: see ``watch.py`` for the compared values; uses
functions of ``pack_ir.py``.
"""

from __future__ import annotations

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

WATCH_VALUES = {name: value for name, value in globals().items() if isinstance(value, int)}

WATCH_IR = r"""
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)

; one value of a row; %changed is set where an array was replaced
define internal i1 @expected(ptr %watch, ptr %e, ptr %value, ptr %changed) {
entry:
  %kind = call i64 @word(ptr %e, i64 $E_KIND$)
  %wanted = call i64 @word(ptr %e, i64 $E_VALUE$)
  switch i64 %kind, label %no [i64 $ENTRY_ANY$, label %yes
                               i64 $ENTRY_TYPE$, label %type
                               i64 $ENTRY_SAME$, label %object
                               i64 $ENTRY_ARRAY$, label %array
                               i64 $ENTRY_AGAIN$, label %again
                               i64 $ENTRY_NUMBER$, label %number]
type:
  %has = call ptr @at(ptr %value, i64 $TYPE$)
  %has_i = ptrtoint ptr %has to i64
  %of_type = icmp eq i64 %has_i, %wanted
  ret i1 %of_type
object:
  %value_i = ptrtoint ptr %value to i64
  %same = icmp eq i64 %value_i, %wanted
  br i1 %same, label %kind_too, label %no
kind_too:
  %wanted_type = call i64 @word(ptr %e, i64 $E_ARG$)
  %its = call ptr @at(ptr %value, i64 $TYPE$)
  %its_i = ptrtoint ptr %its to i64
  %typed = icmp eq i64 %its_i, %wanted_type
  ret i1 %typed
array:
  %own = call ptr @own_array(ptr %value)
  %foreign = icmp eq ptr %own, null
  br i1 %foreign, label %no, label %keep
keep:
  %arrays_i = call i64 @word(ptr %watch, i64 $W_ARRAYS_AT$)
  %arrays = inttoptr i64 %arrays_i to ptr
  %place = getelementptr ptr, ptr %arrays, i64 %wanted
  %before = load ptr, ptr %place
  %stays = icmp eq ptr %before, %own
  br i1 %stays, label %yes, label %replaced
replaced:
  store ptr %own, ptr %place
  store i1 true, ptr %changed
  br label %yes
again:
  ; after the array's first place, which is earlier in the rows
  %too = call ptr @own_array(ptr %value)
  %arrays_i2 = call i64 @word(ptr %watch, i64 $W_ARRAYS_AT$)
  %arrays2 = inttoptr i64 %arrays_i2 to ptr
  %place2 = getelementptr ptr, ptr %arrays2, i64 %wanted
  %first = load ptr, ptr %place2
  %one = icmp eq ptr %first, %too
  ret i1 %one
number:
  %arg_i = call i64 @word(ptr %e, i64 $E_ARG$)
  %arg = inttoptr i64 %arg_i to ptr
  %words_i = call i64 @word(ptr %watch, i64 $W_NUMBERS_AT$)
  %words = inttoptr i64 %words_i to ptr
  %slot = getelementptr i64, ptr %words, i64 %wanted
  %packed = call i1 @pack(ptr %value, ptr %arg, ptr %slot, ptr null)
  ret i1 %packed
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @same_dict(ptr %watch, ptr %row, ptr %changed) {
entry:
  %at = alloca i64
  %key = alloca ptr
  %value = alloca ptr
  %owner_i = call i64 @word(ptr %row, i64 $R_OWNER$)
  %owner = inttoptr i64 %owner_i to ptr
  %dict_at = call i64 @word(ptr %row, i64 $R_DICT_AT$)
  %is_dict = icmp eq i64 %dict_at, -1
  %offset_of_dict = select i1 %is_dict, i64 0, i64 %dict_at
  %held_dict = call ptr @at(ptr %owner, i64 %offset_of_dict)
  %dict = select i1 %is_dict, ptr %owner, ptr %held_dict
  %none = icmp eq ptr %dict, null
  br i1 %none, label %no, label %object
object:
  ; some interpreters keep there, with a mark, what is no dict yet
  %dict_i = ptrtoint ptr %dict to i64
  %bit = and i64 %dict_i, 1
  %marked = icmp ne i64 %bit, 0
  br i1 %marked, label %no, label %tag
tag:
  %tagged = icmp ne i64 $TAG_AT$, 0
  %ptag = getelementptr i8, ptr %dict, i64 $TAG_AT$
  %now = load i64, ptr %ptag
  %then = call i64 @word(ptr %row, i64 $R_TAG$)
  %equal = icmp eq i64 %now, %then
  %untouched = and i1 %tagged, %equal
  br i1 %untouched, label %yes, label %begin
begin:
  store i64 0, ptr %at
  %entries_i = call i64 @word(ptr %row, i64 $R_ENTRIES_AT$)
  %entries = inttoptr i64 %entries_i to ptr
  %count = call i64 @word(ptr %row, i64 $R_COUNT$)
  br label %loop
loop:
  %i = phi i64 [0, %begin], [%i1, %next]
  %more = call i32 @PyDict_Next(ptr %dict, ptr %at, ptr %key, ptr %value)
  %end = icmp eq i32 %more, 0
  %full = icmp eq i64 %i, %count
  br i1 %end, label %ended, label %one
one:
  br i1 %full, label %no, label %look
look:
  %offset = mul i64 %i, $E_WORDS$
  %entry_at = getelementptr i64, ptr %entries, i64 %offset
  %want_key = call i64 @word(ptr %entry_at, i64 $E_KEY$)
  %k = load ptr, ptr %key
  %ki = ptrtoint ptr %k to i64
  %same_key = icmp eq i64 %ki, %want_key
  br i1 %same_key, label %compare, label %no
compare:
  %v = load ptr, ptr %value
  %good = call i1 @expected(ptr %watch, ptr %entry_at, ptr %v, ptr %changed)
  br i1 %good, label %next, label %no
next:
  %i1 = add i64 %i, 1
  br label %loop
ended:
  br i1 %full, label %mark, label %no
mark:
  %tag_slot = getelementptr i64, ptr %row, i64 $R_TAG$
  store i64 %now, ptr %tag_slot
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @same_list(ptr %watch, ptr %row, ptr %changed) {
entry:
  %kind = call i64 @word(ptr %row, i64 $R_KIND$)
  %owner_i = call i64 @word(ptr %row, i64 $R_OWNER$)
  %owner = inttoptr i64 %owner_i to ptr
  %psize = getelementptr i8, ptr %owner, i64 $HEAD$
  %size = load i64, ptr %psize
  %items = call ptr @at(ptr %owner, i64 $LIST_ITEMS$)
  %count = call i64 @word(ptr %row, i64 $R_COUNT$)
  %exact = icmp eq i64 %size, %count
  %enough = icmp sge i64 %size, %count
  %any = icmp sgt i64 %count, 0
  %grown = and i1 %enough, %any
  %first = icmp eq i64 %kind, $ROW_FIRST$
  %may = and i1 %first, %grown
  %fits = or i1 %exact, %may
  %entries_i = call i64 @word(ptr %row, i64 $R_ENTRIES_AT$)
  %entries = inttoptr i64 %entries_i to ptr
  br i1 %fits, label %loop, label %no
loop:
  %i = phi i64 [0, %entry], [%i1, %next]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %ended, label %look
look:
  %offset = mul i64 %i, $E_WORDS$
  %entry_at = getelementptr i64, ptr %entries, i64 %offset
  %item = getelementptr ptr, ptr %items, i64 %i
  %v = load ptr, ptr %item
  %good = call i1 @expected(ptr %watch, ptr %entry_at, ptr %v, ptr %changed)
  br i1 %good, label %next, label %no
next:
  %i1 = add i64 %i, 1
  br label %loop
ended:
  br i1 %exact, label %yes, label %tail
tail:
  %count_before = sub i64 %count, 1
  %last_offset = mul i64 %count_before, $E_WORDS$
  %last_entry = getelementptr i64, ptr %entries, i64 %last_offset
  %size_before = sub i64 %size, 1
  %last_item = getelementptr ptr, ptr %items, i64 %size_before
  %last = load ptr, ptr %last_item
  %alike = call i1 @expected(ptr %watch, ptr %last_entry, ptr %last, ptr %changed)
  br i1 %alike, label %yes, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; whether no array is in two places that were different arrays
define internal i1 @distinct(ptr %arrays, i64 %n) {
entry:
  br label %outer
outer:
  %i = phi i64 [0, %entry], [%i1, %outer_next]
  %i_done = icmp eq i64 %i, %n
  br i1 %i_done, label %yes, label %start
start:
  %pa = getelementptr ptr, ptr %arrays, i64 %i
  %a = load ptr, ptr %pa
  %i1 = add i64 %i, 1
  br label %inner
inner:
  %j = phi i64 [%i1, %start], [%j1, %inner_next]
  %j_done = icmp eq i64 %j, %n
  br i1 %j_done, label %outer_next, label %pair
pair:
  %pb = getelementptr ptr, ptr %arrays, i64 %j
  %b = load ptr, ptr %pb
  %same = icmp eq ptr %a, %b
  br i1 %same, label %no, label %inner_next
inner_next:
  %j1 = add i64 %j, 1
  br label %inner
outer_next:
  br label %outer
yes:
  ret i1 true
no:
  ret i1 false
}

; the words of what an object holds; false: another object, or something in it is not as it was
define internal i1 @watched(ptr %o, ptr %arg, ptr %slot) {
entry:
  %changed = alloca i1
  store i1 false, ptr %changed
  %key = call i64 @word(ptr %arg, i64 $A_KEY$)
  %o_i = ptrtoint ptr %o to i64
  %this = icmp eq i64 %o_i, %key
  br i1 %this, label %begin, label %no
begin:
  %watch_i = call i64 @word(ptr %arg, i64 $A_WATCH$)
  %watch = inttoptr i64 %watch_i to ptr
  %missed = call i64 @word(ptr %watch, i64 $W_MISSED$)
  %stale = icmp ne i64 %missed, 0
  %rows_i = call i64 @word(ptr %watch, i64 $W_ROWS_AT$)
  %rows = inttoptr i64 %rows_i to ptr
  %nrows = call i64 @word(ptr %watch, i64 $W_ROWS$)
  %narrays = call i64 @word(ptr %watch, i64 $W_ARRAYS$)
  %arrays_i = call i64 @word(ptr %watch, i64 $W_ARRAYS_AT$)
  %arrays = inttoptr i64 %arrays_i to ptr
  br i1 %stale, label %no, label %loop
loop:
  %r = phi i64 [0, %begin], [%r1, %next]
  %done = icmp eq i64 %r, %nrows
  br i1 %done, label %held, label %one
one:
  %offset = mul i64 %r, $R_WORDS$
  %row = getelementptr i64, ptr %rows, i64 %offset
  %kind = call i64 @word(ptr %row, i64 $R_KIND$)
  %is_dict = icmp eq i64 %kind, $ROW_DICT$
  br i1 %is_dict, label %dict, label %list
dict:
  %dict_same = call i1 @same_dict(ptr %watch, ptr %row, ptr %changed)
  br i1 %dict_same, label %next, label %miss
list:
  %list_same = call i1 @same_list(ptr %watch, ptr %row, ptr %changed)
  br i1 %list_same, label %next, label %miss
next:
  %r1 = add i64 %r, 1
  br label %loop
held:
  %replaced = load i1, ptr %changed
  br i1 %replaced, label %places, label %pack
places:
  ; an array in two places may now be in one of them only, and rows that did not change were not looked at
  %aliases = call i64 @word(ptr %watch, i64 $W_ALIASES$)
  %aliased = icmp ne i64 %aliases, 0
  br i1 %aliased, label %miss, label %apart
apart:
  %all = call i1 @distinct(ptr %arrays, i64 %narrays)
  br i1 %all, label %pack, label %miss
pack:
  %args_i = call i64 @word(ptr %watch, i64 $W_ARGS_AT$)
  %args = inttoptr i64 %args_i to ptr
  br label %array
array:
  %i = phi i64 [0, %pack], [%i1, %packed]
  %to = phi ptr [%slot, %pack], [%to1, %packed]
  %last = icmp eq i64 %i, %narrays
  br i1 %last, label %numbers, label %array_one
array_one:
  %pa = getelementptr ptr, ptr %arrays, i64 %i
  %a = load ptr, ptr %pa
  %arg_offset = mul i64 %i, $A_WORDS$
  %how = getelementptr i64, ptr %args, i64 %arg_offset
  %fits = call i1 @packed_array(ptr %a, ptr %how, ptr %to)
  br i1 %fits, label %packed, label %no
packed:
  %size = call i64 @word(ptr %how, i64 $A_SIZE$)
  %to1 = getelementptr i64, ptr %to, i64 %size
  %i1 = add i64 %i, 1
  br label %array
numbers:
  %n = call i64 @word(ptr %watch, i64 $W_NUMBERS$)
  %bytes = shl i64 %n, 3
  %words_i = call i64 @word(ptr %watch, i64 $W_NUMBERS_AT$)
  %words = inttoptr i64 %words_i to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %to, ptr align 8 %words, i64 %bytes, i1 false)
  ret i1 true
miss:
  %pmissed = getelementptr i64, ptr %watch, i64 $W_MISSED$
  store i64 1, ptr %pmissed
  ret i1 false
no:
  ret i1 false
}

; takes references to the arrays of all watched arguments
define internal void @hold(ptr %table, i64 %n, ptr %held) {
entry:
  %arg0 = getelementptr i64, ptr %table, i64 $T_ARGS$
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%i1, %next]
  %to = phi i64 [0, %entry], [%to2, %next]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %end, label %look
look:
  %offset = mul i64 %i, $A_WORDS$
  %arg = getelementptr i64, ptr %arg0, i64 %offset
  %i1 = add i64 %i, 1
  %kind = call i64 @word(ptr %arg, i64 $A_KIND$)
  %is_watched = icmp eq i64 %kind, $KIND_WATCHED$
  br i1 %is_watched, label %watched, label %next
watched:
  %watch_i = call i64 @word(ptr %arg, i64 $A_WATCH$)
  %watch = inttoptr i64 %watch_i to ptr
  %count = call i64 @word(ptr %watch, i64 $W_ARRAYS$)
  %arrays_i = call i64 @word(ptr %watch, i64 $W_ARRAYS_AT$)
  %arrays = inttoptr i64 %arrays_i to ptr
  br label %array
array:
  %k = phi i64 [0, %watched], [%k1, %one]
  %to1 = phi i64 [%to, %watched], [%next_to, %one]
  %last = icmp eq i64 %k, %count
  br i1 %last, label %next, label %one
one:
  %from = getelementptr ptr, ptr %arrays, i64 %k
  %a = load ptr, ptr %from
  call void @Py_IncRef(ptr %a)
  %place = getelementptr ptr, ptr %held, i64 %to1
  store ptr %a, ptr %place
  %k1 = add i64 %k, 1
  %next_to = add i64 %to1, 1
  br label %array
next:
  %to2 = phi i64 [%to, %look], [%to1, %array]
  br label %loop
end:
  ret void
}
"""
