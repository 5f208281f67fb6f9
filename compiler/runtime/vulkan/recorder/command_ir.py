"""LLVM text of the recorder, third part: fills, copies, time stamps, graphs; and what the host asks of a stream."""

from __future__ import annotations

_COMMAND = """
define i32 @{name}(ptr %s, {params}) {{
  %region = alloca [3 x i64]
  br label %try
try:
  call void @enter(ptr %s)
  %opened = call i32 @open(ptr %s)
  %ready = icmp eq i32 %opened, 0
  br i1 %ready, label %allowed, label %end
allowed:
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %capturing = icmp ne i64 %capture, 0
  %refused = and i1 %capturing, {alone}
  br i1 %refused, label %end, label %go
go:
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
{body}
  %r = call i32 @after(ptr %s, i64 {weight})
  br label %end
end:
  %code = phi i32 [ %opened, %try ], [ $NOT_PERMITTED, %allowed ], [ %r, %go ]
  call void @leave(ptr %s)
  %wants = icmp slt i32 %code, 0
  br i1 %wants, label %serve, label %over
serve:
  %want = sub i32 0, %code
  %served = call i32 @serve(ptr %s, i32 %want)
  %unserved = icmp ne i32 %served, 0
  br i1 %unserved, label %denied, label %try
denied:
  ret i32 %served
over:
  ret i32 %code
}}
"""

_COPY = """  call void @put(ptr %region, i64 0, i64 %from.at)
  call void @put(ptr %region, i64 1, i64 %to.at)
  call void @put(ptr %region, i64 2, i64 %n)
  call void @vkCmdCopyBuffer(i64 %buffer, i64 %from, i64 %to.buffer, i32 1, ptr %region)"""
_STAMP = """  call void @vkCmdResetQueryPool(i64 %buffer, i64 %pool, i32 %query, i32 1)
  call void @vkCmdWriteTimestamp(i64 %buffer, i32 8192, i64 %pool, i32 %query)"""
_EXECUTE = """  store i64 %graph, ptr %region
  call void @vkCmdExecuteCommands(i64 %buffer, i32 1, ptr %region)
  call void @put(ptr %s, i64 $BOUND, i64 0)"""
_FILL_BODY = "  call void @vkCmdFillBuffer(i64 %buffer, i64 %to.buffer, i64 %to.at, i64 %n, i32 %word)"
_UPDATE = "  call void @vkCmdUpdateBuffer(i64 %buffer, i64 %to.buffer, i64 %to.at, i64 %n, i64 %data)"

HOST = """
; hand what is recorded to the device
define i32 @qd_submit(ptr %s) {
  call void @enter(ptr %s)
  %r = call i32 @submit(ptr %s)
  call void @leave(ptr %s)
  ret i32 %r
}
; the value of the stream's semaphore when all that is in the stream now has run
define i64 @qd_pending(ptr %s) {
  call void @enter(ptr %s)
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %capturing = icmp ne i64 %capture, 0
  %own = call i64 @get(ptr %s, i64 $BUFFER)
  %outer = call i64 @get(ptr %s, i64 $OUTER)
  %buffer = select i1 %capturing, i64 %outer, i64 %own
  %is = icmp ne i64 %buffer, 0
  %more = zext i1 %is to i64
  %last = call i64 @get(ptr %s, i64 $LAST)
  %value = add i64 %last, %more
  call void @leave(ptr %s)
  ret i64 %value
}
; exchange what is recorded into: words 0 to CAPTURE
define i32 @qd_exchange(ptr %s, ptr %other) {
  call void @enter(ptr %s)
  %buffer = call i64 @get(ptr %s, i64 $BUFFER)
  call void @put(ptr %s, i64 $OUTER, i64 %buffer)
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %next, %loop ]
  %mine = call i64 @get(ptr %s, i64 %i)
  %its = call i64 @get(ptr %other, i64 %i)
  call void @put(ptr %s, i64 %i, i64 %its)
  call void @put(ptr %other, i64 %i, i64 %mine)
  %next = add i64 %i, 1
  %more = icmp ule i64 %next, $CAPTURE
  br i1 %more, label %loop, label %end
end:
  call void @leave(ptr %s)
  ret i32 0
}
; room for words: of all slots, or of the graph that is being recorded
define i32 @qd_room(ptr %s, i64 %host, i64 %device) {
  call void @enter(ptr %s)
  %capture = call i64 @get(ptr %s, i64 $CAPTURE)
  %capturing = icmp ne i64 %capture, 0
  br i1 %capturing, label %graph, label %slots
graph:
  call void @put(ptr %s, i64 $WORDS, i64 %host)
  call void @put(ptr %s, i64 $WORDS_DEVICE, i64 %device)
  call void @put(ptr %s, i64 $WORDS_AT, i64 0)
  call void @put(ptr %s, i64 $WORDS_SIZE, i64 $CHUNK)
  br label %end
slots:
  %slots.n = call i64 @get(ptr %s, i64 $SLOTS)
  %slots.p = inttoptr i64 %slots.n to ptr
  br label %loop
loop:
  %i = phi i64 [ 0, %slots ], [ %next, %loop ]
  %at = mul i64 %i, $SLOT_WORDS_COUNT
  %record = getelementptr i64, ptr %slots.p, i64 %at
  %offset = mul i64 %i, $CHUNK
  %host.i = add i64 %host, %offset
  %device.i = add i64 %device, %offset
  call void @put(ptr %record, i64 $SLOT_WORDS, i64 %host.i)
  call void @put(ptr %record, i64 $SLOT_WORDS_DEVICE, i64 %device.i)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, $SLOT_COUNT
  br i1 %more, label %loop, label %current
current:
  %slot = call i64 @get(ptr %s, i64 $SLOT)
  %slot.at = mul i64 %slot, $SLOT_WORDS_COUNT
  %own = getelementptr i64, ptr %slots.p, i64 %slot.at
  call void @room(ptr %s, ptr %own)
  br label %end
end:
  call void @leave(ptr %s)
  ret i32 0
}
"""


def commands() -> list[str]:
    """The functions that put one command into a stream."""
    copy = "i64 %from, i64 %from.at, i64 %to.buffer, i64 %to.at, i64 %n"
    made = (
        ("qd_fill", "i64 %to.buffer, i64 %to.at, i64 %n, i32 %word", _FILL_BODY, "1", "false"),
        ("qd_copy", copy, _COPY, "1", "false"),
        ("qd_update", "i64 %to.buffer, i64 %to.at, i64 %n, i64 %data", _UPDATE, "1", "false"),
        ("qd_stamp", "i64 %pool, i32 %query", _STAMP, "0", "true"),
        ("qd_execute", "i64 %graph, i64 %weight", _EXECUTE, "%weight", "true"),
    )
    return [
        _COMMAND.format(name=name, params=params, body=body, weight=weight, alone=alone)
        for name, params, body, weight, alone in made
    ]
