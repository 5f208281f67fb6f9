"""What the launches of one program share: a record of services. Executables, plans and specialisations know this part alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..codegen.llvm.target import ONE_LANE, SimdWidth
from ..errors import QdrunRuntimeError
from ..ir.threads import Living
from ..options import Arch, Options
from ..runtime.base import HEAP, Allocation, Device
from ..runtime.profiler import KernelProfiler
from ..tape.machine import Machine, cpu, machine
from .devices import open_device
from .layout.materialize import materialize, own_shapes
from .layout.tree import Root, SNode
from .memory.data_versions import DataVersions
from .recording import LaunchPlace, Recording
from .services.admission import Admission
from .services.arrays import ProgramArrays
from .services.async_errors import Pending
from .services.batch import SingleTrial, TrialBatch
from .services.launch_seeds import LaunchSeeds
from .services.tape_heap import TapeHeap


@dataclass(slots=True)
class Replay:
    """What a tape tells the launches that it makes.

    Attributes:
        place: of the launch in the tape, for messages.
        running: it runs its gradients.
        before_launch: memory holds what it held before the launch whose gradient runs.
    """

    place: LaunchPlace | None = None
    running: bool = False
    before_launch: bool = False


class ProgramState:
    """The device of a program, and what decides how launches run on it.

    Attributes:
        options: see ``Options``.
        device: allocates, counts and compiles.
        root: the layout tree that fields are placed in.
        admission: which launches may begin, and whether they do without Python.
        heap: the adstack heap.
        seeds: of launches that draw random numbers.
        batch: its trials.
        arrays: its ndarrays, and the memory that was handed out.
        data: counts the writes to arrays.
        replay: of launches that a tape makes.
        pending: the errors of launches that end after their calls; None on the CPU.
        warned: the warnings that a program gives once: (kernel, array, line).
        told: warnings about gradients that were given, each in one line.
        passed: what the parts of kernels pass on: ``variant.PassedValues``.
        tangents: kernels will run in forward mode: what plans them compiles or counts their forward-mode kernels, too.
        launch_failed: is told the name of a kernel whose native launch has raised, and the error.
    """

    def __init__(self, arch: Arch, options: Options, root: Root) -> None:
        self.arch, self.options, self.root = arch, options, root
        self.device: Device = open_device(arch, options)
        self.device.gpu_lanes = options.gpu_lanes
        self.admission = Admission(self.device)
        self.heap = TapeHeap(self.device, options, self.allocate, self.admission.alone)
        self.seeds = LaunchSeeds(options.random_seed, options.batch is not None)
        self.profiler = KernelProfiler(self.device) if options.kernel_profiler else None
        self.batch: SingleTrial | TrialBatch = SingleTrial()
        if options.batch is not None:
            self.batch = TrialBatch(options.batch, options.random_seed, self.device, options.cpu_lanes, self.allocate)
        self.arrays, self.data, self.replay = ProgramArrays(), DataVersions(), Replay()
        self.captured: Recording | None = None  # the graph that some thread records
        self.warned: set[object] = set()
        self.told: list[str] = []
        self.passed: Living[Any] = Living()
        self.tangents = False
        self.pending = None if self.device.on_host else Pending(self.device)
        self.launch_failed: Callable[[str, BaseException], None] = lambda name, error: None
        self.device.attach(self)

    def timed(self, executable: Any, entry: Callable[[int], Any]) -> Callable[[int], Any]:
        """The entry of a kernel, measured if the profiler is on."""
        if self.profiler is None:
            return entry
        name: str = executable.name
        if hasattr(executable, "launch_gradient"):
            name = name.removesuffix("_grad") + ".grad"
        return partial(self.profiler.launch, name, entry)

    @property
    def recording(self) -> Recording | None:
        """The graph that this thread records now."""
        recording = self.captured
        return recording if recording is not None and recording.thread == threading.get_ident() else None

    # ---- as the device knows it
    def alone(self) -> AbstractContextManager[None]:
        return self.admission.alone()

    def waited(self) -> None:
        if self.pending is not None:
            self.pending.look()

    def freed(self, memory: Allocation) -> None:
        self.data.freed(memory)
        self.arrays.changed(memory.category)

    # ---- memory
    def allocate(self, nbytes: int, category: str) -> Allocation:
        """See ``Program.allocate``."""
        self._refuse_closed()
        if category != HEAP:
            if self.replay.running or category == "snapshots":
                self.heap.refuse_over_budget(f"a gradient needs {nbytes:,} bytes of {category}", nbytes)
            self.heap.make_room(nbytes)
        self.arrays.changed(category)
        return self.device.allocate(nbytes, category)

    def host_words(self, n: int, category: str) -> Allocation:
        """Zeroed 8-byte words that the host and the device both read and write."""
        if self.device.on_host:
            return self.allocate(8 * n, category)
        self._refuse_closed()
        self.heap.make_room(8 * n)
        return self.device.host_words(n, category)

    def _refuse_closed(self) -> None:
        if self.admission.closed:
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

    # ---- plans
    def own_machine(self, lanes: SimdWidth = ONE_LANE) -> Machine:
        """The parameters of the program's own device for plans; ``lanes``: of the compiled kernel."""
        device = self.device
        if device.on_host:
            return cpu(device.threads, lanes.width, lanes.fewer)
        own = machine(device.arch, fast_math=self.options.fast_math)
        if not device.tapes_on_chip:
            own = own.all_in_heap()
        return replace(own, wide=device.wide_states, trial_lanes=self.options.gpu_lanes)
