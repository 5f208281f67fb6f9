"""What a kernel needs that a GPU may not have, refused by name before code is generated for it."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import QdrunTypeError
from ...ir.nodes import Kernel, LocalStore, Op, Stmt, Task
from ...ir.types import DType, i8, u1
from ...ir.walk import atomic_of, operands, place_of, walk
from .hardware import GpuTarget
from .prologue import where

_INSTEAD = {
    "f64": "use f32: qd.init(default_fp=qd.f32), and qd.f32 for the fields, arguments and variables of this kernel",
    "f16": "use f32 for the fields, arguments and variables of this kernel",
    "u1": "keep truth values in memory as i32",
}


def check(kernel: Kernel, target: GpuTarget, plain: frozenset[Op] = frozenset()) -> None:
    """Refuse a kernel that needs what a GPU does not have.

    Args:
        kernel: verified IR with exits lowered.
        target: the GPU.
        plain: atomics that no other iteration can disturb.

    Raises:
        QdrunTypeError: a type, or an atomic of 8 bytes; names the kernel and the user's line.
    """
    if target.missing:
        for s in (s for task in kernel.tasks for s in _on_device(task)):
            _check_types(kernel, target, s)
    wide = None if target.wide_atomics else next(_wide_atomics(kernel, plain), None)
    if wide is not None:
        place, _ = atomic_of(wide)
        raise QdrunTypeError(
            f"kernel `{kernel.name}` changes `{place.name}` by an atomic of 8 bytes ({place.dtype.name}), and the device ({target.name})"
            " has none",
            wide.loc,
            f"use {place.dtype.name[0]}32 for `{place.name}`, let each iteration write an element of its own, or use another backend",
        )


def needs_wide_atomics(kernel: Kernel, plain: frozenset[Op]) -> bool:
    """Whether a kernel has atomics of 8 bytes where several threads run a trial; a reduction is one there."""
    sums = (r.place for task in kernel.tasks if task.parallel for r in task.reductions)
    return any(place.dtype.size == 8 for place in sums) or any(True for _ in _wide_atomics(kernel, plain))


def _wide_atomics(kernel: Kernel, plain: frozenset[Op]) -> Iterator[Op]:
    for s in (s for task in kernel.tasks if task.parallel for s in walk(task.body)):
        if isinstance(s, Op) and s.op == "atomic" and s not in plain and atomic_of(s)[0].dtype.size == 8:
            yield s


def _on_device(task: Task) -> Iterator[Stmt]:
    """The statements of a task that the GPU executes."""
    if where(task) != "host":
        yield from walk(task.prologue)
    yield from walk(task.body)


def _types(s: Stmt) -> Iterator[DType]:
    """The types that a statement computes with, and i8 for truth values in memory."""
    for x in operands(s):
        yield x.dtype
    if isinstance(s, Op):
        yield s.dtype
    if isinstance(s, LocalStore):
        yield s.local.dtype
    place = place_of(s)
    if place is not None:
        yield i8 if place.dtype is u1 else place.dtype


def _check_types(kernel: Kernel, target: GpuTarget, s: Stmt) -> None:
    for d in _types(s):
        if d in target.missing:
            place = place_of(s)
            name = "u1" if d is i8 and place is not None and place.dtype is u1 else d.name
            what = "keeps u1 values in memory, which takes integers of 8 bits" if name == "u1" else f"computes in {name}"
            wider = f"use {'u' if name[0] == 'u' else 'i'}32 for the fields, arguments and variables of this kernel"
            raise QdrunTypeError(
                f"kernel `{kernel.name}` {what}, and the device ({target.name}) has no {d.name}",
                getattr(s, "loc", None),
                f"{_INSTEAD.get(name, wider)}, or another backend",
            )
