"""The state that launches of one program share: its device, memory, locks, seeds and errors.

``Program`` is one, with kernels and what records them. Executables, plans and specialisations know this part of a program alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ..codegen.llvm.target import ONE_LANE, SimdWidth
from ..errors import QdrunRuntimeError
from ..ir.threads import Living
from ..ir.trials import TrialLayout, gpu_layout
from ..options import Arch, Options
from ..runtime.base import HEAP, Allocation, Device
from ..runtime.profiler import KernelProfiler
from ..tape.machine import Machine, cpu, machine
from .call import Key
from .devices import open_device
from .layout.materialize import materialize, own_shapes
from .layout.tree import Root, SNode
from .memory.data_versions import DataVersions
from .memory.known_tapes import KnownTapes
from .memory.memory_regions import ExportedMemory, MemoryRegion, PlacedArray, memory_base
from .recording import LaunchPlace, Recording
from .services.admission import Admission
from .services.async_errors import Pending
from .services.batch import SingleTrial, TrialBatch
from .services.launch_seeds import LaunchSeeds
from .services.tape_heap import TapeHeap

_OF_TENSORS = frozenset(("fields", "gradients", "ndarrays"))


class ProgramState:
    """The device of a program, and what lives on it.

    Attributes:
        options: see ``Options``.
        device: allocates, counts and compiles.
        admission: which launches may begin, and whether they do without Python.
        heap: the adstack heap.
        seeds: of launches that draw random numbers.
        batch: its trials.
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
        place: of a launch that a tape makes: the tape, and the number of the launch in it.
        replaying: a tape runs its gradients.
        before_launch: memory holds what it held before the launch whose gradient a tape runs.
    """

    def __init__(self, arch: Arch, options: Options) -> None:
        self.arch, self.options = arch, options
        self.device: Device = open_device(arch, options)
        self.admission = Admission(self.device)
        self.heap = TapeHeap(self.device, options, self.allocate, self.admission.alone)
        self.seeds = LaunchSeeds(options.random_seed, options.batch is not None)
        self.profiler = KernelProfiler(self.device) if options.kernel_profiler else None
        self.device.gpu_lanes = options.gpu_lanes
        self.batch: SingleTrial | TrialBatch = SingleTrial()
        if options.batch is not None:
            self.batch = TrialBatch(options.batch, options.random_seed, self.device, options.cpu_lanes, self.allocate)
        self.root = Root(self)
        self._recording: Recording | None = None
        self.ndarrays: Living[PlacedArray] = Living()
        self.keys: dict[Key, Key] = {}
        self.differentiable: Living[PlacedArray] = Living()
        self.flags_set = 0  # flags of graph kernels that were found set
        self.counts_flags = False  # whether the host must see them: steps compare how many there are
        self.stage_graphs: dict[object, Any] = {}  # of graph kernels, by the kernel: see ``lang.launches.stage_graphs``
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
        self.pending: Pending | None = None
        if not self.device.on_host:
            self.pending = Pending(self.device)
        self.device.attach(self)

    @property
    def trials(self) -> TrialLayout | None:
        """How many trials there are of a batched program, and how they lie in memory; None: it is not batched."""
        return self.batch.layout if self.batch.layout.batched else None

    def timed(self, executable: Any, entry: Callable[[int], Any]) -> Callable[[int], Any]:
        """The entry of a kernel, measured if the profiler is on."""
        if self.profiler is None:
            return entry
        name: str = executable.name
        if hasattr(executable, "launch_gradient"):
            name = name.removesuffix("_grad") + ".grad"
        return partial(self.profiler.launch, name, entry)

    @property
    def closed(self) -> bool:
        """Whether everything was freed."""
        return self.admission.closed

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
        """See ``Admission.alone``: for the device."""
        return self.admission.alone()

    def _forked(self) -> None:
        """In a forked child: the other threads, and what they were doing, are gone."""
        self.admission.forked()
        self.device.forked()
        self._update_slow()

    def launch_failed(self, name: str, error: BaseException) -> None:
        """A native launch has raised. Nothing here wants to know."""

    def records(self) -> bool:
        """Whether something records launches, so that they must come through Python."""
        return self._recording is not None

    def _update_slow(self) -> None:
        self.admission.slow(self.records())

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
        if category != HEAP:
            if self.replaying or category == "snapshots":
                self.heap.refuse_over_budget(f"a gradient needs {nbytes:,} bytes of {category}", nbytes)
            self.heap.make_room(nbytes)
        if category in _OF_TENSORS:
            self.clearing = 0
        return self.device.allocate(nbytes, category)

    def host_words(self, n: int, category: str) -> Allocation:
        """Zeroed 8-byte words that the host and the device both read and write."""
        if self.device.on_host:
            return self.allocate(8 * n, category)
        self._refuse_closed()
        self.heap.make_room(8 * n)
        return self.device.host_words(n, category)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise QdrunRuntimeError("this program is closed; do: qd.init() again")

    def materialize(self, part: SNode | None = None) -> None:
        """Give storage to every field that was placed since the last time, or to those of a tree of its own."""
        with self.admission.turn:
            if self.tangents:
                self.root.lazy_dual()
            shapes = own_shapes(self.root, part)
            if shapes:
                self.batch.lay_out(shapes)
            materialize(self.root, self.allocate, self.device.free, part)

    def tensors(self) -> list[Any]:
        """Every field (not their gradients) and every ndarray with a gradient."""
        return [*(f for f in self.root.fields() if not f.role), *self.differentiable]

    def trials_of(self, count: int, arch: str | None = None) -> TrialLayout:
        """So many trials, as a batched program on its device has them in memory. ``arch``: on a GPU that need not be there, if the program
        runs on the CPU.
        """
        if self.device.on_host and arch not in (None, "cpu", self.arch.value):
            return gpu_layout(count, self.batch.extent)
        return self.device.trial_layout(count, self.options.cpu_lanes, self.batch.extent)

    def most_groups(self, arch: str | None) -> int:
        """Groups of trials from which on the adstack heap of a batch is the same: all threads have rows. None: of its own backend."""
        found = self.own_machine() if arch is None or arch == self.arch.value else machine(arch)
        return max(1, found.workers, found.most)

    def has_doubles(self, arch: str | None) -> bool:
        """Whether kernels may compute in f64 on a backend; None: on the program's own device."""
        return (self.own_machine() if arch in (None, self.arch.value) else machine(arch)).wide

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
