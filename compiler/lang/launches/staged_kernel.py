"""Graph kernels with stages: the launches of one call, one after another, as the flags on the device say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import DifferentiationError, QdrunRuntimeError, QdrunSyntaxError
from ...frontend.source.parse import FunctionSource, read_function
from ...ir.threads import once
from ...program.program import Program, current_program
from ...runtime.recording import Unrecordable
from ..args.binding import Binder, parameters
from ..data.tensor import unwrap
from .bound_kernel import forwarded
from .flags import number_of, place_of
from .scopes import UndecidedStages
from .stage_graphs import RecordedCall, StageGraphs
from .stages import Flag, LaunchStage, Pause, Plan, Stage, StageLoop, split
from .streams import take_stream

MOST_PLANS = 16
"""Ways to split a kernel whose stages depend on its arguments that are kept."""


@dataclass(frozen=True)
class GraphStatus:
    """The end of a call of a kernel with checkpoints.

    Attributes:
        yielded: a checkpoint has paused it.
        checkpoint: its ``cp_id``, as written in the kernel; None: it ran to its end.
    """

    yielded: bool
    checkpoint: int | None

    def __repr__(self) -> str:
        return f"GraphStatus(yielded=True, checkpoint={self.checkpoint!r})" if self.yielded else "GraphStatus(yielded=False)"


class StagedKernel:
    """A graph kernel. Calling it launches its stages. The flags of its loops and checkpoints are read by the host in between, or by the
    device in a graph (``stage_graphs``).

    Args:
        source: of the kernel.
        checkpoints: it may have some.
        make: makes a kernel of a function.
        plan: its stages, if these do not depend on its arguments.
    """

    __qd_kernel__ = True

    def __init__(self, source: FunctionSource, checkpoints: bool, make: Callable[[Any], Any], plan: Plan | None) -> None:
        functools.update_wrapper(self, source.fn)
        self.source = source
        self._checkpoints, self._make = checkpoints, make
        self._plans: list[tuple[Plan, dict[LaunchStage, Any]]] = []
        if plan is not None:
            self._add(plan)

    @once
    def _binder(self) -> Binder:
        return Binder(self.source.name, parameters(self.source))

    def __call__(self, *args: Any, **kwargs: Any) -> GraphStatus | None:
        """Launch; a kernel with checkpoints returns a status.

        Raises:
            QdrunTypeError: a flag is no integer ndarray or field without axes.
            QdrunRuntimeError: the launches cannot depend on values now, see ``_refuse_unread``.
        """
        return self._run(self._given(args, kwargs), None)

    def resume(self, *args: Any, from_checkpoint: int, **kwargs: Any) -> GraphStatus | None:
        """Launch from a checkpoint on: what stands before it in the source does not run.

        Args:
            args: those of the kernel.
            from_checkpoint: its ``cp_id``; the block of the checkpoint runs.
            kwargs: those of the kernel.

        Raises:
            QdrunRuntimeError: there is no such checkpoint; see ``__call__``.
        """
        values = self._given(args, kwargs)
        labels = _labels(self._planned(values)[0].stages)
        if from_checkpoint not in labels:
            raise QdrunRuntimeError(
                f"kernel `{self.source.name}` has no checkpoint {from_checkpoint!r}\n  do: resume from one of {list(labels)}"
            )
        return self._run(values, from_checkpoint)

    @property
    def grad(self) -> StagedGradient:
        """The gradient of a call that has no stages; that of others is refused."""
        return StagedGradient(self)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile all stages for these arguments; runs nothing."""
        values = self._given(args, kwargs)
        self._prepare(self._planned(values)[1], values)

    def _prepare(self, kernels: dict[LaunchStage, Any], values: list[Any]) -> None:
        for kernel in kernels.values():
            kernel.prepare(*values)

    def whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The kernel of a call, if it has no stages.

        Raises:
            DifferentiationError: it has.
        """
        plan, kernels = self._planned(self._given(args, dict(kwargs)))
        if not plan.stages:
            return next(iter(kernels.values()))
        flag = next(s.flag for s in plan.stages if not isinstance(s, LaunchStage))
        raise DifferentiationError(
            f"the gradient of kernel `{self.source.name}` by hand is not possible: how many launches it made depended on"
            f" `{flag.use}`",
            flag.loc,
            "launch it in a qd.ad.Tape, which records the launches, or count the iterations in Python",
        )

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments in the order of the parameters."""
        take_stream(current_program(), self._binder, kwargs)
        return self._binder.arguments(args, kwargs)

    def _planned(self, values: list[Any]) -> tuple[Plan, dict[LaunchStage, Any]]:
        """The stages of a call, and their kernels."""
        for planned in self._plans:
            if planned[0].fits(values):
                return planned
        return self._add(split(self.source, self._checkpoints, values))

    def _add(self, plan: Plan) -> tuple[Plan, dict[LaunchStage, Any]]:
        works = _works(plan.stages) or [LaunchStage(self.source)]
        self._plans.insert(0, (plan, {work: _kernel_of(work, self._make) for work in works}))
        del self._plans[MOST_PLANS:]
        return self._plans[0]

    def _run(self, values: list[Any], start: int | None) -> Any:
        program = current_program()
        device: Any = program.device
        plan, kernels = self._planned(values)
        if not plan.stages:
            return next(iter(kernels.values()))(*values)
        labels = _labels(plan.stages)
        if program.recorders.rehearsal is None:
            self._refuse_unread(program, labels)
        if program.recorders.recording is not None:
            RecordedCall(program, kernels, values, labels, start).record(plan.stages)
            return None
        alone = device.conditional and not program.recorders.active() and not program.counts_flags
        if alone and self._launch_graph(program, plan, kernels, values, start):
            mark = device.paused_graph() if labels else 0
            label = labels[mark - 1] if 0 < mark <= len(labels) else None
        else:
            label = _StagedCall(program, kernels, values, start).run(plan.stages)
        return GraphStatus(label is not None, label) if labels else None

    def _launch_graph(
        self, program: Program, plan: Plan, kernels: dict[LaunchStage, Any], values: list[Any], start: int | None
    ) -> bool:
        """Launch the stages of a call as one graph; False: nothing was launched, see ``StageGraphs``."""
        graphs: StageGraphs = program.stage_graphs.setdefault(self, StageGraphs())
        flags = _flags(plan.stages)
        tensors = [unwrap(flag.value(values)) for flag in flags]
        if graphs.again(plan, start, values, tensors):
            return True
        bound = self._binder.bind(values, program.options)
        if bound.call.loans or bound.call.after:
            return False
        try:
            words = tuple(map(place_of, flags, tensors))
        except Unrecordable:
            return False
        call = RecordedCall(program, kernels, values, _labels(plan.stages), start)
        key = plan, start, bound.key, bytes(bound.call.words), words
        launched = graphs.launch(
            program, self.source.name, key, lambda: call.record(plan.stages), lambda: self._prepare(kernels, values)
        )
        if launched:
            graphs.remember(plan, start, values, tensors)
        return launched

    def _refuse_unread(self, program: Program, labels: tuple[int, ...]) -> None:
        """Refuse to launch where flags cannot be read, or are not one number. ``labels``: of checkpoints.

        Raises:
            QdrunRuntimeError: a graph is recorded, and the device cannot decide in it or the host must be told of a checkpoint; or the
                program has several trials.
        """
        if program.recorders.recording is not None and (labels or not program.device.conditional):
            why = "checkpoints, which tell the host where they pause" if labels else "loops that the host counts"
            raise QdrunRuntimeError(
                f"kernel `{self.source.name}` has {why}, and a graph is recorded\n  do: launch it outside of qd.capture"
            )
        if program.batch.layout.batched:
            raise QdrunRuntimeError(
                f"kernel `{self.source.name}` has stages that depend on one number, and each trial of a batch has its own\n"
                "  do: write the loop inside of a parallel loop: `while c[None] != 0:`"
            )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundStagedKernel(self, instance)

    def __repr__(self) -> str:
        return f"<graph kernel {self.source.fn.__qualname__}>"


class BoundStagedKernel:
    """A kernel with stages that is a method, with its object as first argument."""

    __slots__ = ("instance", "kernel")
    __qd_kernel__ = True

    def __init__(self, kernel: StagedKernel, instance: Any) -> None:
        self.kernel, self.instance = kernel, instance

    @property
    def __name__(self) -> str:
        """That of the function."""
        return self.kernel.source.name

    @property
    def __wrapped__(self) -> Any:
        """The function."""
        return self.kernel.source.fn

    def __call__(self, *args: Any, **kwargs: Any) -> GraphStatus | None:
        """See ``StagedKernel``."""
        return self.kernel(self.instance, *args, **kwargs)

    resume, prepare = map(forwarded, ("resume", "prepare"))

    @property
    def grad(self) -> StagedGradient:
        """See ``StagedKernel.grad``."""
        return StagedGradient(self.kernel, (self.instance,))


@dataclass(frozen=True)
class StagedGradient:
    """``k.grad`` of a graph kernel. Only a tape knows which launches a call with stages made, and what one overwrote that another needs.

    Attributes:
        first: the object of a method.
    """

    kernel: StagedKernel
    first: tuple[Any, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the gradient of a call without stages.

        Raises:
            DifferentiationError: the call has stages.
        """
        given = *self.first, *args
        self.kernel.whole(given, kwargs).grad(*given, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """``prepare``, ``plan`` and so on: see ``KernelGradient``."""
        if name.startswith("_"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            given = *self.first, *args
            return getattr(self.kernel.whole(given, kwargs).grad, name)(*given, **kwargs)

        return method


class _StagedCall:
    """One call of a kernel with stages.

    Attributes:
        start: the checkpoint that is looked for; None: everything runs from here on.
    """

    def __init__(self, program: Program, kernels: dict[LaunchStage, Any], values: list[Any], start: int | None) -> None:
        self._program, self._kernels, self._values, self.start = program, kernels, values, start

    def run(self, stages: tuple[Stage, ...]) -> int | None:
        """Launch; the label of the checkpoint that has paused, None: all ran."""
        for stage in stages:
            if isinstance(stage, LaunchStage):
                label = self._launch(stage)
            else:
                label = self._loop(stage) if isinstance(stage, StageLoop) else self._pause(stage)
            if label is not None:
                return label
        return None

    def _launch(self, work: LaunchStage) -> None:
        if self.start is None:
            self._kernels[work](*self._values)

    def _loop(self, loop: StageLoop) -> int | None:
        if self.start is not None and self.start not in loop.labels:
            return None  # all of it comes before the checkpoint
        while True:
            label = self.run(loop.body)
            if label is not None or not self._is_set(loop.flag):
                return label

    def _pause(self, pause: Pause) -> int | None:
        if self.start not in (None, pause.label):
            return None
        self.start = None
        self.run(pause.body)
        return pause.label if self._is_set(pause.flag) else None

    def _is_set(self, flag: Flag) -> bool:
        """Whether a flag is not zero. A rehearsal, which runs nothing, has one iteration, as each launches the same."""
        if self._program.recorders.rehearsal is not None:
            self._program.recorders.rehearsal.repeats = True
            return False
        is_set = number_of(flag, self._values) != 0
        self._program.state.waited()  # a launch that has failed may have left the flag as it was
        self._program.flags_set += is_set
        return is_set


def _kernel_of(work: LaunchStage, make: Callable[[Any], Any]) -> Any:
    """A stage as a kernel."""
    made = make(work.source.fn)
    made.__dict__["source"] = work.source
    return made


def _works(stages: tuple[Stage, ...]) -> list[LaunchStage]:
    return [work for s in stages for work in ([s] if isinstance(s, LaunchStage) else _works(s.body))]


def _flags(stages: tuple[Stage, ...]) -> list[Flag]:
    return [flag for s in stages if not isinstance(s, LaunchStage) for flag in (s.flag, *_flags(s.body))]


def _labels(stages: tuple[Stage, ...]) -> tuple[int, ...]:
    inner = [(s.label,) if isinstance(s, Pause) else s.labels for s in stages if not isinstance(s, LaunchStage)]
    return tuple(label for labels in inner for label in labels)


def graph_kernel(fn: Callable[..., Any], make: Callable[[Any], Any], checkpoints: bool) -> Any:
    """A kernel with ``graph=True``: a plain one, if it has no stages.

    Args:
        fn: the function.
        make: makes a kernel of a function.
        checkpoints: it may have checkpoints.

    Raises:
        QdrunSyntaxError: a stage is not written as it must be.
    """
    try:
        source = read_function(fn)
    except QdrunSyntaxError:
        return make(fn)  # its first call says why it cannot be read
    plan = None
    with suppress(UndecidedStages):
        plan = split(source, checkpoints)
    return make(fn) if plan is not None and not plan.stages else StagedKernel(source, checkpoints, make, plan)
