"""Kernel -> IR -> gradient -> machine code -> launch."""
