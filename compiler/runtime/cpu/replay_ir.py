"""Recorded launches in LLVM text: native code that walks a list of them. ``sequence.py`` makes the list.

A row of the list is three addresses: code, the words that the code is called with, and the status record that it may write to. A write from
Python is a row, too: its code is ``qd_write`` or ``qd_clear``.
"""

from __future__ import annotations

ROW_WORDS = 3

REPLAY_IR = r"""
declare ptr @memmove(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)

; runs rows one after another; gives the number of the first one that has failed, behind which nothing ran, or -1
define i64 @qd_replay(ptr %rows, i64 %n) {
entry:
  br label %look
look:
  %k = phi i64 [0, %entry], [%k1, %run]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %run, label %out
run:
  %row = getelementptr [3 x ptr], ptr %rows, i64 %k
  %p_args = getelementptr ptr, ptr %row, i64 1
  %p_status = getelementptr ptr, ptr %row, i64 2
  %code = load ptr, ptr %row
  %args = load ptr, ptr %p_args
  %status = load ptr, ptr %p_status
  call void %code(ptr %args)
  %failed = load i64, ptr %status
  %k1 = add i64 %k, 1
  %good = icmp eq i64 %failed, 0
  br i1 %good, label %look, label %out
out:
  %found = phi i64 [-1, %look], [%k, %run]
  ret i64 %found
}

define internal i64 @word(ptr %args, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %args, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}

; words: runs of bytes, bytes of a run, address of the first one, bytes from one to the next, and the same two of the source
define void @qd_write(ptr %args) {
entry:
  %n = call i64 @word(ptr %args, i64 0)
  %bytes = call i64 @word(ptr %args, i64 1)
  %to0 = call i64 @word(ptr %args, i64 2)
  %step = call i64 @word(ptr %args, i64 3)
  %from0 = call i64 @word(ptr %args, i64 4)
  %stride = call i64 @word(ptr %args, i64 5)
  br label %look
look:
  %k = phi i64 [0, %entry], [%k1, %run]
  %to_i = phi i64 [%to0, %entry], [%to_next, %run]
  %from_i = phi i64 [%from0, %entry], [%from_next, %run]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %run, label %out
run:
  %to = inttoptr i64 %to_i to ptr
  %from = inttoptr i64 %from_i to ptr
  %done = call ptr @memmove(ptr %to, ptr %from, i64 %bytes)
  %k1 = add i64 %k, 1
  %to_next = add i64 %to_i, %step
  %from_next = add i64 %from_i, %stride
  br label %look
out:
  ret void
}

; words: runs of bytes, bytes of a run, address of the first one, bytes from one to the next
define void @qd_clear(ptr %args) {
entry:
  %n = call i64 @word(ptr %args, i64 0)
  %bytes = call i64 @word(ptr %args, i64 1)
  %to0 = call i64 @word(ptr %args, i64 2)
  %step = call i64 @word(ptr %args, i64 3)
  br label %look
look:
  %k = phi i64 [0, %entry], [%k1, %run]
  %to_i = phi i64 [%to0, %entry], [%to_next, %run]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %run, label %out
run:
  %to = inttoptr i64 %to_i to ptr
  %done = call ptr @memset(ptr %to, i32 0, i64 %bytes)
  %k1 = add i64 %k, 1
  %to_next = add i64 %to_i, %step
  br label %look
out:
  ret void
}
"""

EXPORTS = ("qd_replay", "qd_write", "qd_clear")
IMPORTS = ("memmove", "memset")
