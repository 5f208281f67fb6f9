"""The words that the recorder's machine code and Python read and write: of a stream, of a function, of a command buffer.

A stream and a function are records of 8-byte words, of which the handle is the address.
"""

from __future__ import annotations

# Words of a stream. Those up to CAPTURE are what recording a graph exchanges.
BUFFER, BOUND, COUNT, WORDS, WORDS_DEVICE, WORDS_AT, WORDS_SIZE, CAPTURE = range(8)
(
    LOCK,
    OUTER,
    LAST,
    DONE,
    FAILED,
    SEMAPHORE,
    QUEUE,
    DEVICE,
    SLOTS,
    SLOT,
    SUBMIT,
    VALUE,
    BEGIN,
    COMMANDS,
    BARRIER,
    ENDING,
    FILL,
) = range(8, 25)
STREAM_WORDS = 25
SAVED = CAPTURE + 1
# Words of a function: layout of its pipelines, bytes of its words, whether they are passed by address; how many pipelines; pairs of the
# size (threads of a block, bytes of on-chip memory in the upper half) and the pipeline.
LAYOUT, BYTES, BY_ADDRESS, SIZES, PIPELINES = range(5)
MOST_SIZES = 64
FUNCTION_WORDS = PIPELINES + 2 * MOST_SIZES
# Words of a slot, which is a command buffer of a stream: the value after which it can be used again, room for words of launches.
SLOT_COMMANDS, SLOT_VALUE, SLOT_WORDS, SLOT_WORDS_DEVICE = range(4)
SLOT_WORDS_COUNT, SLOT_COUNT = 4, 16

CHUNK = 64 << 10
"""Bytes for words of launches in one command buffer."""
MOST, FEW = 256, 8
FILL_BLOCK, MOST_BLOCKS = 128, 65_535

SERVE_PIPELINE, SERVE_SLOT, SERVE_WORDS = 1, 2, 3
"""What Python is asked for: a pipeline of the size, a wait for the next command buffer, room for words."""
RETRY = 4
"""Not asked of Python: the command buffer was full, and the next one is to be begun."""
