"""``qd.compile``: compiles the kernels of several calls at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from ..compile.ahead import AHEAD
from ..errors import NothingToDifferentiate, QdrunTypeError
from ..program.program import current_program


def compile_ahead(*calls: Any, gradients: bool = False) -> None:
    """Compile several kernels at once and return when all are ready. Nothing runs.

    ``qd.compile(k1, (k2, x, 3), (k3.grad, x))``: a kernel without arguments, or a tuple of a kernel and the arguments of a call;
    ``k.grad`` stands for the kernel and its gradient.

    Args:
        calls: what will be called.
        gradients: compile the gradients of all of them, too.

    Raises:
        QdrunTypeError: something that is not a kernel.
        QdrunCompilationError: a kernel that does not compile; of several, the first in the order of the calls.
        DifferentiationError: a kernel has no correct gradient.
    """
    program = current_program()
    program.materialize()
    groups: dict[int, list[Callable[[], None]]] = {}
    for call in calls:
        target, *args = call if isinstance(call, tuple) else (call,)
        if getattr(target, "prepare", None) is None:
            hint = "write qd.compile(k, (k2, x, 1.0))"
            raise QdrunTypeError(
                f"qd.compile() takes kernels and tuples (kernel, *arguments), not {type(target).__name__}", hint=hint
            )
        # the specialisations of one kernel are made one after another
        groups.setdefault(id(getattr(target, "kernel", target)), []).append(
            functools.partial(_prepare, target, args, gradients)
        )
    begun = [(work, AHEAD.submit(functools.partial(_all, work)) if program.device.native else None) for work in groups.values()]
    wait([future for _, future in begun if future is not None])
    for work, future in begun:
        if future is None:
            _all(work)
        else:
            future.result()


def _all(work: list[Callable[[], None]]) -> None:
    for f in work:
        f()


def _prepare(target: Any, args: list[Any], gradient: bool) -> None:
    target.prepare(*args)
    reverse = getattr(target, "grad", None)
    if gradient and reverse is not None:
        with contextlib.suppress(NothingToDifferentiate):
            reverse.prepare(*args)
