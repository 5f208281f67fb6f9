"""``qd.root``: the layout tree of the current program."""

from __future__ import annotations

from typing import Any

from ..frontend.values.levels import LevelRef
from ..program.program import current_program


class RootProxy:
    """``qd.root``: the root of the program that is current when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current_program().root, name)

    def __repr__(self) -> str:
        return "qd.root"

    def __qd_value__(self) -> LevelRef:
        """The root inside a kernel: a level without axes."""
        return current_program().root.__qd_value__()


def deactivate_all_snodes() -> None:
    """Deactivate every cell of every sparse level of the current program; see ``SNode.deactivate_all``."""
    current_program().root.deactivate_all()


root = RootProxy()
