"""Every error a user can meet, in one tree. Imports nothing.

    QdrunError
    ├── QdrunCompilationError            a kernel cannot be compiled; carries the user's line and a caret
    │   ├── QdrunSyntaxError             (SyntaxError) Python that the kernel language does not have
    │   ├── QdrunTypeError               (TypeError)
    │   ├── QdrunNameError               (NameError)
    │   ├── QdrunIndexError              (IndexError)
    │   └── DifferentiationError         (RuntimeError) no correct gradient exists or can be given for this kernel
    │       └── DataAccessError          (QdrunAssertionError) a value the backward pass needs is overwritten
    ├── QdrunRuntimeError                (RuntimeError) a launch, a field or an option is wrong
    │   ├── QdrunValueError              (ValueError) a shape, a layout or an option of an array that does not fit
    │   ├── QdrunRuntimeTypeError        (TypeError) an argument or a returned value has a type that does not fit
    │   ├── GradientCheckError           (AssertionError) Tape(grad_check=..) found a gradient that differs from differences
    │   ├── NothingToDifferentiate       a kernel whose gradient was asked for touches nothing that has one
    │   ├── QdrunImportError             (ImportError) a module of Quadrants that this version does not have
    │   ├── QdrunAssertionError          (AssertionError) a check failed in a kernel: assert, bounds, overflow, NaN
    │   ├── TrialsFailed                 some trials of a batch failed, each for a reason of its own; the others have gone on
    │   ├── AdStackOverflow              a loop ran further than its adstack was planned for
    │   └── DeviceError                  a device, its driver or a kernel on it failed; says whether the process must be restarted
    └── OutOfMemory                      (MemoryError) a budget or a device is too small; names the bytes

    GradientWarning                      (UserWarning) a gradient is lost in an array that has none
    PerformanceWarning                   (UserWarning) a kernel is much slower than an option would make it

The names that start with ``Quadrants`` are those of Quadrants and the same classes.

Every message has the form: what happened, where (kernel, file:line), what to do. All of them pickle.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ir.nodes import FaultKind, Loc


class QdrunError(Exception):
    """Base of all our errors."""


def describe(what: str, loc: Loc | None = None, hint: str = "", where: str = "") -> str:
    """The one form of a message: what happened, where with the user's line and a caret, what to do. ``where``: more on the place."""
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
    """No correct gradient exists or can be given."""


class QdrunRuntimeError(QdrunError, RuntimeError):
    """A launch, a field or an option is wrong."""


class QdrunValueError(QdrunRuntimeError, ValueError):
    """A shape, a layout or an option of an array does not fit."""


class QdrunRuntimeTypeError(QdrunRuntimeError, TypeError):
    """An argument or a returned value has a type that does not fit."""


class QdrunImportError(QdrunRuntimeError, ImportError):
    """A module of Quadrants that this version does not have."""


class GradientCheckError(QdrunRuntimeError, AssertionError):
    """``Tape(grad_check=..)`` found a gradient that differs from central differences."""


class TrialsFailed(QdrunRuntimeError):
    """Some trials of a batch failed; the others have gone on. ``failed``: the error of each, by its number; ``count``: of all trials."""

    def __init__(self, count: int, failed: dict[int, QdrunError]) -> None:
        numbers = ", ".join(map(str, list(failed)[:8])) + (", .." if len(failed) > 8 else "")
        first, error = next(iter(failed.items()))
        super().__init__(f"{len(failed)} of {count} trials failed: {numbers}\n  trial {first}: {error}")
        self.count, self.failed = count, failed

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.count, self.failed)


class NothingToDifferentiate(QdrunRuntimeError):
    """A kernel touches nothing that has a gradient. A tape passes over it."""


@dataclass(frozen=True)
class Fault:
    """What a check in a kernel found.

    Attributes:
        kind: "assert", "bounds", "overflow", "nan" (a NaN or an infinity was made) or "input" (a NaN was read).
        what: what happened, in one line.
        loc: the user's line.
        iteration: the variables of the loops around with their values, outermost first; numbered from 0 where a loop has no variable.
        operands: the numbers in ``what``, in their order there; of an operation its result first.
        hint: what to do.
        launch: the number of the launch in its time step, or else in its tape, from 1; None outside of both, and on a GPU that was not
            waited for.
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
        """Iteration, launch and time step, as far as they are known, in one line."""
        inner = ", ".join(f"{name} = {value}" for name, value in self.iteration)
        outer = "the tape" if self.step is None else f"time step {self.step}"
        launch = f"launch {self.launch} of {outer}" if self.launch else f"in {outer}" if self.step is not None else ""
        return "; ".join(part for part in (f"iteration {inner}" if inner else "", launch) if part)


class QdrunAssertionError(QdrunRuntimeError, AssertionError):
    """A check failed inside a kernel: an assert, the bounds of an index, an integer that overflows, a NaN or an infinity.

    Attributes:
        fault: what was found and where; None where the message is all that is known.
    """

    def __init__(self, message: str | Fault = "") -> None:
        self.fault = message if isinstance(message, Fault) else None
        text = message if isinstance(message, str) else describe(message.what, message.loc, message.hint, message.where)
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.fault or str(self),)

    def locate(self, launch: int | None = None, step: int | None = None) -> None:
        """Add the launch and the time step in which it happened, unless a launch is known already."""
        if self.fault is not None and self.fault.launch is None:
            step = self.fault.step if step is None else step
            QdrunAssertionError.__init__(self, replace(self.fault, launch=launch, step=step))

    @property
    def kind(self) -> str:
        """The kind of the check: see ``Fault``; empty where it is not known."""
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
        """The number of the user's line in its file, from 1; 0 where it is not known."""
        return self.fault.loc.line if self.fault and self.fault.loc else 0

    @property
    def mode(self) -> str:
        """Of an adjoint "gradient", of a tangent "tangent"; empty for the statement itself."""
        return self.fault.loc.mode if self.fault and self.fault.loc else ""

    @property
    def iteration(self) -> dict[str, int]:
        """The variables of the loops around, outermost first, with their values."""
        return dict(self.fault.iteration) if self.fault else {}

    @property
    def operands(self) -> tuple[int | float | bool, ...]:
        """The numbers of the message; of an operation its result first."""
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
    """A value that the backward pass needs is overwritten. Programs that expect a failed assertion here catch it, too."""


class AdStackOverflow(QdrunRuntimeError):
    """A loop ran further than its adstack was planned for. The program stays usable; the gradients of the launch are not."""


class DeviceError(QdrunRuntimeError):
    """A device, its driver or a kernel on it failed.

    Attributes:
        result: the driver's name of the failure; empty when there is no driver to ask.
        code: its number; 0 when there is none.
        restart: no later call of this process can use the device: only a new process can.
        bounds: an index of a kernel that is out of bounds may be why.
    """

    def __init__(self, message: str = "", result: str = "", code: int = 0, restart: bool = False, bounds: bool = False) -> None:
        super().__init__(message)
        self.result, self.code, self.restart, self.bounds = result, code, restart, bounds

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.result, self.code, self.restart, self.bounds)


class OutOfMemory(QdrunError, MemoryError):
    """A budget or a device is too small for what was asked.

    Attributes:
        smallest: the bytes of the smallest budget that would do, where a plan was asked for; else None.
    """

    def __init__(self, message: str = "", smallest: int | None = None) -> None:
        super().__init__(message)
        self.smallest = smallest


class GradientWarning(UserWarning):
    """A gradient is lost in an array that has none. Given once for each kernel and array of a program."""


class PerformanceWarning(UserWarning):
    """A kernel is much slower than an option would make it. Given when the kernel is compiled, at most once in a process."""


# Quadrants' names of the same errors.
QuadrantsCompilationError = QdrunCompilationError
QuadrantsSyntaxError = QdrunSyntaxError
QuadrantsTypeError = QdrunTypeError
QuadrantsNameError = QdrunNameError
QuadrantsIndexError = QdrunIndexError
QuadrantsRuntimeError = QdrunRuntimeError
QuadrantsRuntimeTypeError = QdrunRuntimeTypeError
QuadrantsAssertionError = QdrunAssertionError


def warn_user(text: str, category: type[Warning] = GradientWarning) -> None:
    """A warning at the user's line."""
    ours = "qdrun.compiler."
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(ours):
        frame = frame.f_back
    warnings.warn_explicit(text, category, frame.f_code.co_filename, frame.f_lineno)
