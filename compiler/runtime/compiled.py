"""A kernel in memory, and how it was compiled: what every backend gives to the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..codegen.abi import ContextLayout, Message
from ..ir.nodes import Loop, LoopOrder, Op, Print, RowOrder, Task
from . import jit


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options of a kernel's compilation.

    ``plain``: atomics that no other iteration can affect; ``ordered``: those whose order decides bits, which a CPU executes in the order
    of the iterations; ``rows``, ``loops``: the order of some of its loops; ``lanes``, ``narrow``: see ``target.SimdWidth``;
    ``fast_math``: a GPU may approximate f32; ``trials``: of a batched kernel, the trials of a group.
    """

    opt_level: int = 2
    lanes: int = 1
    narrow: frozenset[int] = frozenset()
    offline_cache: bool = True
    plain: frozenset[Op] = frozenset()
    ordered: frozenset[Op] = frozenset()
    rows: Mapping[Task, RowOrder] = field(default_factory=dict)
    loops: Mapping[Loop, LoopOrder] = field(default_factory=dict)
    fast_math: bool = False
    trials: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A kernel in memory. It must outlive every launcher that holds its ``address``.

    Attributes:
        chunk: of a batched kernel on the CPU, ``void chunk(ptr args, i64 begin, i64 end, i64 worker)``: runs the trials [begin, end) from
            the first task to the last; ``begin`` is a multiple of the group's width. No other worker of this number runs meanwhile.
        lanes, narrow: see ``target.SimdWidth``.
        ordered: launches must not overlap: some of its atomics are no instructions of the machine that are atomic.
        function_names: of the device functions of a GPU, in the order of the launches.
    """

    name: str
    address: int
    layout: ContextLayout
    messages: list[Message]
    task_names: list[str]  # of each message
    prints: list[Print]
    lanes: int
    seconds: float
    from_cache: bool
    code: jit.LoadedCode
    function_names: tuple[str, ...] = ()
    chunk: int = 0
    narrow: frozenset[int] = frozenset()
    ordered: bool = False

    @property
    def object_bytes(self) -> bytes:
        """The relocatable object file."""
        return self.code.object_bytes
