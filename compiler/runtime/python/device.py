"""The Python device: kernels run on the reference interpreter, one iteration after another. For debugging, and the measure of meaning.

It stands at the same interface as machine code (``codegen.abi``): an entry takes the address of an argument buffer. The interpreter
keeps locals and adstack rows in dictionaries; the planned heap is provided, and stays untouched.
"""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ...codegen.abi import (
    CTX_RET,
    CTX_SEED,
    CTX_TMP,
    CTX_TMP_DUAL,
    CTX_TMP_GRAD,
    ContextLayout,
    address_word,
    arg_offsets,
    context_layout,
)
from ...errors import QdrunRuntimeError, describe
from ...ir.meaning import Scalar
from ...ir.nodes import ArgDecl, Buffer, Kernel, Print
from ...ir.walk import kernel_buffers, kernel_places
from ..base import Allocation, Device, host_bytes
from ..compiled import CompileOptions
from .interpret import InterpreterError, Memory, run_kernel

_CONTEXT_WORDS = {"ret": CTX_RET, "tmp": CTX_TMP, "tmp_grad": CTX_TMP_GRAD, "tmp_dual": CTX_TMP_DUAL}


@dataclass(frozen=True, slots=True, eq=False)
class Interpreted:
    """A kernel ready to be interpreted; the attributes are those of ``compiled.Compiled``."""

    kernel: Kernel
    layout: ContextLayout
    name: str
    address: int = 0
    lanes: int = 1
    narrow: frozenset[int] = frozenset()
    ordered: bool = False
    seconds: float = 0.0
    from_cache: bool = False
    prints: Sequence[Print] = ()
    messages: Sequence[Any] = ()  # what goes wrong is raised
    reported: set[Print] = field(default_factory=set)


class PythonDevice(Device):
    """The reference interpreter, with memory of the host."""

    name, arch, threads, native = "python", "python", 1, False

    def _allocate(self, nbytes: int, category: str) -> Allocation:
        return host_bytes(nbytes, category)

    def _free(self, allocation: Allocation) -> None:
        """The bytes go with the last view of them."""

    def compile(self, kernel: Kernel, options: CompileOptions) -> Interpreted:  # type: ignore[override]
        return Interpreted(kernel, context_layout(kernel), kernel.name)

    def entry(self, compiled: Interpreted) -> Callable[[int], None]:  # type: ignore[override]
        """Interprets; what the kernel reports is raised.

        Raises:
            QdrunAssertionError: an assert or a bounds check failed.
            AdStackOverflow: a loop ran further than its adstack was planned for.
            QdrunRuntimeError: an index outside of its array, with its line.
        """
        return lambda address: _run(compiled, address)


def _run(compiled: Interpreted, address: int) -> None:
    kernel, layout = compiled.kernel, compiled.layout
    args = _words(address, arg_offsets(kernel.args)[-1])
    context = _words(int(args[0]), layout.words)
    memory = Memory()
    scalars: dict[ArgDecl, int | float | bool] = {}
    for decl, word in zip(kernel.args, arg_offsets(kernel.args)):
        if decl.kind == "scalar":
            scalars[decl] = args[word : word + 1].view(np.uint8)[: decl.dtype.size].view(decl.dtype.numpy)[0].item()
        else:
            memory.shapes[decl] = tuple(int(n) for n in args[word + 1 : word + 1 + decl.ndim])
    for buffer in kernel_buffers(kernel):
        memory.bind(buffer, _bytes(buffer, kernel, args, context, layout, memory))
    params = {key: int(context[word : word + 1].view(np.int64)[0]) for key, word in layout.params.items()}
    seed, hooks = int(context[CTX_SEED]), {"write": sys.stdout.write, "stop": _stop, "reported": compiled.reported}
    try:
        run_kernel(kernel, memory, scalars, params=params, seed=seed, **hooks)
    except InterpreterError as e:
        raise QdrunRuntimeError(describe(str(e), e.loc, "keep indices inside of the array's shape")) from None


def _words(address: int, n: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint64 * n).from_address(address))


def _bytes(
    buffer: Buffer, kernel: Kernel, args: np.ndarray, context: np.ndarray, layout: ContextLayout, memory: Memory
) -> np.ndarray:
    """The memory behind a buffer, from the words that a launch supplies."""
    owner = buffer.owner
    if isinstance(owner, ArgDecl):
        word = arg_offsets(kernel.args)[owner.index] + address_word(buffer)
        nbytes = prod(memory.shapes[owner]) * prod(owner.element) * owner.dtype.size
        return _at(int(args[word]), nbytes)
    if buffer.kind in _CONTEXT_WORDS:
        count = len(kernel.returns) if buffer.kind == "ret" else len(kernel.tmps)
        return _at(int(context[_CONTEXT_WORDS[buffer.kind]]), 8 * count)
    nbytes = max(memory.end(place) for place in kernel_places(kernel) if place.buffer is buffer)
    return _at(int(context[layout.buffers[buffer]]), nbytes)


def _at(address: int, nbytes: int) -> np.ndarray:
    if nbytes == 0:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))


def _stop(site: Print, values: list[Scalar]) -> None:
    """A breakpoint: the debugger of ``sys.breakpointhook`` in a frame that stands at the user's line and holds the variables."""
    names: dict[str, Any] = {"__builtins__": __builtins__}
    left = iter(values)
    for name, shape in site.stop or ():
        components = [next(left) for _ in range(prod(shape))]
        names[name] = np.array(components).reshape(shape) if shape else components[0]
    tree = ast.parse("breakpoint()")
    if site.loc is not None:
        ast.increment_lineno(tree, site.loc.line - 1)
    exec(compile(tree, site.loc.file if site.loc else "<kernel>", "exec"), names)
