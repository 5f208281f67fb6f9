"""A rehearsal: what a function would launch, found by calling it while no launch runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from ..errors import NothingToDifferentiate, QdrunRuntimeError
from ..frontend.signature import ScalarArg
from .memory.overwritten import Overwritten

if TYPE_CHECKING:
    from .call import Call
    from .variant import Variant

Launches = list[tuple[Any, tuple[Any, ...]]]
"""Kernels with their arguments."""
Hidden = Literal["", "own", "cut"]
"""Why a tape does not see a launch: it does; something else answers for its gradient; its results count as constants."""


class RehearsedLaunch(NamedTuple):
    """A launch with the memory that it works on. ``by``: the function that hides it."""

    variant: Variant
    call: Call
    hidden: Hidden
    by: str


class _NoGradient:
    """The gradient of a launch that no tape sees."""

    def exists(self, *args: Any) -> bool:
        """There is none."""
        del args
        return False

    def prepare(self, *args: Any) -> NoReturn:
        """Compile it.

        Raises:
            NothingToDifferentiate: always.
        """
        raise NothingToDifferentiate(f"a launch that no tape sees has no gradient: {args!r:.80}")


class ForwardOnly:
    """A kernel as it is launched where no tape sees it: in a ``no_grad`` function, in a solver. All but its gradient is the kernel's."""

    __slots__ = ("kernel",)
    grad = _NoGradient()

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Rehearsal:
    """The launches that a function asks for. Launches that no plan can tell apart are kept once.

    Attributes:
        sequence: a number that two rehearsals share where the same kernels were launched with the same arguments in the same order.
        backwards: whether the gradients of the launches are run, too.
        kept: bytes of copies that the gradient keeps of arrays.
        most: bytes of such copies at once, at most.
        seen: the launches that differ in their kernel or their arrays.
        order: which of them was made when, by position in ``seen``.
        repeats: some launches are made again and again, and were called once here.
        overwritten: what a tape keeps of elements that later launches overwrite; None: the gradients are not run.

    Args:
        name: of the function, for messages.
        gradients: whether the gradients of the launches are planned, too.
    """

    def __init__(self, name: str, gradients: bool) -> None:
        self.name, self.backwards, self.sequence = name, gradients, 0
        self.kept = self.most = 0
        self.seen: list[RehearsedLaunch] = []
        self.order: list[int] = []
        self.repeats = False
        self._hidden: tuple[Hidden, str] = "", ""  # from a tape, and by which function
        self._numbers: dict[tuple[object, ...], int] = {}  # positions in ``seen``
        self.overwritten: Overwritten | None = None
        self._number = 0  # of launches
        self._inner = False  # part of several launches that a tape takes for one
        self._window: Overwritten | None = None  # what these keep themselves
        self._found: dict[tuple[object, ...], tuple[Any, tuple[Any, ...]]] = {}
        self._alike: dict[tuple[object, ...], int] = {}
        self._kept: list[tuple[Any, ...]] = []  # so that no other object gets an id that stands for one of these

    @property
    def launches(self) -> Launches:
        """The distinct launches, in the order of their first occurrence."""
        return list(self._found.values())

    @contextmanager
    def unseen(self, constant: str = "") -> Iterator[None]:
        """Launches inside are such as no tape sees. ``constant``: the function whose results count as constants, if they do."""
        before = self._hidden
        self._hidden = ("cut" if constant else "own", constant) if not before[0] else before
        try:
            yield
        finally:
            self._hidden = before

    def most_launched(self) -> tuple[str, int]:
        """The kernel with the most launches, and their number."""
        counts = Counter[str]()
        for number, times in Counter(self.order).items():
            counts[self.seen[number].variant.head.name] += times
        return counts.most_common(1)[0] if counts else ("", 0)

    @contextmanager
    def within(self, window: Overwritten | None = None) -> Iterator[None]:
        """Launches inside are parts of what a tape takes for one launch. ``window``: counts what these keep of each other."""
        before = self._inner, self._window
        self._inner, self._window = True, window
        try:
            yield
        finally:
            self._inner, self._window = before

    @property
    def tape_bytes(self) -> int:
        """Bytes that a tape keeps of elements that later launches overwrite."""
        return 0 if self.overwritten is None else self.overwritten.kept.nbytes

    @property
    def differentiates(self) -> bool:
        """Whether a tape will see what is called now."""
        return self.backwards and not self._hidden[0]

    def keeps(self, kept: int, more: int = 0) -> None:
        """The gradient will keep so many bytes, and ``more`` while that part of it runs."""
        self.kept += kept
        self.most = max(self.most, self.kept + more)

    def launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A kernel is launched; nothing runs.

        Raises:
            QdrunRuntimeError: it returns values, which the function would read.
        """
        given = tuple(kernel.binder.arguments(args, kwargs))
        if self.overwritten is not None:
            self._number += 1
            flat = given if all(type(a) in (bool, int, float) or hasattr(a, "_memory") for a in given) else None
            for over, reverse in ((self.overwritten, not self._inner), (self._window, True)):
                if over is not None:
                    over.launching(self._number, kernel, given, {}, flat, reverse and not self._hidden[0])
                    over.launched()
        numbers = (repr(arg) if type(arg) in (bool, int, float) else id(arg) for arg in given)
        self.sequence = hash((self.sequence, kernel, *numbers))
        shape = kernel, self._hidden, *(type(arg) if type(arg) in (bool, int, float) else id(arg) for arg in given)
        if shape in self._alike:
            self.order.append(self._alike[shape])
            return
        variant, bound = kernel.variant(args, kwargs)
        place = (variant, *shape[1:])
        number = self._numbers.setdefault(place, len(self.seen))
        if number == len(self.seen):
            self.seen.append(RehearsedLaunch(variant, bound.call, *self._hidden))
            self._kept.append(given)
        self.order.append(number)
        if variant.head.returns:
            self._refuse(f"kernel `{kernel.source.name}` returns values", "have it store them in a field")
        numbers = [spec for arg, spec in zip(given, bound.specs.values(), strict=True) if type(arg) in (bool, int, float)]
        decisive: object = None
        if self.differentiates and kernel.grad.exists(*given):
            decisive = variant.plans.inputs.decisive(bound.call.words[8:])
        if not decisive and all(isinstance(spec, ScalarArg) for spec in numbers):
            self._alike[shape] = number
        unseen = bool(self._hidden[0])
        launched = ForwardOnly(kernel) if unseen else kernel
        self._found.setdefault((variant, decisive, unseen), (launched, given))

    def wrote(self, tensor: Any, index: Any = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        """Python is about to write to a field or an ndarray.

        Raises:
            QdrunRuntimeError: always.
        """
        del index, source, parts
        self._refuse(f"Python writes `{tensor.name}`", "do it in a kernel, or outside")

    def looked_at(self, tensor: Any) -> None:
        """Python is about to read a field or an ndarray.

        Raises:
            QdrunRuntimeError: always, but while Python may read.
        """
        self._refuse(f"Python reads `{tensor.name}`", "read it after the launches, or decide in a kernel")

    def gradient(self, name: str) -> NoReturn:
        """The gradient of a kernel is launched.

        Raises:
            QdrunRuntimeError: always.
        """
        self._refuse(f"the gradient of kernel `{name}` is launched", "launch the kernel: the tape around it runs the gradient")

    def custom(self, name: str) -> NoReturn:
        """A function with a gradient of its own is called.

        Raises:
            QdrunRuntimeError: always.
        """
        self._refuse(f"`{name}` has a gradient of its own, whose launches cannot be found", "name all launches: see launches()")

    def _refuse(self, what: str, do: str) -> NoReturn:
        raise QdrunRuntimeError(f"{what} in {self.name}, which may only launch kernels\n  do: {do}")


class Reading(Rehearsal):
    """While it is there, Python reads fields, and neither writes to them nor launches kernels."""

    def __init__(self, name: str) -> None:
        super().__init__(name, gradients=False)

    def launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """A kernel is launched.

        Raises:
            QdrunRuntimeError: always.
        """
        self._refuse(f"kernel `{kernel.source.name}` is launched", "launch it before, where the plan counts its memory")

    def wrote(self, tensor: Any, index: Any = None, source: Any = None, parts: tuple[Any, ...] = ()) -> None:
        del index, source, parts
        self._refuse(f"Python writes `{tensor.name}`", "write it before, or to an array of numpy")

    def looked_at(self, tensor: Any) -> None:
        """It may."""

    def _refuse(self, what: str, do: str) -> NoReturn:
        raise QdrunRuntimeError(f"{what} in {self.name}, which may only read\n  do: {do}")


def rehearse(program: Any, function: Callable[[], Any], name: str, gradients: bool) -> Rehearsal:
    """Rehearse a function: find its launches in a program without running them.

    Args:
        program: the current one; nothing records launches in it.
        function: calls kernels and has no other effect on the program. Random numbers are not drawn.
        name: what messages call it.
        gradients: see ``Rehearsal``.

    Raises:
        QdrunRuntimeError: the function reads or writes arrays in Python, so that its launches may depend on results of other launches.
    """
    before = program.recorders.rehearsal
    program.recorders.rehearsal = made = Rehearsal(name, gradients)
    if gradients:
        made.overwritten = Overwritten(program, run=False)
    try:
        function()
    finally:
        program.recorders.rehearsal = before
    return made
