"""Plans of a gradient: the heap of a launch, before it, from the lowered kernel alone. Nothing is compiled for a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.llvm.target import SimdWidth
from ...errors import OutOfMemory
from ...ir.nodes import ArgDecl, Buffer, CellBlocks, Kernel, Place
from ...ir.trials import ONE, TrialLayout
from ...runtime.base import Allocation
from ...runtime.mirror import reading
from ...tape.bounds.sizeexpr import SizeExpr, parts
from ...tape.heap_plan import HeapPlan, debug_lines
from ...tape.machine import Machine, check_words
from ...tape.plan import PlanOptions, gate_leaves, make_plan
from ...tape.sizing import TaskSizing
from ...tape.trials import batched_sizing
from ..call import Call
from ..layout.sparse import joined
from .device_reducer import DeviceReducers, LaunchReducer
from .plan_guard import PlanInputs, read_words

if TYPE_CHECKING:
    from ..state import ProgramState

MOST_PLANS = 256
"""Plans that a gradient keeps."""


_NO_CALL = Call(bytearray(8))


class GradientPlans:
    """Plans the launches of one gradient in one program.

    Attributes:
        head: the reverse kernel without its tasks.
        owners: the program's memory behind each of the kernel's field buffers.
        sizing: its tasks.
        inputs: what plans read of a launch.

    Args:
        program: whose options and machine count.
        head: see above.
        owners: see above.
        sizing: see above.
        lanes: of the code that is or will be compiled.
    """

    def __init__(
        self,
        program: ProgramState,
        head: Kernel,
        owners: Mapping[Buffer, Allocation],
        sizing: tuple[TaskSizing, ...],
        lanes: SimdWidth,
    ) -> None:
        self._of_one = sizing  # of one trial
        layout = program.batch.layout
        if layout.batched:
            sizing = batched_sizing(sizing, layout)
        self.program, self.head, self.owners, self.sizing, self._lanes = program, head, owners, sizing, lanes
        exprs = [e for t in sizing for e in _bounds(t)] + gate_leaves(sizing, self._options())
        self.inputs = PlanInputs.of(program, head.args, owners, exprs)
        elsewhere = not program.device.on_host and not layout.batched  # a batch's bounds are the largest of all trials
        self._reducers = DeviceReducers(program, head.name, head.args, owners) if elsewhere else None
        self._known: dict[tuple[object, ...], HeapPlan] = {}

    def plan(self, call: Call, budget: int | None = None, machine: Machine | None = None, launched: bool = False) -> HeapPlan:
        """The heap of a launch with these arguments. Nothing runs. ``machine``: another device than the program's; it need not be there.

        ``budget``: bytes that it may take, at most what the program's memory budget leaves; too small a one raises ``OutOfMemory``.

        A plan is kept as long as nothing that it was made from has changed, see ``plan_guard``. ``launched``: any plan with the right
        bytes and parameters will do; what it predicts of the time may be that of a launch with other numbers.

        Raises:
            QdrunTypeError: see ``plan_with``.
        """
        if machine is not None:
            return self._within(call, replace(self.plan_options(machine), budget=self._allowed(budget)), budget)
        given, budget = budget, self._allowed(budget)
        short = launched and budget is None
        key = budget, short, self.inputs.decisive(call.words[8:]) if short else self.inputs.key(call)
        known = self._known.get(key)
        if known is not None and self.inputs.unmoved():
            return known
        host = self._host(call)
        changed = self.inputs.changed(host)
        if known is None or changed:
            if changed or len(self._known) >= MOST_PLANS:
                self._known.clear()
                self.inputs.look(host)
            made = self._within(call, self._options(budget), given)
            if known is None or made != known:  # keep the bound plan if the new one is equal
                known = made
            self._known[key] = known
            if budget is None and not short:
                self._known.setdefault((None, True, self.inputs.decisive(call.words[8:])), known)
        return known

    def plan_with(self, call: Call, **changes: Any) -> HeapPlan:
        """The heap with other ``PlanOptions`` than the program's. Made anew each time.

        Raises:
            QdrunTypeError: a loop keeps words that the machine does not have.
        """
        options = replace(self.plan_options(), **changes)
        return self._make_plan(call, options)

    def plan_batch(self, call: Call, trials: TrialLayout, machine: Machine | None = None) -> HeapPlan:
        """The heap of a launch in a program of other trials than this one's, which all hold what the first one of this program holds.

        Raises:
            QdrunTypeError: see ``plan_with``.
        """
        options = self.plan_options(machine)
        own = self.program.batch.layout.width
        if machine is None and own != trials.width and own == self._lanes.width:
            options = replace(options, machine=self.program.own_machine(replace(self._lanes, width=trials.width)))
        host = BatchHost(call, self.owners, self.program.batch.layout, trials.count)
        made = make_plan(self.head.name, batched_sizing(self._of_one, trials), host, options)
        return check_words(made, options.machine)

    def _host(self, call: Call) -> LaunchHost:
        """Answers the queries of a plan about a launch. Queries about large device arrays run on the device."""
        reducer = None if self._reducers is None else LaunchReducer(self._reducers, call)
        return LaunchHost(call, self.owners, reducer, self.program.batch.layout)

    def _within(self, call: Call, options: PlanOptions, given: int | None) -> HeapPlan:
        """A plan within what the program's memory budget leaves, or within the budget of the launch (``given``) where that is smaller.

        Raises:
            OutOfMemory: nothing fits; names the smallest budget, of the program or of the launch.
        """
        try:
            return self._make_plan(call, options)
        except OutOfMemory as error:
            room = self.program.heap.room()
            if error.smallest is None or room is None or (given is not None and given < room):
                raise
            raise self.program.heap.over_budget(error, error.smallest) from None

    def _make_plan(self, call: Call, options: PlanOptions) -> HeapPlan:
        return check_words(make_plan(self.head.name, self.sizing, self._host(call), options), options.machine)

    def plan_options(self, machine: Machine | None = None) -> PlanOptions:
        """The options of a plan without a budget, for the program's own machine or another."""
        own = self._options()
        return own if machine is None else replace(own, machine=machine)

    def _allowed(self, budget: int | None) -> int | None:
        """The bytes that the heap may take: the launch's own budget, and what the program's leaves."""
        room = self.program.heap.room()
        if room is None or budget is None:
            return budget if room is None else room
        return min(budget, room)

    def _options(self, budget: int | None = None) -> PlanOptions:
        o, lanes = self.program.options, self._lanes
        made = PlanOptions(
            self.program.own_machine(lanes),
            o.ad_checkpoint_levels,
            fixed_slots=o.ad_stack_size,
            budget=budget,
            narrow=lanes.narrow,
        )
        most = o.memory_limit // (8 * made.machine.workers)
        return replace(made, spare=min(made.spare, most)) if o.memory_limit else made

    def of_words(self, words: bytes, decisive: tuple[int, ...]) -> HeapPlan:
        """The plan of a launch by the words of its arguments, see ``plan``.

        Args:
            words: the argument buffer after its first word.
            decisive: ``PlanInputs.decisive`` of these words.
        """
        known = self._known.get((None, True, decisive))
        if known is not None and not self.program.options.memory_budget:
            inputs = self.inputs
            if inputs.unmoved() or (inputs.by_words and not inputs.changed(self._host(_NO_CALL))):
                return known
        return self.plan(self.call_of(words), launched=True)

    def call_of(self, words: bytes) -> Call:
        """A call that a plan can be made from, where ``inputs.by_words``."""
        scalars, arrays = read_words(self.head.args, words)
        return Call(bytearray(8) + words, scalars, arrays=arrays)

    def forget(self) -> None:
        """Make all plans anew."""
        self._known.clear()


def _bounds(task: TaskSizing) -> list[SizeExpr]:
    """Every expression that the plan of a task depends on."""
    ranges = [*task.axes] if any(s.stacks for s in task.region.all_loops()) else []
    for s in task.region.all_loops():
        ranges += [s.range, *s.nest]
    return [e for r in ranges for end in (r.begin, r.end) if end is not None for e in parts(end)]


class LaunchHost:
    """Answers the queries of the planner about a launch: arguments, shapes, and the contents of arrays.

    ``reducer``: evaluates queries about device arrays that are not copied; None: all arrays are copied. ``trials``: of a batched program,
    in which the first axis of an array that each trial has its own of is the trial.
    """

    def __init__(
        self,
        call: Call,
        owners: Mapping[Buffer, Allocation],
        reducer: LaunchReducer | None = None,
        trials: TrialLayout = ONE,
    ) -> None:
        self._call, self._owners, self.reducer, self._trials = call, owners, reducer, trials

    def scalar(self, arg: ArgDecl) -> int | float:
        return self._call.scalars[arg.index]

    def extent(self, arg: ArgDecl, axis: int) -> int:
        return self._call.arrays[arg.index].shape[axis]

    def array(self, place: Place) -> np.ndarray:
        """The current content of a field component or an ndarray argument."""
        if place.buffer in self._owners:
            assert place.shape is not None and place.strides is not None
            memory = self._owners[place.buffer]
            if place.pool is not None:
                return self._of_blocks(place, place.pool)
            if place.trial_bytes:
                parts = place.trial_bytes, place.offset, place.shape[1:], place.strides
                whole = reading(memory.mirror, self._trials.view(memory.view, place.dtype.numpy, *parts))
                return whole.reshape(-1, *place.shape[1:])[: self._trials.count]
            form = np.ndarray(place.shape, place.dtype.numpy, memory.view.data, place.offset, place.strides)
            return reading(memory.mirror, form)
        return self._of_argument(place)

    def _of_blocks(self, place: Place, pool: CellBlocks) -> np.ndarray:
        """All elements of a place in a level with a budget."""
        assert place.shape is not None and place.strides is not None
        memory, shape = self._owners[place.buffer], (pool.blocks, *pool.sizes)
        form = np.ndarray(shape, place.dtype.numpy, memory.view.data, place.offset, (pool.stride, *place.strides))
        return joined(reading(memory.mirror, form), self.array(pool.slots), pool, place.shape)

    def _of_argument(self, place: Place) -> np.ndarray:
        owner = place.buffer.owner
        assert isinstance(owner, ArgDecl)
        whole = self._call.content(owner.index)
        if owner.kind == "scalar":  # one value for each trial
            return whole
        trials = int(place.per_trial)
        element = whole.reshape(*whole.shape[: owner.ndim + trials], -1)
        return element[..., place.offset // place.dtype.size]


class BatchHost(LaunchHost):
    """A launch in a program of ``count`` trials, seen from a program of others: each has what the first one of these has."""

    def __init__(self, call: Call, owners: Mapping[Buffer, Allocation], trials: TrialLayout, count: int) -> None:
        super().__init__(call, owners, None, trials)
        self._count = count

    def array(self, place: Place) -> np.ndarray:
        found = super().array(place)
        return np.broadcast_to(found[:1], (self._count, *found.shape[1:])) if place.per_trial else found


DEBUG_VARIABLE = "QDRUN_DEBUG_ADSTACK"


def report_bind(plan: HeapPlan) -> None:
    """With ``QDRUN_DEBUG_ADSTACK=1``: say on stderr what heap a gradient was given, one line for each task and plane."""
    if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
        for line in debug_lines(plan):
            print(line, file=sys.stderr, flush=True)
