"""Taichi's graph builder, ``ti.graph``: launches with named arguments, put together first and run later, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...errors import QdrunRuntimeError, QdrunTypeError
from ...refused import Refused
from ..args.arrays import is_array


class ArgKind(StrEnum):
    """What an argument of a graph is."""

    SCALAR = "scalar"
    MATRIX = "matrix"
    NDARRAY = "ndarray"
    TEXTURE = "texture"
    RWTEXTURE = "rwtexture"


@dataclass(frozen=True)
class Arg:
    """An argument of a graph, which each run gives.

    Attributes:
        tag: what it is.
        name: by which a run gives it.
        dtype: its type; it is checked by the kernels.
        ndim: the number of axes of an array.
        element_shape: of the elements of an array; Taichi's former way to say what ``dtype`` says.

    Raises:
        QdrunTypeError: it is a texture.
    """

    tag: ArgKind
    name: str
    dtype: Any = None
    ndim: int = 0
    element_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.tag in (ArgKind.TEXTURE, ArgKind.RWTEXTURE):
            Refused("Texture")()


Launch = tuple[Callable[..., Any], tuple[Any, ...]]


class Sequential:
    """Launches one after another."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def dispatch(self, kernel_fn: Any, *args: Any) -> None:
        """Add a launch of a kernel. ``args``: an ``Arg`` for each parameter; a list of them for a matrix.

        Raises:
            QdrunTypeError: it is no kernel, or something else is given for a parameter.
        """
        if not getattr(kernel_fn, "__qd_kernel__", False):
            raise QdrunTypeError(f"a graph launches kernels, not {kernel_fn!r}")
        for arg in args:
            if not all(isinstance(a, Arg) for a in (arg if isinstance(arg, (list, tuple)) else (arg,))):
                raise QdrunTypeError(
                    f"a launch of a graph takes ti.graph.Arg, not a {type(arg).__name__}",
                    hint="make it an Arg, and give it to run()",
                )
        self.launches.append((kernel_fn, args))


class GraphBuilder(Sequential):
    """Makes a graph: ``dispatch`` and ``append`` add launches, ``compile`` ends it."""

    def create_sequential(self) -> Sequential:
        """Launches to be put together apart, and appended as often as wanted."""
        return Sequential()

    def append(self, node: Sequential) -> None:
        """Add the launches of a sequence."""
        self.launches += node.launches

    def compile(self) -> CompiledGraph:
        """The graph of the launches so far. The kernels are compiled when they first run."""
        return CompiledGraph(tuple(self.launches))


class CompiledGraph:
    """A sequence of launches that are run together."""

    def __init__(self, launches: tuple[Launch, ...]) -> None:
        self._launches = launches
        named = (a for _, args in launches for arg in args for a in (arg if isinstance(arg, (list, tuple)) else (arg,)))
        self._args = {a.name: a for a in named}

    def run(self, args: Mapping[str, Any]) -> None:
        """Launch the kernels in order.

        Args:
            args: a value for each name.

        Raises:
            QdrunRuntimeError: a name without a value, a value without a name, or an array for a number, and the reverse.
        """
        missing, unknown = self._args.keys() - args, args.keys() - self._args
        if missing or unknown:
            what = f"misses {sorted(missing)}" if missing else f"has no arguments {sorted(unknown)}"
            raise QdrunRuntimeError(f"a run of a graph {what}\n  do: give one value for each of {sorted(self._args)}")
        for name, arg in self._args.items():
            if is_array(args[name]) != (arg.tag is ArgKind.NDARRAY) and arg.tag is not ArgKind.MATRIX:
                raise QdrunRuntimeError(
                    f"the argument `{name}` of a graph has the kind {arg.tag}, and a {type(args[name]).__name__} is given"
                )
        for kernel, wanted in self._launches:
            kernel(*([args[a.name] for a in w] if isinstance(w, (list, tuple)) else args[w.name] for w in wanted))
