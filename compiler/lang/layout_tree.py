"""``qd.root``, the layout tree of the current program, and ``qd.FieldsBuilder``, trees whose fields can be destroyed."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import QdrunRuntimeError
from ..frontend.values.levels import LevelRef
from ..program.layout.tree import Axes, SNode, leaves_of
from ..program.program import current_program


class RootProxy:
    """``qd.root``: the root of the program that is current when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current_program().root, name)

    def __repr__(self) -> str:
        return "qd.root"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RootProxy) or other is current_program().root

    def __hash__(self) -> int:
        return hash(current_program().root)

    def __qd_value__(self) -> LevelRef:
        """The root inside a kernel: a level without axes."""
        return current_program().root.__qd_value__()


def deactivate_all_snodes() -> None:
    """Deactivate every cell of every sparse level of the current program; see ``SNode.deactivate_all``."""
    current_program().root.deactivate_all()


class FieldsBuilder(SNode):
    """A layout tree of its own: ``builder.dense(qd.i, n).place(x)``, then ``tree = builder.finalize()``.

    Its fields have memory of their own from then on, which ``tree.destroy()`` gives back.
    """

    def __init__(self) -> None:
        root = current_program().root
        super().__init__(root, root, Axes(), ())

    @property
    def finalized(self) -> bool:
        """Whether its fields have memory."""
        return self in self.root.done

    def finalize(self, raise_warning: bool = True) -> FieldsTree:
        """Give its fields memory. Nothing more can be placed in it.

        Args:
            raise_warning: warn when nothing was placed.

        Raises:
            QdrunRuntimeError: it is finalized already.
            OutOfMemory: there is not enough memory.
        """
        if self.finalized:
            raise QdrunRuntimeError("this FieldsBuilder is finalized already\n  do: make a new one for more fields")
        if raise_warning and not any(True for _ in leaves_of(self)):
            warnings.warn("a FieldsBuilder without fields is finalized", RuntimeWarning, stacklevel=2)
        self.root.program.materialize(self)
        self.root.own(self)
        return FieldsTree(self)


class FieldsTree:
    """The fields of a ``FieldsBuilder`` that is finalized."""

    def __init__(self, builder: FieldsBuilder) -> None:
        self._builder, self._destroyed = builder, False

    def destroy(self) -> None:
        """Give the memory of the fields back. They cannot be used any more, and kernels that used them are compiled anew for others.

        Raises:
            QdrunRuntimeError: they are destroyed already, a tape, forward mode or a graph records, or a launch has failed.
        """
        program = self._builder.root.program
        if self._destroyed or program.closed:
            raise QdrunRuntimeError(
                "the fields of this FieldsBuilder are destroyed already\n  do: make them anew, with a new builder"
            )
        program.destroy(self._builder)
        self._destroyed = True


root = RootProxy()
