"""Protocols of the recorders of launches, a tape and a block of forward mode, as the program and its kernels use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .call import Call
from .memory.versions import Event
from .variant import Variant


class WriteRecorder(Protocol):
    """Follows what Python writes to fields and ndarrays."""

    def wrote(self, tensor: Any, index: tuple[int, ...] | None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write; the arguments are those of ``Program.wrote``."""
        ...


class CustomFunction(Protocol):
    """A Python function with a gradient of its own."""

    fn: Callable[..., Any]
    cuts: bool

    @property
    def name(self) -> str:
        """The name in messages."""
        ...

    def gradient(self) -> Callable[..., Any]:
        """Its gradient."""
        ...


class TapeRecorder(WriteRecorder, Protocol):
    """A tape: remembers launches, to run their gradients last to first."""

    @property
    def empty(self) -> bool:
        """Whether nothing has been launched since it was opened."""
        ...

    def starts(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A kernel is about to run with these arguments: what it overwrites and an earlier gradient needs is kept."""
        ...

    def launching(self, call: Call) -> None:
        """A kernel is about to run with these arguments; told while versions are kept."""
        ...

    def record(self, event: Event | None = None) -> None:
        """The launch of that kernel was made."""
        ...

    def failed(self, what: Any, error: BaseException) -> None:
        """A launch raised."""
        ...

    def custom(self, function: CustomFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with a gradient of its own, as one step."""
        ...

    def step_begins(self, step: int | None) -> None:
        """The launches from now on are those of a time step; None: of none."""
        ...

    def looked_at(self, tensor: Any) -> None:
        """Python is about to read a field or an ndarray."""
        ...


class ForwardRecorder(WriteRecorder, Protocol):
    """A block of forward mode: kernels compute tangents beside values."""

    def launched(self, variant: Variant, call: Call) -> None:
        """A kernel has run."""
        ...
