"""The launches of one run of a job, recorded at its second run and made again without Python after that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DIRECT = 1
"""Runs whose launches are made one by one: they compile the kernels and provide the memory."""


class Recorded:
    """Runs a function that launches the same each time.

    Attributes:
        why: why it is not recorded; empty where it is, or has not been tried yet.

    Args:
        program: the current one when it runs.
        launch: the function.
        rehearse: raises where what it launches may differ from run to run.
    """

    def __init__(self, program: Any, launch: Callable[[], None], rehearse: Callable[[], object]) -> None:
        self._program, self._launch, self._rehearse = program, launch, rehearse
        self._graph: Any = None
        self._direct = 0
        self.why = ""

    def run(self) -> None:
        """Run the function, or what was recorded of it."""
        if self._graph is not None and self._graph.stale():  # other gradients have needed another heap, or bounds have changed
            self.forget()
        if self._graph is None and self._direct >= DIRECT and not self.why:
            self._record()
        if self._graph is not None:
            self._graph()
            return
        self._direct += 1
        self._launch()

    def _record(self) -> None:
        import qdrun as qd

        if self._program.records():
            self.why = "launches are checked one by one"
            return
        try:
            self._rehearse()
            self._graph = qd.capture(self._launch)
        except qd.QdrunRuntimeError as error:
            self.why = str(error).splitlines()[0]

    def forget(self) -> None:
        """Record anew, after another run."""
        if self._graph is not None:
            self._graph.close()
        self._graph, self._direct = None, 0


__all__ = ["Recorded"]
