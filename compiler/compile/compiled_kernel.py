"""Kernels compiled once per process and launched in many programs.

A sweep opens one program after another and launches the same kernels in each, over fields of the same layout: only the memory differs.
A ``CompiledKernel`` has numbered field buffers instead of a program's; each program brings its own buffers in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ..codegen.abi import context_layout
from ..codegen.llvm.target import ONE_LANE, SimdWidth
from ..errors import DataAccessError
from ..ir.nodes import Buffer, Kernel, Stmt
from ..ir.process import while_compiling
from ..ir.threads import new_lock, once
from ..ir.walk import kernel_places, operands, task_blocks, walk
from ..options import Options, checks
from ..passes.dependence.access import Access, loads_of, writes_of
from ..passes.dependence.argument_forms import Form, forms
from ..passes.dependence.array_flow import StoredValues, flows_of
from ..passes.dependence.gradient_flow import TaskFlow, task_flows
from ..passes.forward.tangent import Tangent
from ..passes.parts import split
from ..passes.reverse.final_values import compares_contents
from ..passes.reverse.gradient import Gradient, reverse_kernel, without_divisions
from ..passes.simplify.slopes import without_unused_slopes
from ..runtime.base import Device
from ..runtime.compiled import Compiled
from . import pipeline
from .fast_math_note import note_fast_math
from .lanes import lanes_of
from .lazy_kernel import LazyKernel, facts_of
from .serialized_kernel import Storage


class KernelParts(NamedTuple):
    """A kernel as several, which run one after another.

    Attributes:
        kernels: each with the field buffers of the whole, and one for what it passes to the next.
        passed_bytes: the size of that one, in each trial of a batch.
        whole: the kernel has a gradient as a whole, too.
    """

    kernels: tuple[CompiledKernel, ...]
    passed_bytes: int
    whole: bool = True


class CompiledKernel:
    """One kernel with its reverse and forward-mode kernels. Machine code is made at the first launch; plans need none.

    Attributes:
        forward: the kernel itself.
        buffers: its field buffers, which have no owner.
    """

    def __init__(
        self, forward: Kernel | LazyKernel, buffers: list[Buffer], options: Options, storage: Storage | None = None
    ) -> None:
        """``forward``: the kernel as lowered, which is used up, or as another process has compiled it."""
        self.buffers, self._options, self._storage = buffers, options, storage
        self._lock = new_lock(self, "_lock")
        self._reverse: tuple[Gradient, LazyKernel] | None = None
        self._tangent: tuple[Tangent, LazyKernel] | None = None
        self._second: CompiledKernel | None = None
        self._parts: KernelParts | None = None
        self._forms: dict[Stmt, tuple[Form | None, ...]] = {}
        self._words: dict[LazyKernel, int] = {}
        self._known_lanes: dict[Kernel, SimdWidth] = {}
        self._reduced: dict[tuple[Kernel, str], Kernel] = {}  # for the lanes and the plan, until it is compiled
        if isinstance(forward, Kernel):
            forward = self._lazy("forward", pipeline.simplified(forward))
        self.forward: LazyKernel = forward

    @property
    def ir(self) -> Kernel:
        """The simplified kernel."""
        return self.forward.kernel

    @once
    def _one_lane(self) -> bool:
        return compares_contents(self.ir)

    def reverse(self, device: Device) -> tuple[Gradient, LazyKernel]:
        """The reverse kernel with its sizing: all that plans need. It is compiled when it is first launched.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        with self._lock:
            if self._reverse is None:
                with while_compiling():
                    self._reverse = self._stored("reverse", device) or self._make_reverse(device)
            return self._reverse

    @property
    def reversed(self) -> bool:
        """Whether the reverse kernel is compiled."""
        return self._reverse is not None and self._reverse[1].made is not None

    def _make_reverse(self, device: Device) -> tuple[Gradient, LazyKernel]:
        found = pipeline.gradient(self.ir, segmented=not device.on_host, marks=checks(self._options))
        return found, self._lazy("reverse", found.kernel, found)

    def compile_reverse(self, device: Device) -> None:
        """Compile the reverse kernel.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        self.reverse(device)[1].compiled(device)

    def planned_lanes(self, device: Device) -> SimdWidth:
        """The lanes that a plan of the gradient must know. Compiles where lanes were asked for that it may not take."""
        found, lazy = self.reverse(device)
        if self._options.batch is not None:
            return SimdWidth(lazy.compiled(device).lanes)
        asked = self._options.cpu_lanes
        if not device.on_host or asked == 1 or not any(s.stacks for t in found.sizing for s in t.region.all_loops()):
            return ONE_LANE  # without a stack lanes do not count
        if not asked and (lazy.made is None or not device.native):  # an interpreter plans what would be compiled
            return self._lanes(lazy.kernel)
        made = lazy.compiled(device)
        return SimdWidth(made.lanes, made.narrow, fewer=not asked)

    def _lanes(self, kernel: Kernel) -> SimdWidth:
        """The lanes of one of its kernels on the CPU."""
        if self._one_lane:  # functions of lanes are not those of one lane, to the last bit
            return ONE_LANE
        if kernel not in self._known_lanes:
            plain = self._plain(kernel, pipeline.gathers(self._options, on_host=True))
            self._known_lanes[kernel] = lanes_of(kernel, plain, self._options)
        return self._known_lanes[kernel]

    def _plain(self, kernel: Kernel, gathers: pipeline.Gathers = "") -> Kernel:
        """One of its kernels as ``pipeline.reduced`` makes it."""
        found = self._reduced.get((kernel, gathers))
        if found is None:
            found = self._reduced[kernel, gathers] = pipeline.reduced(kernel, gathers=gathers)
        return found

    def context_words(self, lazy: LazyKernel) -> int:
        """Words of the launch context of one of its kernels; the same before it is compiled and after."""
        if lazy.made is not None:
            return lazy.made.layout.words
        if lazy not in self._words:
            self._words[lazy] = context_layout(pipeline.planned(self._plain(lazy.kernel), self._options)).words
        return self._words[lazy]

    def tangent(self, device: Device) -> tuple[Tangent, LazyKernel]:
        """The forward-mode kernel: it computes values and tangents.

        Raises:
            DifferentiationError: something has no tangent, by name and line.
        """
        with self._lock:
            if self._tangent is None:
                with while_compiling():
                    self._tangent = self._stored("tangent", device) or self._make_tangent()
            return self._tangent

    def _make_tangent(self) -> tuple[Tangent, LazyKernel]:
        if not self._has_duals():
            return Tangent(self.ir), self.forward
        found = pipeline.tangent(self.ir)
        return found, self._lazy("tangent", found.kernel, found)

    def second_order(self) -> CompiledKernel:
        """The forward-mode kernel as a kernel of its own: its gradient is that of a directional derivative.

        Raises:
            DifferentiationError: something has no tangent, or no second derivative, by name and line.
        """
        with self._lock:
            if self._second is None:
                found = pipeline.second_order(self.ir) if self._has_duals() else None
                self._second = self if found is None else CompiledKernel(found, self.buffers, self._options)
            return self._second

    def parts(self, device: Device) -> KernelParts:
        """The kernel as several, each of which has a gradient in a tape; none where it has one as a whole, or cannot be split.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line, in parts or as a whole.
        """
        if self._parts is None:
            found = KernelParts((), 0)
            if not self.forward.head.frees:  # else it has no gradient
                try:
                    self.reverse(device)
                except DataAccessError:
                    found = self._split(device)
                with while_compiling():
                    found = self._without_divisions(found)
            self._parts = found
        return self._parts

    def _split(self, device: Device) -> KernelParts:
        def check(kernel: Kernel) -> None:
            reverse_kernel(without_unused_slopes(kernel), segmented=not device.on_host)

        with while_compiling():
            found = split(self.ir, check, batched=self._options.batch is not None)
        buffers = [*self.buffers, found.passed]
        kernels = tuple(CompiledKernel(part, buffers, self._options) for part in found.kernels)
        return KernelParts(kernels, found.passed_bytes, whole=False)

    def _without_divisions(self, found: KernelParts) -> KernelParts:
        """The parts, or the kernel as one part, with products in locals: a tape keeps what they need."""
        now = found.kernels or (self,)
        new = [without_divisions(part.ir) for part in now]
        if not any(new):
            return found
        made = (
            part if kernel is None else CompiledKernel(kernel, part.buffers, self._options) for part, kernel in zip(now, new)
        )
        return found._replace(kernels=tuple(made))

    def _has_duals(self) -> bool:
        return any(p.dual is not None and p.buffer.kind != "tmp" for p in kernel_places(self.ir))

    def _stored(self, kind: str, device: Device) -> tuple[Any, LazyKernel] | None:
        stored = self._storage.load(kind, self.buffers, device) if self._storage is not None else None
        return None if stored is None else (stored[1], stored[0])

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
    def flows(self) -> StoredValues:
        """The places that the stored values of the forward kernel depend on."""
        return flows_of(self.ir)

    @once
    def gradient_flow(self) -> tuple[TaskFlow, ...]:
        """The arrays that each task's stored values depend on, and where a derivative is cut."""
        return task_flows(self.ir)

    def forms(self, access: Access) -> tuple[Form | None, ...]:
        """The index of one of its accesses as sums of arguments, as far as it is one."""
        known = self._forms.get(access[2])
        if known is None:
            known = self._forms[access[2]] = forms(access[1])
        return known

    def _lazy(self, kind: str, kernel: Kernel, found: Any = None) -> LazyKernel:
        """A kernel of a kind, to be compiled. ``found``: its ``Gradient`` or ``Tangent``."""

        def make(device: Device) -> Compiled:
            if kind == "forward" and device.approximates and not self._options.fast_math:
                note_fast_math(kernel)
            plain = self._plain(kernel, pipeline.gathers(self._options, device.on_host) if device.native else "")
            out, how = pipeline.device_input(kernel, self._options, nested=device.on_host, out=plain)
            if self._options.batch is not None:
                assert device.trials is not None
                width = device.trials.width
                how = replace(how, lanes=1 if self._one_lane or not device.on_host else width, trials=width)
            elif device.on_host:
                lanes = self._lanes(kernel)
                how = replace(how, lanes=lanes.width, narrow=lanes.narrow)
            for gathers in ("", "cpu", "gpu"):
                self._reduced.pop((kernel, gathers), None)
            return device.compile(out, how)

        def save(made: LazyKernel) -> None:
            if self._storage is not None:
                self._storage.save(kind, made, self.buffers, found)

        return LazyKernel(facts_of(kernel), lambda: kernel, make, save)
