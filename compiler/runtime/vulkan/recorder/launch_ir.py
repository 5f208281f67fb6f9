"""LLVM text of the recorder, second part: launches, by the pipeline of their size; fills by a kernel."""

from __future__ import annotations

LAUNCH = """
; the pipeline of a size, 0 if there is none yet
define internal i64 @pipeline(ptr %f, i64 %size) {
  %n.p = getelementptr i64, ptr %f, i64 $SIZES
  %n = load atomic i64, ptr %n.p acquire, align 8
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %next, %other ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %compare, label %none
compare:
  %twice = shl i64 %i, 1
  %at = add i64 %twice, $PIPELINES
  %known = call i64 @get(ptr %f, i64 %at)
  %same = icmp eq i64 %known, %size
  br i1 %same, label %found, label %other
other:
  %next = add i64 %i, 1
  br label %loop
found:
  %at.1 = add i64 %at, 1
  %pipeline = call i64 @get(ptr %f, i64 %at.1)
  ret i64 %pipeline
none:
  ret i64 0
}
; record a launch; with the lock
define internal i32 @record(ptr %s, ptr %f, i64 %pipeline, i32 %blocks, ptr %extra) {
  %slot = alloca i64
  %opened = call i32 @open(ptr %s)
  %unopened = icmp ne i32 %opened, 0
  br i1 %unopened, label %unready, label %given
unready:
  ret i32 %opened
given:
  %none = icmp eq ptr %extra, null
  br i1 %none, label %measured, label %some
some:
  %data.n = call i64 @get(ptr %extra, i64 1)
  %size.n = call i64 @get(ptr %extra, i64 3)
  %size.p = inttoptr i64 %size.n to ptr
  %size = load i64, ptr %size.p
  br label %measured
measured:
  %data = phi i64 [ 0, %given ], [ %data.n, %some ]
  %bytes = phi i64 [ 0, %given ], [ %size, %some ]
  %wanted = call i64 @get(ptr %f, i64 $BYTES)
  %wrong = icmp ne i64 %wanted, %bytes
  br i1 %wrong, label %refuse, label %right
refuse:
  ret i32 $VALIDATION_FAILED
right:
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
  %data.p = inttoptr i64 %data to ptr
  %by.address = call i64 @get(ptr %f, i64 $BY_ADDRESS)
  %apart = icmp ne i64 %by.address, 0
  br i1 %apart, label %place, label %bind
place:
  %at = call i64 @get(ptr %s, i64 $WORDS_AT)
  %room = call i64 @get(ptr %s, i64 $WORDS_SIZE)
  %end = add i64 %at, %bytes
  %fits = icmp ule i64 %end, %room
  br i1 %fits, label %copy, label %full
full:
  %large = icmp ugt i64 %bytes, $CHUNK
  br i1 %large, label %refuse, label %possible
possible:
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %without = icmp eq i64 %room, 0
  %capturing = icmp ne i64 %capture, 0
  %ask = or i1 %without, %capturing
  br i1 %ask, label %serve, label %send
serve:
  ret i32 -$SERVE_WORDS
send:
  %sent = call i32 @submit(ptr %s)
  %unsent = icmp ne i32 %sent, 0
  br i1 %unsent, label %lost, label %anew
lost:
  ret i32 %sent
anew:
  ret i32 -$RETRY
copy:
  %words = call i64 @get(ptr %s, i64 $WORDS)
  %to = add i64 %words, %at
  %to.p = inttoptr i64 %to to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to.p, ptr %data.p, i64 %bytes, i1 false)
  %device = call i64 @get(ptr %s, i64 $WORDS_DEVICE)
  %address = add i64 %device, %at
  store i64 %address, ptr %slot
  %end.1 = add i64 %end, 63
  %end.64 = and i64 %end.1, -64
  call void @put(ptr %s, i64 $WORDS_AT, i64 %end.64)
  br label %bind
bind:
  %pushed = phi ptr [ %data.p, %right ], [ %slot, %copy ]
  %pushed.bytes = phi i64 [ %bytes, %right ], [ 8, %copy ]
  %bound = call i64 @get(ptr %s, i64 $BOUND)
  %same = icmp eq i64 %bound, %pipeline
  br i1 %same, label %push, label %change
change:
  call void @vkCmdBindPipeline(i64 %buffer, i32 1, i64 %pipeline)
  call void @put(ptr %s, i64 $BOUND, i64 %pipeline)
  br label %push
push:
  %nothing = icmp eq i64 %pushed.bytes, 0
  br i1 %nothing, label %go, label %values
values:
  %layout = call i64 @get(ptr %f, i64 $LAYOUT)
  %pushed.size = trunc i64 %pushed.bytes to i32
  call void @vkCmdPushConstants(i64 %buffer, i64 %layout, i32 32, i32 0, i32 %pushed.size, ptr %pushed)
  br label %go
go:
  call void @vkCmdDispatch(i64 %buffer, i32 %blocks, i32 1, i32 1)
  %r = call i32 @after(ptr %s, i64 1)
  ret i32 %r
}
define i32 @qd_launch(ptr %f, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared, ptr %s, ptr %p, ptr %extra) {
  %bx.w = zext i32 %bx to i64
  %shared.w = zext i32 %shared to i64
  %upper = shl i64 %shared.w, 32
  %size = or i64 %upper, %bx.w
  %empty = icmp eq i32 %gx, 0
  br i1 %empty, label %nothing, label %find
nothing:
  ret i32 0
find:
  %pipeline = call i64 @pipeline(ptr %f, i64 %size)
  %unknown = icmp eq i64 %pipeline, 0
  br i1 %unknown, label %make, label %try
make:
  %made = call i32 @qd_serve(i32 $SERVE_PIPELINE, ptr %s, ptr %f, i32 %bx, i32 %shared)
  %unmade = icmp ne i32 %made, 0
  br i1 %unmade, label %refused, label %find
refused:
  ret i32 %made
try:
  call void @enter(ptr %s)
  %r = call i32 @record(ptr %s, ptr %f, i64 %pipeline, i32 %gx, ptr %extra)
  call void @leave(ptr %s)
  %wants = icmp slt i32 %r, 0
  br i1 %wants, label %serve, label %end
serve:
  %want = sub i32 0, %r
  %served = call i32 @serve(ptr %s, i32 %want)
  %unserved = icmp ne i32 %served, 0
  br i1 %unserved, label %denied, label %try
denied:
  ret i32 %served
end:
  ret i32 %r
}
define internal i32 @serve(ptr %s, i32 %want) {
  %again = icmp eq i32 %want, $RETRY
  br i1 %again, label %ready, label %ask
ready:
  ret i32 0
ask:
  %r = call i32 @qd_serve(i32 %want, ptr %s, ptr null, i32 0, i32 0)
  ret i32 %r
}
; 4-byte words, by the function that fills: address, bytes to the next row, word, words of a row, rows
define i32 @qd_memset(i64 %address, i32 %word, i64 %n, ptr %s) {
  %words = alloca [5 x i64]
  %size = alloca i64
  %extra = alloca [5 x i64]
  %wide = zext i32 %word to i64
  call void @put(ptr %words, i64 0, i64 %address)
  call void @put(ptr %words, i64 1, i64 0)
  call void @put(ptr %words, i64 2, i64 %wide)
  call void @put(ptr %words, i64 3, i64 %n)
  call void @put(ptr %words, i64 4, i64 1)
  store i64 40, ptr %size
  %words.n = ptrtoint ptr %words to i64
  %size.n = ptrtoint ptr %size to i64
  call void @put(ptr %extra, i64 1, i64 %words.n)
  call void @put(ptr %extra, i64 3, i64 %size.n)
  %up = add i64 %n, 127
  %parts = udiv i64 %up, $FILL_BLOCK
  %few = icmp ult i64 %parts, $MOST_BLOCKS
  %blocks = select i1 %few, i64 %parts, i64 $MOST_BLOCKS
  %blocks.n = trunc i64 %blocks to i32
  %fill.n = call i64 @get(ptr %s, i64 $FILL)
  %fill = inttoptr i64 %fill.n to ptr
  %r = call i32 @qd_launch(ptr %fill, i32 %blocks.n, i32 1, i32 1, i32 $FILL_BLOCK, i32 1, i32 1, i32 0, ptr %s, ptr null, ptr %extra)
  ret i32 %r
}
"""
