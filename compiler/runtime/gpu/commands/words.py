"""The words that machine code and Python share: of a stream, of a slot, of a launch. The handle of a stream is the address of its words."""

from __future__ import annotations

# Words of a stream: its lock; the open command buffer, or its encoder (0: none); commands in it; whether a graph is recorded; numbers of
# the last submission and of the last one that has ended; the code of a failure that ends the stream; the slots; the functions that fill,
# and that copy words of 1 and of 4 bytes; room for arguments: addresses on both sides, the encoder's handle of it, bytes of a slot, bytes
# used in the open one. Then the encoder's.
(
    LOCK,
    OPEN,
    COUNT,
    CAPTURE,
    LAST,
    DONE,
    FAILED,
    SLOTS,
    FILL,
    COPY_1,
    COPY_4,
    ROOM,
    ROOM_DEVICE,
    ROOM_HANDLE,
    ROOM_SIZE,
    ROOM_AT,
    ENCODER,
) = range(17)
STREAM_WORDS = ENCODER + 12
SLOT_COUNT = 16
"""A slot is one word: its command buffer."""

# Words of a launch, in front of its arguments: the function, blocks, threads of a block, on-chip bytes, bytes of the arguments.
ROW_FUNCTION, ROW_BLOCKS, ROW_THREADS, ROW_SHARED, ROW_BYTES, ROW_WORDS = range(6)

CHUNK = 64 << 10
"""Bytes for arguments in one command buffer; more where a single launch needs more."""
ROOM_ALIGN = 256
"""Alignment of a launch's arguments: what an encoder may need to bind them as a part of a buffer."""
MOST, FEW = 256, 8
FILL_BLOCK, MOST_BLOCKS = 128, 65_535
"""Threads of a block, and the maximum number of blocks, of the kernels that fill and copy (``own_kernels``)."""

SERVE_ENCODER, SERVE_SLOT, SERVE_ROOM, SERVE_RECORD = 1, 2, 3, 4
"""What Python is asked for: something of the encoder's, a wait for the next slot, room for arguments, to record a launch in a graph."""
RETRY = 5
"""Not asked of Python: the command buffer was full, and the next one is to be begun."""
