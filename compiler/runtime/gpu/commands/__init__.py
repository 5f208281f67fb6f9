"""Command streams, for APIs that run command buffers. Kernels launch into them by machine code, in about a microsecond.

A stream has ``SLOT_COUNT`` command buffers that take turns. Submission ``v`` of a stream uses slot ``v % SLOT_COUNT``, once submission
``v - SLOT_COUNT`` has ended. A command buffer is submitted when it has ``MOST`` launches, or ``FEW`` while the device has nothing to do,
and when the host asks for it.

Four native functions encode for one API (``record_ir``): begin a command buffer, encode a launch, submit, ask how far the device is. All
else is common. The ``encoder`` of a backend defines these four.

Machine code holds the stream's lock while it records, and calls nothing of Python's meanwhile. So a thread that waits for the lock may hold
the interpreter's lock. What needs Python (a slot that is still running, room for arguments, a graph that is recorded) is served by
``qd_serve`` without the lock, and then the launch begins anew.
"""
