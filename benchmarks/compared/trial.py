"""The trial of all tools: a square, after it has noted that it was called; in some rows the seventh dies or hangs."""

import ctypes
import os
import time

POINTS = list(range(24))
BAD = 7


def square(x: int, row: str, folder: str) -> float:
    """(x - 3)^2; ``row`` says what goes wrong, ``folder`` where calls are noted."""
    with open(os.path.join(folder, "calls"), "a", encoding="utf-8") as calls:
        calls.write(f"{x} {time.time()}\n")
    if row == "crash" and x == BAD:
        ctypes.string_at(0)
    if row == "hang" and x == BAD:
        time.sleep(40)
    if row == "killed":
        time.sleep(0.25)
    return float((x - 3) ** 2)
