"""The state that launches of one program share: its device, memory, locks, seeds and errors.

``Program`` is one, with kernels and what records them. Executables, plans and specialisations know this part of a program alone.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from ..codegen.llvm.target import ONE_LANE, SimdWidth
from ..errors import OutOfMemory, QdrunRuntimeError
from ..ir.threads import Living, new_lock
from ..ir.trials import TrialLayout, gpu_layout
from ..options import Arch, Options
from ..runtime.base import Allocation, Device
from ..runtime.native.launch_ir import F_CLOSED, F_SLOW, F_WORDS, S_AHEAD, S_RUNNING, S_WORDS
from ..runtime.profiler import KernelProfiler
from ..tape.machine import Machine, cpu, machine
from .async_errors import Pending
from .call import Key
from .devices import open_device
from .launch_lock import Alone
from .layout.materialize import materialize, own_shapes
from .layout.tree import Root, SNode
from .memory.data_versions import DataVersions
from .memory.known_tapes import KnownTapes
from .memory.memory_regions import ExportedMemory, MemoryRegion, PlacedArray, memory_base
from .recording import LaunchPlace, Recording
from .trial_state import SEED_FACTOR, TrialState

_OF_TENSORS = frozenset(("fields", "gradients", "ndarrays"))
_LEAVES = "\n  memory_budget="
_DO = "\n  do: "


class HeapUser(Protocol):
    """A gradient whose launches use the heap of its program."""

    def heap_moved(self) -> None:
        """Planes of the heap have other addresses."""
        ...

    def heap_shrank(self) -> None:
        """Planes of the heap may be too small."""
        ...


class ProgramState:
    """The device of a program, and what lives on it.

    Attributes:
        options: see ``Options``.
        device: allocates, counts and compiles.
        trials: how many there are of a batched program, and how they lie in memory; None: it is not batched.
        open_trial: the trial that Python reads and writes in a ``with program.trial(b)`` block; None: all of them.
        trial_state: what it keeps for each trial.
        extent: see ``ir.trials.gpu_layout``; known once the trials have memory.
        root: the layout tree that fields are placed in.
        ndarrays, differentiable: the ndarrays that are alive, and those of them with a gradient or a dual.
        keys: the one key of each type of ndarrays: launchers compare keys by identity.
        data: counts the writes to arrays.
        clearing: sets all gradients to zero; a number: how often that was done since one came or went.
        shown: memory that was handed out, by the first of its regions.
        pending: the errors of launches that end after their calls; None on the CPU.
        warned: the warnings that a program gives once: (kernel, array, line).
        told: warnings about gradients that were given, each in one line.
        scratch: arrays that algorithms of the language use for values in between, by purpose, length and type.
        last_seed: of the last launch that drew random numbers.
        replay_seed: of the launch whose gradient a tape runs.
        place: of a launch that a tape makes: the tape, and the number of the launch in it.
        replaying: a tape runs its gradients.
        before_launch: memory holds what it held before the launch whose gradient a tape runs.
    """

    def __init__(self, arch: Arch, options: Options) -> None:
        self.arch, self.options = arch, options
        self.device: Device = open_device(arch, options)
        self.profiler = KernelProfiler(self.device) if options.kernel_profiler else None
        self.extent = 0
        self.trials = None if options.batch is None else self.trials_of(options.batch)
        self.device.trials, self.device.gpu_lanes = self.trials, options.gpu_lanes
        self.open_trial: int | None = None
        self.root = Root(self)
        self.closed = False
        self._recording: Recording | None = None
        self._heap: dict[str, Allocation] = {}
        self.heap_users: Living[HeapUser] = Living()
        self.ndarrays: Living[PlacedArray] = Living()
        self.keys: dict[Key, Key] = {}
        self.differentiable: Living[PlacedArray] = Living()
        self.random_seed = options.random_seed
        self.launches = 0  # those that drew random numbers
        self.flags_set = 0  # flags of graph kernels that were found set
        self.counts_flags = False  # whether the host must see them: steps compare how many there are
        self.stage_graphs: dict[object, Any] = {}  # of graph kernels, by the kernel: see ``lang.launches.stage_graphs``
        self.last_seed: int | None = None
        self.replay_seed: int | None = None
        self.place: LaunchPlace | None = None
        self.shown: dict[MemoryRegion, ExportedMemory] = {}
        self.data, self.known_tapes = DataVersions(), KnownTapes()
        self.clearing: Callable[[], None] | int = 0
        self.replaying = self.before_launch = False
        self.tangents = (
            False  # its kernels will run in forward mode: what plans them compiles or counts their forward-mode kernels, too
        )
        self.warned: set[object] = set()
        self.told: list[str] = []
        self.scratch: dict[object, Any] = {}
        self.parts: WeakKeyDictionary[Any, dict[object, int]] = WeakKeyDictionary()  # of kernels: see ``lang.launches.parts``
        self.passed: Living[Any] = Living()  # what the parts of these pass on: ``variant.PassedValues``
        self._seed_of_parts: list[int] | None = None  # the seed, once it is drawn
        self.flags = (ctypes.c_int64 * F_WORDS)()  # read before each native launch: non-zero sends the call through Python
        self.state = (ctypes.c_int64 * S_WORDS)()  # native launchers read and write it
        self._turn, self._running = new_lock(self, "_turn"), dict[object, int]()
        self.pending: Pending | None = None
        if not self.device.on_host:
            self.pending = Pending(self.device)
        self.device.attach(self)
        self.trial_state = None if self.trials is None else TrialState(self.trials.count, options.random_seed)

    def timed(self, executable: Any, entry: Callable[[int], Any]) -> Callable[[int], Any]:
        """The entry of a kernel, measured if the profiler is on."""
        if self.profiler is None:
            return entry
        name: str = executable.name
        if hasattr(executable, "launch_gradient"):
            name = name.removesuffix("_grad") + ".grad"
        return partial(self.profiler.launch, name, entry)

    def synchronize(self) -> None:
        """Wait until everything that was launched has ended; see ``sync``."""
        self.device.synchronize()

    @property
    def prompt(self) -> bool:
        """Whether launches are synchronous, so that the failing call raises the error: on a GPU, with ``debug=True``."""
        return self.pending is None or self.options.debug

    # ---- launches
    @property
    def recording(self) -> Recording | None:
        """The graph that this thread records now."""
        recording = self._recording
        return recording if recording is not None and recording.thread == threading.get_ident() else None

    @recording.setter
    def recording(self, recording: Recording | None) -> None:
        self._recording = recording
        self._update_slow()

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

    def launch_failed(self, name: str, error: BaseException) -> None:
        """A native launch has raised. Nothing here wants to know."""

    def records(self) -> bool:
        """Whether something records launches, so that they must come through Python."""
        return self._recording is not None

    def _update_slow(self) -> None:
        """Whether launches must come through Python: something records them, or (also those that a tape lets pass) the program is closed or
        its device is lost.
        """
        self.flags[F_CLOSED] = int(self.closed or self.device.dead)
        self.flags[F_SLOW] = int(self.records() or self.flags[F_CLOSED])

    def waited(self) -> None:
        if self.pending is not None:
            self.pending.look()

    def freed(self, memory: Allocation) -> None:
        self.data.freed(memory)
        if memory.category in _OF_TENSORS:
            self.clearing = 0

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

    def allocate(self, nbytes: int, category: str) -> Allocation:
        """Zeroed device memory, counted under ``category``.

        Raises:
            OutOfMemory: the program's limit or the machine is too small.
        """
        self._refuse_closed()
        if category != "adstack":
            if self.replaying or category == "snapshots":
                self.refuse_over_budget(f"a gradient needs {nbytes:,} bytes of {category}", nbytes)
            self._make_room(nbytes)
        if category in _OF_TENSORS:
            self.clearing = 0
        return self.device.allocate(nbytes, category)

    def _make_room(self, nbytes: int) -> None:
        """Give the heap back where the memory budget does not leave so many bytes beside it."""
        budget = self.options.memory_budget
        if budget and self._heap and self.device.used_bytes + nbytes > budget:
            with self.alone():
                self._shrink_heap({})  # the next gradient is planned into the remaining bytes

    def host_words(self, n: int, category: str) -> Allocation:
        """Zeroed 8-byte words that the host and the device both read and write."""
        if self.device.on_host:
            return self.allocate(8 * n, category)
        self._refuse_closed()
        self._make_room(8 * n)
        return self.device.host_words(n, category)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise QdrunRuntimeError("this program is closed; do: qd.init() again")

    def lay_out_trials(self, shapes: Iterable[Sequence[int]]) -> None:
        """Decide how trials lie in memory, before the first memory that each has its own part of.

        Args:
            shapes: of the arrays of a trial that get this memory.

        Raises:
            OutOfMemory: there is none for ``trial_state``.
        """
        if self.trials is None or self.trial_state is None or self.trial_state.layout is not None:
            return
        self.extent = max((shape[-1] for shape in shapes if len(shape)), default=0)
        self.trials = self.device.trials = self.trials_of(self.trials.count)
        self.trial_state.place(self.trials, self.allocate)

    def materialize(self, part: SNode | None = None) -> None:
        """Give storage to every field that was placed since the last time, or to those of a tree of its own."""
        with self._turn:
            if self.tangents:
                self.root.lazy_dual()
            shapes = own_shapes(self.root, part)
            if shapes:
                self.lay_out_trials(shapes)
            materialize(self.root, self.allocate, self.device.free, part)

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

    def over_budget(self, error: OutOfMemory, heap: int = 0, more: int = 0) -> OutOfMemory:
        """The error where ``memory_budget`` leaves too little. ``smallest`` is the budget that it asks for.

        Args:
            error: what does not fit.
            heap: bytes of the smallest heap under which all gradients can run.
            more: bytes beside the heap that the program does not hold yet.
        """
        budget, room = self.options.memory_budget, self.heap_room() or 0
        usage = {k: v for k, v in sorted(self.usage().items()) if k not in ("adstack", "staging")}
        held = ", ".join(f"{k} {v:,}" for k, v in usage.items()) or "nothing"
        smallest = max(budget - room, sum(usage.values())) + more + heap  # more than the budget, where it leaves nothing
        what = str(error).split(_LEAVES, 1)[0].rsplit(_DO, 1)[0]
        loops = ", or fewer variables in this loop" if heap else ""
        return OutOfMemory(
            f"{what}{_LEAVES}{budget} leaves it {room:,}: the program holds {held}{_DO}qd.init(memory_budget={smallest}) or more,"
            f" {'' if loops else 'or '}smaller fields{loops}",
            smallest,
        )

    def refuse_over_budget(self, what: str, nbytes: int = 0) -> None:
        """Refuse what a gradient is about to allocate beside the heap, where ``memory_budget`` does not leave so many bytes.

        Raises:
            OutOfMemory: names the smallest budget.
        """
        budget = self.options.memory_budget
        if budget and self.device.used_bytes - sum(map(self._held, self._heap)) + nbytes > budget:
            raise self.over_budget(OutOfMemory(f"{what}, and memory_budget leaves too little"), more=nbytes)

    def heap_memory(self, plane: str) -> Allocation | None:
        """A heap plane; None while there is none."""
        return self._heap.get(plane)

    def heap_address(self, plane: str) -> int:
        """The address of a heap plane; 0 before its allocation."""
        return self._heap[plane].ptr if plane in self._heap else 0

    def trials_of(self, count: int, arch: str | None = None) -> TrialLayout:
        """So many trials, as a batched program on its device has them in memory. ``arch``: on a GPU that need not be there, if the program
        runs on the CPU.
        """
        if self.device.on_host and arch not in (None, "cpu", self.arch.value):
            return gpu_layout(count, self.extent)
        return self.device.trial_layout(count, self.options.cpu_lanes, self.extent)

    def most_groups(self, arch: str | None) -> int:
        """Groups of trials from which on the adstack heap of a batch is the same: all threads have rows. None: of its own backend."""
        found = self.own_machine() if arch is None or arch == self.arch.value else machine(arch)
        return max(1, found.workers, found.most)

    def own_machine(self, lanes: SimdWidth = ONE_LANE) -> Machine:
        """The parameters of the program's own device for plans; ``lanes``: of the compiled kernel."""
        device = self.device
        if device.on_host:
            return cpu(device.threads, lanes.width, lanes.fewer)
        own = machine(device.arch, fast_math=self.options.fast_math)
        if not device.tapes_on_chip:
            own = own.all_in_heap()
        return replace(own, wide=device.wide_states, trial_lanes=max(own.trial_lanes, self.options.gpu_lanes))

    def machine(self, arch: str) -> Machine | None:
        """The parameters of a backend for plans; None: the program's own device.

        Raises:
            QdrunRuntimeError: the backend does not exist.
        """
        return None if arch == self.arch.value else machine(arch, fast_math=self.options.fast_math)

    def next_seed(self) -> int:
        """A fresh random seed for a launch: a function of the program's seed and the launch's number.

        In a batched program it is the launch's part alone: kernels add that of each trial (``TrialState.set_seeds``).
        """
        if self._seed_of_parts is None:
            return int(self.next_seeds(1)[0])
        if not self._seed_of_parts:
            self._seed_of_parts.append(int(self.next_seeds(1)[0]))
        return self._seed_of_parts[0]

    @contextmanager
    def one_seed(self) -> Iterator[None]:
        """The launches inside have the random numbers of one."""
        before, self._seed_of_parts = self._seed_of_parts, []
        try:
            yield
        finally:
            self._seed_of_parts = before

    def next_seeds(self, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Those of the next launches, at once."""
        numbers = np.arange(self.launches + 1, self.launches + 1 + count, dtype=np.uint64)
        self.launches += count
        own = self.random_seed if self.trial_state is None else 0
        return np.uint64(own * SEED_FACTOR & (2**64 - 1)) + numbers * np.uint64(0xD1342543DE82EF95)
