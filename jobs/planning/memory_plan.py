"""The classes of a memory plan, and the interface that a job must have to be planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

CODE = "code"
OF_THE_DEVICE = ("driver", "frames", "rounding")
"""Kinds that the process takes of a device beside its program."""
BESIDE = frozenset((CODE, *OF_THE_DEVICE))
"""Kinds that are no part of the program's bytes."""
Launches = list[tuple[Any, tuple[Any, ...]]]
"""Kernels with their arguments."""


class PlanEntry(BaseModel):
    """One entry of a memory plan: ``bytes`` of one ``kind``, their source, and their formula.

    ``plane``: of an adstack entry, the word type. ``where``: file and line of the loop with the most bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    bytes: int
    source: str
    formula: str = ""
    plane: str = ""
    where: str = ""


class MemoryPlan(BaseModel):
    """The memory of one trial, known before it runs.

    Attributes:
        entries: kinds ``state``, ``gradients``, ``adstack`` (one for each plane), ``snapshots``, ``temporaries``, ``context``, ``code``,
            and on a GPU ``driver``, ``frames`` and ``rounding``.
        arch: the backend of the plan.
        budget: ``memory_budget`` of the program in bytes, None without one.
        whole: False: the job names no ``launches``, so that heaps, contexts and temporaries of its kernels are not in it.
        notes: what would make the trial faster on this backend, each with the user's line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    entries: tuple[PlanEntry, ...] = ()
    arch: str = "cpu"
    budget: int | None = None
    whole: bool = True
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The peak bytes of the program: all entries except ``code`` and those that the trials of a process share."""
        return sum(entry.bytes for entry in self.entries if entry.kind not in BESIDE)

    @property
    def footprint(self) -> int:
        """The bytes that the trial takes of a device: ``bytes``, and the overhead of the process on a GPU."""
        return self.bytes + sum(entry.bytes for entry in self.entries if entry.kind in OF_THE_DEVICE)

    @property
    def code_bytes(self) -> int:
        """Machine code of the trial's kernels."""
        return self.by_kind().get(CODE, 0)

    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind, in the order of the entries."""
        kinds: dict[str, int] = {}
        for entry in self.entries:
            kinds[entry.kind] = kinds.get(entry.kind, 0) + entry.bytes
        return kinds

    def of_program(self) -> dict[str, int]:
        """What ``Job.used`` gives where the plan is right: bytes of each kind that the program holds, not what its process takes beside."""
        return {kind: n for kind, n in self.by_kind().items() if n and kind not in OF_THE_DEVICE}

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {"bytes": self.bytes, "by_kind": self.by_kind(), **self.model_dump()}

    def table(self) -> Any:
        """The plan as a ``rich`` table; ``rich.print(plan)`` shows it."""
        from rich.table import Table

        out = Table(title=f"{self.bytes:,} bytes on {self.arch}", title_justify="left")
        for name in ("kind", "bytes", "from", "how"):
            out.add_column(name, justify="right" if name == "bytes" else "left")
        for entry in self.entries:
            out.add_row(entry.kind, f"{entry.bytes:,}", entry.source, entry.formula)
        return out

    __rich__ = table

    def __str__(self) -> str:
        from rich.console import Console

        stream = StringIO()
        Console(file=stream, width=1000, no_color=True, force_terminal=False).print(self.table())
        return "\n".join(line.rstrip() for line in stream.getvalue().rstrip("\n").splitlines())


class PlannedJob(Protocol):
    """A job as its plan sees it. ``job.Job`` says what each of these is."""

    params: Any
    wanted: tuple[str, ...]
    program: Any
    window: int
    machine_code: bool
    optimizer: Any

    @property
    def steps_plan(self) -> Any:
        """See ``Job``."""
        ...

    def repeated_kernel(self) -> str:
        """See ``Job``."""
        ...

    def time_steps(self) -> int:
        """See ``Job``."""
        ...

    def state(self) -> Sequence[Any]:
        """See ``Job``."""
        ...

    def scratch(self) -> Sequence[Any]:
        """See ``Job``."""
        ...

    def temporaries(self) -> Sequence[Any]:
        """See ``Job``."""
        ...

    def logs(self) -> Sequence[Any]:
        """See ``Job``."""
        ...

    def launches(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """See ``Job``."""
        ...

    def allocates(self) -> Iterable[PlanEntry]:
        """See ``Job``."""
        ...

    def why_built_again(self) -> str:
        """See ``Job``."""
        ...

    def plan(self, *, arch: str | None = None) -> MemoryPlan:
        """See ``Job``."""
        ...

    def shape_key(self, params: Any) -> dict[str, Any]:
        """See ``Job``."""
        ...
