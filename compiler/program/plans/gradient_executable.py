"""A compiled reverse kernel in one program: plans of its heap, and its launches."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...codegen.abi import CTX_HEAP, PLANES
from ...compile.pipeline import device_input
from ...errors import OutOfMemory, QdrunRuntimeError
from ...ir.nodes import Loop
from ...runtime.native.guard import Guard
from ...tape.heap_plan import HeapPlan, capacity, needs
from ...tape.machine import Machine
from ..call import Call
from ..executable import Executable
from .gradient_plans import MOST_PLANS, GradientPlans, report_bind
from .remedies import smallest
from .store_checks import StoreChecks

if TYPE_CHECKING:
    from ...compile.lazy_kernel import LazyKernel
    from ..state import ProgramState


class Settings(NamedTuple):
    """What a plan sets: bytes of the planes of the heap, the tapes that lie in it, numbers of words of the context with their values."""

    plan: HeapPlan
    planes: dict[str, int]
    far: frozenset[str]
    at: np.ndarray
    values: np.ndarray


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
        self._guards: dict[int, Guard] = {}  # of the native launches, by the addresses of their code
        written = {w if isinstance(w, int) else w[1] for w in primal.written if isinstance(w, (int, tuple))}
        arrays = [d.index for d in self.args if d.kind == "ndarray"]
        self._apart = [(a, b) for a in arrays for b in arrays if a in written and a != b and not (b in written and b < a)]

    def _guarded(self) -> dict[str, Any]:
        address = self.compiled.address
        guard = self._guards[address] = self._guards.get(address) or Guard(self.args, self._apart)
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
        with self.program.admission.alone():
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
        if program.seeds.replayed is not None:
            return program.seeds.replayed
        if program.replay.running or self.primal.last_seed is None:
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
        return self.plans.plan(call, budget, machine, launched)

    def watched(self, call: Call) -> tuple[object, ...] | None:
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
            OutOfMemory: the heap does not fit the program's limit, or the program its memory budget; names the bytes.
        """
        self._usable()
        self.stores.check(call, watched and self.program.recording is None)
        with self.program.admission.alone():
            recording, beside = self.program.recording, self.program.device.beside_heap.value
            plan = self.plan(call, budget, launched=True) if recording is None else recording.plan(self, call, budget)
            if not plan.bytes:  # else the plan has looked at the budget
                self.program.heap.refuse_over_budget(f"the gradient `{self.name}` does not fit")
            if plan is not self._set:
                self._apply(plan, call)
            self.launch(call)
            if budget is None and recording is None:  # else the next launch may have another one, or nothing has run
                self._arm(self._inputs.decisive(call.words[8:]), beside)
        return plan

    def load(self, call: Call, budget: int | None = None) -> None:
        """Compile and load the code that the plan of a launch takes. Provides no heap, runs nothing. See ``GradientPlans.plan``."""
        with self.program.admission.alone():
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
            self.program.heap.grow(known.planes)
        except OutOfMemory as e:
            whole = call if isinstance(call, Call) else self.plans.call_of(call)
            least = smallest(self.plans, whole, self.plans.plan_options().machine).bytes
            raise OutOfMemory(_no_room(self.program, plan, least, e), least) from None
        self._place(known.far)
        self.context[known.at] = known.values
        self._set = plan
        if plan.bytes and self not in self.program.heap.users:
            self.program.heap.users.add(self)
            self.heap_moved()
        report_bind(plan)

    def _settings_of(self, plan: HeapPlan) -> Settings:
        words, found = self.compiled.layout.params, dict[int, int]()
        widest = {plane: max((t.stride.get(plane, 0) for t in plan.tasks), default=0) for plane in PLANES}
        fewest: dict[str, int] = {}
        batched = self.program.batch.layout.batched
        if batched and not self.program.device.on_host:  # likewise, where rows lie side by side
            fewest = {n: min((t.params[n] for t in plan.tasks if n in t.params), default=0) for n in ("rows", "threads")}
        for task in plan.tasks:
            found |= {words[task.position, name]: fewest.get(name, value) for name, value in task.params.items()}
            # in a batched program one worker may be in another task than the next one: their rows must lie apart all the same
            strides = {plane: widest[plane] for plane in task.stride} if batched else task.stride
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
            self.context[CTX_HEAP + k] = self.program.heap.address(plane)

    def _capacity(self, loop: Loop) -> str | None:
        planned = [p for t in self._set.tasks for p in t.loops] if self._set else []
        return next((capacity(p) for p in planned if p.loc == loop.loc), None)


def _no_room(program: ProgramState, plan: HeapPlan, least: int, error: OutOfMemory) -> str:
    """The message for a heap that does not fit: the kernel, the largest loop of each plane with its line, what to do."""
    where = "".join(f"  {line}\n" for line in needs(plan))
    needed = program.device.used_bytes - program.device.usage().get("adstack", 0) + least
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
