"""IR as bytes and back: what the source cache keeps of a kernel.

Any tuple, list, dict or dataclass made of nodes can be stored. Nodes are written one by one, never one inside another, so that a chain of
ten thousand operations is as good as a short one. Nodes that the reader already has (buffers, argument declarations) are named by their
position in ``known`` and come back as the reader's own; every node comes back with a fresh id, and ids keep their order.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from . import nodes
from .nodes import Axis, GlobalStore, If, Local, LocalStore, Loop, Op

_NODES: tuple[type, ...] = (Op, Local, LocalStore, GlobalStore, If, Loop, Axis)
_KIND = {cls: k for k, cls in enumerate(_NODES)}
_FIELDS = {cls: tuple(f.name for f in fields(cls)) for cls in _NODES}
_WITH_ID = (Op, Local, Loop)
_PACKAGE = __name__.rpartition(".ir.")[0]
_BUILTINS = frozenset(("set", "frozenset", "complex", "range", "slice"))


class StoreError(ValueError):
    """The bytes are not what ``dump`` wrote, or hold something that does not belong there."""


class _Writer(pickle.Pickler):
    def __init__(self, out: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(out, protocol=5)
        self._known = {id(x): k for k, x in enumerate(known)}
        self.number: dict[int, int] = {}
        self.todo: list[Any] = []

    def persistent_id(self, obj: Any) -> tuple[int, int] | None:
        """A node is named; it is written later, on its own."""
        if id(obj) in self._known:
            return -1, self._known[id(obj)]
        kind = _KIND.get(type(obj))
        if kind is None:
            return None
        number = self.number.get(id(obj))
        if number is None:
            number = self.number[id(obj)] = len(self.number)
            self.todo.append(obj)
        return kind, number


class _Reader(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, known: Sequence[object]) -> None:
        super().__init__(source)
        self._known = known
        self.nodes: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        """The node of a name; its fields may come later."""
        kind, number = pid
        if kind == -1:
            return self._known[number]
        if number not in self.nodes:
            self.nodes[number] = object.__new__(_NODES[kind])
        return self.nodes[number]

    def find_class(self, module: str, name: str) -> Any:
        """Classes of the compiler, and nothing else that could run."""
        if module == _PACKAGE or module.startswith(_PACKAGE + "."):
            return super().find_class(module, name)
        if module == "builtins" and name in _BUILTINS:
            return super().find_class(module, name)
        raise StoreError(f"{module}.{name} does not belong to stored IR")


def dump(value: Any, known: Sequence[object] = ()) -> bytes:
    """The bytes of a value made of IR.

    Raises:
        StoreError: it holds something that cannot be stored (a function, an open file).
    """
    out = io.BytesIO()
    writer = _Writer(out, known)
    try:
        writer.dump(value)
        done = 0
        while done < len(writer.todo):  # writing a node may name more of them
            node = writer.todo[done]
            writer.dump(tuple(getattr(node, name) for name in _FIELDS[type(node)]))
            done += 1
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, StoreError) as e:
        raise StoreError(f"not stored: {e}") from e
    return len(writer.todo).to_bytes(8, "little") + out.getvalue()


def load(data: bytes, known: Sequence[object] = ()) -> Any:
    """The value again.

    Raises:
        StoreError: the bytes are damaged, or of another version.
    """
    try:
        reader = _Reader(io.BytesIO(data[8:]), known)
        value = reader.load()
        for number in range(int.from_bytes(data[:8], "little")):
            content = reader.load()
            node = reader.nodes[number]
            for name, item in zip(_FIELDS[type(node)], content, strict=True):
                object.__setattr__(node, name, item)
    except StoreError:
        raise
    except Exception as e:  # a pickle that is cut short or changed fails in any way at all
        raise StoreError(f"damaged: {type(e).__name__}: {e}") from e
    _fresh_ids(reader)
    return value


def _fresh_ids(reader: _Reader) -> None:
    numbered = [node for node in reader.nodes.values() if isinstance(node, _WITH_ID)]
    for node in sorted(numbered, key=lambda n: n.id):
        node.id = nodes.new_id()


__all__ = ["StoreError", "dump", "load"]
