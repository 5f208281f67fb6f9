"""Devices: memory, machine code, caches, the thread pool, launching."""
