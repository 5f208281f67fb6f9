"""All errors and warnings of the package, in one tree. Imports nothing.

    QdrunError
    ├── QdrunCompilationError            a kernel cannot be compiled; carries the user's line and a caret
    │   ├── QdrunSyntaxError             (SyntaxError) Python that the kernel language does not have
    │   ├── QdrunTypeError               (TypeError)
    │   │   └── QdrunFitError            (QdrunValueError) a shape or a number that does not fit where it is to go
    │   ├── QdrunNameError               (NameError)
    │   ├── QdrunIndexError              (IndexError)
    │   └── DifferentiationError         (RuntimeError) the compiler has no correct gradient for this kernel
    │       └── DataAccessError          (QdrunAssertionError) a value that the backward pass needs was overwritten
    ├── QdrunRuntimeError                (RuntimeError) a launch, a field or an option is wrong
    │   ├── QdrunValueError              (ValueError) a shape, a layout or an option of an array that does not fit
    │   ├── QdrunRuntimeTypeError        (TypeError) an argument or a returned value has a type that does not fit
    │   ├── GradientCheckError           (AssertionError) a gradient differs from finite differences: Tape(grad_check=..)
    │   ├── NothingToDifferentiate       the kernel reads and writes no array that has a gradient
    │   ├── QdrunImportError             (ImportError) a module of Quadrants that this version does not have
    │   ├── QdrunAssertionError          (AssertionError) a check failed in a kernel: assert, bounds, overflow, NaN
    │   ├── TrialsFailed                 some trials of a batch failed, each with its own error; the others continued
    │   ├── AdStackOverflow              a loop ran more iterations than its adstack was planned for
    │   └── DeviceError                  a device, its driver or a kernel on it failed; says whether the process must be restarted
    └── OutOfMemory                      (MemoryError) a budget or a device is too small; names the bytes

    GradientWarning                      (UserWarning) a gradient is lost in an array that has none
    PerformanceWarning                   (UserWarning) a kernel is much slower than an option would make it

The names that start with ``Quadrants`` are aliases.

Every message says what happened, where (kernel, file:line), and what to do. All errors can be pickled.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ir.nodes import FaultKind, Loc


class QdrunError(Exception):
    """Base class of all errors of the package."""


def describe(what: str, loc: Loc | None = None, hint: str = "", where: str = "") -> str:
    """Format a message: what happened, the user's line with a caret, what to do. ``where``: more about the location."""
    lines = [what]
    if loc is not None:
        kernel = f" in {f'the {loc.mode} of ' if loc.mode else ''}kernel `{loc.kernel}`" if loc.kernel else ""
        text = loc.text.rstrip("\n")
        lead = len(text) - len(text.lstrip())
        width = max(1, min(loc.end, len(text)) - loc.col)
        lines += [f"  at {loc.file}:{loc.line}{kernel}", f"    {text.lstrip()}", "    " + " " * (loc.col - lead) + "^" * width]
    if where:
        lines.append(f"  {where}")
    if hint:
        lines.append(f"  do: {hint}")
    return "\n".join(lines)


class QdrunCompilationError(QdrunError):
    """A kernel cannot be compiled. ``what``, ``loc`` and ``hint`` keep the parts of the message."""

    def __init__(self, what: str, loc: Loc | None = None, hint: str = "") -> None:
        super().__init__(describe(what, loc, hint))
        self.what, self.loc, self.hint = what, loc, hint

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what, self.loc, self.hint)


class QdrunSyntaxError(QdrunCompilationError, SyntaxError):
    """Python that the kernel language does not have."""

    def __str__(self) -> str:  # SyntaxError would print only its own fields
        return self.args[0]


class QdrunTypeError(QdrunCompilationError, TypeError):
    """Types do not fit."""


class QdrunNameError(QdrunCompilationError, NameError):
    """A name is not known where it is used."""


class QdrunIndexError(QdrunCompilationError, IndexError):
    """Wrong number of indices, or a constant index out of range."""


class DifferentiationError(QdrunCompilationError, RuntimeError):
    """The compiler has no correct gradient for a kernel."""


class QdrunRuntimeError(QdrunError, RuntimeError):
    """A launch, a field or an option is wrong."""


class QdrunValueError(QdrunRuntimeError, ValueError):
    """A shape, a layout or an option of an array does not fit."""


class QdrunFitError(QdrunTypeError, QdrunValueError):
    """A shape, or a number that its type cannot hold, does not fit where it is to go."""


class QdrunRuntimeTypeError(QdrunRuntimeError, TypeError):
    """An argument or a returned value has a type that does not fit."""


class QdrunImportError(QdrunRuntimeError, ImportError):
    """A module of Quadrants that this version does not have."""


class GradientCheckError(QdrunRuntimeError, AssertionError):
    """``Tape(grad_check=..)`` found a gradient that differs from central differences."""


class TrialsFailed(QdrunRuntimeError):
    """Some trials of a batch failed; the others continued. ``failed``: error by trial number; ``count``: number of trials."""

    def __init__(self, count: int, failed: dict[int, QdrunError]) -> None:
        numbers = ", ".join(map(str, list(failed)[:8])) + (", .." if len(failed) > 8 else "")
        first, error = next(iter(failed.items()))
        super().__init__(f"{len(failed)} of {count} trials failed: {numbers}\n  trial {first}: {error}")
        self.count, self.failed = count, failed

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.count, self.failed)


class NothingToDifferentiate(QdrunRuntimeError):
    """A kernel reads and writes no array that has a gradient. A tape skips it."""


@dataclass(frozen=True)
class Fault:
    """The finding of a check in a kernel.

    Attributes:
        kind: "assert", "bounds", "overflow", "nan" (a NaN or an infinity was computed) or "input" (a NaN was read).
        what: what happened, in one line.
        loc: the user's line.
        iteration: the variables of the enclosing loops with their values, outermost first; a loop without a variable counts from 0.
        operands: the numbers in ``what``, in that order; for an operation, its result first.
        hint: what to do.
        launch: the number of the launch in its time step, or else in its tape, from 1; None outside of both, and for an asynchronous error.
        step: the time step of ``qd.ad.checkpointed_steps``, from 0; None outside of one.
    """

    kind: FaultKind
    what: str
    loc: Loc | None = None
    iteration: tuple[tuple[str, int], ...] = ()
    operands: tuple[int | float | bool, ...] = ()
    hint: str = ""
    launch: int | None = None
    step: int | None = None

    @property
    def where(self) -> str:
        """The known ones of iteration, launch and time step, in one line."""
        inner = ", ".join(f"{name} = {value}" for name, value in self.iteration)
        outer = "the tape" if self.step is None else f"time step {self.step}"
        launch = f"launch {self.launch} of {outer}" if self.launch else f"in {outer}" if self.step is not None else ""
        return "; ".join(part for part in (f"iteration {inner}" if inner else "", launch) if part)


class QdrunAssertionError(QdrunRuntimeError, AssertionError):
    """A check failed inside a kernel: an assert, the bounds of an index, an integer that overflows, a NaN or an infinity.

    Attributes:
        fault: the finding with its location; None if only the message is known.
    """

    def __init__(self, message: str | Fault = "") -> None:
        self.fault = message if isinstance(message, Fault) else None
        text = message if isinstance(message, str) else describe(message.what, message.loc, message.hint, message.where)
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.fault or str(self),)

    def locate(self, launch: int | None = None, step: int | None = None) -> None:
        """Add the launch and the time step of the failure, unless a launch is known already."""
        if self.fault is not None and self.fault.launch is None:
            step = self.fault.step if step is None else step
            QdrunAssertionError.__init__(self, replace(self.fault, launch=launch, step=step))

    @property
    def kind(self) -> str:
        """The kind of the check (see ``Fault``); empty if unknown."""
        return self.fault.kind if self.fault else ""

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return self.fault.loc.kernel if self.fault and self.fault.loc else ""

    @property
    def file(self) -> str:
        """The file of the user's line."""
        return self.fault.loc.file if self.fault and self.fault.loc else ""

    @property
    def line(self) -> int:
        """The number of the user's line in its file, from 1; 0 if unknown."""
        return self.fault.loc.line if self.fault and self.fault.loc else 0

    @property
    def mode(self) -> str:
        """``"gradient"`` for an adjoint, ``"tangent"`` for a tangent, empty for the statement itself."""
        return self.fault.loc.mode if self.fault and self.fault.loc else ""

    @property
    def iteration(self) -> dict[str, int]:
        """The variables of the enclosing loops with their values, outermost first."""
        return dict(self.fault.iteration) if self.fault else {}

    @property
    def operands(self) -> tuple[int | float | bool, ...]:
        """The numbers in the message; for an operation, its result first."""
        return self.fault.operands if self.fault else ()

    @property
    def launch(self) -> int | None:
        """The number of the launch in its time step, or else in its tape, from 1; None outside of both."""
        return self.fault.launch if self.fault else None

    @property
    def step(self) -> int | None:
        """The time step of ``qd.ad.checkpointed_steps``, from 0; None outside of one."""
        return self.fault.step if self.fault else None


class DataAccessError(DifferentiationError, QdrunAssertionError):
    """A value that the backward pass needs was overwritten. Also an assertion error, which programs for Quadrants expect."""


class AdStackOverflow(QdrunRuntimeError):
    """A loop ran more iterations than its adstack was planned for. The program stays usable; the gradients of the launch are invalid."""


class DeviceError(QdrunRuntimeError):
    """A device, its driver or a kernel on it failed.

    Attributes:
        result: the driver's name of the failure; empty without a driver.
        code: the driver's number of the failure; 0 without a driver.
        restart: this process can no longer use the device; a new process can.
        bounds: an index out of bounds in a kernel may be the cause.
    """

    def __init__(self, message: str = "", result: str = "", code: int = 0, restart: bool = False, bounds: bool = False) -> None:
        super().__init__(message)
        self.result, self.code, self.restart, self.bounds = result, code, restart, bounds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.result, self.code, self.restart, self.bounds)


class OutOfMemory(QdrunError, MemoryError):
    """A budget or a device has too little memory.

    Attributes:
        smallest: the smallest sufficient budget in bytes, if a plan was requested; else None.
    """

    def __init__(self, message: str = "", smallest: int | None = None) -> None:
        super().__init__(message)
        self.smallest = smallest


class GradientWarning(UserWarning):
    """A gradient is lost in an array without one. Issued once per kernel and array of a program."""


class PerformanceWarning(UserWarning):
    """An option or another form of a kernel would make it much faster. Issued when the kernel is compiled."""


# Aliases: the names of Quadrants.
QuadrantsCompilationError = QdrunCompilationError
QuadrantsSyntaxError = QdrunSyntaxError
QuadrantsTypeError = QdrunTypeError
QuadrantsNameError = QdrunNameError
QuadrantsIndexError = QdrunIndexError
QuadrantsRuntimeError = QdrunRuntimeError
QuadrantsRuntimeTypeError = QdrunRuntimeTypeError
QuadrantsAssertionError = QdrunAssertionError


def user_frame() -> FrameType:
    """The innermost frame outside of the compiler, and of what is written in its language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("qdrun.compiler.", "qdrun.library.")):
        frame = frame.f_back
    return frame


def warn_user(text: str, category: type[Warning] = GradientWarning) -> None:
    """Issue a warning at the user's line: the first frame outside of the compiler."""
    frame = user_frame()
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno)
