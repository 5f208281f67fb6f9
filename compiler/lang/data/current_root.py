"""``qd.root``: the layout tree of the current program."""

from __future__ import annotations

from typing import Any

from ...program.program import current_program


class RootProxy:
    """``qd.root``: the root of the program that is current when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current_program().root, name)

    def __repr__(self) -> str:
        return "qd.root"


root = RootProxy()
