"""A compiled kernel in one program: its launch context, and its launches."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..codegen.abi import (
    CTX_HEAP,
    CTX_LAUNCHES,
    CTX_POOL,
    CTX_RET,
    CTX_SEED,
    CTX_STATUS,
    CTX_STATUS_DEVICE,
    CTX_TMP,
    CTX_TMP_DUAL,
    CTX_TMP_GRAD,
    CTX_WEIGHT,
    PLANES,
    STATUS_WORDS,
)
from ..compile.pipeline import device_input
from ..errors import OutOfMemory, QdrunError, QdrunRuntimeError
from ..ir.nodes import Buffer, Loop
from ..ir.threads import Living
from ..ir.trials import TRIAL_PARAMS
from ..runtime.base import Allocation
from ..runtime.cpu.device import register_context, unregister_context
from ..runtime.native.guard import Guard
from ..runtime.native.launch import ArgSpec, Launch, Same, Watched, make_launch
from ..runtime.status import error_of, raise_status, take_status
from ..tape.heap_plan import HeapPlan, capacity, needs
from ..tape.machine import Machine
from .call import Call
from .plans.gradient_plans import MOST_PLANS, GradientPlans, report_bind
from .plans.remedies import smallest
from .plans.store_checks import StoreChecks
from .trial_state import TrialState

if TYPE_CHECKING:
    from ..compile.lazy_kernel import LazyKernel
    from .recording import Recording
    from .state import ProgramState


class Settings(NamedTuple):
    """What a plan sets: bytes of the planes of the heap, the tapes that lie in it, numbers of words of the context with their values."""

    plan: HeapPlan
    planes: dict[str, int]
    far: frozenset[str]
    at: np.ndarray
    values: np.ndarray


def words_of(memory: Allocation) -> np.ndarray:
    """The 8-byte words of memory of the host."""
    return memory.view.view(np.uint64)


class Executable:
    """A compiled kernel in one program, with the context that its launches share.

    ``owners``: the program's memory behind each of the kernel's field buffers.
    """

    def __init__(self, program: ProgramState, lazy: LazyKernel, owners: Mapping[Buffer, Allocation]) -> None:
        kernel = lazy.head
        self.program, self.name, self.args, self.draws = program, kernel.name, kernel.args, lazy.draws
        self.last_seed: int | None = None  # of the last launch, when it draws random numbers
        self._set: HeapPlan | None = None  # of a gradient: the plan whose parameters are in the context
        self.compiled, self.owners, self.written = lazy.compiled(program.device), owners, lazy.written
        self.lazy = lazy
        self.returns = kernel.returns
        if program.trials is not None:
            program.device.keep_source(self.compiled, lambda: device_input(lazy.kernel, program.options, nested=False))
        layout = self.compiled.layout
        self._memory: list[Allocation] = []
        self.closed, self.users = False, Living[object]()  # recordings, whose graphs need its context
        self.context = words_of(self._host_words(layout.words))
        status = self._host_words(STATUS_WORDS)
        self._status = words_of(status)
        if program.pending is not None:
            program.pending.enter(self, self._status)
        copies = 1 if program.trials is None else program.trials.padded  # of what each trial has its own
        returned = self._host_words(len(kernel.returns) * copies)
        self._returned = words_of(returned)
        self.context[CTX_STATUS], self.context[CTX_STATUS_DEVICE] = status.ptr, status.device_ptr
        self.context[CTX_RET] = returned.device_ptr
        tmps = {
            CTX_TMP: len(kernel.tmps),
            CTX_TMP_GRAD: sum(p.grad is not None for p in kernel.tmps) and len(kernel.tmps),
            CTX_TMP_DUAL: len(kernel.tmps) if "tmp_dual" in lazy.kinds else 0,
        }
        for word, n in tmps.items():
            self._memory.append(program.allocate(8 * n * copies, "temporaries"))
            self.context[word] = self._memory[-1].ptr
        self.context[CTX_POOL] = program.device.pool_address
        for buffer, word in layout.buffers.items():
            self.context[word] = owners[buffer].ptr
        for (_, name), word in layout.params.items():
            if name in TRIAL_PARAMS:
                self.context[word] = self._trials().param(name, self, status.device_ptr)
        self.context_address = self.context.ctypes.data
        self.status_address = self._status.ctypes.data
        program.device.fill_context(self.context, self.compiled)
        self._entry = program.timed(self, program.device.entry(self.compiled))
        shares = kernel.returns or kernel.tmps or lazy.draws or self.compiled.messages
        self.shares = (
            bool(shares) or not program.device.on_host
        )  # memory of its launches; a GPU's kernels have scratch memory in common
        # Values are returned and seeds drawn in Python; an interpreter is no machine code.
        self.native = not (self.returns or self.draws or program.profiler) and program.device.native
        self.passed_over = 0  # calls in Python since other launches took the room of a native one
        self.refused = 0  # calls that could not be launched natively
        register_context(self.context_address, self.compiled)
        self._unregister = weakref.finalize(self, unregister_context, self.context_address)
        program.data.enter(self.context, owners, lazy.stores)

    def _seed(self) -> int:
        """The seed of the random numbers of a launch."""
        return self.program.next_seed()

    def _host_words(self, n: int) -> Allocation:
        """Words that the host reads and writes."""
        self._memory.append(self.program.host_words(n, "context"))
        return self._memory[-1]

    def launch(self, call: Call) -> None:
        """Run once and raise what the kernel reported.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
        """
        self._usable()
        recording, device = self.program.recording, self.program.device
        if recording is not None:
            recording.launching(self, call)
        if self.draws:
            self._draw(recording)
        call.words[0:8] = self.context_address.to_bytes(8, "little")
        if recording is not None:
            added = recording.add(self, self._set, self.program.place, call)
            if device.records:  # else its driver records what it is given
                recording.rows[device.record(self.compiled, call.words, self.context, self.status_address, added.seed)] = added
                self.context[CTX_LAUNCHES] += 1  # what it stores to is not what it was for plans
                return
        with self.program.running(), call.provided(self.written):
            buffer = (ctypes.c_char * len(call.words)).from_buffer(call.words)
            try:
                self._entry(ctypes.addressof(buffer))
            finally:
                if not device.native:  # machine code counts its own launches
                    self.context[CTX_LAUNCHES] += 1
        if device.ahead:
            self.program.launched(int(self.context[CTX_WEIGHT]))
        for number, copy_back in call.after:
            if number in self.written:
                copy_back()
        if self.program.pending is not None and self.program.options.debug:
            self.program.synchronize()  # an error is raised by the launch that failed
        if self._status[0]:
            self._on_status()

    def _draw(self, recording: Recording | None) -> None:
        """Give the next launch the seed of its random numbers."""
        if recording is not None:
            recording.drawing(self)
        made = self.program.launches
        self.last_seed = self.program.last_seed = self._seed()
        self.context[CTX_SEED] = self.last_seed
        if recording is not None:
            recording.drawn(self, self.last_seed, fresh=self.program.launches > made)

    def _usable(self) -> None:
        if self.program.open_trial is not None:
            raise QdrunRuntimeError(
                f"kernel `{self.name}` is launched inside of `with program.trial({self.program.open_trial}):`, and a launch runs all trials"
                "\n  do: launch it after the block"
            )
        if self.program.closed:
            raise QdrunRuntimeError(
                f"kernel `{self.name}` belongs to a program that is closed; do: qd.init() and make the fields again"
            )
        if self.program.device.dead:  # a forked child cannot even touch the context
            self.program.synchronize()

    def native_launch(self, args: Sequence[ArgSpec | Same | Watched], owner: object) -> Launch | None:
        """A native launch, or None: there are too many arguments. ``args``: how each is taken; ``owner``: see ``Launch``."""
        program, device = self.program, self.program.device
        return make_launch(
            *(self.compiled, self.context_address, args, self._on_status, ctypes.addressof(program.flags), self),
            state_ptr=ctypes.addressof(program.state),
            shares=self.shares,
            keep_gil=bool(device.ahead),
            ahead=device.ahead,
            on_ahead=device.throttle,
            **self._guarded(),
        )

    def _guarded(self) -> dict[str, Any]:
        """The guard of a native launch, as ``make_launch`` takes it."""
        return {}

    @property
    def takes_numpy(self) -> bool:
        """Whether native launches take numpy arrays as they are. ``arrays.check_memory`` looks at arrays where memory was handed out, and
        a device with memory of its own needs copies of them.
        """
        return self.program.device.on_host and not any(map(self.program.was_shown, self.owners.values()))

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
        if self.program.trial_state is not None:
            take_status(self.status_address)
            self.program.trial_state.report()
            return
        raise_status(self.compiled, self.status_address, self._capacity)

    def error_of(self, code: int, values: Sequence[int]) -> QdrunError:
        """The error of a message of the kernel; ``values``: the words of its first operands."""
        return error_of(self.compiled, code, values, self._capacity)

    def _trials(self) -> TrialState:
        found = self.program.trial_state
        assert found is not None
        return found

    def take_status(self) -> bool:
        """Whether the status record says something, which it forgets."""
        return bool(self._status[0]) and bool(take_status(self.status_address)[0])

    def raise_status(self, plan: HeapPlan | None = None) -> None:
        """Raise what the status record says. ``plan``: of the launch, where it was not the last one that was planned."""
        was, self._set = self._set, plan or self._set
        try:
            self._on_status()
        finally:
            self._set = was

    def _capacity(self, loop: Loop) -> str | None:
        return None

    def returned(self) -> list[Any]:
        """The scalars that the last launch returned; in a batched program, of each an array of the trials' values."""
        if self.returns:
            self.program.synchronize()
        layout = self.program.trials
        if layout is not None:
            whole = [
                layout.view(self._returned.view(np.uint8), d.numpy, 8 * len(self.returns), 8 * k, (), ())
                for k, d in enumerate(self.returns)
            ]
            return [x.reshape(-1)[: layout.count].copy() for x in whole]
        return [self._returned[k : k + 1].view(np.uint8)[: d.size].view(d.numpy)[0].item() for k, d in enumerate(self.returns)]

    def close(self) -> None:
        """Give the context back. The device has done all that was launched with it."""
        if not self.closed:
            self.closed, program = True, self.program
            self._unregister()
            program.data.leave(self.context)
            for keeper in filter(None, (program.trial_state, program.pending)):
                keeper.leave(self)
            for allocation in self._memory:
                program.device.free(allocation)


class GradientExecutable(Executable):
    """A reverse kernel: each launch is planned, its heap provided, its parameters set.

    ``primal``: the kernel that it reverses; ``stores``: what a launch must prove.
    """

    def __init__(self, plans: GradientPlans, lazy: LazyKernel, primal: Executable, stores: StoreChecks) -> None:
        super().__init__(plans.program, lazy, plans.owners)
        self.plans, self.primal = plans, primal
        self.sizing, self._inputs = plans.sizing, plans.inputs
        self._plain = self.compiled  # with all tapes in on-chip memory
        self.shares = True  # the heap
        self._known_settings: dict[int, Settings] = {}  # by the plan's id
        self.stores = stores
        self._guards: dict[int, Guard] = {}  # of the native launchers, by the addresses of their code
        written = {w if isinstance(w, int) else w[1] for w in primal.written if isinstance(w, (int, tuple))}
        arrays = [d.index for d in self.args if d.kind == "ndarray"]
        self._apart = [(a, b) for a in arrays for b in arrays if a in written and a != b and not (b in written and b < a)]

    def _guarded(self) -> dict[str, Any]:
        guard = Guard(self.args, self._apart)
        before, self._guards[self.compiled.address] = self._guards.get(self.compiled.address), guard
        if before is not None:
            before.disarm()
        return {"guard": guard, "prepare": partial(self.prepare, guard) if self._inputs.by_words else None}

    def _disarm(self) -> None:
        guard = self._guards.get(self.compiled.address)
        if guard is not None:
            guard.disarm()

    def prepare(self, guard: Guard, words: bytes) -> bool | None:
        """Plan a native launch and set its plan.

        Args:
            guard: of the launcher.
            words: the argument buffer after its first word.

        Returns:
            None: the launch may go; False: it is for another launcher, or for Python.

        Raises:
            OutOfMemory: the heap does not fit.
        """
        self._usable()
        with self.program.alone():
            decisive, beside = self._inputs.decisive(words), self.program.device.beside_heap.value
            plan = self.plans.of_words(words, decisive)
            if plan is not self._set:
                self._apply(plan, words)
            self._arm(decisive, beside)
        return None if guard.armed else False

    def _arm(self, decisive: tuple[int, ...], beside: int) -> None:
        """Let native launches pass whose plan is that of these words, which is set.

        No other launch may happen meanwhile. ``beside``: what the device held beside the heap before the plan was made; with more of it, or
        less, a memory budget leaves the heap another room.
        """
        guard, counted = self._guards.get(self.compiled.address), self._inputs.counted(self.program.data)
        if guard is not None and counted is not None:
            if self._set is not None and self._set.bytes and self.program.options.memory_budget:
                counted = [*counted, (ctypes.addressof(self.program.device.beside_heap), beside)]
            guard.arm(tuple(zip(self._inputs.words, decisive)), counted)

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

    def plan(self, call: Call, budget: int | None = None, machine: Machine | None = None, launched: bool = False) -> HeapPlan:
        """See ``GradientPlans.plan``."""
        return self.plans.plan(call, budget, machine, launched)

    def watched(self, call: Call) -> tuple[object, ...] | None:
        """The key of the plans of a launch that depend on memory; None: no plan depends on memory."""
        if not (self._inputs.watched or self.program.options.memory_budget):
            return None
        words = call.words[8:]
        return self._inputs.decisive(words) if self._inputs.by_words else (bytes(words),)

    def replan(self) -> None:
        """Make all plans anew: something has changed that no plan looks at."""
        self.plans.forget()
        self._known_settings.clear()
        self.heap_shrank()

    def launch_gradient(self, call: Call, budget: int | None = None, watched: bool = False) -> HeapPlan:
        """Plan, provide exactly the planned heap, run.

        Args:
            call: the arguments.
            budget: bytes that the heap may take; None: what the program's memory budget leaves, if it has one.
            watched: check indices that are read from memory, too.

        Raises:
            DataAccessError: two iterations of a parallel loop store to one element.
            AdStackOverflow: a loop whose count only running can tell went past its capacity.
            OutOfMemory: the heap does not fit the program's limit; names the bytes.
        """
        self._usable()
        self.stores.check(call, watched and self.program.recording is None)
        with self.program.alone():
            recording, beside = self.program.recording, self.program.device.beside_heap.value
            plan = self.plan(call, budget, launched=True) if recording is None else recording.plan(self, call, budget)
            if plan is not self._set:
                self._apply(plan, call)
            self.launch(call)
            if budget is None and recording is None:  # else the next launch may have another one, or nothing has run
                self._arm(self._inputs.decisive(call.words[8:]), beside)
        return plan

    def load(self, call: Call, budget: int | None = None) -> None:
        """Compile and load the code that the plan of a launch takes. Provides no heap, runs nothing. See ``GradientPlans.plan``."""
        with self.program.alone():
            self._place(self.plan(call, budget).far)
            self._set = None  # the code may be that of another plan

    def _apply(self, plan: HeapPlan, call: Call | bytes) -> None:
        """Write a plan's parameters, and the heap, into the context. ``call``: or the words of its arguments."""
        self._disarm()
        known = self._known_settings.get(id(plan))
        if known is None:
            if len(self._known_settings) >= MOST_PLANS:
                self._known_settings.clear()
            known = self._known_settings[id(plan)] = self._settings_of(plan)
        try:
            self.program.grow_heap(known.planes)
        except OutOfMemory as e:
            whole = call if isinstance(call, Call) else self.plans.call_of(call)
            least = smallest(self.plans, whole, self.plans.plan_options().machine).bytes
            raise OutOfMemory(_no_room(self.program, plan, least, e), least) from None
        self._place(known.far)
        self.context[known.at] = known.values
        self._set = plan
        if plan.bytes and self not in self.program.heap_users:
            self.program.heap_users.add(self)
            self.heap_moved()
        report_bind(plan)

    def _settings_of(self, plan: HeapPlan) -> Settings:
        words, found = self.compiled.layout.params, dict[int, int]()
        widest = {plane: max((t.stride.get(plane, 0) for t in plan.tasks), default=0) for plane in PLANES}
        fewest: dict[str, int] = {}
        if self.program.trials is not None and not self.program.device.on_host:  # likewise, where rows lie side by side
            fewest = {n: min((t.params[n] for t in plan.tasks if n in t.params), default=0) for n in ("rows", "threads")}
        for task in plan.tasks:
            found |= {words[task.position, name]: fewest.get(name, value) for name, value in task.params.items()}
            # in a batched program one worker may be in another task than the next one: their rows must lie apart all the same
            strides = task.stride if self.program.trials is None else {plane: widest[plane] for plane in task.stride}
            found |= {words[task.position, f"stride.{plane}"]: stride for plane, stride in strides.items()}
        return Settings(plan, plan.planes, plan.far, np.array(list(found), np.int64), np.array(list(found.values()), np.uint64))

    def _place(self, far: frozenset[str]) -> None:
        """Take the code that has these tapes in the heap. Its context is the same."""
        device = self.program.device
        if device.on_host:
            return
        made = device.variant(self._plain, far, lambda: device_input(self.lazy.kernel, self.program.options, nested=False))
        if made.code is not self.compiled.code:
            self.compiled = made  # each native launcher knows one code, and has a guard
            device.fill_context(self.context, made)
            self._entry = self.program.timed(self, device.entry(made))

    def heap_shrank(self) -> None:
        """The heap may be too small for the plan that is set: the next launch applies its plan anew."""
        self._set = None
        self._disarm()

    def heap_moved(self) -> None:
        """Take the heap's current addresses; the program calls this after it has replaced a plane."""
        for k, plane in enumerate(PLANES):
            self.context[CTX_HEAP + k] = self.program.heap_address(plane)

    def _capacity(self, loop: Loop) -> str | None:
        planned = [p for t in self._set.tasks for p in t.loops] if self._set else []
        return next((capacity(p) for p in planned if p.loc == loop.loc), None)


def _no_room(program: ProgramState, plan: HeapPlan, least: int, error: OutOfMemory) -> str:
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
