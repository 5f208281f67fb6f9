"""The program: owner of a device, of fields and of the gradient heap. There is no state outside it.

``qd.init`` makes one and makes it current in this context (a thread, or an async task). Several live side by side: each thread of a
worker may run its own.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral
from typing import Any

from ..errors import QdrunIndexError, QdrunRuntimeError
from ..ir.nodes import Loc
from ..ir.threads import Living, Turns
from ..options import Arch, Options
from ..runtime.native.launch import NativeLaunch
from .factory import TensorFactory
from .layout.tree import SNode, leaves_of
from .memory.lifetimes import Lifetimes
from .memory.memory_regions import memory_of, shown
from .memory.process_memory import Accounts
from .memory.versions import Versions
from .plans.gradient_paths import GradientPath, follow
from .plans.launch_facts import launch_note, parallel_iterations
from .recorders import (
    FORWARD,
    TAPE,
    ForwardRecorder,
    TapeRecorder,
    WriteRecorder,
    graph_beside,
    recorder_opened,
    recorders_beside,
    refuse_beside,
    refuse_copy_between,
)
from .rehearsal import Reading, Rehearsal, rehearse

CURRENT: ContextVar[Program | None] = ContextVar("qdrun_program", default=None)
_BLOCKS: ContextVar[tuple[tuple[Program, Program | None, bool], ...]] = ContextVar("qdrun_blocks", default=())
"""The `with` blocks of programs around this context: the program, the one before, whether the block closes it."""
_numbers = itertools.count(1)
_programs: Living[Program] = Living()


class Program(Accounts):
    """A device with its fields, ndarrays and compiled kernels.

    Attributes:
        factory: makes the fields and the ndarrays of the language.
        tape: the recording tape, or None.
        variants: the specialisations of each kernel in this program.
        native_launches, native_gradients: the native launchers of each kernel and gradient, which calls try before they use Python.
    """

    __slots__ = ("native_gradients", "native_launches")  # where a native launcher finds them

    def __init__(self, arch: Arch, options: Options, factory: TensorFactory) -> None:
        self._tape: TapeRecorder | None = None
        self._forward: ForwardRecorder | None = None
        self._second_order: WriteRecorder | None = None
        self._versions: Versions | None = None
        self._rehearsal: Rehearsal | None = None
        self._writes: tuple[
            Callable[[Any, tuple[int, ...] | None, Any, tuple[Any, ...]], None], ...
        ] = ()  # what a write is told to
        super().__init__(arch, options)
        self.number, self.factory = next(_numbers), factory
        self.making = Turns()  # of specialisations
        self.lifetimes = Lifetimes(self)
        _programs.add(self)
        self._new = True  # nothing was done in it yet: `with qd.init()`, not `with program`
        self._owned = False  # a `with` block closes it
        self._outer: weakref.ref[Program] | None = None
        self.native_launches: dict[object, list[NativeLaunch]] = {}
        self.native_gradients: dict[object, list[NativeLaunch]] = {}
        self._first_order = self.native_launches, self.native_gradients  # while second derivatives are computed
        self._on_host: Program | None = None
        self._beside: list[weakref.ref[Program]] = []  # programs that recorded when this one became current
        if options.debug:
            self.versions = Versions(self)

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
        if self._recording is not None or self._tape is not None or self._forward is not None:
            raise QdrunRuntimeError(
                "program.trial(..) while launches are recorded (qd.ad.Tape, qd.ad.FwdMode, qd.capture): these are for all trials\n"
                "  do: read and write single trials before, or after"
            )
        before, self.batch.open = self.batch.open, self.batch.opened(int(number))
        self._update_slow()
        try:
            yield
        finally:
            self.batch.open = before
            self._update_slow()

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
            self._update_slow()
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
        if any(r is not None for r in (self._tape, self._forward, self._second_order, self._recording, self._rehearsal)):
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

    def launch_failed(self, name: str, error: BaseException) -> None:
        """A native launch has raised."""
        if self._tape is not None:
            self._tape.failed(f"kernel `{name}`", error)

    def _end(self) -> QdrunRuntimeError | None:
        """Wait for the last launches; what they report, or what failed."""
        if self.pending is None or self.device.dead:
            return None
        try:
            self.device.synchronize()
        except QdrunRuntimeError as failure:
            return failure
        return None

    # ---- the tape
    @property
    def tape(self) -> TapeRecorder | None:
        """The tape that records launches now."""
        return self._tape

    @tape.setter
    def tape(self, tape: TapeRecorder | None) -> None:
        self._tape = tape
        self._update_slow()

    @property
    def reverses(self) -> bool:
        """Whether the gradients of launches will run: a tape records them, or would."""
        tape, rehearsal = self._tape, self._rehearsal
        return (tape is not None and not tape.inside) or (rehearsal is not None and rehearsal.differentiates)

    @property
    def forward(self) -> ForwardRecorder | None:
        """The forward-mode block that is open."""
        return self._forward

    @forward.setter
    def forward(self, mode: ForwardRecorder | None) -> None:
        self._forward = mode
        self._update_slow()

    @property
    def second_order(self) -> WriteRecorder | None:
        """What computes a Hessian product now: kernels are their forward-mode kernels, with gradients of their own."""
        return self._second_order

    @second_order.setter
    def second_order(self, product: WriteRecorder | None) -> None:
        if (product is None) is not (self._second_order is None):  # native launches are those of first order
            known = self.native_launches, self.native_gradients
            self.native_launches, self.native_gradients = self._first_order if product is None else ({}, {})
            self._first_order = known
        self._second_order = product
        self._update_slow()

    @property
    def versions(self) -> Versions | None:
        """The version counters of arrays, kept with ``debug=True`` and while a tape validates; else None."""
        return self._versions

    @versions.setter
    def versions(self, versions: Versions | None) -> None:
        self._versions = versions
        self._update_slow()

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The rehearsal that records launches instead of running them, or None."""
        return self._rehearsal

    @rehearsal.setter
    def rehearsal(self, rehearsal: Rehearsal | None) -> None:
        self._rehearsal = rehearsal
        self._update_slow()

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
        before, self.rehearsal = self.rehearsal, Reading(name)
        try:
            with self:
                yield
        finally:
            self.rehearsal = before

    def _update_slow(self) -> None:
        observers = self._rehearsal, self._recording, self._tape, self._versions, self._forward, self._second_order
        self._writes = tuple(one.wrote for one in observers if one is not None)
        super()._update_slow()
        if self._tape is not None:
            self._tape.leave_log()
        if self.recorder:
            recorder_opened(self)

    @property
    def recorder(self) -> str:
        """What records launches of this program and no other's, for messages; empty: nothing."""
        if self._recording is not None:
            return f"the graph of `{self._recording.name}` is recorded"
        return TAPE if self._tape is not None else FORWARD if self._forward is not None else ""

    @property
    def hides_launches(self) -> bool:
        """Whether a function with a gradient of its own runs in the tape: the tape does not look at launches inside."""
        return self._recording is None and self._tape is not None and self._tape.inside

    def refuse_unrecorded(self, what: str, does: str = "is launched", loc: Loc | None = None) -> None:
        """Refuse a launch that the recorder of another program would miss; see ``recorders.refuse_beside``."""
        refuse_beside(self, what, does, loc)
        if self._beside and not any((p := found()) is not None and p.recorder for found in self._beside):
            self._beside = []
            self._update_slow()

    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write to a field or an ndarray: one element, or all of it.

        Args:
            tensor: the field or the ndarray.
            index: of the element, in the order of memory for an ndarray.
            source: the tensor that it is copied from.
            parts: indices within the element, one in the other, when only a part of it is written.

        Raises:
            QdrunRuntimeError: ``source`` belongs to another program, and one of the two records; or another program captures a graph.
        """
        if source is not None:
            refuse_copy_between(self, tensor, source)
        if graph_beside(self):
            refuse_beside(self, tensor._called(), "is written")
        for tell in self._writes:
            tell(tensor, index, source, parts)
        self.data.wrote(tensor)

    def looked_at(self, tensor: Any) -> None:
        """Python is about to read a field or an ndarray."""
        if self._tape is not None:
            self._tape.looked_at(tensor)
        if self._rehearsal is not None:
            self._rehearsal.looked_at(tensor)

    def saw(self, tensor: Any, value: Any, index: Any) -> None:
        """Python has read a field or an ndarray: all of it, or the element at an index."""
        if self._tape is not None:
            self._tape.saw(tensor, value, index)

    def show(self, tensor: Any) -> None:
        """Record that the memory of a field or an ndarray escaped: other code may write to it without the program's knowledge."""
        found, memory = shown(tensor), memory_of(tensor)
        if found.spots and found.spots[0] not in self.shown:
            if len(self.shown) >= 1024:
                for spot in [s for s, known in self.shown.items() if known.content() is None]:
                    del self.shown[spot]
            self.shown[found.spots[0]] = found
            self.data.changes.value += 1
            if self._tape is not None:
                self._tape.show(found)
            if self._versions is not None:
                self._versions.show(found)
            for kernel, variants in list(self.variants.items()):
                for variant in list(variants.values()):
                    if variant.takes_arrays and variant.uses(
                        memory
                    ):  # an array may be a part of it: calls are looked at from now on
                        variant.native = False
                        self.native_launches.pop(kernel, None)
                        self.native_gradients.pop(kernel, None)

    def records(self) -> bool:
        """Whether something records launches, or refuses them."""
        return bool(self._writes or self._beside) or self.batch.open is not None

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
    if program is not None and (beside := recorders_beside(program)):
        program._beside = [weakref.ref(p) for p in beside]
        program._update_slow()


def reset() -> None:
    """Close the current program, if there is one."""
    program = CURRENT.get()
    if program is not None:
        program.close()


def _after_fork() -> None:
    for program in _programs:
        program._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def sync() -> None:
    """Wait for the device. On the CPU every launch has finished when its call returns.

    Raises:
        QdrunRuntimeError: what a launch since the last wait has reported: a failed assertion, an adstack that was too small.
        DeviceError: the device failed.
    """
    current_program().synchronize()
