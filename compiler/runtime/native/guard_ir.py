"""The check of a guard by a native launcher, in LLVM text: see ``guard.py``; uses functions of ``launch_ir.py``."""

from __future__ import annotations

# a guard (``guard.py``): whether launches may pass; words with the values that they must have: how many, where; pairs of arrays that must
# lie apart: for each of the two the number of its first word, dimensions, element bytes
G_ARMED, G_COMPARED, G_COMPARED_AT, G_PAIRS, G_PAIRS_AT, G_WORDS = range(6)
G_NEAR = 1 << 16
"""A compared word below this address lies in the argument buffer, so many bytes from its start: no memory has such an address."""
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
  br i1 %may, label %begin, label %no
begin:
  %count = call i64 @word(ptr %guard, i64 $G_COMPARED$)
  %rows_i = call i64 @word(ptr %guard, i64 $G_COMPARED_AT$)
  %rows = inttoptr i64 %rows_i to ptr
  %buffer_i = ptrtoint ptr %buffer to i64
  br label %row
row:
  %i = phi i64 [0, %begin], [%i1, %next]
  %done = icmp eq i64 %i, %count
  br i1 %done, label %yes, label %one
one:
  %i2 = shl i64 %i, 1
  %at = call i64 @word(ptr %rows, i64 %i2)
  %i3 = or i64 %i2, 1
  %wanted = call i64 @word(ptr %rows, i64 %i3)
  %near = icmp ult i64 %at, $G_NEAR$
  %base = select i1 %near, i64 %buffer_i, i64 0
  %where_i = add i64 %base, %at
  %where = inttoptr i64 %where_i to ptr
  %now = load atomic i64, ptr %where acquire, align 8
  %same = icmp eq i64 %now, %wanted
  br i1 %same, label %next, label %no
next:
  %i1 = add i64 %i, 1
  br label %row
yes:
  ret i1 true
no:
  ret i1 false
}
"""
