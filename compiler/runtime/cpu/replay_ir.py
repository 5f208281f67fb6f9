"""Recorded launches in LLVM text: native code that walks a list of them. ``sequence.py`` makes the list.

A row of the list is three addresses: code, the words that the code is called with, and the status record that it may write to. A write from
Python is a row, too: its code is ``qd_write`` or ``qd_clear``.

The rows of a batched program have chunk functions as their code. The list is walked for one group of trials after another, each by one
thread: what a group works on stays in the caches, and no trial waits for another one.
"""

from __future__ import annotations

ROW_WORDS = 3

_IR = r"""
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

define internal void @write(i64 %n, i64 %bytes, i64 %to0, i64 %step, i64 %from0, i64 %stride) {
entry:
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

define internal void @clear(i64 %n, i64 %bytes, i64 %to0, i64 %step) {
entry:
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

; words: runs of bytes, bytes of a run, address of the first one, bytes from one to the next, and the same two of the source
define void @qd_write(ptr %args) {
  $LOADS$
  %from = call i64 @word(ptr %args, i64 4)
  %stride = call i64 @word(ptr %args, i64 5)
  call void @write(i64 %n, i64 %bytes, i64 %to, i64 %step, i64 %from, i64 %stride)
  ret void
}

define void @qd_clear(ptr %args) {
  $LOADS$
  call void @clear(i64 %n, i64 %bytes, i64 %to, i64 %step)
  ret void
}

; the same for one group of trials; more words: trials of a group, bytes from one group to the next, and the same of the source
define void @qd_write_trials(ptr %args, i64 %trial, i64 %end, i64 %worker) {
  $LOADS$
  $GROUP$
  %from0 = call i64 @word(ptr %args, i64 4)
  %stride = call i64 @word(ptr %args, i64 5)
  %source = call i64 @word(ptr %args, i64 8)
  %behind = mul i64 %source, %group
  %from = add i64 %from0, %behind
  %there = icmp eq i64 %from, %at ; the first group, which others copy meanwhile
  %left = select i1 %there, i64 0, i64 %n
  call void @write(i64 %left, i64 %bytes, i64 %at, i64 %step, i64 %from, i64 %stride)
  ret void
}

define void @qd_clear_trials(ptr %args, i64 %trial, i64 %end, i64 %worker) {
  $LOADS$
  $GROUP$
  call void @clear(i64 %n, i64 %bytes, i64 %at, i64 %step)
  ret void
}

; all rows for one group of trials after another; the frame: rows, how many, trials of a group
define void @qd_replay_trials(ptr %frame, i64 %begin, i64 %end, i64 %worker) {
entry:
  %rows_i = call i64 @word(ptr %frame, i64 0)
  %rows = inttoptr i64 %rows_i to ptr
  %n = call i64 @word(ptr %frame, i64 1)
  %width = call i64 @word(ptr %frame, i64 2)
  br label %group
group:
  %trial = phi i64 [%begin, %entry], [%next, %look]
  %left = icmp slt i64 %trial, %end
  br i1 %left, label %first, label %out
first:
  %next = add i64 %trial, %width
  %last = call i64 @llvm.smin.i64(i64 %next, i64 %end)
  br label %look
look:
  %k = phi i64 [0, %first], [%k1, %run]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %run, label %group
run:
  %row = getelementptr [3 x ptr], ptr %rows, i64 %k
  %p_args = getelementptr ptr, ptr %row, i64 1
  %code = load ptr, ptr %row
  %args = load ptr, ptr %p_args
  call void %code(ptr %args, i64 %trial, i64 %last, i64 %worker)
  %k1 = add i64 %k, 1
  br label %look
out:
  ret void
}
declare i64 @llvm.smin.i64(i64, i64)
"""
_LOADS = """%n = call i64 @word(ptr %args, i64 0)
  %bytes = call i64 @word(ptr %args, i64 1)
  %to = call i64 @word(ptr %args, i64 2)
  %step = call i64 @word(ptr %args, i64 3)"""
_GROUP = """%width = call i64 @word(ptr %args, i64 6)
  %apart = call i64 @word(ptr %args, i64 7)
  %group = udiv i64 %trial, %width
  %ahead = mul i64 %apart, %group
  %at = add i64 %to, %ahead"""
REPLAY_IR = _IR.replace("$LOADS$", _LOADS).replace("$GROUP$", _GROUP)

EXPORTS = ("qd_replay", "qd_replay_trials", "qd_write", "qd_clear", "qd_write_trials", "qd_clear_trials")
IMPORTS = ("memmove", "memset")
