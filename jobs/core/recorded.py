"""The launches of one run of a job, recorded at its second run and made again without Python after that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DIRECT = 1
"""Runs whose launches are made one by one: they compile the kernels and provide the memory."""


class Recorded:
    """Runs a function that launches the same each time, and begins each run with the same content of what the launches write.

    Attributes:
        why: why it is not recorded; empty where it is, or has not been tried yet.

    Args:
        program: the current one when it runs.
        launch: the function.
        first: what it begins with, see ``FirstValues``.
        clean: nothing has run in the program yet.
        why: see above.
    """

    def __init__(self, program: Any, launch: Callable[[], None], first: Any, clean: bool, why: str = "") -> None:
        self._program, self._launch, self._first, self._clean = program, launch, first, clean
        self._graph: Any = None
        self._direct = 0
        self.why = why

    @property
    def once(self) -> Mapping[str, int]:
        """See ``Graph.once``; empty where nothing is recorded."""
        return {} if self._graph is None else self._graph.once

    def run(self) -> None:
        """Run the function, or what was recorded of it."""
        self._first.begin()
        if self._graph is None and self._direct >= DIRECT and not self.why:
            self._record()
        if self._graph is not None:
            if not self._first.recordable:
                self._first.put_back()
            if not self._graph.launch():
                return
            self._forget()  # other gradients have needed another heap, or bounds have changed
        if not self._clean:
            self._first.put_back()
        self._direct, self._clean = self._direct + 1, False
        self._launch()

    @property
    def how(self) -> str:
        """How the last run was launched, as ``Job.launched`` says it."""
        if self._graph is None:
            return f"one by one: {self.why}" if self.why else "one by one, as a first run is"
        return f"recorded: {self._graph.how}"

    def _record(self) -> None:
        import qdrun as qd

        try:
            self._graph = qd.capture(self._again if self._first.recordable else self._launch)
        except qd.QdrunRuntimeError as error:
            self.why = str(error).splitlines()[0].partition(", while the graph of ")[0]

    def _again(self) -> None:
        self._first.put_back()
        self._launch()

    def _forget(self) -> None:
        """Record anew, after another run."""
        self._graph.close()
        self._graph, self._direct = None, 0


__all__ = ["Recorded"]
