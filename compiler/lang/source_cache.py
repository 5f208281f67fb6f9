"""From a call to machine code without lowering: recipes by the source of the kernel and by everything that lowering looked up.

Two steps, because what lowering looks up is known only afterwards. The *base* key holds what every lowering of the kernel sees: its source,
the arguments, the options, the versions of everything that compiles. Under it lie the lists of paths that lowerings followed
(``frontend.inputs``). A list that can be followed again gives tokens, and base, paths and tokens together are the key of the result.

Entries lie in the folder of ``runtime.cache``, as files of the same form. Whatever is wrong with one, the kernel is lowered again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path as File
from typing import Any

import numpy as np

from ..frontend.inputs import Inputs
from ..frontend.lower import lower
from ..frontend.signature import ArgSpec, LowerOptions
from ..frontend.source import FunctionSource
from ..frontend.tokens import Path
from ..ir.nodes import Buffer
from ..ir.process import LOADED, collector_paused
from ..ir.threads import new_lock
from ..runtime import jit
from ..runtime.cache import disk_cache, key_of
from ..runtime.device import Device
from .options import Options, compile_choices
from .recipe import COOKBOOK, MOST, Recipe
from .show import show
from .stored import Ready, StoreError, pack, unpack

LISTS = 8
"""Lists of paths that are kept of one base key: a kernel whose ``static`` branches differ has several."""

FORMAT = "1"


class Shelf:
    """The entries of one source key on disk."""

    def __init__(self, key: str) -> None:
        self._key = key

    def get(self, kind: str, buffers: Sequence[Buffer], device: Device) -> tuple[Ready, Any] | None:
        """A compiled kernel, or None when there is none that is whole."""
        entry = self._entry(kind)
        return None if entry is None else self._unpack(kind, entry[0], buffers, device)

    def put(self, kind: str, made: Ready, buffers: Sequence[Buffer], found: Any, numbers: Sequence[int] = ()) -> None:
        """Keep a compiled kernel. One that cannot be stored is not kept, with a warning."""
        disk = disk_cache()
        if disk is not None:
            try:
                data = pack(made, buffers, kind, found)
            except StoreError as e:  # a fault of ours, or nesting that is too deep for Python
                message = f"kernel `{made.head.name}` ({kind}) is not kept on disk, each process compiles it again: {e}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                return
            disk.put(key_of(self._key, kind), data, {"name": made.head.name, "kind": kind, "numbers": list(numbers)})

    def open(self, options: Options, device: Device) -> tuple[Recipe, list[int]] | None:
        """The recipe of the forward kernel, and for each of its buffers the number that looking up gave it."""
        entry = self._entry("forward")
        numbers = None if entry is None else entry[1].get("numbers")
        if entry is None or not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
            return None
        buffers = [Buffer("field") for _ in numbers]
        forward = self._unpack("forward", entry[0], buffers, device)
        return None if forward is None else (Recipe.stored(forward[0], buffers, options, self), numbers)

    def _entry(self, kind: str) -> tuple[bytes, dict[str, Any]] | None:
        disk = disk_cache()
        return disk.get(key_of(self._key, kind)) if disk else None

    def _unpack(self, kind: str, data: bytes, buffers: Sequence[Buffer], device: Device) -> tuple[Ready, Any] | None:
        try:
            return unpack(data, buffers, kind, device)
        except StoreError:
            disk = disk_cache()
            if disk is not None:
                disk.discard(key_of(self._key, kind))
            return None


class SourceCache:
    """The recipes of this process by source key, and the way to those of other processes."""

    def __init__(self) -> None:
        self._lock = new_lock(self, "_lock")
        self._recipes: OrderedDict[str, tuple[Recipe, list[int]]] = OrderedDict()
        self._lists: dict[str, list[list[Path]]] = {}  # by base key
        self.lowered = 0  # kernels that had to be lowered
        self.refusals: deque[str] = deque(maxlen=64)  # why the last records of lowerings were not kept

    def recipe(
        self, source: FunctionSource, args: Mapping[str, ArgSpec], how: LowerOptions, options: Options, device: Device
    ) -> tuple[Recipe, list[object]]:
        """The recipe of a kernel for these arguments, and the owner of each of its buffers.

        Raises:
            QdrunCompilationError: see ``lower``.
        """
        inputs = Inputs(source, args)
        base = _base_key(inputs, how, options, device) if device.native and not os.environ.get("QDRUN_PRINT") else None
        if base is None or inputs.refused:
            self.lowered += 1
            return _cold(source, args, how, options, device, None)
        on_disk = options.offline_cache
        for paths in self._paths(base, on_disk):
            again = Inputs(source, args)
            if again.replay(paths, args):
                found = self._find(_full_key(base, again), on_disk, options, device)
                if found is not None and all(n < len(again.known.buffers) for n in found[1]):
                    again.name_fields()
                    return found[0], [again.known.buffers[n].owner for n in found[1]]
        self.lowered += 1
        recipe, owners = _cold(source, args, how, options, device, inputs)
        self._keep(base, inputs, recipe, owners, on_disk, device)
        return recipe, owners

    def _find(self, key: str, on_disk: bool, options: Options, device: Device) -> tuple[Recipe, list[int]] | None:
        here = _here(key, device)
        with self._lock:
            known = self._recipes.get(here)
            if known is not None:
                self._recipes.move_to_end(here)
        if known is None and on_disk:
            known = Shelf(key).open(options, device)
            if known is not None:
                known = self._remember(here, known)
        return known

    def _remember(self, here: str, made: tuple[Recipe, list[int]]) -> tuple[Recipe, list[int]]:
        """The first of several threads that made the same recipe wins."""
        with self._lock:
            made = self._recipes.setdefault(here, made)
            if len(self._recipes) > MOST:
                self._recipes.popitem(last=False)
            return made

    def _keep(self, base: str, inputs: Inputs, recipe: Recipe, owners: list[object], on_disk: bool, device: Device) -> None:
        """Remember what was lowered, if the record of it is complete."""
        numbers = {id(b.owner): n for n, b in enumerate(inputs.known.buffers)}
        if inputs.refused or any(id(owner) not in numbers for owner in owners) or len(numbers) != len(inputs.known.buffers):
            self.refusals.append(inputs.refused or "memory that no path leads to")
            return
        key, mine = _full_key(base, inputs), [numbers[id(owner)] for owner in owners]
        self._remember(_here(key, device), (recipe, mine))
        with self._lock:
            lists = self._lists.setdefault(base, [])
            if inputs.paths not in lists:
                lists.insert(0, inputs.paths)
                del lists[LISTS:]
        if on_disk:
            shelf = Shelf(key)
            if recipe.shelf is None:
                recipe.shelf = shelf

            def put() -> None:
                shelf.put("forward", recipe.forward, recipe.buffers, None, mine)
                self._write_paths(base)

            recipe.forward.once_compiled(put)

    def _paths(self, base: str, on_disk: bool) -> list[list[Path]]:
        with self._lock:
            known = self._lists.get(base)
            if known is not None:
                return list(known)
        lists = _read_paths(base) if on_disk else []
        with self._lock:
            return list(self._lists.setdefault(base, lists))

    def _write_paths(self, base: str) -> None:
        """Add ours to what other processes have written in the meantime."""
        disk = disk_cache()
        if disk is not None:
            with self._lock:
                lists = self._lists.setdefault(base, [])
                lists += [paths for paths in _read_paths(base) if paths not in lists]
                del lists[LISTS:]
                text = json.dumps(lists).encode()
            disk.put(base, text, {})

    def clear(self) -> None:
        """Forget what this process knows; what lies on disk stays."""
        with self._lock:
            self._recipes.clear()
            self._lists.clear()


SOURCES = SourceCache()


def _cold(
    source: FunctionSource,
    args: Mapping[str, ArgSpec],
    how: LowerOptions,
    options: Options,
    device: Device,
    inputs: Inputs | None,
) -> tuple[Recipe, list[object]]:
    """Lower, simplify, compile."""
    with collector_paused():
        lowered = show("lower", lower(source, dict(args), how, inputs))
        recipe, buffers = COOKBOOK.recipe(lowered, options, device)
        return recipe, [b.owner for b in buffers]


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


def _here(key: str, device: Device) -> str:
    """The key in this process: code is loaded on one device. On disk it is that of every device of its kind."""
    return f"{device.identity} {key}"


def _base_key(inputs: Inputs, how: LowerOptions, options: Options, device: Device) -> str | None:
    """The key of everything that is known before lowering; None when the compiler's own sources cannot be trusted to be what runs."""
    digest = compiler_digest()
    if digest is None:
        return None
    machine = jit.host()
    versions = (FORMAT, digest, jit.versions(), sys.version, np.__version__, machine.triple, machine.cpu, machine.features)
    kernel = inputs.known.sources[0]
    text = (kernel.name, kernel.file, str(kernel.first), *kernel.lines)
    made_for = device.arch, device.chip_key, *compile_choices(options)
    return key_of(*versions, repr(text), repr(inputs.tokens), repr(how), repr(made_for))


def _full_key(base: str, inputs: Inputs) -> str:
    return key_of(base, repr(inputs.paths), repr(inputs.tokens))


@cache
def compiler_digest() -> str | None:
    """A digest of the compiler's sources. None when they changed after this process began to load them: what runs is then unknown."""
    root = File(__file__).parents[1]
    h = hashlib.sha256()
    try:
        for path in sorted(root.rglob("*.py")):
            written = _written(path)
            if written >= LOADED - 2.0:
                if written >= LOADED:  # else it may be a fresh installation: not worth a word
                    _warn(f"{path} was written after this process began to load the compiler; start it again")
                return None
            data = path.read_bytes()
            h.update(f"{path.relative_to(root)} {len(data)}\n".encode())
            h.update(data)
    except OSError as e:
        _warn(f"the compiler's sources cannot be read ({e})")
        return None
    return h.hexdigest()


def _written(path: File) -> float:
    """When a file was written. A time in the future is somebody's clock: then the time when the file came to this machine counts."""
    stat = path.stat()
    return stat.st_mtime if stat.st_mtime <= time.time() else stat.st_ctime


def _warn(why: str) -> None:
    message = f"this process lowers every kernel again instead of looking for what other processes have compiled: {why}"
    warnings.warn(message, RuntimeWarning, stacklevel=2)


__all__ = ["SOURCES", "SourceCache", "compiler_digest"]
