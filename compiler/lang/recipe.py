"""Recipes: kernels compiled once per process and launched in many programs.

A sweep opens one program after another and lowers the same kernels in each, over fields of the same layout. What comes out of the front
end then differs only in the memory behind it. A ``Recipe`` is the rest of the road (simplify, reverse, machine code) for a kernel whose
buffers are numbered instead of owned; a program brings its own buffers in the same order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..codegen.abi import context_layout
from ..codegen.llvm.cost import block_cost, suggested_lanes
from ..ir.nodes import ArgDecl, Buffer, GlobalStore, Kernel, Op, Place, Stmt
from ..ir.printer import print_kernel
from ..ir.process import collector_paused
from ..ir.threads import Turns, new_lock, once
from ..ir.walk import kernel_places, operands, task_blocks, walk
from ..runtime.cpu import Compiled
from ..runtime.cpu import Options as CompileOptions
from ..runtime.device import Device
from ..runtime.jit import host
from ..transforms.access import Access, loads_of, writes_of
from ..transforms.checks import checked, unchecked
from ..transforms.exits import lower_exits
from ..transforms.finals import compares_contents
from ..transforms.gradient import Gradient, reverse_kernel
from ..transforms.injective import race_free
from ..transforms.lost import Flows, flows_of
from ..transforms.reduce import reduce_kernel
from ..transforms.simplify import simplify
from ..transforms.slopes import without_slopes
from ..transforms.tangent import Tangent, forward_kernel
from .notes import note_fast_math
from .options import Options, checks, compile_choices
from .show import show
from .spots import Form, forms
from .stored import Ready, Written
from .stored import ready as ready_of

MOST = 512
"""Recipes that a process keeps; the least recently used goes first."""


class Shelf(Protocol):
    """Where the compiled kernels of one recipe are kept from process to process."""

    def get(self, kind: str, buffers: Sequence[Buffer], device: Device) -> tuple[Ready, Any] | None:
        """The compiled kernel of a kind ("reverse", "tangent") with what comes with it, or None."""
        ...

    def put(self, kind: str, made: Ready, buffers: Sequence[Buffer], found: Any) -> None:
        """Keep a compiled kernel."""
        ...


class Recipe:
    """One lowered kernel. Its forward, reverse and forward-mode code is made when it is first launched; plans need none.

    Attributes:
        shelf: where other processes find what was compiled, if anywhere.
    """

    def __init__(self, lowered: Kernel, buffers: list[Buffer], options: Options) -> None:
        self._begin(buffers, options)
        self.__dict__["ir"] = show("simplify", simplify(lower_exits(lowered)))
        self.forward = self._compile(self.ir, 0, first=True)

    @classmethod
    def stored(cls, forward: Ready, buffers: list[Buffer], options: Options, shelf: Shelf) -> Recipe:
        """The recipe of a kernel that another process has compiled."""
        out = cls.__new__(cls)
        out._begin(buffers, options)
        out.forward, out.shelf = forward, shelf
        return out

    def _begin(self, buffers: list[Buffer], options: Options) -> None:
        self.buffers, self._options = buffers, options
        self._lock = new_lock(self, "_lock")
        self._reverse: tuple[Gradient, Ready] | None = None
        self._tangent: tuple[Tangent, Ready] | None = None
        self.shelf: Shelf | None = None
        self._forms: dict[Stmt, tuple[Form | None, ...]] = {}
        self._words: dict[Ready, int] = {}

    @once
    def ir(self) -> Kernel:
        """The simplified kernel."""
        return self.forward.kernel

    @once
    def _one_lane(self) -> bool:
        return compares_contents(self.ir)

    def reverse(self, device: Device) -> tuple[Gradient, Ready]:
        """The reverse kernel with its sizing: all that plans need. It is compiled when it is first launched.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        with self._lock:
            if self._reverse is None:
                with collector_paused():
                    self._reverse = self._kept("reverse", device) or self._keep("reverse", *self._make_reverse(device))
            return self._reverse

    @property
    def reversed(self) -> bool:
        """Whether the reverse kernel is compiled."""
        return self._reverse is not None and self._reverse[1].made is not None

    def _make_reverse(self, device: Device) -> tuple[Gradient, Ready]:
        found = reverse_kernel(self.ir, segmented=not device.on_host, marks=checks(self._options))
        found = replace(found, kernel=show("reverse", simplify(show("reverse-raw", found.kernel))))
        return found, self._compile(found.kernel, self._lanes(found))

    def _lanes(self, found: Gradient) -> int:
        """The lanes of the reverse kernel; 0: whatever suits it."""
        # A row of the heap belongs to a lane: with stacks, one lane a thread keeps the heap small unless asked otherwise.
        has_stacks = any(s.stacks for t in found.sizing for s in t.region.all_loops())
        return (self._options.cpu_lanes or 1) if has_stacks else 0

    def compile_reverse(self, device: Device) -> None:
        """Compile the reverse kernel.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        self.reverse(device)[1].compiled(device)

    def planned_lanes(self, device: Device) -> int:
        """The lanes that a plan of the gradient must know. Compiles where lanes were asked for that it may not take."""
        found, ready = self.reverse(device)
        known = 1 if self._lanes(found) <= 1 or not device.on_host else 0  # without a stack lanes do not count
        return known or ready.compiled(device).lanes

    def context_words(self, ready: Ready) -> int:
        """Words of the launch context of one of its kernels; the same before it is compiled and after."""
        if ready.made is not None:
            return ready.made.layout.words
        if ready not in self._words:
            self._words[ready] = context_layout(_reduced(ready.kernel)).words
        return self._words[ready]

    def tangent(self, device: Device) -> tuple[Tangent, Ready]:
        """The forward-mode kernel, compiled: it computes values and tangents.

        Raises:
            DifferentiationError: something has no tangent, by name and line.
        """
        with self._lock:
            if self._tangent is None:
                with collector_paused():
                    self._tangent = self._kept("tangent", device) or self._make_tangent(device)
            return self._tangent

    def _make_tangent(self, device: Device) -> tuple[Tangent, Ready]:
        if not any(p.dual is not None and p.buffer.kind != "tmp" for p in kernel_places(self.ir)):
            return Tangent(self.ir), self.forward
        found = forward_kernel(self.ir)
        found = replace(found, kernel=show("tangent", simplify(show("tangent-raw", found.kernel))))
        return self._keep("tangent", found, self._compile(found.kernel, 0))

    def _kept(self, kind: str, device: Device) -> tuple[Any, Ready] | None:
        kept = self.shelf.get(kind, self.buffers, device) if self.shelf is not None else None
        return None if kept is None else (kept[1], kept[0])

    def _keep(self, kind: str, found: Any, made: Ready) -> tuple[Any, Ready]:
        def put() -> None:
            if self.shelf is not None:
                self.shelf.put(kind, made, self.buffers, found)

        made.once_compiled(put)
        return found, made

    @once
    def writes(self) -> tuple[Access, ...]:
        """Everything that the forward kernel stores to."""
        return tuple(access for task in self.ir.tasks for access in writes_of(walk(task.body)))

    @once
    def loads(self) -> tuple[Access, ...]:
        """Everything that the forward kernel reads: loads, and atomics whose old value is used."""
        statements = [s for t in self.ir.tasks for s in task_blocks(t)]
        used = {id(x) for s in statements for x in operands(s)}
        return (*loads_of(statements), *(a for a in writes_of(statements) if id(a[2]) in used))

    @once
    def flows(self) -> Flows:
        """What the values that the forward kernel stores depend on."""
        return flows_of(self.ir)

    def forms(self, access: Access) -> tuple[Form | None, ...]:
        """The index of one of its accesses as sums of arguments, as far as it is one."""
        known = self._forms.get(access[2])
        if known is None:
            known = self._forms[access[2]] = forms(access[1])
        return known

    def _compile(self, kernel: Kernel, lanes: int, first: bool = False) -> Ready:
        def make(device: Device) -> Compiled:
            if first and device.approximates and not self._options.fast_math:
                note_fast_math(kernel)
            reduced, how = compiler_input(kernel, self._options)
            if device.on_host and not self._one_lane:  # functions of lanes are not those of one lane, to the last bit
                plain = _unchecked(kernel) if checks(self._options) else reduced  # the lanes decide bits
                how = replace(
                    how, lanes=lanes or self._options.cpu_lanes or suggested_lanes(plain, host().triple, host().features)
                )
            return device.compile(reduced, how)

        draws = any(isinstance(s, Op) and s.op == "seed" for t in kernel.tasks for s in task_blocks(t))
        writes = writes_of(s for t in kernel.tasks for s in walk(t.body))
        written = frozenset(_slot(p.buffer) for p, _, _ in writes if isinstance(p.buffer.owner, ArgDecl))
        return ready_of(kernel, make, draws, written)


def compiler_input(kernel: Kernel, options: Options) -> tuple[Kernel, CompileOptions]:
    """What a device compiles of a kernel, and how, in one lane."""
    reduced = _reduced(kernel)
    if checks(options):
        reduced = checked(reduced, options.nan_check)
        for task, plain in zip(reduced.tasks, _unchecked(kernel).tasks):
            task.cost = block_cost(plain.body)  # decides which iterations share a partial sum
    plain = frozenset(op for task in reduced.tasks for op in race_free(task))
    how = CompileOptions(lanes=1, offline_cache=options.offline_cache, plain=plain, fast_math=options.fast_math)
    return reduced, how


def _unchecked(kernel: Kernel) -> Kernel:
    """What would be compiled of a kernel without checks."""
    return _reduced(simplify(unchecked(kernel)))


def _reduced(kernel: Kernel) -> Kernel:
    return reduce_kernel(without_slopes(kernel))


def _slot(buffer: Buffer) -> Written:
    """How ``Ready.written`` names an array argument, or its gradient or dual."""
    assert isinstance(buffer.owner, ArgDecl)
    index = buffer.owner.index
    return index if buffer.kind == "arg" else (buffer.kind.removeprefix("arg_"), index)


class Cookbook:
    """The recipes of this process."""

    def __init__(self) -> None:
        self._lock = new_lock(self, "_lock")
        self._recipes: OrderedDict[tuple[object, ...], Recipe] = OrderedDict()
        self._making = Turns()

    def recipe(self, lowered: Kernel, options: Options, device: Device) -> tuple[Recipe, list[Buffer]]:
        """The recipe of a freshly lowered kernel, which is used up, and its own buffers in the order of the recipe's."""
        buffers = field_buffers(lowered)
        key = (device.arch, device.identity, _text(lowered, buffers), str(lowered.loc), *compile_choices(options))
        with self._making.of(key):
            known = self._recipes.get(key)
            if known is None:
                known = Recipe(lowered, _detach(lowered, buffers), options)
            with self._lock:
                self._recipes[key] = known
                self._recipes.move_to_end(key)
                if len(self._recipes) > MOST:
                    self._recipes.popitem(last=False)
        return known, buffers


COOKBOOK = Cookbook()


def field_buffers(kernel: Kernel) -> list[Buffer]:
    """The field buffers of a kernel, those of gradients and duals included, in order of first use."""
    out: dict[Buffer, None] = {}
    for place in kernel_places(kernel):
        for p in (place, place.grad, place.dual):
            if p is not None and p.buffer.kind == "field":
                out.setdefault(p.buffer)
    return list(out)


def _text(kernel: Kernel, buffers: list[Buffer]) -> str:
    """The printed kernel and the layout of its gradients and duals: equal texts give equal recipes."""
    numbers = {b: k for k, b in enumerate(buffers)}

    def layout(p: Place | None) -> str:
        return "-" if p is None else f"{numbers.get(p.buffer)} {p.dtype} {p.shape} {p.strides} {p.offset}"

    return print_kernel(kernel) + "\n".join(f"{layout(p.grad)} {layout(p.dual)}" for p in kernel_places(kernel))


def _detach(kernel: Kernel, buffers: list[Buffer]) -> list[Buffer]:
    """Replace the field buffers of a kernel by new ones without an owner, in place; so a recipe keeps no program's memory alive."""
    fresh = {b: Buffer("field") for b in buffers}
    places: dict[Place, Place] = {}

    def new(place: Place) -> Place:
        if place.buffer not in fresh:
            return place
        if place not in places:
            grad = None if place.grad is None else new(place.grad)
            dual = None if place.dual is None else new(place.dual)
            places[place] = replace(place, buffer=fresh[place.buffer], grad=grad, dual=dual)
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
