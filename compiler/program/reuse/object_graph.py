"""The Python values that an object of the language holds beside the memory of its program: whoever keeps a program compares them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ...frontend.values.values import StructForm
from ...ir.types import DType
from ..layout.tree import SNode
from ..state import ProgramState

_CONSTANT = DType, StructForm, SNode


@runtime_checkable
class Holder(Protocol):
    """An object of the language that may hold Python values."""

    def __qd_parts__(self, program: object) -> list[Any] | None:
        """The values that it holds and that may change, without the memory of ``program``; None: there are others."""
        ...


def reached(program: ProgramState, value: Any) -> list[Any] | None:
    """The Python values that an object of the compiler's holds and that may change; the memory of ``program`` is not among them.

    None: it holds more than that can be told of: another program's memory, launches that were recorded.
    """
    if isinstance(value, _CONSTANT):
        return []
    if isinstance(value, ProgramState):
        return [] if value is program else None
    if not issubclass(type(value), Holder):  # an attribute of the object itself may be anything
        return None
    holder: Holder = value
    return holder.__qd_parts__(program)
