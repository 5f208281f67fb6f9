"""The program: owner of a device, of fields and of the gradient heap. There is no state outside it.

``qd.init`` makes one and makes it current in this context (a thread, or an async task). Several live side by side: each thread of a
worker may run its own.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import QdrunIndexError, QdrunRuntimeError
from ..ir.threads import Living, Turns
from ..ir.trials import TrialLayout, gpu_layout
from ..options import Arch, Options
from ..runtime.base import Allocation
from ..runtime.native.launch import NativeLaunch
from ..tape.machine import Machine, machine
from .factory import TensorFactory
from .layout.tree import Root, SNode, leaves_of
from .memory.columns import Column, read_columns
from .memory.first_values import FirstValues
from .memory.known_tapes import KnownTapes
from .memory.lifetimes import Lifetimes
from .memory.memory_regions import memory_of, shown
from .memory.process_memory import Beside, memory_beside
from .memory.versions import Versions
from .plans.gradient_paths import GradientPath, follow
from .plans.kernel_plan import KernelPlan, code_bytes, kernel_plan
from .plans.launch_facts import launch_note, parallel_iterations
from .recorders import Recorders, WriteRecorder
from .rehearsal import Launches, Reading, Rehearsal, rehearse
from .state import ProgramState
from .variant import Variant, kernels_of

CURRENT: ContextVar[Program | None] = ContextVar("qdrun_program", default=None)
_BLOCKS: ContextVar[tuple[tuple[Program, Program | None, bool], ...]] = ContextVar("qdrun_blocks", default=())
"""The `with` blocks of programs around this context: the program, the one before, whether the block closes it."""
_numbers = itertools.count(1)
_programs: Living[Program] = Living()


class Program:
    """A device with its fields, ndarrays and compiled kernels: a record of services.

    Attributes:
        state: what its launches share; the services from ``options`` to ``replay`` are those of ``ProgramState``.
        recorders: what follows launches, and what Python reads and writes.
        factory: makes the fields and the ndarrays of the language.
        variants: the specialisations of each kernel in this program.
        native_launches, native_gradients: the native launchers of each kernel and gradient, which calls try before they use Python.
        lifetimes: the kernels and specialisations that end before the program does.
        known_tapes: the logs of tapes that were recorded often.
        parts: how many parts kernels have in a tape, see ``lang.launches.parts``.
        stage_graphs: of graph kernels, by the kernel: see ``lang.launches.stage_graphs``.
        flags_set: flags of graph kernels that were found set.
        counts_flags: whether the host must see them: steps compare how many there are.
        scratch: arrays that algorithms of the language use for values in between, by purpose, length and type.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "native_gradients",
        "native_launches",
    )  # a native launcher finds the last two by their offset

    def __init__(self, arch: Arch, options: Options, factory: TensorFactory) -> None:
        self.number, self.factory = next(_numbers), factory
        self.root = Root(self)
        self.state = state = ProgramState(arch, options, self.root)
        self.arch, self.options, self.device, self.profiler = arch, options, state.device, state.profiler
        self.admission, self.heap, self.seeds, self.batch = state.admission, state.heap, state.seeds, state.batch
        self.arrays, self.data, self.replay = state.arrays, state.data, state.replay
        self.recorders = Recorders(state)
        self.variants: dict[object, dict[tuple[Any, ...], Variant]] = {}
        self.native_launches: dict[object, list[NativeLaunch]] = {}
        self.native_gradients: dict[object, list[NativeLaunch]] = {}
        self._first_order = self.native_launches, self.native_gradients  # while second derivatives are computed
        self.making = Turns()  # of specialisations
        self.lifetimes, self.known_tapes = Lifetimes(self), KnownTapes()
        self.parts: WeakKeyDictionary[Any, dict[object, int]] = WeakKeyDictionary()
        self.stage_graphs: dict[object, Any] = {}
        self.flags_set, self.counts_flags = 0, False
        self.scratch: dict[object, Any] = {}
        self._new = True  # nothing was done in it yet: `with qd.init()`, not `with program`
        self._owned = False  # a `with` block closes it
        self._outer: weakref.ref[Program] | None = None
        self._on_host: Program | None = None
        _programs.add(self)
        if options.debug:
            self.recorders.versions = Versions(state)

    @property
    def closed(self) -> bool:
        """Whether everything was freed."""
        return self.admission.closed

    @property
    def on_host(self) -> Program:
        """A program of the CPU for work that no GPU does well, such as factors of sparse matrices; this one, if its memory is the host's.

        It is made at the first use, and closed with this one.
        """
        if self.device.on_host:
            return self
        if self._on_host is None:
            self._on_host = Program(Arch.cpu, Options(), self.factory)
        return self._on_host

    # ---- trials
    @contextmanager
    def trial(self, number: int) -> Iterator[None]:
        """``with program.trial(b):``: fields and ndarrays are those of trial b of a batched program, in Python. Nothing is launched inside.

        A program that is not batched has trial 0.

        Raises:
            QdrunIndexError: there is no such trial.
            QdrunRuntimeError: a tape or a graph records, or forward mode is on: they are for all trials.
        """
        count = self.batch.layout.count
        if not isinstance(number, Integral) or not 0 <= number < count:
            raise QdrunIndexError(f"program.trial({number!r}): this program has the trials 0 to {count - 1}")
        if self.recorders.name:
            raise QdrunRuntimeError(
                "program.trial(..) while launches are recorded (qd.ad.Tape, qd.ad.FwdMode, qd.capture): these are for all trials\n"
                "  do: read and write single trials before, or after"
            )
        before, self.batch.open = self.batch.open, self.batch.opened(int(number))
        self.recorders.update()
        try:
            yield
        finally:
            self.batch.open = before
            self.recorders.update()

    # ---- being current
    def __enter__(self) -> Program:
        before = CURRENT.get()
        closes = before is self and self._new  # else it is only borrowed
        self._owned = self._owned or closes
        open_blocks = (block for block in _BLOCKS.get() if not block[0].closed)  # they may have ended in another thread
        _BLOCKS.set((*open_blocks, (self, before, closes)))
        self._new = False
        if before is not None:
            before._new = False
        _make_current(self)
        return self

    def __exit__(self, *error: object) -> None:
        blocks = list(_BLOCKS.get())
        at = next((k for k in reversed(range(len(blocks))) if blocks[k][0] is self), None)
        if at is None:  # the block began in another thread, or another context
            closes = self._owned
        else:
            _, before, closes = blocks.pop(at)
            _BLOCKS.set(tuple(blocks))
            _make_current(before)
        if closes:
            try:
                self.close()
            except QdrunRuntimeError:
                if error[0] is None:  # otherwise the exception of the block propagates
                    raise
            outer = self._outer() if self._outer else None
            if CURRENT.get() is None and outer is not None and not outer.closed:
                _make_current(outer)

    @contextmanager
    def current_here(self) -> Iterator[None]:
        """It is the current program inside, in a thread that did not open it; the end changes nothing but that."""
        before = CURRENT.get()
        _make_current(self)
        try:
            yield
        finally:
            if before is not self:
                _make_current(None if before is not None and before.closed else before)

    def activate(self) -> Program:
        """Make this the current program of this thread. At the end of a ``with`` the one before is current again."""
        before = CURRENT.get()
        self._outer = None if before is None or before is self else weakref.ref(before)
        _make_current(self)
        return self

    def close(self) -> None:
        """Free everything. Fields of a closed program can no longer be used.

        Raises:
            QdrunRuntimeError: what a launch since the last wait has reported; everything is freed nevertheless.
        """
        failure = None
        if not self.closed:
            self.admission.closed = True
            self.recorders.update()
            self.admission.wait()
            failure = self._end()
            for variant in [v for found in list(self.variants.values()) for v in list(found.values())]:
                variant.close()
            self.lifetimes.close()
            for known in (self.variants, self.native_launches, self.native_gradients):
                known.clear()
            for f in self.root.fields():
                f.release()
            if self._on_host is not None:
                self._on_host.close()
            if self.profiler is not None:
                self.profiler.close()
            self.device.close()
        if CURRENT.get() is self:
            CURRENT.set(None)
        if failure is not None:
            raise failure

    def destroy(self, part: SNode) -> None:
        """Free the fields of a tree of its own. Kernels that use them are forgotten.

        Raises:
            QdrunRuntimeError: something records launches, which may need the fields.
        """
        if self.recorders.needs_memory:
            raise QdrunRuntimeError(
                "fields are destroyed while launches are recorded, which may need them\n"
                "  do: destroy them after the tape, the forward mode or the graph"
            )
        self.synchronize()
        self.lifetimes.reap()
        leaves: list[Any] = list(leaves_of(part))
        memory = {f._storage.serial: f._storage for f in leaves if f._storage is not None}
        with self.admission.alone():
            for kernel, variants in list(self.variants.items()):
                for key, variant in list(variants.items()):
                    if any(map(variant.uses, memory.values())):
                        variants.pop(key).close()
                        for native in (self.native_launches, self.native_gradients, *self._first_order):
                            native.pop(kernel[0] if isinstance(kernel, tuple) else kernel, None)
                if not variants:
                    self.variants.pop(kernel, None)
            for leaf in leaves:
                leaf.release()
            self.root.forget(part)
        for allocation in memory.values():
            self.device.free(allocation)

    def _end(self) -> QdrunRuntimeError | None:
        """Wait for the last launches; what they report, or what failed."""
        if self.state.pending is None or self.device.dead:
            return None
        try:
            self.device.synchronize()
        except QdrunRuntimeError as failure:
            return failure
        return None

    def forked(self) -> None:
        """In a forked child: the other threads, and what they were doing, are gone."""
        self.admission.forked()
        self.device.forked()
        self.recorders.update()

    # ---- recorders
    @contextmanager
    def second_order(self, product: WriteRecorder) -> Iterator[None]:
        """A Hessian product is computed inside: kernels are their forward-mode kernels, with gradients of their own."""
        before, known = self.recorders.second_order, (self.native_launches, self.native_gradients)
        if before is None:  # native launches are those of first order
            self._first_order = known
            self.native_launches, self.native_gradients = {}, {}
        self.recorders.second_order = product
        try:
            yield
        finally:
            self.native_launches, self.native_gradients = known
            self.recorders.second_order = before

    def rehearse(self, function: Callable[[], Any], name: str, gradients: bool = True) -> Rehearsal:
        """The launches of a function, without running them; see ``rehearsal.rehearse``."""
        with self:
            return rehearse(self, function, name, gradients)

    def gradient_paths(
        self, found: Rehearsal, inputs: Sequence[tuple[str, Any]], objective: Any, name: str
    ) -> tuple[GradientPath, ...]:
        """How the gradient of an objective reaches inputs over launches that ``rehearse`` has found; see ``gradient_paths.follow``."""
        with self:
            return follow(found, inputs, objective, name)

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Python reads fields; it is refused to write to them, and to launch kernels. ``name``: what messages call it."""
        before, self.recorders.rehearsal = self.recorders.rehearsal, Reading(name)
        try:
            with self:
                yield
        finally:
            self.recorders.rehearsal = before

    def show(self, tensor: Any) -> None:
        """Record that the memory of a field or an ndarray escaped: other code may write to it without the program's knowledge."""
        found, memory = shown(tensor), memory_of(tensor)
        if found.spots and found.spots[0] not in self.arrays.shown:
            if len(self.arrays.shown) >= 1024:
                for spot in [s for s, known in self.arrays.shown.items() if known.content() is None]:
                    del self.arrays.shown[spot]
            self.arrays.shown[found.spots[0]] = found
            self.data.changes.value += 1
            self.recorders.shown(found)
            for kernel, variants in list(self.variants.items()):
                for variant in list(variants.values()):
                    if variant.takes_arrays and variant.uses(
                        memory
                    ):  # an array may be a part of it: calls are looked at from now on
                        variant.native = False
                        self.native_launches.pop(kernel, None)
                        self.native_gradients.pop(kernel, None)

    # ---- memory
    def usage(self) -> dict[str, int]:
        """Bytes in use by category: fields, gradients, ndarrays, adstack, temporaries. On a GPU ``staging``, too: pinned memory of the host
        for large copies, which is no memory of the device and which no limit counts.
        """
        return self.device.usage()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in use at once."""
        return self.device.peak_bytes

    def peaks(self) -> dict[str, int]:
        """The most bytes of each category that were in use at once; ``code``: those of its kernels, which belong to the process."""
        code = code_bytes(kernels_of(self.variants))
        return self.device.peaks() | ({"code": code} if code else {})

    def kernels(self) -> list[KernelPlan]:
        """The memory of each compiled kernel, including gradients and tangents."""
        return [kernel_plan(executable) for executable in kernels_of(self.variants)]

    def beside(self, arch: str, device_bytes: int) -> list[Beside]:
        """What the process takes besides the program, see ``process_memory.memory_beside``."""
        return memory_beside(self.state, kernels_of(self.variants), arch, device_bytes)

    def allocate(self, nbytes: int, category: str) -> Allocation:
        """Zeroed device memory, counted under ``category``.

        Raises:
            OutOfMemory: the program's limit or the machine is too small.
        """
        return self.state.allocate(nbytes, category)

    def materialize(self, part: SNode | None = None) -> None:
        """Give storage to every field that was placed since the last time, or to those of a tree of its own."""
        self.state.materialize(part)

    def tensors(self) -> list[Any]:
        """Every field (not their gradients) and every ndarray with a gradient."""
        return [*(f for f in self.root.fields() if not f.role), *self.arrays.differentiable]

    def first_values(self, launches: Launches, also: Iterable[Any] = (), apart: Collection[Any] = ()) -> FirstValues:
        """The content of the memory that launches store to, to restore it before they run again; see ``FirstValues``.

        The program is the current one.
        """
        return FirstValues(self, launches, also, apart)

    def column(self, field: Any) -> Column:
        """A field whose content goes in or out before and after runs; see ``Column``."""
        return Column(self, field)

    def read_columns(self, columns: Sequence[Column]) -> list[np.ndarray]:
        """See ``columns.read_columns``."""
        return read_columns(columns)

    # ---- plans
    @property
    def trials(self) -> TrialLayout | None:
        """How many trials there are of a batched program, and how they lie in memory; None: it is not batched."""
        return self.batch.layout if self.batch.layout.batched else None

    def trials_of(self, count: int, arch: str | None = None) -> TrialLayout:
        """So many trials, as a batched program on its device has them in memory. ``arch``: on a GPU that need not be there, if the program
        runs on the CPU.
        """
        if self.device.on_host and arch not in (None, "cpu", self.arch.value):
            return gpu_layout(count, self.batch.extent)
        return self.device.trial_layout(count, self.options.cpu_lanes, self.batch.extent)

    def most_groups(self, arch: str | None) -> int:
        """Groups of trials from which on the adstack heap of a batch is the same: all threads have rows. None: of its own backend."""
        found = self.state.own_machine() if arch is None or arch == self.arch.value else machine(arch)
        return max(1, found.workers, found.most)

    def has_doubles(self, arch: str | None) -> bool:
        """Whether kernels may compute in f64 on a backend; None: on the program's own device."""
        return (self.state.own_machine() if arch in (None, self.arch.value) else machine(arch)).wide

    def machine(self, arch: str) -> Machine | None:
        """The parameters of a backend for plans; None: the program's own device.

        Raises:
            QdrunRuntimeError: the backend does not exist.
        """
        return None if arch == self.arch.value else machine(arch, fast_math=self.options.fast_math)

    def synchronize(self) -> None:
        """Wait until everything that was launched has ended; see ``sync``."""
        self.device.synchronize()

    @property
    def prompt(self) -> bool:
        """Whether launches are synchronous, so that the failing call raises the error: on a GPU, with ``debug=True``."""
        return self.state.pending is None or self.options.debug

    def parallel_iterations(self, kernel: Any, args: tuple[Any, ...]) -> tuple[int | None, ...]:
        """The parallel iterations of a launch, see ``program.plans.launch_facts.parallel_iterations``."""
        with self:
            return parallel_iterations(kernel, args)

    def launch_note(self, kernel: Any, args: tuple[Any, ...], arch: str) -> str:
        """A note on an option that would make a launch faster, see ``program.plans.launch_facts.launch_note``; empty: none."""
        with self:
            return launch_note(kernel, args, arch)


def current_program() -> Program:
    """The program of this context.

    Raises:
        QdrunRuntimeError: there is none.
    """
    program = CURRENT.get()
    if program is None:
        raise QdrunRuntimeError("no program in this thread; do: qd.init() here, or `with program:` around the work of a thread")
    program._new = False
    return program


def _make_current(program: Program | None) -> None:
    """Make a program the current one. Its launches go through Python if another program records in this context."""
    CURRENT.set(program)
    if program is not None:
        program.recorders.is_current()


def reset() -> None:
    """Close the current program, if there is one."""
    program = CURRENT.get()
    if program is not None:
        program.close()


def _after_fork() -> None:
    for program in _programs:
        program.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def sync() -> None:
    """Wait for the device. On the CPU every launch has finished when its call returns.

    Raises:
        QdrunRuntimeError: what a launch since the last wait has reported: a failed assertion, an adstack that was too small.
        DeviceError: the device failed.
    """
    current_program().synchronize()
