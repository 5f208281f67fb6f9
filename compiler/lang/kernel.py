"""Kernels and functions: the decorators, specialisation, launching, gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..adstack.plan import HeapPlan
from ..errors import DataAccessError, NothingToDifferentiate, QdrunRuntimeError, QdrunSyntaxError
from ..frontend.lower import lower
from ..frontend.signature import LowerOptions, MatrixArg, TemplateArg
from ..frontend.source import FunctionSource, read_function
from ..ir.nodes import ArgDecl
from ..runtime.device import Allocation
from ..transforms.access import Access
from .binding import Binder, Bound, parameters
from .executable import Executable, GradientExecutable
from .matrix import wrap
from .ndarray import Ndarray
from .program import Program, current_program
from .recipe import COOKBOOK
from .show import show

T = TypeVar("T")


class Variant:
    """One specialisation of a kernel in one program. The gradient is built when it is first asked for."""

    def __init__(self, program: Program, source: FunctionSource, bound: Bound) -> None:
        self.program = program
        self.keeps = list(bound.specs.values())  # template values are known by identity: keep them alive
        self.native = not any(isinstance(spec, (TemplateArg, MatrixArg)) for spec in self.keeps)
        program.materialize()
        o = program.options
        options = LowerOptions("", o.default_fp, o.default_ip, o.debug, o.check_out_of_bound)
        lowered = show("lower", lower(source, bound.specs, options))
        self.recipe, buffers = COOKBOOK.recipe(lowered, o, program.device)
        memory = [b.owner for b in buffers]
        self.owners = {b: m for b, m in zip(self.recipe.buffers, memory) if isinstance(m, Allocation)}
        if any(m.ptr not in program.device.live for m in self.owners.values()):
            raise QdrunRuntimeError(
                f"kernel `{source.name}` uses a field of another program\n  do: make the fields after qd.init(), or launch it"
                " inside `with program:` of the program that they belong to"
            )
        self.executable = Executable(program, self.recipe.forward, self.owners)

    @functools.cached_property
    def gradient(self) -> GradientExecutable:
        """The reverse kernel, compiled.

        Raises:
            DifferentiationError: no correct gradient exists, by name and line.
        """
        found, ready = self.recipe.reverse(self.program.device)
        return GradientExecutable(self.program, ready, self.owners, found.sizing)

    def close(self) -> None:
        """Forget the launch contexts; the program is being closed."""
        self.executable.close()
        gradient = self.__dict__.get("gradient")
        if gradient is not None:
            gradient.close()

    def replayed(self) -> tuple[Access, ...]:
        """The loads that the gradient repeats."""
        return self.recipe.reverse(self.program.device)[0].replayed


class Kernel:
    """A function compiled for the current program, one specialisation for each combination of argument types."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._taped: Callable[..., Any] | None = None  # a native launcher that may be used while a tape records

    @functools.cached_property
    def source(self) -> FunctionSource:
        """The function as read from its file."""
        return read_function(self.fn)

    @functools.cached_property
    def binder(self) -> Binder:
        """Binds calls by the annotations."""
        return Binder(self.source.name, parameters(self.source))

    @functools.cached_property
    def grad(self) -> KernelGradient:
        """The reverse kernel: ``k.grad(*args)`` takes the arguments of the forward call."""
        return _own_class(KernelGradient)(self)

    def variants(self) -> dict[tuple[Any, ...], Variant]:
        """The specialisations in the current program."""
        return current_program().variants.setdefault(self, {})

    def variant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Bound]:
        """The specialisation for these arguments in the current program, compiled if it is new."""
        program = current_program()
        bound = self.binder.bind(self.binder.arguments(args, kwargs), program.options)
        variants = self.variants()
        variant = variants.get(bound.key)
        if variant is None:
            variant = variants[bound.key] = Variant(program, self.source, bound)
            if variant.native:
                _set_native(self, variant.executable.fast(self.slow_call, bound.call.keys, Ndarray))
                self._taped = variant.executable.fast(self._launch, bound.call.keys, Ndarray, taped=True)
        return variant, bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch; a tape that is open records the call."""
        return self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> Any:
        """The launch when a tape records, or when the native launcher does not know the arguments."""
        tape = current_program().tape
        launch = self._launch if tape is None or self._taped is None else self._taped
        result = launch(*args, **kwargs)
        if tape is not None:
            tape.record(self, args, kwargs)
        return result

    def _launch(self, *args: Any, **kwargs: Any) -> Any:
        """The launch in Python: compiles, converts, raises. What it has compiled is launched natively from then on."""
        variant, bound = self.variant(args, kwargs)
        variant.executable.launch(bound.call)
        return self._result(variant)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments; runs nothing."""
        self.variant(args, kwargs)

    def _result(self, variant: Variant) -> Any:
        values = variant.executable.returned()
        if not values:
            return None
        annotation = self.source.annotation("return")
        shape = getattr(annotation, "shape", None)
        if shape:
            return wrap(_shaped(values, shape))
        return values[0] if len(values) == 1 else tuple(values)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundKernel(self, instance)

    def __repr__(self) -> str:
        return f"<kernel {self.fn.__qualname__}>"


def _shaped(values: list[Any], shape: tuple[int, ...]) -> Any:
    return np.array(values).reshape(shape)


class KernelGradient:
    """``k.grad``: accumulates into the gradients of what the kernel read, from the gradients of what it wrote."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._launched: GradientExecutable | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the reverse kernel with the arguments of the forward call; see ``slow_call`` for what it raises."""
        self.slow_call(*args, **kwargs)

    def slow_call(self, *args: Any, **kwargs: Any) -> None:
        """The launch in Python. A gradient whose plan is the same for all arguments is launched natively from then on.

        Raises:
            DifferentiationError: the kernel has no correct gradient, by name and line.
            AdStackOverflow: a loop whose count only running can tell went past its capacity.
            OutOfMemory: the heap does not fit.
        """
        gradient, bound = self._ready(args, kwargs)
        gradient.launch_gradient(bound.call)
        variant = self.kernel.variants().get(bound.key)
        one_array = len(bound.call.arrays) < 2  # two might be one array: looked at in Python, each time
        if variant is not None and variant.native and one_array and gradient.fixed and gradient is not self._launched:
            self._launched = gradient
            _set_native(self, gradient.fast(self.slow_call, bound.call.keys, Ndarray))

    def plan(self, *args: Any, **kwargs: Any) -> HeapPlan:
        """The adstack heap that ``k.grad(*args)`` will allocate, to the byte. Runs nothing."""
        gradient, bound = self._ready(args, kwargs)
        return gradient.plan(bound.call)

    def _ready(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[GradientExecutable, Bound]:
        variant, bound = self.kernel.variant(args, kwargs)
        if not variant.gradient.sizing:
            raise NothingToDifferentiate(
                f"kernel `{self.kernel.source.name}` touches nothing that has a gradient\n"
                "  do: make a field with needs_grad=True, or leave out the call of .grad()"
            )
        _refuse_one_array_twice(self.kernel.source.name, variant, bound)
        return variant.gradient, bound


def _refuse_one_array_twice(name: str, variant: Variant, bound: Bound) -> None:
    """A gradient takes different arguments for different memory; that matters as soon as one of them is written."""
    arrays = bound.call.arrays
    if len(arrays) < 2:
        return
    written = {place.buffer.owner.index for place, _, _ in variant.recipe.writes if isinstance(place.buffer.owner, ArgDecl)}
    for a in written & arrays.keys():
        for b in arrays.keys() - {a}:
            if np.may_share_memory(arrays[a], arrays[b]):
                names = [d.name for d in variant.executable.args]
                raise DataAccessError(
                    f"kernel `{name}` got one array as `{names[a]}` and `{names[b]}`, and writes to `{names[a]}`",
                    None,
                    "pass two arrays: the gradient needs the values that were overwritten",
                )


class BoundKernel:
    """A kernel that is a method, with its object as first argument."""

    def __init__(self, kernel: Kernel, instance: Any) -> None:
        self.kernel, self.instance = kernel, instance
        functools.update_wrapper(self, kernel.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(self.instance, *args, **kwargs)

    @property
    def grad(self) -> BoundGradient:
        """The reverse kernel, bound to the same object."""
        return BoundGradient(self)


class BoundGradient:
    """``obj.k.grad``"""

    def __init__(self, bound: BoundKernel) -> None:
        self._gradient, self._instance = bound.kernel.grad, bound.instance

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._gradient(self._instance, *args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> HeapPlan:
        """See ``KernelGradient.plan``."""
        return self._gradient.plan(self._instance, *args, **kwargs)


class Function:
    """A function that is inlined into the kernels that call it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn

    @functools.cached_property
    def __qd_func__(self) -> FunctionSource:
        return read_function(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise QdrunSyntaxError(f"func `{self.fn.__name__}` can only be called in a kernel", None, "call it from a @qd.kernel")

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundFunction(self, instance)


class BoundFunction:
    """A func that is a method."""

    def __init__(self, function: Function, instance: Any) -> None:
        self.function, self.__self__ = function, instance

    @property
    def __qd_func__(self) -> FunctionSource:
        return self.function.__qd_func__


def _own_class(base: type[T]) -> type[T]:
    """A class for one object, so that its ``__call__`` can be a builtin: the native launcher, with no Python frame around it."""
    return type(base.__name__, (base,), {"__doc__": base.__doc__})  # type: ignore[return-value]


def _set_native(target: Kernel | KernelGradient, launcher: Callable[..., Any] | None) -> None:
    if launcher is not None:
        type(target).__call__ = launcher  # type: ignore[method-assign]


def kernel(fn: Callable[..., Any]) -> Kernel:
    """Make a function a kernel: its outermost loops run in parallel. Compiled at the first call."""
    return _own_class(Kernel)(fn)


def func(fn: Callable[..., Any]) -> Function:
    """Make a function callable from kernels; it is inlined."""
    return Function(fn)


def data_oriented(cls: type) -> type:
    """Mark a class whose methods are kernels. ``self`` is known at compile time; here nothing more is needed."""
    return cls


__all__ = ["BoundKernel", "Function", "Kernel", "KernelGradient", "data_oriented", "func", "kernel"]
