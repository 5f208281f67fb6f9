"""The calls of ``Driver`` that all drivers with command streams answer alike."""

from __future__ import annotations

import itertools
from typing import Any, Generic

from .stream import CommandDevice, S


class CommandDriver(Generic[S]):
    """A driver whose streams are command streams. See ``Driver``."""

    conditions, together_address = None, 0

    def __init__(self) -> None:
        self.launch_address = self.memset_address = 0
        self._commands: CommandDevice[Any] | None = None
        self._streams: dict[int, S] = {}
        self._graphs: dict[int, bytearray] = {}
        self._numbers = itertools.count(0x1000, 16)  # handles of what has no address: modules, events, graphs

    def _open(self, commands: CommandDevice[Any]) -> None:
        """Use a device from now on."""
        self._commands = commands
        self.launch_address, self.memset_address = commands.recorder.launch_address, commands.recorder.memset_address

    def share(self, index: int) -> None:
        """No effect: threads that wait sleep."""

    def bind(self) -> None:
        """No effect: no device belongs to a thread."""

    def explain(self) -> str:
        """See ``Driver``."""
        return self._commands.explain() if self._commands else ""

    def memset_rows(self, ptr: int, step: int, word: int, count: int, width: int, rows: int, stream: int) -> None:
        """In the stream, by a kernel."""
        self._streams[stream].fill_rows(ptr, step, word, count, width, rows)

    def native_copy(self, stream: int) -> int:
        """By kernels."""
        return self._streams[stream].copier()

    def copy_rows(self, dst: int, dst_step: int, src: int, src_step: int, nbytes: int, rows: int, stream: int) -> None:
        """In the stream, by a kernel."""
        self._streams[stream].copy_rows(dst, dst_step, src, src_step, nbytes, rows)

    # ---- graphs
    def capture_begin(self, stream: int) -> None:
        """All that is put into the stream is recorded, by every thread."""
        self._streams[stream].begin_capture()

    def capture_end(self, stream: int) -> int:
        """The list of what was recorded."""
        graph, number = self._streams[stream].end_capture(), next(self._numbers)
        self._graphs[number] = graph
        return number

    def graph_launch(self, graph: int, stream: int) -> None:
        """Machine code puts all of it into the stream again."""
        self._streams[stream].replay(self._graphs[graph])

    def graph_free(self, graph: int) -> None:
        """Forget a graph."""
        self._graphs.pop(graph, None)
