"""Recipes: kernels compiled once per process and launched in many programs.

A sweep opens one program after another and lowers the same kernels in each, over fields of the same layout. What comes out of the front
end then differs only in the memory behind it. A ``Recipe`` is the rest of the road (simplify, reverse, machine code) for a kernel whose
buffers are numbered instead of owned; a program brings its own buffers in the same order.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..codegen.llvm.cost import suggested_lanes
from ..ir.nodes import ArgDecl, Buffer, GlobalStore, Kernel, Op, Place, Stmt
from ..ir.printer import print_kernel
from ..ir.walk import kernel_places, task_blocks, walk
from ..runtime.cpu import Compiled, CpuDevice
from ..runtime.cpu import Options as CompileOptions
from ..runtime.jit import host
from ..transforms.access import Access, writes_of
from ..transforms.exits import lower_exits
from ..transforms.gradient import Gradient, reverse_kernel
from ..transforms.injective import race_free
from ..transforms.reduce import reduce_kernel
from ..transforms.simplify import simplify
from .options import Options
from .show import show

MOST = 512
"""Recipes that a process keeps; the least recently used goes first."""


@dataclass(frozen=True, eq=False)
class Ready:
    """Machine code, and the kernel that it was made from."""

    kernel: Kernel
    compiled: Compiled
    draws: bool  # it reads the launch's random seed
    written: frozenset[int]  # ``ArgDecl.index`` of the arrays that it writes


class Recipe:
    """One lowered kernel. The forward code is made at once, the reverse code when it is first asked for."""

    def __init__(self, lowered: Kernel, buffers: list[Buffer], options: Options, device: CpuDevice) -> None:
        self.buffers = buffers
        self._options = options
        self._lock = threading.Lock()
        self._reverse: tuple[Gradient, Ready] | None = None
        self.ir = show("simplify", simplify(lower_exits(lowered)))
        self.forward = self._compile(self.ir, device, 0)

    def reverse(self, device: CpuDevice) -> tuple[Gradient, Ready]:
        """The reverse kernel with its sizing, compiled.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        with self._lock:
            if self._reverse is None:
                found = reverse_kernel(self.ir)
                found = replace(found, kernel=show("reverse", simplify(show("reverse-raw", found.kernel))))
                # A row of the heap belongs to a lane: with stacks, one lane a thread keeps the heap small unless asked otherwise.
                has_stacks = any(s.stacks for t in found.sizing for s in t.region.all_loops())
                self._reverse = found, self._compile(found.kernel, device, (self._options.cpu_lanes or 1) if has_stacks else 0)
            return self._reverse

    @functools.cached_property
    def writes(self) -> tuple[Access, ...]:
        """Everything that the forward kernel stores to."""
        return tuple(access for task in self.ir.tasks for access in writes_of(walk(task.body)))

    def _compile(self, kernel: Kernel, device: CpuDevice, lanes: int) -> Ready:
        ready = reduce_kernel(kernel)
        plain = frozenset(op for task in ready.tasks for op in race_free(task))
        lanes = lanes or self._options.cpu_lanes or suggested_lanes(ready, host().triple, host().features)
        how = CompileOptions(lanes=lanes, offline_cache=self._options.offline_cache, plain=plain)
        draws = any(isinstance(s, Op) and s.op == "seed" for t in kernel.tasks for s in task_blocks(t))
        writes = writes_of(s for t in kernel.tasks for s in walk(t.body))
        written = frozenset(p.buffer.owner.index for p, _, _ in writes if isinstance(p.buffer.owner, ArgDecl))
        return Ready(kernel, device.compile(ready, how), draws, written)


class Cookbook:
    """The recipes of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recipes: OrderedDict[tuple[object, ...], Recipe] = OrderedDict()
        self._making: dict[tuple[object, ...], threading.Lock] = {}

    def recipe(self, lowered: Kernel, options: Options, device: CpuDevice) -> tuple[Recipe, list[Buffer]]:
        """The recipe of a freshly lowered kernel, which is used up, and its own buffers in the order of the recipe's."""
        buffers = field_buffers(lowered)
        key = (_text(lowered, buffers), str(lowered.loc), options.cpu_lanes, options.offline_cache)
        with self._lock:
            turn = self._making.setdefault(key, threading.Lock())
        with turn:
            known = self._recipes.get(key)
            if known is None:
                known = Recipe(lowered, _detach(lowered, buffers), options, device)
            with self._lock:
                self._recipes[key] = known
                self._recipes.move_to_end(key)
                if len(self._recipes) > MOST:
                    self._making.pop(self._recipes.popitem(last=False)[0], None)
        return known, buffers


COOKBOOK = Cookbook()


def field_buffers(kernel: Kernel) -> list[Buffer]:
    """The field buffers of a kernel, those of gradients included, in order of first use."""
    out: dict[Buffer, None] = {}
    for place in kernel_places(kernel):
        for p in (place, place.grad):
            if p is not None and p.buffer.kind == "field":
                out.setdefault(p.buffer)
    return list(out)


def _text(kernel: Kernel, buffers: list[Buffer]) -> str:
    """The printed kernel and the layout of its gradients: equal texts give equal recipes."""
    numbers = {b: k for k, b in enumerate(buffers)}
    grads = [
        f"{numbers.get(p.grad.buffer)} {p.grad.dtype} {p.grad.shape} {p.grad.strides} {p.grad.offset}" if p.grad else "-"
        for p in kernel_places(kernel)
    ]
    return print_kernel(kernel) + "\n".join(grads)


def _detach(kernel: Kernel, buffers: list[Buffer]) -> list[Buffer]:
    """Replace the field buffers of a kernel by new ones without an owner, in place; so a recipe keeps no program's memory alive."""
    fresh = {b: Buffer("field") for b in buffers}
    places: dict[Place, Place] = {}

    def new(place: Place) -> Place:
        if place.buffer not in fresh:
            return place
        if place not in places:
            grad = None if place.grad is None else new(place.grad)
            places[place] = replace(place, buffer=fresh[place.buffer], grad=grad)
        return places[place]

    for task in kernel.tasks:
        for s in task_blocks(task):
            _replace_place(s, new)
    return list(fresh.values())


def _replace_place(s: Stmt, new: Callable[[Place], Place]) -> None:
    if isinstance(s, GlobalStore):
        s.place = new(s.place)
    elif isinstance(s, Op) and s.op == "gload":
        assert isinstance(s.attr, Place)
        s.attr = new(s.attr)
    elif isinstance(s, Op) and s.op == "atomic":
        assert isinstance(s.attr, tuple)
        s.attr = (new(s.attr[0]), s.attr[1])
