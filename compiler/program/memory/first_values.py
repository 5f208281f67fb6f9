"""Restores the state before the first launches of a program, so that they can run again as if nothing had run.

That state is the content of the memory that launches store to: fields and ndarrays, but not their gradients, which a tape clears. Memory
that was never written before the first run is zero. Of other memory the content of one trial is kept on the host, because all trials begin
with the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from ...runtime.mirror import clear
from ..rehearsal import Launches
from .data_versions import Stored, stored_keys
from .memory_regions import memory_base, memory_of


class FirstValues:
    """The content of the memory that some launches store to, before the first of them.

    Args:
        program: the current one; none of the launches has run in it.
        launches: kernels with arguments.
        also: further fields and ndarrays that are restored with them.
        apart: fields that their owner writes before each run.

    Attributes:
        why: why it cannot be restored; empty if it can.
        written: those of ``apart`` that the launches store to.
    """

    def __init__(self, program: Any, launches: Launches, also: Iterable[Any] = (), apart: Collection[Any] = ()) -> None:
        self.why, self._program = "", program
        self._random = program.seeds.state()
        self._zeros: list[Any] = []
        self._contents: list[tuple[Any, np.ndarray]] = []
        program.materialize()
        stored, arrays = _stored(launches)
        others = {id(x) for one in also for x in (one.leaves() if hasattr(one, "leaves") else [one])}
        fields = [f for f in program.root.fields() if not f.role]
        found = [f for f in fields if id(f) in others or not stored.isdisjoint(stored_keys(f))]
        found += _ndarrays(program) if arrays else [x for x in _ndarrays(program) if id(x) in others]
        self.written = [f for f in found if any(f is x for x in apart)]
        for tensor in found:
            if not any(tensor is x for x in apart):
                self._keep(tensor)

    def _keep(self, tensor: Any) -> None:
        if not self._was_written(tensor):
            self._zeros.append(tensor)
            return
        content = tensor.to_numpy() if tensor._in_blocks else tensor._columns(tensor._form)
        if tensor._whole.batched:
            rows = np.ascontiguousarray(content).reshape(len(content), -1).view(np.uint8)
            if (rows != rows[0]).any():
                self.why = f"`{tensor.name}` begins with other values in other trials"
            content = content[0].copy()
        if np.ascontiguousarray(content).reshape(-1).view(np.uint8).any():
            self._contents.append((tensor, content))
        else:
            self._zeros.append(tensor)

    def _was_written(self, tensor: Any) -> bool:
        """Whether Python, a kernel, or another library may have written to it."""
        data, memory = self._program.data, memory_of(tensor)
        counters = [c for base, offset in stored_keys(tensor) for c in data.counters(base, offset)]
        return any(c.value for c in counters) or self._program.arrays.was_shown(memory)

    @property
    def recordable(self) -> bool:
        """Whether ``put_back`` can be a part of a graph: a device with memory of its own takes equal values alone."""
        return self._program.device.on_host or not self._contents

    def begin(self) -> None:
        """A run begins: it draws the random numbers that the first one drew."""
        self._program.seeds.restore(self._random)

    def put_back(self) -> None:
        """Write what was there. Nothing runs in the program; in a captured function the writes are a part of the graph."""
        clear((tensor._mirror, tensor._written()) for tensor in self._zeros)
        # a sparse field takes the elements that are active: its activity comes first
        for tensor, content in sorted(self._contents, key=lambda pair: not getattr(pair[0], "hidden", False)):
            tensor.from_numpy(content)


def _stored(launches: Launches) -> tuple[frozenset[Stored], bool]:
    """The field places that these launches store to, and whether they store to any arguments."""
    found, arrays = set[Stored](), False
    for kernel, args in launches:
        method = getattr(kernel, "instance", None)
        variant = (kernel.variant(args, {}) if method is None else kernel.kernel.variant((method, *args), {}))[0]
        facts = variant.compiled_kernel.forward
        found |= {(memory_base(variant.owners[buffer]), offset) for buffer, offset in facts.stores}
        arrays |= bool(facts.written)
    return frozenset(found), arrays


def _ndarrays(program: Any) -> list[Any]:
    """The ndarrays of a program that are no gradients and no duals."""
    every = list(program.arrays.alive)
    belong = {id(y) for x in every for y in (x.grad, x.dual) if y is not None}
    return [x for x in every if id(x) not in belong]
