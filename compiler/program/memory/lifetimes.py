"""Ends the specialisations of kernels with the objects that they were made for.

A specialisation knows an object by its address. It must end before another object can come to lie there, and it must not keep the object
alive: a program may make a simulation, run it, and drop it, many times. So each specialisation has a weak reference to its kernel and to
each such object. The callback forgets it and its native launches. Its memory is given back later, between launches.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..executable import Executable
    from ..variant import Variant

Variants = dict[tuple[Any, ...], "Variant"]

MOST_BY_VALUE = 256
"""Specialisations of one kernel; beyond, the one that was made first ends: a number that differs in each call is a template argument."""

MOST_ENDED = 64
"""Specialisations that may wait to be given back where the device must finish first."""


def is_mortal(value: object) -> bool:
    """Whether an object's end can be noticed; others are kept alive. Types and functions of modules live long anyway."""
    return bool(getattr(type(value), "__weakrefoffset__", 0))


class Lifetimes:
    """The kernels and specialisations of one program that end before it does.

    ``ended``: specialisations with their executables, whose memory waits to be given back.
    """

    def __init__(self, program: Any) -> None:
        self._program = weakref.ref(program)
        self._kernels: dict[object, weakref.ref[object]] = {}  # by token
        self.ended: deque[tuple[weakref.ref[Variant], list[Executable]]] = deque()

    def variants(self, kernel: object, token: object, second: bool) -> Variants:
        """The specialisations of a kernel, which are forgotten when it ends.

        Args:
            kernel: the kernel.
            token: stands for it.
            second: those of the forward-mode kernel, for second derivatives.
        """
        program = self._alive()
        if token not in self._kernels:
            here = weakref.ref(self)

            def end(_: object) -> None:
                own = here()
                if own is not None:
                    own._end_kernel(token)

            self._kernels[token] = weakref.ref(kernel, end)
        return program.variants.setdefault((token, "second order") if second else token, {})

    def begin(self, known: Variants, key: tuple[Any, ...], variant: Variant, objects: list[object]) -> None:
        """Enter a new specialisation.

        Args:
            known: those of its kernel.
            key: its key.
            variant: the specialisation.
            objects: those that the key has by identity.
        """
        here = weakref.ref(self)

        def end(_: object) -> None:
            own, gone = here(), known.pop(key, None)
            if own is not None and gone is not None:
                own._end([gone])

        while len(known) >= MOST_BY_VALUE:
            self._end([known.pop(next(iter(known)))])
        known[key] = variant
        variant.keeps = [weakref.ref(x, end) if is_mortal(x) else x for x in objects]

    def reap(self) -> None:
        """Give back the memory of what has ended. Nothing is given back while launches are recorded."""
        program = self._alive()
        if not self.ended or program.recorders.active() or (program.state.pending is not None and len(self.ended) < MOST_ENDED):
            return
        if program.state.pending is not None:
            program.synchronize()
        with program.admission.alone():
            for _ in range(len(self.ended)):
                variant, made = self.ended.popleft()
                if variant() is not None or any(len(e.users) for e in made):
                    self.ended.append((variant, made))  # a thread is about to launch it, or a graph does
                else:
                    for executable in made:
                        executable.close()

    def close(self) -> None:
        """The program is being closed."""
        self._kernels.clear()
        while self.ended:
            for executable in self.ended.popleft()[1]:
                executable.close()

    # ---- called when an object ends: in any thread, between any two instructions; so nothing waits here
    def _end_kernel(self, token: object) -> None:
        program = self._program()
        self._kernels.pop(token, None)
        if program is not None:
            for key in (token, (token, "second order")):
                self._end(list(program.variants.pop(key, {}).values()))
            for lists in _native(program):
                lists.pop(token, None)

    def _end(self, variants: list[Variant]) -> None:
        program = self._program()
        if program is None or program.closed:
            return
        ended = [(weakref.ref(v), v.made()) for v in variants]
        made = {id(e) for _, executables in ended for e in executables}
        for lists in _native(program) if made else ():
            for launches in list(lists.values()):
                if any(id(launch.owner[0]) in made for launch in launches):
                    launches[:] = [launch for launch in launches if id(launch.owner[0]) not in made]
        self.ended += ended

    def _alive(self) -> Any:
        program = self._program()
        assert program is not None
        return program


def _native(program: Any) -> list[dict[object, Any]]:
    return [program.native_launches, program.native_gradients, *program._first_order]
