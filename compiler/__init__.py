"""Kernel -> IR -> gradient -> machine code -> launch."""

import time

LOADED = time.time()
"""When this process began to load the compiler."""
