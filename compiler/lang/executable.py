"""A compiled kernel in one program: its launch context, and its launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..adstack.machine import Machine, check_words
from ..adstack.plan import HeapPlan, PlanOptions, gate_leaves, make_plan
from ..adstack.show import capacity, needs
from ..adstack.sizeexpr import SizeExpr, parts
from ..adstack.sizing import TaskSizing
from ..codegen.abi import (
    CTX_HEAP,
    CTX_LAUNCHES,
    CTX_POOL,
    CTX_RET,
    CTX_SEED,
    CTX_STATUS,
    CTX_TMP,
    CTX_TMP_DUAL,
    CTX_TMP_GRAD,
    PLANES,
    STATUS_WORDS,
)
from ..errors import OutOfMemory, QdrunRuntimeError
from ..ir.nodes import ArgDecl, Buffer, Loop, Place
from ..runtime.cpu import register_context, unregister_context
from ..runtime.device import Allocation
from ..runtime.launch import ArgSpec, make_fast
from ..runtime.mirror import Mirror, reading
from ..runtime.status import raise_status, take_status
from .kernel_plan import report_bind
from .plan_inputs import PlanInputs
from .recipe import compiler_input
from .remedies import smallest

if TYPE_CHECKING:
    from .program import Program
    from .stored import Ready


MOST_PLANS = 256
"""Plans that a gradient keeps."""


_NOTHING = nullcontext()


@dataclass
class Call:
    """The arguments of one launch: the words of the argument buffer, and what the planner may read of them."""

    words: bytearray
    scalars: dict[int, int | float] = field(default_factory=dict)  # by ArgDecl.index
    arrays: dict[int, np.ndarray] = field(default_factory=dict)  # by ArgDecl.index; element axes last
    keys: dict[int, object] = field(default_factory=dict)  # type key of each of our ndarrays, by ArgDecl.index
    own: set[int] = field(default_factory=set)  # ndarrays of this program, by ArgDecl.index
    sources: dict[int, np.ndarray] = field(default_factory=dict)  # the caller's array where ``arrays`` has a copy of it
    readonly: list[int] = field(default_factory=list)  # arrays that must not be written, by ArgDecl.index
    kept: list[object] = field(default_factory=list)  # what must live until the launch is over
    # On a device with memory of its own: the mirrors of ndarrays, how the content of an array is read, where its memory lies on the
    # device, what brings the memory that the launch works on and takes it away.
    mirrors: dict[int, Mirror] = field(default_factory=dict)
    reads: dict[int, Callable[[], np.ndarray]] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    loans: list[Callable[[Container[object]], AbstractContextManager[None]]] = field(default_factory=list)
    # What is to be done once the array of this index, or its gradient ("grad", index), was written: copies back to arrays that could
    # not be passed as they are.
    after: list[tuple[object, Callable[[], None]]] = field(default_factory=list)

    def content(self, index: int) -> np.ndarray:
        """The current content of an array argument."""
        read = self.reads.get(index)
        return self.arrays[index] if read is None else read()

    def provided(self, written: Container[object]) -> AbstractContextManager[object]:
        """The memory that the launch works on is there; ``written``: what the kernel writes, as in ``after``."""
        if not self.loans:
            return _NOTHING
        stack = ExitStack()
        try:
            for loan in self.loans:
                stack.enter_context(loan(written))
        except BaseException:
            stack.close()
            raise
        return stack


class Executable:
    """A compiled kernel in one program, with the context that its launches share.

    ``owners``: the program's memory behind each of the kernel's field buffers.
    """

    def __init__(self, program: Program, ready: Ready, owners: Mapping[Buffer, Allocation]) -> None:
        kernel = ready.head
        self.program, self.name, self.args, self.draws = program, kernel.name, kernel.args, ready.draws
        self.last_seed: int | None = None  # of the last launch, when it draws random numbers
        self.compiled, self.owners, self.written = ready.compiled, owners, ready.written
        self.returns = kernel.returns
        layout = self.compiled.layout
        self._memory: list[Allocation] = []
        self.context = self._words(layout.words)
        self._status = self._words(STATUS_WORDS)
        if program.pending is not None:
            program.pending.enter(self, self._status)
        self._returned = self._words(len(kernel.returns))
        for word, array in ((CTX_STATUS, self._status), (CTX_RET, self._returned)):
            self.context[word] = array.ctypes.data if array.size else 0
        tmps = {
            CTX_TMP: len(kernel.tmps),
            CTX_TMP_GRAD: sum(p.grad is not None for p in kernel.tmps) and len(kernel.tmps),
            CTX_TMP_DUAL: len(kernel.tmps) if "tmp_dual" in ready.kinds else 0,
        }
        for word, n in tmps.items():
            self._memory.append(program.allocate(8 * n, "temporaries"))
            self.context[word] = self._memory[-1].ptr
        self.context[CTX_POOL] = program.device.pool_address
        for buffer, word in layout.buffers.items():
            self.context[word] = owners[buffer].ptr
        self.context_address = self.context.ctypes.data
        self.status_address = self._status.ctypes.data
        program.device.fill_context(self.context, self.compiled)
        self._entry = program.device.entry(self.compiled)
        shares = kernel.returns or kernel.tmps or ready.draws or self.compiled.messages
        self.shares = (
            bool(shares) or not program.device.on_host
        )  # memory of its launches; a GPU's kernels have scratch memory in common
        register_context(self.context_address, self.compiled)
        program.data.enter(self, ready.stores)

    def _seed(self) -> int:
        """The seed of the random numbers of a launch."""
        return self.program.next_seed()

    def _words(self, n: int) -> np.ndarray:
        """Words that the host reads and writes."""
        allocation = self.program.host_words(n, "context")
        self._memory.append(allocation)
        return allocation.view.view(np.uint64)

    def launch(self, call: Call) -> None:
        """Run once and raise what the kernel reported.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
        """
        self._usable()
        if self.program.recording is not None:
            self.program.recording.launching(self, call)
        if self.draws:
            self.last_seed = self.program.last_seed = self._seed()
            self.context[CTX_SEED] = self.last_seed
        call.words[0:8] = self.context_address.to_bytes(8, "little")
        with self.program.running(), call.provided(self.written):
            buffer = (ctypes.c_char * len(call.words)).from_buffer(call.words)
            try:
                self._entry(ctypes.addressof(buffer))
            finally:
                if not self.program.device.native:  # machine code counts by itself
                    self.context[CTX_LAUNCHES] += 1
        for number, copy_back in call.after:
            if number in self.written:
                copy_back()
        if self.program.pending is not None and self.program.options.debug:
            self.program.synchronize()  # an error is raised by the launch that failed
        if self._status[0]:
            self._on_status()

    def _usable(self) -> None:
        if self.program.closed:
            raise QdrunRuntimeError(
                f"kernel `{self.name}` belongs to a program that is closed; do: qd.init() and make the fields again"
            )
        if self.program.device.dead:  # a forked child cannot even touch the context
            self.program.synchronize()

    def fast(
        self, fallback: Callable[..., Any], keys: Mapping[int, object], host_type: type, taped: bool = False
    ) -> Callable[..., Any] | None:
        """A native launcher for calls that need nothing from Python, or None: the kernel returns values or draws random numbers, or is
        interpreted.

        Args:
            fallback: takes every call that the launcher does not know.
            keys: the type key of each ndarray argument that came as ``host_type``, by ``ArgDecl.index``.
            host_type: the program's array class.
            taped: the launcher may be used while a tape records (the caller does the recording).
        """
        if self.returns or self.draws or not self.program.device.native:
            return None
        # ``arrays.check_memory`` looks at arrays where memory was handed out; a device with memory of its own needs copies of them.
        direct = self.program.device.on_host and not any(map(self.program.was_shown, self.owners.values()))
        specs = [
            ArgSpec(d, keys.get(d.index), host_type if d.index in keys else None, direct and _row_major(keys.get(d.index)))
            for d in self.args
        ]
        flag = ctypes.addressof(self.program.closed_flag if taped else self.program.slow_flag)
        return make_fast(
            *(self.compiled, self.context_address, specs, fallback, self._on_status, flag, self.program.variable, self.program),
            state_ptr=ctypes.addressof(self.program.state),
            shares=self.shares,
        )

    @property
    def takes_arrays(self) -> bool:
        """Whether an argument is an array."""
        return any(d.kind == "ndarray" for d in self.args)

    def held(self) -> dict[str, int]:
        """Bytes that it keeps in the program: ``context`` and ``temporaries``."""
        out = {"context": 0, "temporaries": 0}
        for allocation in self._memory:
            out[allocation.category] += allocation.nbytes
        return out

    def uses(self, memory: Allocation) -> bool:
        """Whether a field of the kernel lies in this memory."""
        return any(m.serial == memory.serial for m in self.owners.values())

    def _on_status(self) -> None:
        self.program.device.reported()
        code = int(self._status[:1].view(np.int64)[0])
        if code < 0:
            take_status(self.status_address)
            raise self.program.device.launch_error(-code, self.name)
        raise_status(self.compiled, self.status_address, self._capacity)

    def raise_status(self) -> None:
        """Raise what the status record says."""
        self._on_status()

    def _capacity(self, loop: Loop) -> str | None:
        return None

    def returned(self) -> list[int | float | bool]:
        """The scalars that the last launch returned."""
        if self.returns:
            self.program.synchronize()
        return [self._returned[k : k + 1].view(np.uint8)[: d.size].view(d.numpy)[0].item() for k, d in enumerate(self.returns)]

    def close(self) -> None:
        """Forget the context. Its memory goes with the program."""
        unregister_context(self.context_address)


def _row_major(key: object) -> bool:
    """Whether arrays of this type key lie as numpy's do."""
    return getattr(key, "layout", None) is None


class GradientExecutable(Executable):
    """A reverse kernel: each launch is planned, its heap provided, its parameters set. ``primal``: the kernel that it reverses."""

    def __init__(
        self,
        program: Program,
        ready: Ready,
        owners: Mapping[Buffer, Allocation],
        sizing: tuple[TaskSizing, ...],
        primal: Executable,
    ) -> None:
        super().__init__(program, ready, owners)
        self.sizing, self.primal = sizing, primal
        self._ready, self._plain = ready, ready.compiled  # with all tapes in on-chip memory
        self.shares = True  # the heap
        exprs = [e for t in sizing for e in _bounds(t)]
        gates = gate_leaves(sizing, self._options())
        self._inputs = PlanInputs.of(program, self.args, owners, exprs, gates)
        self.fixed = self._inputs.fixed
        self._plans: dict[tuple[object, ...], HeapPlan] = {}
        self._set: HeapPlan | None = None

    def _seed(self) -> int:
        """The seed of the launch that is differentiated: a tape has recorded it, else it is the last launch's."""
        program = self.program
        if program.replay_seed is not None:
            return program.replay_seed
        if program.replaying or self.primal.last_seed is None:
            why = (
                "none was made"
                if self.primal.last_seed is None
                else "inside a gradient of your own it is not known which that was"
            )
            raise QdrunRuntimeError(
                f"the gradient `{self.name}` repeats the random numbers of the launch that it differentiates, and {why}\n"
                "  do: launch the kernel first; in a gradient of your own, draw into a field in a kernel of its own, and read the field"
            )
        return self.primal.last_seed

    def plan(self, call: Call, budget: int | None = None, machine: Machine | None = None) -> HeapPlan:
        """The heap of a launch with these arguments. Nothing runs. ``machine``: another device than the program's; it need not be there.

        ``budget``: bytes that it may take, at most what the program's memory budget leaves; too small a one raises ``OutOfMemory``.

        A plan is kept as long as nothing that it was made from has changed, see ``plan_inputs``.
        """
        if machine is not None:
            return self.plan_with(call, machine=machine, budget=self._allowed(budget))
        budget = self._allowed(budget)
        key = budget, self._inputs.key(call)
        known = self._plans.get(key)
        if known is not None and self._inputs.unmoved():
            return known
        host = LaunchHost(call, self.owners)
        changed = self._inputs.changed(host)
        if known is None or changed:
            if changed or len(self._plans) >= MOST_PLANS:
                self._plans.clear()
                self._inputs.look(host)
            made = self._make_plan(call, self._options(budget))
            if known is None or made != known:  # an equal plan stays the one that is set
                known = made
            self._plans[key] = known
        return known

    def plan_with(self, call: Call, **changes: Any) -> HeapPlan:
        """The heap with other ``PlanOptions`` than the program's. Made anew each time.

        Raises:
            QdrunTypeError: a loop keeps words that the machine does not have.
        """
        options = replace(self.plan_options(), **changes)
        return check_words(self._make_plan(call, options), options.machine)

    def _make_plan(self, call: Call, options: PlanOptions) -> HeapPlan:
        try:
            return make_plan(self.name, self.sizing, LaunchHost(call, self.owners), options)
        except OutOfMemory as e:
            if e.smallest is None or options.budget != self.program.heap_room():
                raise
            raise OutOfMemory(_over_budget(self.program, e), e.smallest) from None

    def plan_options(self, machine: Machine | None = None) -> PlanOptions:
        """The options of a plan without a budget, for the program's own machine or another."""
        own = self._options()
        return own if machine is None else replace(own, machine=machine)

    def _allowed(self, budget: int | None) -> int | None:
        """The bytes that the heap may take: the launch's own budget, and what the program's leaves."""
        room = self.program.heap_room()
        if room is None or budget is None:
            return budget if room is None else room
        return min(budget, room)

    def _options(self, budget: int | None = None) -> PlanOptions:
        o = self.program.options
        return PlanOptions(
            self.program.own_machine(self.compiled.lanes), o.ad_checkpoint_levels, fixed_slots=o.ad_stack_size, budget=budget
        )

    def launch_gradient(self, call: Call, budget: int | None = None) -> HeapPlan:
        """Plan, provide exactly the planned heap, run.

        Args:
            call: the arguments.
            budget: bytes that the heap may take; None: what the program's memory budget leaves, if it has one.

        Raises:
            AdStackOverflow: a loop whose count only running can tell went past its capacity.
            OutOfMemory: the heap does not fit the program's limit; names the bytes.
        """
        self._usable()
        with self.program.alone():
            recording = self.program.recording
            plan = self.plan(call, budget) if recording is None else recording.plan(self, call, budget)
            if plan is not self._set:
                self._apply(plan, call)
            self.launch(call)
        return plan

    def _apply(self, plan: HeapPlan, call: Call) -> None:
        """Write a plan's parameters, and the heap, into the context."""
        try:
            self.program.grow_heap(plan.planes)
        except OutOfMemory as e:
            least = smallest(self, call, self.plan_options().machine).bytes
            raise OutOfMemory(_no_room(self.program, plan, least, e), least) from None
        self._place(plan.far)
        words = self.compiled.layout.params
        for task in plan.tasks:
            for name, value in task.params.items():
                self.context[words[task.position, name]] = value
            for plane, stride in task.stride.items():
                self.context[words[task.position, f"stride.{plane}"]] = stride
        self._set = plan
        if plan.bytes:
            self.program.heap_users.add(self)
        self.heap_moved()
        report_bind(plan)

    def _place(self, far: frozenset[str]) -> None:
        """Take the code that has these tapes in the heap. Its context is the same."""
        device = self.program.device
        if device.on_host:
            return
        made = device.variant(self._plain, far, lambda: compiler_input(self._ready.kernel, self.program.options))
        if made.code is not self.compiled.code:
            self.compiled = made
            device.fill_context(self.context, made)
            self._entry = device.entry(made)

    def heap_shrank(self) -> None:
        """The heap may be too small for the plan that is set: the next launch applies its plan anew."""
        self._set = None

    def heap_moved(self) -> None:
        """Take the heap's current addresses; the program calls this after it has replaced a plane."""
        for k, plane in enumerate(PLANES):
            self.context[CTX_HEAP + k] = self.program.heap_address(plane)

    def _capacity(self, loop: Loop) -> str | None:
        planned = [p for t in self._set.tasks for p in t.loops] if self._set else []
        return next((capacity(p) for p in planned if p.loc == loop.loc), None)


def _no_room(program: Program, plan: HeapPlan, least: int, error: OutOfMemory) -> str:
    """The message for a heap that does not fit: the kernel, the largest loop of each plane with its line, what to do."""
    where = "".join(f"  {line}\n" for line in needs(plan))
    needed = program.device.used_bytes - program.usage().get("adstack", 0) + least
    limit = program.options.memory_limit
    less, more = "", "a larger memory_limit"
    if limit and needed > limit:
        more = f"a memory_limit of {needed} bytes or more" + (f" and `budget={least}`" if least < plan.bytes else "")
    elif least < plan.bytes:
        less = f"the same gradient in more time with `budget=` of {least} bytes or more, or qd.init(memory_budget=..); "
    return (
        f"the gradient `{plan.kernel}` needs an adstack heap of {plan.bytes:,} bytes: {error}\n{where}"
        f"  do: {less}fewer or smaller variables in this loop, or {more}"
    )


def _over_budget(program: Program, error: OutOfMemory) -> str:
    """The message for a plan that does not fit what the program's memory budget leaves."""
    budget, room = program.options.memory_budget, program.heap_room() or 0
    held = ", ".join(f"{k} {v:,}" for k, v in sorted(program.usage().items()) if k != "adstack") or "nothing"
    return (
        f"{str(error).rsplit(_DO, 1)[0]}\n  memory_budget={budget} leaves it {room:,}: the program holds {held}{_DO}"
        f"qd.init(memory_budget={budget - room + (error.smallest or 0)}) or more, smaller fields, or fewer variables in this loop"
    )


_DO = "\n  do: "


def _bounds(task: TaskSizing) -> list[SizeExpr]:
    """Every expression that the plan of a task depends on."""
    ranges = [*task.axes] if any(s.stacks for s in task.region.all_loops()) else []
    for s in task.region.all_loops():
        ranges += [s.range, *s.nest]
    return [e for r in ranges for end in (r.begin, r.end) if end is not None for e in parts(end)]


class LaunchHost:
    """What the planner may ask about a launch: arguments, shapes, and the contents of arrays."""

    def __init__(self, call: Call, owners: Mapping[Buffer, Allocation]) -> None:
        self._call, self._owners = call, owners

    def scalar(self, arg: ArgDecl) -> int | float:
        """The value of a scalar argument."""
        return self._call.scalars[arg.index]

    def extent(self, arg: ArgDecl, axis: int) -> int:
        """The extent of an ndarray argument."""
        return self._call.arrays[arg.index].shape[axis]

    def array(self, place: Place) -> np.ndarray:
        """The current content of a field component or an ndarray argument."""
        if place.buffer in self._owners:
            assert place.shape is not None and place.strides is not None
            memory = self._owners[place.buffer]
            form = np.ndarray(place.shape, place.dtype.numpy, memory.view.data, place.offset, place.strides)
            return reading(memory.mirror, form)
        owner = place.buffer.owner
        assert isinstance(owner, ArgDecl)
        whole = self._call.content(owner.index)
        element = whole.reshape(*whole.shape[: owner.ndim], -1)
        return element[..., place.offset // place.dtype.size]
