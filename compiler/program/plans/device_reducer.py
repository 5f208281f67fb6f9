"""Evaluates the queries of plans about device arrays on the device, by small kernels that run before a gradient is planned.

See ``tape.bounds.queries`` for the questions and ``tape.bounds.reductions`` for the kernels. They are compiled on first use, by the same
code generator as all others. The programs of a process share their machine code, which is cached on disk. A launch leaves its words in the
device's scratch memory, from where they are copied: nothing is allocated, and no array is.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.abi import CTX_RET, CTX_SCRATCH, CTX_STATUS, SCRATCH_VALUES, STATUS_WORDS, arg_offsets
from ...compile.cache import CACHE
from ...errors import QdrunTypeError
from ...ir.nodes import ArgDecl, Buffer, Place
from ...ir.types import DType
from ...runtime.base import Allocation
from ...tape.bounds import reductions
from ...tape.bounds.enumerate import span
from ...tape.bounds.formulas import NotReducible
from ...tape.bounds.queries import IterationRange, Space
from ...tape.bounds.reductions import ReductionKernel
from ...tape.bounds.row_predicates import RowPredicate
from ...tape.bounds.sizeexpr import ElementRead, depends, parts
from ..memory.device_arrays import InOrder, NearArray

if TYPE_CHECKING:
    from ..call import Call
    from ..state import ProgramState

SMALL_ARRAY = 1 << 21
"""Arrays of at most this many bytes (of their block of memory) are copied and evaluated by numpy.

On an H200 that takes 0.6 ms for 1 MiB and 2.1 ms for 4 MiB; two queries to the device and a new plan take 1.0 ms (docs/benchmarks.md).
"""

ALL = 1 << 61
"""As ``few``: all values of a range count."""

PARALLEL, LEAST_LANES = 1 << 17, 1 << 5
"""Threads that a walk over ranges which depend on one another should have, and how many share the loops inside at least."""

MOST_TURNS = 1 << 40
"""Index tuples of the axes of one launch. More than a plan ever looks at, unless one of the inner ranges is empty everywhere."""


@dataclass(frozen=True, eq=False)
class _Loaded:
    """A kernel that answers a question, in one program: its entry, its launch context and status record (host memory)."""

    reduction: ReductionKernel
    entry: Callable[[int], None]
    context: np.ndarray
    status: np.ndarray


class DeviceReducers:
    """The reducing kernels of one gradient. Each is made when it is first asked for.

    Args:
        program: its program, on a device with memory of its own.
        name: of the gradient.
        args: its arguments.
        owners: the memory behind its field buffers.
    """

    def __init__(self, program: ProgramState, name: str, args: list[ArgDecl], owners: Mapping[Buffer, Allocation]) -> None:
        self.program, self.args, self.owners, self._name = program, args, owners, name
        self.offsets = arg_offsets(args)
        self._loaded: dict[object, _Loaded | None] = {}

    def loaded(self, key: object, make: Callable[[str], ReductionKernel]) -> _Loaded | None:
        """The kernel of a question; None: no kernel can be sure to give numpy's answer, or the device lacks a type that it needs."""
        if key not in self._loaded:
            try:
                self._loaded[key] = self._load(make(f"{self._name}_reduce_{len(self._loaded)}"))
            except (NotReducible, QdrunTypeError):
                self._loaded[key] = None
        return self._loaded[key]

    def _load(self, made: ReductionKernel) -> _Loaded:
        program, device = self.program, self.program.device
        # Each operation as exact as numpy's, whatever the gradient itself is compiled with.
        kernel, buffers = CACHE.lowered_kernel(made.kernel, replace(program.options, fast_math=False), device)
        compiled = kernel.forward.compiled(device)
        context, status = np.zeros(compiled.layout.words, np.uint64), np.zeros(STATUS_WORDS, np.uint64)
        device.fill_context(context, compiled)
        context[CTX_STATUS] = status.ctypes.data
        context[CTX_RET] = int(context[CTX_SCRATCH]) + 8 * SCRATCH_VALUES
        mine = dict(zip(kernel.buffers, buffers))
        for buffer, word in compiled.layout.buffers.items():
            context[word] = self.owners[mine[buffer]].ptr
        return _Loaded(made, device.entry(compiled), context, status)

    def run(self, loaded: _Loaded, numbers: Mapping[str, int], call: Call) -> list[int]:
        """Launch a kernel on the arguments of ``call`` and wait for its words, as unsigned numbers.

        Raises:
            DeviceError: the driver refuses the launch, or a kernel has failed.
            QdrunRuntimeError: a launch that ended since the last wait reports a failure.
        """
        program, made = self.program, loaded.reduction
        link: Any = program.device.link
        out = np.zeros(made.results, np.uint64)
        words = self._words(loaded, numbers, call)
        with program.admission.alone(), program.admission.running(), link.lock:
            for loan in call.loans:  # another library may be writing to what the launch reads, on a stream of its own
                if isinstance(loan, InOrder):
                    link.settle(loan.stream)
            at = int(loaded.context[CTX_RET])
            link.memset(at, 0, 2 * made.results, 4)
            loaded.entry(ctypes.addressof((ctypes.c_char * len(words)).from_buffer(words)))
            code = int(loaded.status[:1].view(np.int64)[0])
            if code:
                loaded.status[0] = 0
                raise program.device.launch_error(-code, made.kernel.name)
            link.download(out.ctypes.data, at, out.nbytes)
        link.arrived()
        return [int(x) for x in out]

    def _words(self, loaded: _Loaded, numbers: Mapping[str, int], call: Call) -> bytearray:
        """The argument buffer: numbers of the question, and words of the launch that it is about."""
        inputs = loaded.reduction.inputs
        parts = {inputs.numbers[name].index: numbers[name].to_bytes(8, "little", signed=True) for name in inputs.numbers}
        for index, mine in inputs.given.items():
            first = 8 * self.offsets[index]
            parts[mine.index] = bytes(call.words[first : first + 8 * (1 + mine.ndim)])
        return bytearray(loaded.context.ctypes.data.to_bytes(8, "little") + b"".join(parts[k] for k in sorted(parts)))


class LaunchReducer:
    """Answers the questions about one launch: ``queries.Reducer``."""

    def __init__(self, kernels: DeviceReducers, call: Call) -> None:
        self._kernels, self._call = kernels, call

    # ---- which arrays
    def far(self, place: Place) -> bool:
        """Whether an array is too large to be copied for a query. During the recording of a graph no query is possible."""
        return self._kernels.program.recording is None and place.pool is None and self._bytes(place) > SMALL_ARRAY

    def _bytes(self, place: Place) -> int:
        """Bytes that looking at an array copies; 0: it does not lie on the device."""
        memory = self._kernels.owners.get(place.buffer)
        if memory is not None:
            return 0 if memory.mirror is None else memory.mirror.spread(_form(place, memory))
        number = _number(place)
        if number not in self._call.at:
            return 0
        array: Any = self._call.arrays[number]
        mirror = self._call.mirrors.get(number)
        return array.nbytes if mirror is None else mirror.spread(array)

    def _answers(self, places: Iterable[Place]) -> bool:
        """Whether a kernel can and should look at these arrays: all lie on the device, none is empty, and one is far."""
        places = list(places)
        return any(map(self.far, places)) and all(p.pool is None and self._bytes(p) and 0 not in self._shape(p) for p in places)

    def _shape(self, place: Place) -> tuple[int, ...]:
        return self._call.arrays[_number(place)].shape[: place.ndim] if place.shape is None else place.shape

    def element(self, place: Place, at: tuple[int, ...]) -> np.generic:
        """See ``queries.Reducer``: copies the bytes of that element."""
        window = tuple(slice(k, k + 1) for k in at)
        memory = self._kernels.owners.get(place.buffer)
        if memory is not None:
            assert memory.mirror is not None
            return memory.mirror.copied(_form(place, memory)[(*window, ...)]).reshape(-1)[0]
        array: Any = self._call.arrays[_number(place)]
        component = place.offset // place.dtype.size
        if isinstance(array, NearArray):
            return _near_element(array, at, component)
        parts = array.reshape(*array.shape[: place.ndim], -1)[(*window, slice(component, component + 1))]
        return self._call.mirrors[_number(place)].copied(parts).reshape(-1)[0]

    # ---- questions
    def ends(self, read: ElementRead, window: tuple[tuple[int, int], ...], dtype: DType) -> tuple[int, int] | None:
        if not window or not self._answers([read.place]):
            return None
        loaded = self._kernels.loaded((read.place, dtype), lambda name: reductions.ends(name, read, dtype))
        if loaded is None:
            return None
        numbers = {f"{what}{k}": n for k, w in enumerate(window) for what, n in zip(("begin", "end"), w)}
        return reductions.decoded(self._kernels.run(loaded, numbers, self._call), dtype)

    def passing(self, gate: RowPredicate, extent: IterationRange) -> int | None:
        if not self._answers(x.place for x in gate.leaves() if isinstance(x, ElementRead)):
            return None
        loaded = self._kernels.loaded((gate, extent.used), lambda name: reductions.passing(name, gate, extent.used))
        if loaded is None:
            return None
        begins = {f"begin{k}": extent.begins[k] for k in extent.used}
        numbers = begins | {f"end{k}": extent.begins[k] + extent.sizes[k] for k in extent.used}
        return self._kernels.run(loaded, numbers, self._call)[0]

    def trips(self, space: Space) -> tuple[int, int] | None:
        exprs = [e for r in (space.loop, *space.used) for end in r.ends for e in parts(end)]
        if not space.used or not self._answers(dict.fromkeys(e.place for e in exprs if isinstance(e, ElementRead))):
            return None
        key = space.loop, space.used
        loaded = self._kernels.loaded(key, lambda name: reductions.trips(name, *key))
        numbers = None if loaded is None else _walk(space)
        if loaded is None or numbers is None:
            return None
        tuples = math.prod(n for name, n in numbers.items() if name.startswith("count") or name == "lanes")
        if not tuples:
            return 0, 0
        most, total = self._kernels.run(loaded, numbers, self._call) if tuples <= MOST_TURNS else (-1, -1)
        if most < 0:
            return None
        return most, total if most * tuples < 1 << 62 and not any(map(depends, space.used)) else -1


def _walk(space: Space) -> dict[str, int]:
    """The numbers that ``reductions.trips`` takes."""
    few = space.few or ALL
    numbers = {"few": few}
    width = 1
    for k, r in enumerate(space.used):
        if depends(r):
            continue
        begin, count = span(space, r)
        taken = min(count, 2 * few)
        numbers |= {f"begin{k}": begin, f"count{k}": taken, f"first{k}": min(count, few), f"jump{k}": count - taken}
        width *= taken
    if any(map(depends, space.used)):
        numbers["lanes"] = max(LEAST_LANES, -(-PARALLEL // max(1, width)))
    return numbers


def _form(place: Place, memory: Allocation) -> np.ndarray:
    """A component of a field as it lies in the mirror; its content may be old."""
    assert place.shape is not None and place.strides is not None
    return np.ndarray(place.shape, place.dtype.numpy, memory.view.data, place.offset, place.strides)


def _number(place: Place) -> int:
    """Which argument an array is."""
    owner = place.buffer.owner
    return owner.index if isinstance(owner, ArgDecl) else -1


def _near_element(array: NearArray, at: tuple[int, ...], component: int) -> np.generic:
    out = np.zeros(1, array.dtype)
    first = sum(k * stride for k, stride in zip(at, array.strides)) + component * array.dtype.itemsize
    array.link.settle(array.stream)
    array.link.download(out.ctypes.data, array.address + first, out.nbytes)
    array.link.arrived()
    return out[0]
