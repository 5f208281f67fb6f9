"""Conditional nodes of CUDA graphs: parts of a recorded graph that the device runs again, or leaves out.

A stream records into one graph at a time. So a part begins with the end of the recording: what was recorded gets a conditional node, whose
body is a graph of its own, and the stream goes on with that. At the end of the part it goes on behind the node.
"""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ...codegen.abi import SCRATCH_PAUSED
from ...ir.threads import new_lock
from ..gpu.driver import DeviceFlag

OLDEST = 12040
"""The CUDA version of the driver that has nodes of both kinds."""

_SET, _PAUSE = "qd_condition", "qd_pause"
_READ = """\
  { .param .b64 x; .param .b32 y; .param .b32 z;
  st.param.b64 [x], %a;
  st.param.b32 [y], %n;
  call.uni (z), is_set, (x, y);
  ld.param.b32 %any, [z]; }
"""
"""Whether the number at %a, of %n bytes, is set: %any."""
PTX = f"""
.version 8.0
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 condition, .param .b32 value);

.func (.param .b32 found) is_set(.param .b64 address, .param .b32 nbytes)
{{
  .reg .b64 %at;
  .reg .b32 %n, %byte, %any;
  .reg .pred %p;
  ld.param.u64 %at, [address];
  ld.param.u32 %n, [nbytes];
  setp.eq.u32 %p, %n, 0;
  selp.u32 %any, 1, 0, %p;
  @%p bra END;
NEXT:
  ld.global.u8 %byte, [%at];
  or.b32 %any, %any, %byte;
  add.u64 %at, %at, 1;
  sub.u32 %n, %n, 1;
  setp.ne.u32 %p, %n, 0;
  @%p bra NEXT;
END:
  st.param.b32 [found], %any;
  ret;
}}

.visible .entry {_SET}(.param .u64 condition, .param .u64 address, .param .u32 nbytes, .param .u64 scratch)
{{
  .reg .b64 %c, %a, %s;
  .reg .b32 %n, %any, %paused;
  .reg .pred %p;
  ld.param.u64 %c, [condition];
  ld.param.u64 %a, [address];
  ld.param.u32 %n, [nbytes];
  ld.param.u64 %s, [scratch];
{_READ}  ld.global.u32 %paused, [%s+{8 * SCRATCH_PAUSED}];
  setp.ne.u32 %p, %any, 0;
  selp.u32 %any, 1, 0, %p;
  setp.ne.u32 %p, %paused, 0;
  selp.u32 %any, 0, %any, %p;
  {{ .param .b64 x; .param .b32 y;
  st.param.b64 [x], %c;
  st.param.b32 [y], %any;
  call.uni cudaGraphSetConditional, (x, y); }}
  ret;
}}

.visible .entry {_PAUSE}(.param .u64 address, .param .u32 nbytes, .param .u32 mark, .param .u64 scratch)
{{
  .reg .b64 %a, %s;
  .reg .b32 %n, %any, %m;
  .reg .pred %p;
  ld.param.u64 %a, [address];
  ld.param.u32 %n, [nbytes];
  ld.param.u32 %m, [mark];
  ld.param.u64 %s, [scratch];
{_READ}  setp.ne.u32 %p, %any, 0;
  @%p st.global.u32 [%s+{8 * SCRATCH_PAUSED}], %m;
  ret;
}}
"""
"""Code that decides, on one thread. The driver's linker knows ``cudaGraphSetConditional``."""

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_DOING = "recording a loop of a graph failed"
_functions: dict[int, dict[str, Any]] = {}  # by context: never unloaded, as that waits for the device
_lock = new_lock(sys.modules[__name__], "_lock")


class CudaConditions:
    """See ``gpu.driver.Conditions``.

    Args:
        d: the bindings.
        call: calls a function of them in the context, and raises its failure.
        context: the handle of the context.
        load: loads PTX, for the module's handle.
        capture: the kind of recording.
    """

    def __init__(self, d: Any, call: Callable[..., Any], context: int, load: Callable[[bytes, str], int], capture: Any) -> None:
        self._d, self._call, self._context, self._capture = d, call, context, capture
        self._open: defaultdict[int, list[tuple[Any, Any]]] = defaultdict(list)  # graph and node of each open part, by streams
        with _lock:
            if context not in _functions:
                module = load(PTX.encode(), "conditions")
                _functions[context] = {n: call(_DOING, d.cuModuleGetFunction, module, n.encode()) for n in (_SET, _PAUSE)}
            self._functions = _functions[context]

    def _recorded(self, stream: int) -> tuple[Any, Any, int]:
        """The graph that the stream records into, and the nodes that come last, with their number."""
        info = getattr(self._d, "cuStreamGetCaptureInfo_v3", None) or self._d.cuStreamGetCaptureInfo  # renamed in CUDA 13
        _, _, graph, last, *_, count = self._call(_DOING, info, stream)
        return graph, last, count

    def new(self, stream: int) -> int:
        make = self._d.cuGraphConditionalHandleCreate
        return int(self._call(_DOING, make, self._recorded(stream)[0], self._context, 0, 0))

    def _launch(self, name: str, stream: int, *arguments: tuple[int, Any]) -> None:
        values, types = zip(*arguments)
        grid = 1, 1, 1, 1, 1, 1, 0
        self._call(_DOING, self._d.cuLaunchKernel, self._functions[name], *grid, stream, (values, types), 0)

    def set(self, condition: int, word: DeviceFlag, scratch: int, stream: int) -> None:
        self._launch(_SET, stream, (condition, _U64), (word.address, _U64), (word.nbytes, _U32), (scratch, _U64))

    def pause(self, word: DeviceFlag, mark: int, scratch: int, stream: int) -> None:
        self._launch(_PAUSE, stream, (word.address, _U64), (word.nbytes, _U32), (mark, _U32), (scratch, _U64))

    def begin(self, condition: int, again: bool, stream: int) -> None:
        """A conditional node behind what was recorded."""
        d = self._d
        graph, last, count = self._recorded(stream)
        self._call(_DOING, d.cuStreamEndCapture, stream)
        made = d.CUgraphNodeParams()
        made.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        kinds, node = d.CUgraphConditionalNodeType, made.conditional
        node.handle, node.size, node.ctx = d.CUgraphConditionalHandle(condition), 1, d.CUcontext(self._context)
        node.type = kinds.CU_GRAPH_COND_TYPE_WHILE if again else kinds.CU_GRAPH_COND_TYPE_IF
        add = getattr(d, "cuGraphAddNode_v2", None) or d.cuGraphAddNode  # renamed in CUDA 13
        self._open[stream].append((graph, self._call(_DOING, add, graph, last, None, count, made)))
        self._call(_DOING, d.cuStreamBeginCaptureToGraph, stream, node.phGraph_out[0], None, None, 0, self._capture)

    def end(self, stream: int) -> None:
        """Go on behind the node."""
        self._call(_DOING, self._d.cuStreamEndCapture, stream)
        graph, node = self._open[stream].pop()
        self._call(_DOING, self._d.cuStreamBeginCaptureToGraph, stream, graph, [node], None, 1, self._capture)


def has_conditions(d: Any) -> bool:
    """Whether the bindings and the driver have conditional nodes. The driver is initialised."""
    code, version = d.cuDriverGetVersion()
    return not int(code) and version >= OLDEST and hasattr(d, "cuStreamBeginCaptureToGraph")
