"""The recorder: launches, fills and copies put into a stream's command buffer by machine code, in about a microsecond each.

A stream and a function are records of 8-byte words, of which the handle is the address. Every function here takes the stream's lock for as
long as it records, and calls nothing of Python's meanwhile. So a thread that waits for the lock may hold the interpreter's lock. What needs
Python (a pipeline of another size, room for words, a command buffer that has run) is served by ``qd_serve`` without the lock, and then it
begins anew.

A command buffer is submitted when it has ``MOST`` commands, or ``FEW`` while the device has nothing to do, and when the host asks for it.
"""
