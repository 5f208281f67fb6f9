"""LLVM text of the recorder, first part: locks, command buffers that take turns, and when they are submitted."""

from __future__ import annotations

HEAD = """
declare i32 @vkBeginCommandBuffer(i64, i64)
declare i32 @vkEndCommandBuffer(i64)
declare i32 @vkQueueSubmit(i64, i32, i64, i64)
declare i32 @vkGetSemaphoreCounterValue(i64, i64, ptr)
declare void @vkCmdBindPipeline(i64, i32, i64)
declare void @vkCmdPushConstants(i64, i64, i32, i32, i32, ptr)
declare void @vkCmdDispatch(i64, i32, i32, i32)
declare void @vkCmdPipelineBarrier(i64, i32, i32, i32, i32, i64, i32, i64, i32, i64)
declare void @vkCmdFillBuffer(i64, i64, i64, i64, i32)
declare void @vkCmdCopyBuffer(i64, i64, i64, i32, ptr)
declare void @vkCmdUpdateBuffer(i64, i64, i64, i64, i64)
declare void @vkCmdResetQueryPool(i64, i64, i32, i32)
declare void @vkCmdWriteTimestamp(i64, i32, i64, i32)
declare void @vkCmdExecuteCommands(i64, i32, ptr)
declare i32 @qd_serve(i32, ptr, ptr, i32, i32)
declare i32 @qd_yield()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @get(ptr %record, i64 %word) alwaysinline {
  %p = getelementptr i64, ptr %record, i64 %word
  %value = load i64, ptr %p
  ret i64 %value
}
define internal void @put(ptr %record, i64 %word, i64 %value) alwaysinline {
  %p = getelementptr i64, ptr %record, i64 %word
  store i64 %value, ptr %p
  ret void
}
define internal void @lock(ptr %p) {
  br label %try
try:
  %found = cmpxchg ptr %p, i64 0, i64 1 acquire monotonic
  %taken = extractvalue { i64, i1 } %found, 1
  br i1 %taken, label %end, label %wait
wait:
  %r = call i32 @qd_yield()
  br label %try
end:
  ret void
}
define internal void @enter(ptr %s) {
  %p = getelementptr i64, ptr %s, i64 $LOCK
  call void @lock(ptr %p)
  ret void
}
define internal void @leave(ptr %s) {
  %p = getelementptr i64, ptr %s, i64 $LOCK
  store atomic i64 0, ptr %p release, align 8
  ret void
}
"""

SUBMIT = """
; a call has failed: the stream has failed with it, as what it was to run is lost
define internal i32 @failed(ptr %s, i32 %result) {
  %code = sub i32 0, %result
  %wide = zext i32 %code to i64
  call void @put(ptr %s, i64 $FAILED, i64 %wide)
  ret i32 %code
}
; look how far the device is
define internal i32 @look(ptr %s) {
  %slot = alloca i64
  %device = call i64 @get(ptr %s, i64 $DEVICE)
  %semaphore = call i64 @get(ptr %s, i64 $SEMAPHORE)
  %r = call i32 @vkGetSemaphoreCounterValue(i64 %device, i64 %semaphore, ptr %slot)
  %bad = icmp ne i32 %r, 0
  br i1 %bad, label %fail, label %fine
fail:
  %code = call i32 @failed(ptr %s, i32 %r)
  ret i32 %code
fine:
  %value = load i64, ptr %slot
  call void @put(ptr %s, i64 $DONE, i64 %value)
  ret i32 0
}
; hand what is recorded to the device; with the lock
define internal i32 @submit(ptr %s) {
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %capturing = icmp ne i64 %capture, 0
  br i1 %capturing, label %refuse, label %running
refuse:
  ret i32 $NOT_PERMITTED
running:
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
  %none = icmp eq i64 %buffer, 0
  br i1 %none, label %nothing, label %some
nothing:
  %before = call i64 @get(ptr %s, i64 $FAILED)
  %before.code = trunc i64 %before to i32
  ret i32 %before.code
some:
  %ending = call i64 @get(ptr %s, i64 $ENDING)
  call void @vkCmdPipelineBarrier(i64 %buffer, i32 6144, i32 16384, i32 0, i32 1, i64 %ending, i32 0, i64 0, i32 0, i64 0)
  call void @put(ptr %s, i64 $BUFFER, i64 0)
  %ended = call i32 @vkEndCommandBuffer(i64 %buffer)
  %unended = icmp ne i32 %ended, 0
  br i1 %unended, label %lost, label %send
send:
  %last = call i64 @get(ptr %s, i64 $LAST)
  %value = add i64 %last, 1
  %value.n = call i64 @get(ptr %s, i64 $VALUE)
  %value.p = inttoptr i64 %value.n to ptr
  store i64 %value, ptr %value.p
  %commands.n = call i64 @get(ptr %s, i64 $COMMANDS)
  %commands.p = inttoptr i64 %commands.n to ptr
  store i64 %buffer, ptr %commands.p
  %queue.n = call i64 @get(ptr %s, i64 $QUEUE)
  %queue.p = inttoptr i64 %queue.n to ptr
  %queue = call i64 @get(ptr %queue.p, i64 1)
  %info = call i64 @get(ptr %s, i64 $SUBMIT)
  call void @lock(ptr %queue.p)
  %sent = call i32 @vkQueueSubmit(i64 %queue, i32 1, i64 %info, i64 0)
  store atomic i64 0, ptr %queue.p release, align 8
  %unsent = icmp ne i32 %sent, 0
  br i1 %unsent, label %lost, label %fine
fine:
  call void @put(ptr %s, i64 $LAST, i64 %value)
  %slots.n = call i64 @get(ptr %s, i64 $SLOTS)
  %slots = inttoptr i64 %slots.n to ptr
  %slot = call i64 @get(ptr %s, i64 $SLOT)
  %at = mul i64 %slot, $SLOT_WORDS_COUNT
  %value.at = add i64 %at, $SLOT_VALUE
  call void @put(ptr %slots, i64 %value.at, i64 %value)
  ret i32 0
lost:
  %result = phi i32 [ %ended, %some ], [ %sent, %send ]
  %code = call i32 @failed(ptr %s, i32 %result)
  ret i32 %code
}
; see that there is a command buffer to record into; with the lock
define internal i32 @open(ptr %s) {
  %before = call i64 @get(ptr %s, i64 $FAILED)
  %dead = icmp ne i64 %before, 0
  br i1 %dead, label %fail, label %alive
fail:
  %before.code = trunc i64 %before to i32
  ret i32 %before.code
alive:
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
  %is = icmp ne i64 %buffer, 0
  br i1 %is, label %fine, label %next
fine:
  ret i32 0
next:
  %slot = call i64 @get(ptr %s, i64 $SLOT)
  %slot.1 = add i64 %slot, 1
  %slot.n = urem i64 %slot.1, $SLOT_COUNT
  %slots.n = call i64 @get(ptr %s, i64 $SLOTS)
  %slots = inttoptr i64 %slots.n to ptr
  %at = mul i64 %slot.n, $SLOT_WORDS_COUNT
  %record = getelementptr i64, ptr %slots, i64 %at
  %value = call i64 @get(ptr %record, i64 $SLOT_VALUE)
  %done = call i64 @get(ptr %s, i64 $DONE)
  %free = icmp ule i64 %value, %done
  br i1 %free, label %begin, label %look
look:
  %looked = call i32 @look(ptr %s)
  %bad = icmp ne i32 %looked, 0
  br i1 %bad, label %bad.look, label %again
bad.look:
  ret i32 %looked
again:
  %done.now = call i64 @get(ptr %s, i64 $DONE)
  %free.now = icmp ule i64 %value, %done.now
  br i1 %free.now, label %begin, label %full
full:
  ret i32 -$SERVE_SLOT
begin:
  %commands = call i64 @get(ptr %record, i64 $SLOT_COMMANDS)
  %info = call i64 @get(ptr %s, i64 $BEGIN)
  %r = call i32 @vkBeginCommandBuffer(i64 %commands, i64 %info)
  %unbegun = icmp ne i32 %r, 0
  br i1 %unbegun, label %lost, label %ready
lost:
  %code = call i32 @failed(ptr %s, i32 %r)
  ret i32 %code
ready:
  call void @put(ptr %s, i64 $SLOT, i64 %slot.n)
  call void @put(ptr %s, i64 $BUFFER, i64 %commands)
  call void @put(ptr %s, i64 $BOUND, i64 0)
  call void @put(ptr %s, i64 $COUNT, i64 0)
  call void @room(ptr %s, ptr %record)
  ret i32 0
}
; the room for words that a slot has
define internal void @room(ptr %s, ptr %record) {
  %words = call i64 @get(ptr %record, i64 $SLOT_WORDS)
  %device = call i64 @get(ptr %record, i64 $SLOT_WORDS_DEVICE)
  %is = icmp ne i64 %words, 0
  %size = select i1 %is, i64 $CHUNK, i64 0
  call void @put(ptr %s, i64 $WORDS, i64 %words)
  call void @put(ptr %s, i64 $WORDS_DEVICE, i64 %device)
  call void @put(ptr %s, i64 $WORDS_AT, i64 0)
  call void @put(ptr %s, i64 $WORDS_SIZE, i64 %size)
  ret void
}
; a command is recorded: what comes later waits for it; perhaps it is time to submit
define internal i32 @after(ptr %s, i64 %weight) {
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
  %barrier = call i64 @get(ptr %s, i64 $BARRIER)
  call void @vkCmdPipelineBarrier(i64 %buffer, i32 6144, i32 6144, i32 0, i32 1, i64 %barrier, i32 0, i64 0, i32 0, i64 0)
  %old = call i64 @get(ptr %s, i64 $COUNT)
  %count = add i64 %old, %weight
  call void @put(ptr %s, i64 $COUNT, i64 %count)
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %running = icmp eq i64 %capture, 0
  %many = icmp uge i64 %count, $FEW
  %both = and i1 %running, %many
  br i1 %both, label %perhaps, label %end
end:
  ret i32 0
perhaps:
  %full = icmp uge i64 %count, $MOST
  br i1 %full, label %send, label %turn
turn:
  %part = urem i64 %count, $FEW
  %turned = icmp ult i64 %part, %weight
  br i1 %turned, label %look, label %end
look:
  %looked = call i32 @look(ptr %s)
  %bad = icmp ne i32 %looked, 0
  br i1 %bad, label %fail, label %idle
fail:
  ret i32 %looked
idle:
  %done = call i64 @get(ptr %s, i64 $DONE)
  %last = call i64 @get(ptr %s, i64 $LAST)
  %empty = icmp uge i64 %done, %last
  br i1 %empty, label %send, label %end
send:
  %r = call i32 @submit(ptr %s)
  ret i32 %r
}
"""
