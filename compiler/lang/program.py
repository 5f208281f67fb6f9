"""The program: owner of a device, of fields and of the gradient heap. There is no state outside it.

``qd.init`` makes one and makes it current in this context (a thread, or an async task). Several live side by side: each thread of a
worker may run its own.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..adstack.machine import Machine, cpu, machine
from ..errors import OutOfMemory, QdrunRuntimeError
from ..ir.threads import Living, Turns, new_lock
from ..runtime.device import Allocation, Device
from ..runtime.launch import Launch, forget_bound
from ..runtime.launch_ir import F_CLOSED, F_SLOW, F_WORDS, S_AHEAD, S_RUNNING, S_WORDS
from .devices import open_device, usable_gpu
from .notes import launch_note
from .options import Arch, Options, make_options
from .pending import Pending
from .plan_inputs import DataVersions
from .process_memory import Accounts
from .snode import Root, materialize
from .spots import Shown, Spot, memory_base, memory_of, shown
from .turns import Alone, wait_until
from .versions import Versions

if TYPE_CHECKING:
    from ..adstack.launch_time import LaunchTime
    from .ad import Tape
    from .executable import GradientExecutable
    from .forward_mode import FwdMode
    from .graph import Recording
    from .kernel import Kernel, Variant
    from .ndarray import Key, Ndarray

CURRENT: ContextVar[Program | None] = ContextVar("qdrun_program", default=None)
_BLOCKS: ContextVar[tuple[tuple[Program, Program | None, bool], ...]] = ContextVar("qdrun_blocks", default=())
"""The `with` blocks of programs around this context: the program, the one before, whether the block closes it."""
_numbers = itertools.count(1)
_programs: Living[Program] = Living()


class Program(Accounts):
    """One device with what lives on it.

    Attributes:
        options: see ``Options``.
        device: allocates, counts and compiles.
        root: the layout tree that fields are placed in.
        tape: the tape that records now, or None.
        variants: the specialisations of each kernel that were compiled for it; they go with it.
        native_launches, native_gradients: what calls of each kernel, and of its gradient, try before they go through Python.
    """

    __slots__ = ("native_gradients", "native_launches")  # where a native launcher finds them

    def __init__(self, arch: Arch, options: Options) -> None:
        self.arch, self.options = arch, options
        self.device: Device = open_device(arch, options)
        self.root = Root(self)
        self.number = next(_numbers)
        self.closed = False
        self._tape: Tape | None = None
        self._forward: FwdMode | None = None
        self._versions: Versions | None = None
        self._recording: Recording | None = None
        self._heap: dict[str, Allocation] = {}
        self.heap_users: Living[GradientExecutable] = Living()
        self.ndarrays: Living[Ndarray] = Living()
        self.keys: dict[Key, Key] = {}  # of ndarrays: launchers compare them by identity
        self.differentiable: Living[Ndarray] = Living()
        self.variants: dict[Kernel, dict[tuple[Any, ...], Variant]] = {}
        self.making = Turns()  # of specialisations
        self.variable = CURRENT
        _programs.add(self)
        self._new = True  # nothing was done in it yet: `with qd.init()`, not `with program`
        self._outer: weakref.ref[Program] | None = None
        self.launches = 0  # those that drew random numbers
        self.last_seed: int | None = None
        self.replay_seed: int | None = None  # of the launch whose gradient a tape runs
        self.shown: dict[Spot, Shown] = {}  # by the first of their spots
        self.data = DataVersions()
        self.replaying = False  # a tape runs its gradients
        self.warned: set[object] = set()  # (kernel, array, line): gradients that are lost, said once
        self.native_launches: dict[Kernel, list[Launch]] = {}
        self.native_gradients: dict[Kernel, list[Launch]] = {}
        self.flags = (ctypes.c_int64 * F_WORDS)()  # read before each native launch: non-zero sends the call through Python
        self.state = (ctypes.c_int64 * S_WORDS)()  # native launchers read and write it
        self.device.count_in(self.state)
        self.device.on_waiting = self._update_slow
        self._turn, self._running = new_lock(self, "_turn"), dict[object, int]()
        self.pending: Pending | None = None  # of a device whose launches end after their calls
        if not self.device.on_host:
            self.pending = Pending(self.device)
            self.device.exclusive = self.alone
        if options.debug:
            self.versions = Versions(self)

    # ---- being current
    def __enter__(self) -> Program:
        before = CURRENT.get()
        _BLOCKS.set((*_BLOCKS.get(), (self, before, before is self and self._new)))  # else it is only borrowed
        self._new = False
        if before is not None:
            before._new = False
        CURRENT.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        *blocks, (_, before, closes) = _BLOCKS.get()
        _BLOCKS.set(tuple(blocks))
        CURRENT.set(before)
        if closes:
            try:
                self.close()
            except QdrunRuntimeError:
                if error[0] is None:  # else what the block raised goes on
                    raise
            outer = self._outer() if self._outer else None
            if CURRENT.get() is None and outer is not None and not outer.closed:
                CURRENT.set(outer)

    def activate(self) -> Program:
        """Make this the current program of this thread. At the end of a ``with`` the one before is current again."""
        before = CURRENT.get()
        self._outer = None if before is None or before is self else weakref.ref(before)
        CURRENT.set(self)
        return self

    def close(self) -> None:
        """Free everything. Fields of a closed program can no longer be used.

        Raises:
            QdrunRuntimeError: what a launch since the last wait has reported; everything is freed nevertheless.
        """
        failure = None
        if not self.closed:
            self.closed = True
            self._update_slow()
            wait_until(self._idle)
            failure = self._end()
            for variant in [v for found in list(self.variants.values()) for v in list(found.values())]:
                variant.close()
            for known in (self.variants, self.native_launches, self.native_gradients):
                known.clear()
            forget_bound()
            for f in self.root.fields():
                f.release()
            self.device.close()
        if CURRENT.get() is self:
            CURRENT.set(None)
        if failure is not None:
            raise failure

    def _end(self) -> QdrunRuntimeError | None:
        """Wait for the last launches; what they report, or what failed."""
        if self.pending is None or self.device.dead:
            return None
        try:
            self.device.synchronize()
        except QdrunRuntimeError as failure:
            return failure
        return None

    def synchronize(self) -> None:
        """Wait until everything that was launched has ended; see ``sync``."""
        self.device.synchronize()

    # ---- the tape
    @property
    def tape(self) -> Tape | None:
        """The tape that records launches now."""
        return self._tape

    @tape.setter
    def tape(self, tape: Tape | None) -> None:
        self._tape = tape
        self._update_slow()

    @property
    def forward(self) -> FwdMode | None:
        """The forward-mode block that is open."""
        return self._forward

    @forward.setter
    def forward(self, mode: FwdMode | None) -> None:
        self._forward = mode
        self._update_slow()

    @property
    def recording(self) -> Recording | None:
        """The graph that this thread records now."""
        recording = self._recording
        return recording if recording is not None and recording.thread == threading.get_ident() else None

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._recording = recording
        self._update_slow()

    @property
    def versions(self) -> Versions | None:
        """Who wrote what, and when: kept with ``debug=True`` and while a tape validates."""
        return self._versions

    @versions.setter
    def versions(self, versions: Versions | None) -> None:
        self._versions = versions
        self._update_slow()

    def wrote(self, tensor: Any, index: tuple[int, ...] | None = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write to a field or an ndarray: one element, or all of it.

        Args:
            tensor: the field or the ndarray.
            index: of the element, in the order of memory for an ndarray.
            source: the tensor that it is copied from.
            parts: indices within the element, one in the other, when only a part of it is written.
        """
        self.data.wrote(tensor)
        if self._recording is not None and self.recording is not None:
            self._recording.wrote(tensor)
        if self._tape is not None:
            self._tape.wrote(tensor, index, source, parts)
        if self._versions is not None:
            self._versions.wrote(tensor, index)
        if self._forward is not None:
            self._forward.wrote(tensor, index, source, parts)

    def show(self, tensor: Any) -> None:
        """The memory of a field or an ndarray was handed out: somebody may write to it without a call of ours."""
        found, memory = shown(tensor), memory_of(tensor)
        if found.spots and found.spots[0] not in self.shown:
            if len(self.shown) >= 1024:
                for spot in [s for s, known in self.shown.items() if known.content() is None]:
                    del self.shown[spot]
            self.shown[found.spots[0]] = found
            self.data.changes.value += 1
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

    def was_shown(self, memory: Allocation) -> bool:
        """Whether something that lies in an allocation was handed out."""
        return any(spot.base == memory_base(memory) for spot in self.shown)

    def alone(self) -> AbstractContextManager[None]:
        """A launch with memory that the program's launches share (returned values, temporaries, the heap): one thread at a time.

        Native launchers look at the state and enter themselves without giving up the interpreter's lock in between.
        """
        return Alone(self._turn, self.state)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A launch in Python, which ``close`` waits for.

        Raises:
            QdrunRuntimeError: the program is closed.
        """
        launch = object()
        self._running[launch] = threading.get_ident()
        try:
            if self.closed:
                raise QdrunRuntimeError("this program was closed on another thread; do: qd.init() again")
            yield
        finally:
            del self._running[launch]

    def launched(self, weight: int) -> None:
        """Python has launched something that counts so much (``abi.CTX_WEIGHT``): what native launchers do after theirs."""
        self.state[S_AHEAD] += weight
        if self.state[S_AHEAD] >= self.device.ahead:
            self.state[S_AHEAD] = 0
            self.device.throttle()

    def _idle(self) -> bool:
        """Whether no other thread is in the middle of a launch."""
        return not self.state[S_RUNNING] and set(self._running.values()) <= {threading.get_ident()}

    def _forked(self) -> None:
        """In a forked child: the other threads, and what they were doing, are gone."""
        self._running = {}
        self.device.forked()
        ctypes.memset(self.state, 0, ctypes.sizeof(self.state))
        self._update_slow()

    def _update_slow(self) -> None:
        """Whether launches must come through Python: something records them, or (also those that a tape lets pass) the program is closed,
        its device is lost, or has code that is not loaded.
        """
        active = self._tape, self._versions, self._forward, self._recording
        self.flags[F_CLOSED] = int(self.closed or self.device.dead or self.device.waiting)
        self.flags[F_SLOW] = int(any(x is not None for x in active) or self.flags[F_CLOSED])

    # ---- memory
    def allocate(self, nbytes: int, category: str) -> Allocation:
        """Zeroed device memory, counted under ``category``.

        Raises:
            OutOfMemory: the program's limit or the machine is too small.
        """
        self._refuse_closed()
        budget = self.options.memory_budget
        if budget and self._heap and category != "adstack" and self.device.used_bytes + nbytes > budget:
            with self.alone():
                self._shrink_heap({})  # the next gradient is planned into what is left
        return self.device.allocate(nbytes, category)

    def host_words(self, n: int, category: str) -> Allocation:
        """Zeroed 8-byte words that the host and the device both read and write."""
        if self.device.on_host:
            return self.allocate(8 * n, category)
        self._refuse_closed()
        return self.device.host_words(n, category)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise QdrunRuntimeError("this program is closed; do: qd.init() again")

    def materialize(self) -> None:
        """Give storage to every field that was placed since the last time."""
        with self._turn:
            materialize(self.root, self.allocate, self.device.free)

    def tensors(self) -> list[Any]:
        """Every field (not their gradients) and every ndarray with a gradient."""
        return [*(f for f in self.root.fields() if not f.role), *self.differentiable]

    def grow_heap(self, planes: dict[str, int]) -> None:
        """Provide heap planes of at least these bytes. A plane that is too small is replaced by one of exactly the size.

        With a memory budget, planes that other kernels needed larger shrink when there is no room for both.
        """
        room = self.heap_room()
        if room is not None and sum(max(need, self._held(plane)) for plane, need in planes.items()) > room:
            self._shrink_heap(planes)
        for plane, need in planes.items():
            have = self._heap.get(plane)
            if need > (have.nbytes if have else 0):
                if have is not None:
                    self.device.free(have)
                    del self._heap[plane]
                try:
                    self._heap[plane] = self.allocate(need, "adstack")
                except OutOfMemory:
                    if have is not None:  # kernels that are ready to launch still count on it
                        self._heap[plane] = self.allocate(have.nbytes, "adstack")
                    raise
                finally:
                    for user in self.heap_users:
                        user.heap_moved()

    def _held(self, plane: str) -> int:
        return self._heap[plane].nbytes if plane in self._heap else 0

    def _shrink_heap(self, planes: dict[str, int]) -> None:
        """Give back the planes that are larger than these bytes, and tell the kernels that counted on them."""
        for plane in [p for p in self._heap if self._held(p) > planes.get(p, 0)]:
            self.device.free(self._heap.pop(plane))
        for user in self.heap_users:
            user.heap_shrank()
            user.heap_moved()

    def heap_room(self) -> int | None:
        """The bytes that ``memory_budget`` leaves for the adstack heap; None without a budget."""
        if not self.options.memory_budget:
            return None
        held = sum(map(self._held, self._heap))
        return max(0, self.options.memory_budget - (self.device.used_bytes - held))

    def heap_memory(self, plane: str) -> Allocation | None:
        """A heap plane; None while there is none."""
        return self._heap.get(plane)

    def heap_address(self, plane: str) -> int:
        """Where a heap plane lies; 0 while there is none."""
        return self._heap[plane].ptr if plane in self._heap else 0

    def own_machine(self, lanes: int) -> Machine:
        """What plans must know of the program's own device; ``lanes``: of the compiled kernel."""
        device = self.device
        return cpu(device.threads, lanes) if device.on_host else machine(device.arch, fast_math=self.options.fast_math)

    def machine(self, arch: str) -> Machine | None:
        """What a plan must know of a backend; None for the program's own.

        Raises:
            QdrunRuntimeError: there is no such backend.
        """
        return None if arch == self.arch.value else machine(arch, fast_math=self.options.fast_math)

    def launch_time(self, kernel: Any, args: tuple[Any, ...], **how: Any) -> LaunchTime:
        """How long a launch would take, predicted; the keywords are those of ``lang.launch_time.launch_time``."""
        from .launch_time import launch_time  # it needs kernels, which need programs

        with self:
            return launch_time(kernel, args, **how)

    def launch_note(self, kernel: Any, args: tuple[Any, ...], arch: str) -> str:
        """What would make a launch on a backend faster, see ``lang.notes.launch_note``; empty: nothing."""
        with self:
            return launch_note(kernel, args, arch)

    def next_seed(self) -> int:
        """A fresh random seed for a launch: a function of the program's seed and the launch's number."""
        self.launches += 1
        return (self.options.random_seed * 0x9E3779B97F4A7C15 + self.launches * 0xD1342543DE82EF95) & (2**64 - 1)


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


def init(arch: Arch | str | None = None, default_fp: Any = None, default_ip: Any = None, **options: Any) -> Program:
    """Make a program and make it current in this thread.

    Args:
        arch: the backend: ``qd.cpu``, ``qd.cuda``, ``qd.gpu`` (a GPU, or with a ``RuntimeWarning`` the CPU where none can be used), or
            ``qd.python`` for the reference interpreter (slow; has ``breakpoint()``). None: the CPU.
        default_fp: the type of a real literal, ``qd.f32`` (the default) or ``qd.f64``.
        default_ip: the type of an integer literal, ``qd.i32`` (the default) or ``qd.i64``.
        options: see ``Options``.

    Raises:
        KeyError: an unknown option.
        QdrunRuntimeError: a value that is not allowed, or a backend that is not built.
    """
    wanted = Arch.cpu if arch is None else Arch(arch)
    chosen = make_options({"default_fp": default_fp, "default_ip": default_ip, **options})
    gpu = usable_gpu(options.get("enable_fallback", True)) if wanted is Arch.gpu else wanted
    return Program(gpu, chosen).activate()


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
