"""The check of a guard by a native launcher, in LLVM text: see ``guard.py``; uses functions of ``launch_ir.py``."""

from __future__ import annotations

# a guard (``guard.py``): whether launches may pass; words of the argument buffer with the values that they must have: how many, where;
# counters with theirs; pairs of arrays that must lie apart: for each of the two the number of its first word, dimensions, element bytes
G_ARMED, G_ARGS, G_ARGS_AT, G_COUNTERS, G_COUNTERS_AT, G_PAIRS, G_PAIRS_AT, G_WORDS = range(8)
GUARD_WORDS = {name: value for name, value in globals().items() if name.startswith("G_")}

GUARD_IR = r"""
; where the memory of an array argument ends
define internal i64 @end_of(ptr %buffer, ptr %row) alwaysinline {
entry:
  %first = load i64, ptr %row
  %ndim = call i64 @word(ptr %row, i64 1)
  %bytes = call i64 @word(ptr %row, i64 2)
  %words = getelementptr i64, ptr %buffer, i64 %first
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %more]
  %size = phi i64 [%bytes, %entry], [%larger, %more]
  %done = icmp eq i64 %k, %ndim
  br i1 %done, label %end, label %more
more:
  %k1 = add i64 %k, 1
  %extent = call i64 @word(ptr %words, i64 %k1)
  %larger = mul i64 %size, %extent
  br label %loop
end:
  %begin = load i64, ptr %words
  %last = add i64 %begin, %size
  ret i64 %last
}

; whether the arrays that must not overlap lie apart
define internal i1 @apart(ptr %table, ptr %buffer) {
entry:
  %guard_i = call i64 @word(ptr %table, i64 $T_GUARD$)
  %unguarded = icmp eq i64 %guard_i, 0
  br i1 %unguarded, label %yes, label %look
look:
  %guard = inttoptr i64 %guard_i to ptr
  br label %pairs
pairs:
  %npairs = call i64 @word(ptr %guard, i64 $G_PAIRS$)
  %pairs_i = call i64 @word(ptr %guard, i64 $G_PAIRS_AT$)
  %pairs_at = inttoptr i64 %pairs_i to ptr
  br label %pair
pair:
  %p = phi i64 [0, %pairs], [%p1, %pair_next]
  %pair_done = icmp eq i64 %p, %npairs
  br i1 %pair_done, label %yes, label %pair_one
pair_one:
  %p6 = mul i64 %p, 6
  %row_a = getelementptr i64, ptr %pairs_at, i64 %p6
  %row_b = getelementptr i64, ptr %row_a, i64 3
  %word_a = load i64, ptr %row_a
  %word_b = load i64, ptr %row_b
  %begin_a = call i64 @word(ptr %buffer, i64 %word_a)
  %begin_b = call i64 @word(ptr %buffer, i64 %word_b)
  %end_a = call i64 @end_of(ptr %buffer, ptr %row_a)
  %end_b = call i64 @end_of(ptr %buffer, ptr %row_b)
  %b_after = icmp uge i64 %begin_b, %end_a
  %a_after = icmp uge i64 %begin_a, %end_b
  %apart = or i1 %b_after, %a_after
  br i1 %apart, label %pair_next, label %no
pair_next:
  %p1 = add i64 %p, 1
  br label %pair
yes:
  ret i1 true
no:
  ret i1 false
}

; whether all that was prepared for a launch is what it was
define internal i1 @prepared(ptr %table, ptr %buffer) {
entry:
  %guard_i = call i64 @word(ptr %table, i64 $T_GUARD$)
  %unguarded = icmp eq i64 %guard_i, 0
  br i1 %unguarded, label %yes, label %look
look:
  %guard = inttoptr i64 %guard_i to ptr
  %armed = call i64 @word(ptr %guard, i64 $G_ARMED$)
  %may = icmp ne i64 %armed, 0
  br i1 %may, label %args, label %no
args:
  %nargs = call i64 @word(ptr %guard, i64 $G_ARGS$)
  %args_i = call i64 @word(ptr %guard, i64 $G_ARGS_AT$)
  %args_at = inttoptr i64 %args_i to ptr
  br label %arg
arg:
  %i = phi i64 [0, %args], [%i1, %arg_next]
  %arg_done = icmp eq i64 %i, %nargs
  br i1 %arg_done, label %counters, label %arg_one
arg_one:
  %i2 = shl i64 %i, 1
  %number = call i64 @word(ptr %args_at, i64 %i2)
  %i3 = or i64 %i2, 1
  %wanted = call i64 @word(ptr %args_at, i64 %i3)
  %given = call i64 @word(ptr %buffer, i64 %number)
  %arg_same = icmp eq i64 %given, %wanted
  br i1 %arg_same, label %arg_next, label %no
arg_next:
  %i1 = add i64 %i, 1
  br label %arg
counters:
  %ncounters = call i64 @word(ptr %guard, i64 $G_COUNTERS$)
  %counters_i = call i64 @word(ptr %guard, i64 $G_COUNTERS_AT$)
  %counters_at = inttoptr i64 %counters_i to ptr
  br label %counter
counter:
  %j = phi i64 [0, %counters], [%j1, %counter_next]
  %counter_done = icmp eq i64 %j, %ncounters
  br i1 %counter_done, label %yes, label %counter_one
counter_one:
  %j2 = shl i64 %j, 1
  %where_i = call i64 @word(ptr %counters_at, i64 %j2)
  %j3 = or i64 %j2, 1
  %then = call i64 @word(ptr %counters_at, i64 %j3)
  %where = inttoptr i64 %where_i to ptr
  %now = load atomic i64, ptr %where acquire, align 8
  %counter_same = icmp eq i64 %now, %then
  br i1 %counter_same, label %counter_next, label %no
counter_next:
  %j1 = add i64 %j, 1
  br label %counter
yes:
  ret i1 true
no:
  ret i1 false
}
"""
