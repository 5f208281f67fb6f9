"""Kernels and functions: the decorators, specialisation, launching, gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import count
from typing import Any, TypeVar, overload

from ..errors import DataAccessError, QdrunRuntimeError, QdrunTypeError
from ..frontend.source.parse import FunctionSource, read_function
from ..frontend.values.budget import freed_in_a_tape
from ..ir.threads import once
from ..options import bytes_of
from ..program.executable import Executable
from ..program.plans.kernel_plan import KernelPlan, kernel_plan
from ..program.plans.remedies import remedies
from ..program.program import CURRENT, Program, current_program
from ..program.variant import Variant
from ..runtime.native.launch import NativeCalls, Natives, install, is_compiled
from ..tape.heap_plan import HeapPlan
from ..tape.machine import Machine
from .args.arrays import check_memory
from .args.binding import Binder, Bound, parameters
from .args.records import is_number, result
from .data.ndarray import Ndarray
from .launches.bound_kernel import BoundGradient, BoundKernel, GradientOfBound
from .launches.parts import launch_parts, may_have_parts, parts_of
from .launches.staged_kernel import graph_kernel
from .launches.streams import take_stream
from .native_admission import enter
from .no_gradient import is_constant, refuse_in_forward_mode, refuse_one_array_twice, refuse_without_gradient, warn_without_seed

T = TypeVar("T")
PATIENCE = 5_000
"""Calls through Python before LLVM compiles the launcher, unless it is on disk: together they take half as long (0.14 s) as that. So short
programs, and those whose launches are recorded, do without.
"""
_python_calls = count(1)
_WHOLE = frozenset((int, bool))
"""Types of numbers that are the same where they are equal: ``0.0`` and ``-0.0`` are not."""


class KernelFunction:
    """A function compiled for the current program, one specialisation for each combination of argument types.

    A call is launched natively where the program knows it (``native_admission``, ``runtime.native.launch``): these methods are then
    builtins.
    """

    __slots__ = ("__dict__", "__weakref__", "token")  # the native launcher reads the token
    __qd_kernel__ = True

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.token = object()  # stands for the kernel where it must not be kept alive
        self.parts: list[KernelFunction] = []  # kernels of some of its tasks each, see ``launches.parts``
        self.whole: tuple[KernelFunction, int] | None = None  # of a part: the kernel, and which part it is

    @once
    def source(self) -> FunctionSource:
        """The function as read from its file."""
        return read_function(self.fn)

    @once
    def binder(self) -> Binder:
        """Binds calls by the annotations."""
        return Binder(self.source.name, parameters(self.source))

    @once
    def several(self) -> bool:
        """Whether a tape may launch it in parts."""
        return self.whole is None and may_have_parts(self.source)

    @once
    def taped(self) -> _Taped:
        """Launches calls that a tape records."""
        return _Taped(self)

    @once
    def grad(self) -> KernelGradient:
        """The reverse kernel: ``k.grad(*args)`` takes the arguments of the forward call."""
        return KernelGradient(self)

    def variants(self) -> dict[tuple[Any, ...], Variant]:
        """The specialisations in the current program."""
        program = current_program()
        return program.lifetimes.variants(self, self.token, program.recorders.second_order is not None)

    def variant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Bound]:
        """The specialisation for these arguments in the current program, compiled if it is new."""
        program = current_program()
        recording = program.recorders.recording
        numbers = recording is not None and not kwargs and _WHOLE.issuperset(map(type, args))
        known = (self, args, tuple(map(type, args))) if numbers else None
        if recording is not None and known in recording.bound:  # a gradient has the arguments of its launch
            return recording.bound[known]
        bound = self.binder.bind(self.binder.arguments(args, kwargs), program.options)
        variants = self.variants()
        variant = variants.get(bound.key) or self._new_variant(program, variants, bound)
        if variant.captured:
            variant.check_captured(bound.specs)
        if bound.call.arrays:
            check_memory(self.source.name, variant, bound.call)
        if recording is not None and known is not None:
            recording.bound[known] = variant, bound
        return variant, bound

    def _new_variant(self, program: Program, variants: dict[tuple[Any, ...], Variant], bound: Bound) -> Variant:
        with program.making.of((self, bound.key)):
            variant = variants.get(bound.key)  # another thread may have made it
            if variant is None:
                if program.recorders.recording is not None:
                    program.recorders.recording.new(self)
                program.lifetimes.reap()
                if self.whole is not None:
                    kernel, number = self.whole
                    whole = kernel.variants().get(bound.key) or kernel._new_variant(program, kernel.variants(), bound)
                    variant = whole.parts[number]
                else:
                    variant = Variant(program.state, self.source, bound.specs, program.recorders.second_order is not None)
                program.lifetimes.begin(variants, bound.key, variant, bound.keeps())
                if program.recorders.tape is not None:
                    variant.begin_gradient()
        return variant

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch; a tape that is open records the call."""
        return self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> Any:
        """The launch when a tape records, or when the native launcher does not know the arguments."""
        binder = self.binder
        if kwargs or len(args) < len(binder.params):
            if "qd_stream" in kwargs and take_stream(current_program(), binder, kwargs):
                return self(*args, **kwargs)
            return self(*binder.in_order(args, kwargs))
        program = current_program()
        if program.recorders.beside:
            program.recorders.refuse_unrecorded(f"kernel `{self.source.name}`", loc=self.source.loc(self.source.tree))
        tape, versions, event = program.recorders.tape, program.recorders.versions, None
        launch = self.taped if program.recorders.recording is None else self._launch
        if parts := parts_of(self, program, args):
            return launch_parts(parts, program, args)
        if program.recorders.rehearsal is not None:
            return program.recorders.rehearsal.launch(self, args, kwargs)
        if tape is None and versions is None:
            return self._launch(*args, **kwargs)
        if tape is not None:
            if tape.opens_log(self):
                return self(*args, **kwargs)
            try:
                tape.starts(self, args, kwargs)
            except DataAccessError:  # a new variant
                if parts := parts_of(self, program, args):
                    return launch_parts(parts, program, args)
                raise
        try:
            if versions is not None:
                variant, bound = self.variant(args, kwargs)
                if tape is not None:
                    tape.launching(bound.call)
                result, event = versions.launch(variant, bound.call, lambda: self._run(variant, bound))
            else:
                result = launch(*args, **kwargs)
        except BaseException as error:
            if tape is not None:
                tape.failed(self, error)
            raise
        if tape is not None:
            tape.record(event)
            if result is not None:
                tape.returned(self, args, result)
        return result

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        """The launch in Python: compiles, converts, raises. What it has compiled is launched natively from then on."""
        recording = current_program().recorders.recording
        if recording is not None:
            recording.keep(self, args, kwargs)
        return self._run(*self.variant(args, kwargs))

    def _run(self, variant: Variant, bound: Bound) -> Any:
        if variant.head.frees and current_program().recorders.tape is not None:
            raise QdrunRuntimeError(freed_in_a_tape(f"kernel `{self.source.name}`", variant.head.frees))
        self._compiled(variant, bound)
        mode = current_program().recorders.forward
        executable = variant.executable if mode is None else variant.tangent
        with variant.program.admission.alone() if executable.shares else nullcontext():
            executable.launch(bound.call)
            if mode is not None:
                mode.launched(variant, bound.call)
            return self._result(executable)

    def _compiled(self, variant: Variant, bound: Bound) -> None:
        """Compile a specialisation that was planned only, and launch it natively from now on."""
        program = variant.program
        recording = program.recording
        if recording is not None and "executable" not in variant.__dict__:
            recording.new(self)
        executable = variant.executable
        if program.tangents:
            _ = variant.tangent
        if recording is None and variant.native and current_program().recorders.second_order is None and native_calls():
            enter(current_program().native_launches, self.token, executable, bound, self._answer(executable))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments; runs nothing."""
        self._compiled(*self.variant(args, kwargs))

    def plan(self, *args: Any, **kwargs: Any) -> KernelPlan:
        """The memory of the kernel in the program besides fields: its context, temporaries and code. Runs nothing; there is no heap."""
        variant, bound = self.variant(args, kwargs)
        self._compiled(variant, bound)
        return kernel_plan(variant.executable)

    def uncompiled(self, *args: Any, **kwargs: Any) -> dict[object, KernelPlan]:
        """The memory that ``prepare`` would add to the program, without machine code: none if the kernel is compiled already.

        Compiles nothing. By what it is, so that the results of several launches can be put together: equal launches share one kernel.
        """
        return self.variant(args, kwargs)[0].uncompiled(gradient=False)

    def _result(self, executable: Executable) -> Any:
        return _returned(self.source.annotation("return"), executable) if executable.returns else None

    def _answer(self, executable: Executable) -> Callable[[], Any] | None:
        """What a native launch calls for its result. It does not keep the kernel alive."""
        if not executable.returns:
            return None
        annotation = self.source.annotation("return")
        reader = executable.reader() if is_number(annotation) else None
        return reader or functools.partial(_returned, annotation, executable)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundKernel(self, instance)

    def __repr__(self) -> str:
        return f"<kernel {self.fn.__qualname__}>"


def _returned(annotation: Any, executable: Executable) -> Any:
    """What the last launch returned."""
    return result(annotation, executable.returned())


class _Taped:
    """A kernel while a tape records, which does the recording itself."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: KernelFunction) -> None:
        self.kernel = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> Any:
        """The launch in Python."""
        return self.kernel._launch(*args, **kwargs)


class KernelGradient:
    """``k.grad``: accumulates into the gradients of what the kernel read, from the gradients of what it wrote."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: KernelFunction) -> None:
        self.kernel = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the reverse kernel with the arguments of the forward call; see ``slow_call`` for what it raises."""
        self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> None:
        """The launch in Python. From then on launches with the same plan are native: Python comes back when something that the plan was
        made from has another value, or may have one.

        ``budget=``: bytes that the adstack heap of this launch may take, see ``plan``; the gradient has the same bits under any.

        Raises:
            DifferentiationError: the kernel has no correct gradient, by name and line.
            AdStackOverflow: a loop whose count only running can tell went past its capacity.
            OutOfMemory: the heap does not fit.
        """
        program, binder = current_program(), self.kernel.binder
        take_stream(program, binder, kwargs)
        if ("budget" not in kwargs or binder.has("budget")) and (kwargs or len(args) < len(binder.params)):
            return self(*binder.in_order(args, kwargs))
        refuse_in_forward_mode(program, f"the gradient of kernel `{self.kernel.source.name}`")
        if program.recorders.rehearsal is not None:
            program.recorders.rehearsal.gradient(self.kernel.source.name)
        budget = self._budget(kwargs)
        variant, bound = self._ready(args, kwargs)
        variant.refuse_overwritten()
        warn_without_seed(program, variant, bound)
        gradient, versions = variant.gradient, program.recorders.versions
        if versions is not None:
            versions.check(variant, bound.call)
        gradient.launch_gradient(bound.call, budget, watched=versions is not None)
        if versions is not None:
            versions.differentiated(variant, bound.call)
        if (
            program.recorders.recording is None
            and variant.native
            and (budget, program.recorders.second_order) == (None, None)
            and not (gradient.stores.asks or variant.before())
            and native_calls()
        ):
            enter(current_program().native_gradients, self.kernel.token, gradient, bound)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile the kernel and its gradient for these arguments; runs nothing."""
        variant, bound = self._ready(args, kwargs)
        self.kernel._compiled(variant, bound)
        _ = variant.gradient

    def load(self, *args: Any, **kwargs: Any) -> None:
        """As ``prepare``, and compile what the plan of this launch takes: which states lie on chip decides what code runs.

        Args:
            args: those of the launch.
            kwargs: those of the launch, and ``budget``, see ``plan``.

        Raises:
            OutOfMemory: no plan fits.
        """
        budget = self._budget(kwargs)
        variant, bound = self._ready(args, kwargs)
        self.kernel._compiled(variant, bound)
        variant.gradient.load(bound.call, budget)

    def exists(self, *args: Any, **kwargs: Any) -> bool:
        """Whether the kernel touches anything that has a gradient. Compiles nothing."""
        variant, _ = self.kernel.variant(args, kwargs)
        return bool(variant.plans.sizing) or is_constant(variant)

    def uncompiled(self, *args: Any, **kwargs: Any) -> dict[object, KernelPlan]:
        """See ``KernelFunction.uncompiled``: what ``prepare`` would add, the kernel itself included."""
        return self._ready(args, kwargs)[0].uncompiled(gradient=True)

    def plan(self, *args: Any, **kwargs: Any) -> HeapPlan:
        """The adstack heap that ``k.grad(*args)`` will need, to the byte. Runs nothing, and compiles nothing.

        Args:
            args: those of the launch.
            kwargs: those of the launch, and ``budget``: bytes (a number, or a text such as "64KiB") that the heap may take; the plan is the
                fastest that fits; ``arch``: plan for this backend, which need not be there, instead of the program's own;
                ``trials``: in a batched program, plan for another ``TrialLayout``. A kernel with a parameter of that name keeps it.

        Raises:
            OutOfMemory: no plan fits; names the smallest budget that one does.
            QdrunRuntimeError: there is no such backend.
            QdrunTypeError: a loop keeps words that the backend does not have.
        """
        budget, machine = self._budget(kwargs), self._machine(kwargs)
        trials = None if self.kernel.binder.has("trials") else kwargs.pop("trials", None)
        variant, bound = self._ready(args, kwargs)
        if trials is not None:
            return variant.plans.plan_batch(bound.call, trials, machine)
        return variant.plans.plan(bound.call, budget, machine)

    def remedies(self, *args: Any, **kwargs: Any) -> dict[str, HeapPlan]:
        """The plan of a launch, as ``"now"``, and those with more levels, one thread, and the smallest budget. Runs nothing."""
        machine = self._machine(kwargs)
        variant, bound = self._ready(args, kwargs)
        return remedies(variant.plans, bound.call, machine)

    def _machine(self, kwargs: dict[str, Any]) -> Machine | None:
        """Takes ``arch`` out of the keywords of a plan, unless the kernel has a parameter of that name. None: the program's own."""
        if "arch" not in kwargs or self.kernel.binder.has("arch"):
            return None
        arch = kwargs.pop("arch")
        return None if arch is None else current_program().machine(str(arch))

    def _budget(self, kwargs: dict[str, Any]) -> int | None:
        """Takes ``budget`` out of the keywords of a call, unless the kernel has a parameter of that name."""
        if "budget" not in kwargs or self.kernel.binder.has("budget"):
            return None
        budget = kwargs.pop("budget")
        return None if budget is None else bytes_of(f"gradient of kernel `{self.kernel.source.name}`: budget", budget)

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Bound]:
        variant, bound = self.kernel.variant(args, kwargs)
        recording = variant.program.recording
        if recording is not None and "plans" not in variant.__dict__:
            recording.new_gradient(variant.head.name)
        if not variant.plans.sizing:
            refuse_without_gradient(self.kernel.source.name, variant)
        if recording is not None:
            if "gradient" not in variant.__dict__:
                recording.new_gradient(variant.head.name)
            recording.keep(self, args, kwargs)
        refuse_one_array_twice(self.kernel.source.name, variant, bound)
        return variant, bound


def native_calls() -> NativeCalls | None:
    """The native code of this process; None where this interpreter's calls cannot be native, or LLVM would take longer than calls in Python
    have. From the first time on that it is there, calls look for a native launch.
    """
    return _installed() if _is_compiled() or next(_python_calls) >= PATIENCE else None


def log_functions() -> Mapping[str, int]:
    """The addresses of the functions of logs (``NativeCalls.log_functions``); none where calls are not native."""
    return _log_functions() if native_calls() is not None else {}


def _natives() -> Natives:
    return Natives(
        CURRENT, Program, KernelFunction, KernelGradient, _Taped, BoundKernel, BoundGradient, GradientOfBound, Ndarray
    )


@functools.cache
def _is_compiled() -> bool:
    return is_compiled(_natives())


@functools.cache
def _installed() -> NativeCalls | None:
    return install(_natives())


@functools.cache
def _log_functions() -> Mapping[str, int]:
    native = _installed()
    return {} if native is None else native.log_functions()


@overload
def kernel(fn: Callable[..., Any]) -> KernelFunction: ...
@overload
def kernel(
    *, pure: bool | None = None, fastcache: bool = False, graph: bool = False, checkpoints: bool = False
) -> Callable[[Callable[..., Any]], Any]: ...
def kernel(
    fn: Any = None, *, pure: bool | None = None, fastcache: bool = False, graph: bool = False, checkpoints: bool = False
) -> Any:
    """Make a function a kernel: its outermost loops run in parallel. Compiled at the first call.

    Args:
        fn: the function.
        pure: a hint of Quadrants that means nothing here.
        fastcache: a hint of Quadrants that means nothing here: every kernel is cached on disk.
        graph: the kernel may have stages: ``while qd.graph.do_while(c):``. Else it means nothing.
        checkpoints: a graph kernel may have checkpoints: ``with qd.checkpoint(1, yield_on=flag):``.

    Raises:
        QdrunTypeError: checkpoints without a graph.
        QdrunSyntaxError: a stage is not written as it must be.
    """
    del pure, fastcache
    if checkpoints and not graph:
        raise QdrunTypeError(
            "kernel(checkpoints=True) without graph=True", hint="write @qd.kernel(graph=True, checkpoints=True)"
        )
    make = functools.partial(graph_kernel, make=KernelFunction, checkpoints=checkpoints) if graph else KernelFunction
    return make if fn is None else make(fn)


@overload
def data_oriented(cls: type[T]) -> type[T]: ...
@overload
def data_oriented(*, stable_members: bool = False, template_primitives: bool = True) -> Callable[[type[T]], type[T]]: ...
def data_oriented(cls: Any = None, *, stable_members: bool = False, template_primitives: bool = True) -> Any:
    """Mark a class whose methods are kernels. In them ``self`` is known at compile time, its ndarrays come with each launch.

    Args:
        cls: the class; left out when options are given.
        stable_members: the object's ndarrays are never replaced; means nothing here.
        template_primitives: numbers of the object are constants of the compiled kernel; False: they come with each launch.
    """
    del stable_members
    if cls is None:
        return functools.partial(data_oriented, template_primitives=template_primitives)
    cls._data_oriented, cls._qd_template_primitives = True, template_primitives
    return cls
