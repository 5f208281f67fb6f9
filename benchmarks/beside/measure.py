"""What one side of a comparison measures of itself, in a process of its own on one core."""

from __future__ import annotations

import ast
import inspect
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], tuple[Any, Any]]
"""Gives the loss, or one for each trial, and the gradient, after all work is done."""


def figures(make: Callable[[], Run], source: Sequence[Any], seconds: float) -> dict[str, Any]:
    """The figures of a side; times are CPU seconds of the process (user and system), which other programs hardly change.

    Args:
        make: builds the simulation; what it does and the first run count as the start.
        source: the functions and classes that a user writes for it.
        seconds: about how long to repeat it; at least 3 times.
    """
    before, begin = resident("VmRSS"), time.process_time()
    run = make()
    loss, gradient = run()
    first, times = time.process_time() - begin, []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return {
        "seconds": min(times),
        "start": first - min(times),
        "bytes": resident("VmHWM") - before,
        "lines": sum(map(code_lines, source)),
        "loss": np.asarray(loss, float).ravel().tolist(),
        "gradient": np.asarray(gradient, float).ravel().tolist(),
    }


def resident(name: str) -> int:
    """Resident bytes of this process by their name in Linux' ``/proc/self/status``: ``VmRSS`` now, ``VmHWM`` at most."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def code_lines(part: Any) -> int:
    """Lines of a function or class without comments, empty lines and docstrings, one statement on a line."""
    text = inspect.getsource(getattr(part, "func", part))  # a kernel of Warp keeps its function there
    tree = ast.parse(inspect.cleandoc("\n" + text) if text[0].isspace() else text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            del body[0]
    return len([line for line in ast.unparse(tree).splitlines() if line.strip()])


def report(found: dict[str, Any]) -> None:
    """Print the figures for the command that compares them."""
    print("FIGURES " + json.dumps(found))
