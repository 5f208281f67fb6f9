"""The one table of compiled kernels: by key in memory, and behind it on disk.

A call asks with the source of its kernel (``CompileCache.kernel``). Under the base key of the source (``keys``) lie the lists of paths that
earlier lowerings followed. A list that can be followed again gives the source key without lowering, and the source key finds the kernel in
this process or in the folder of ``runtime.cache``. Otherwise the kernel is lowered. Threads that ask for the same key at once wait for the
first, so that each key is compiled once in a process. Whatever is wrong with a file, the kernel is lowered again.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..errors import QdrunSyntaxError
from ..frontend.signature import ArgSpec, LowerOptions
from ..frontend.source.inputs import Inputs
from ..frontend.source.parse import FunctionSource
from ..frontend.source.tokens import Path
from ..ir.nodes import Buffer, Kernel
from ..ir.process import while_compiling
from ..ir.threads import Turns, new_lock
from ..options import Options
from ..runtime.base import Device
from ..runtime.cache import disk_cache
from . import keys, pipeline
from .compiled_kernel import CompiledKernel
from .relocation import detach, field_buffers
from .serialized_kernel import Storage

MOST = 512
"""Kernels that a process keeps; the least recently used goes first."""

LISTS = 8
"""Lists of paths that are kept of one base key: a kernel whose ``static`` branches differ has several."""


class CachedKernel(NamedTuple):
    """A kernel in the table. ``numbers``: for each of its buffers, which of the buffers that lowering looked up it is."""

    kernel: CompiledKernel
    numbers: list[int]

    @classmethod
    def made(
        cls,
        lowered: Kernel,
        buffers: list[Buffer],
        options: Options,
        numbers: Sequence[int] = (),
        storage: Storage | None = None,
    ) -> CachedKernel:
        """The compiled kernel of lowered IR, which is consumed. ``buffers``: its field buffers."""
        return cls(CompiledKernel(lowered, detach(lowered, buffers), options, storage), list(numbers))


E = TypeVar("E", CachedKernel, CachedKernel | None)


class CompileCache:
    """The compiled kernels of this process, and the way to those of other processes.

    Attributes:
        lowered: kernels that had to be lowered.
        refusals: why the last records of lowerings were not kept.
    """

    def __init__(self) -> None:
        self._lock = new_lock(self, "_lock")
        self._entries: OrderedDict[str, CachedKernel] = OrderedDict()
        self._lists: OrderedDict[str, list[list[Path]]] = OrderedDict()  # by base key
        self._making = Turns()
        self.lowered = 0
        self.refusals: deque[str] = deque(maxlen=64)

    def kernel(
        self, source: FunctionSource, args: Mapping[str, ArgSpec], how: LowerOptions, options: Options, device: Device
    ) -> tuple[CompiledKernel, list[object], Inputs]:
        """The kernel of a function for these arguments, the owner of each of its buffers, and what was looked up for it.

        Raises:
            QdrunCompilationError: see ``pipeline.lowered``.
        """
        inputs = Inputs(source, args)
        recorded = (
            device.native and not inputs.refused and not os.environ.get("QDRUN_PRINT")
        )  # a kernel must be lowered to be printed
        base = keys.base_key(inputs, how, options, device) if recorded else None
        if base is not None:
            found = self._replayed(base, source, args, options, device)
            if found is not None:
                return found
        self.lowered += 1
        try:
            with while_compiling():
                return self._lowered(source, args, how, options, device, inputs, base)
        except RecursionError as e:
            raise QdrunSyntaxError(
                f"kernel `{source.name}` nests expressions, branches or calls too deeply to be compiled",
                source.loc(source.tree, source.name),
                "split long sums and chains of elif, or loop over a table in a field",
            ) from e

    def _lowered(
        self,
        source: FunctionSource,
        args: Mapping[str, ArgSpec],
        how: LowerOptions,
        options: Options,
        device: Device,
        inputs: Inputs,
        base: str | None,
    ) -> tuple[CompiledKernel, list[object], Inputs]:
        """What ``kernel`` gives for a kernel that is not known. ``base``: the key to keep it by; None: it is not kept."""
        lowered = pipeline.lowered(source, args, how, inputs)
        buffers = field_buffers(lowered)
        owners = [b.owner for b in buffers]
        numbers = None if base is None else self._numbers(inputs, owners)
        if base is None or numbers is None:
            return self.lowered_kernel(lowered, options, device)[0], owners, inputs
        self._add_paths(base, [inputs.paths])
        key = keys.source_key(base, inputs)
        storage = Storage(key, numbers, partial(self._write_paths, base)) if options.offline_cache else None
        made = self._entry(key, device, lambda: CachedKernel.made(lowered, buffers, options, numbers, storage))
        return made.kernel, owners, inputs

    def _replayed(
        self, base: str, source: FunctionSource, args: Mapping[str, ArgSpec], options: Options, device: Device
    ) -> tuple[CompiledKernel, list[object], Inputs] | None:
        """The kernel that one of the known lists of paths leads to, with the rest of what ``kernel`` gives; None: it must be lowered."""
        for paths in self._paths(base, options.offline_cache):
            again = Inputs(source, args)
            if again.replay(paths, args):
                found = self._looked_up(keys.source_key(base, again), options, device)
                if found is not None and all(n < len(again.known.buffers) for n in found.numbers):
                    again.name_fields()
                    return found.kernel, [again.known.buffers[n].owner for n in found.numbers], again
        return None

    def lowered_kernel(self, lowered: Kernel, options: Options, device: Device) -> tuple[CompiledKernel, list[Buffer]]:
        """The kernel of freshly lowered IR, which is used up, and its own field buffers in the order of the kernel's."""
        buffers = field_buffers(lowered)
        key = keys.ir_key(lowered, buffers, options, device)
        return self._entry(key, device, lambda: CachedKernel.made(lowered, buffers, options)).kernel, buffers

    def clear(self) -> None:
        """Forget what this process knows; what lies on disk stays."""
        with self._lock:
            self._entries.clear()
            self._lists.clear()

    # ---- the table
    def _entry(self, key: str, device: Device, make: Callable[[], E]) -> CachedKernel | E:
        """The entry of a key; one thread makes it. Code is loaded on one device, while the key holds for every device of its kind."""
        key = f"{device.identity} {key}"
        known = self._known(key)
        if known is not None:
            return known
        with self._making.of(key):
            known = self._known(key)
            if known is not None:
                return known
            made = make()
            if made is not None:
                with self._lock:
                    self._entries[key] = made
                    if len(self._entries) > MOST:
                        self._entries.popitem(last=False)
            return made

    def _known(self, key: str) -> CachedKernel | None:
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries.move_to_end(key)
            return known

    def _looked_up(self, key: str, options: Options, device: Device) -> CachedKernel | None:
        """The entry of a source key, from this process or the disk."""

        def read() -> CachedKernel | None:
            storage = Storage(key) if options.offline_cache else None
            found = storage.load_forward(device) if storage is not None else None
            return None if found is None else CachedKernel(CompiledKernel(found[0], found[1], options, storage), found[2])

        return self._entry(key, device, read)

    def _numbers(self, inputs: Inputs, owners: list[object]) -> list[int] | None:
        """For the owner of each buffer its number among those that were looked up; None if the record of the lowering is not complete."""
        numbers = {id(b.owner): n for n, b in enumerate(inputs.known.buffers)}
        if inputs.refused or any(id(owner) not in numbers for owner in owners) or len(numbers) != len(inputs.known.buffers):
            self.refusals.append(inputs.refused or "memory that no path leads to")
            return None
        return [numbers[id(owner)] for owner in owners]

    # ---- lists of paths
    def _paths(self, base: str, on_disk: bool) -> list[list[Path]]:
        with self._lock:
            known = self._lists.get(base)
            if known is not None:
                self._lists.move_to_end(base)
                return list(known)
        lists = _read_paths(base) if on_disk else []
        with self._lock:
            return list(self._list(base, lists))

    def _list(self, base: str, lists: list[list[Path]]) -> list[list[Path]]:
        """The lists of a base key, which are these if it is new; the least recently used key goes."""
        found = self._lists.setdefault(base, lists)
        self._lists.move_to_end(base)
        if len(self._lists) > MOST:
            self._lists.popitem(last=False)
        return found

    def _add_paths(self, base: str, new: list[list[Path]], last: bool = False) -> list[list[Path]]:
        """Add lists, in front or behind the others; gives them all."""
        with self._lock:
            lists = self._list(base, [])
            new = [paths for paths in new if paths not in lists]
            lists[:] = [*lists, *new][:LISTS] if last else [*new, *lists][:LISTS]
            return list(lists)

    def _write_paths(self, base: str) -> None:
        """Add ours to what other processes have written in the meantime."""
        disk = disk_cache()
        if disk is not None:
            disk.put(base, json.dumps(self._add_paths(base, _read_paths(base), last=True)).encode(), {})


CACHE = CompileCache()
"""The cache of this process."""


def _read_paths(base: str) -> list[list[Path]]:
    disk = disk_cache()
    entry = disk.get(base) if disk else None
    if entry is None:
        return []
    try:
        return [[_tuples(path) for path in paths] for paths in json.loads(entry[0])]
    except (ValueError, TypeError):
        return []


def _tuples(x: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
