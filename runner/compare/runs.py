"""Two runs beside each other: their configs, their code, their versions, how they ended, and the numbers of the trials that both have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ..config.values import differing
from ..fields import about
from ..provenance.devices import devices_of, kinds_of
from ..provenance.record import Provenance, provenance_of
from ..store.layout import RunFolder
from ..store.status import status
from ..text_grid import grid
from .numbers import Comparison, compared

WIDTH = 60
"""Characters of a value of a config that are shown."""


@dataclass(frozen=True)
class ComparedRun:
    """One of two runs."""

    run: Annotated[str, about("its id")]
    folder: Annotated[str, about("its folder or URI")]
    state: Annotated[str, about("as in status")]
    trials: Annotated[int, about("number of trials")]
    counts: Annotated[str, about("number of trials by status, as text")]
    best: Annotated[float | None, about("smallest loss; null without one")]
    seconds: Annotated[float | None, about("from the start of the command to the end")]


@dataclass(frozen=True)
class RunPair:
    """Two runs beside each other. Pairs have a value of the first run and one of the second.

    A trial is named by its parameters, so that sweeps of other values have fewer trials in common.
    """

    runs: Annotated[tuple[ComparedRun, ComparedRun], about("both runs")]
    config: Annotated[
        dict[str, tuple[Any, Any]],
        about("keys of the resolved configs with other values, each with the pair; null: a config lacks it"),
    ]
    sources: Annotated[list[str], about("files of the jobs that differ, or that one run lacks")]
    versions: Annotated[
        dict[str, tuple[str, str]], about("versions that differ: Python, packages, the sources of qdrun, each with the pair")
    ]
    devices: Annotated[tuple[list[str], list[str]], about("kinds of devices of each run")]
    numbers: Annotated[Comparison, about("the numbers of the trials that both have")]
    only: Annotated[tuple[int, int], about("number of trials that one run alone has")]
    html: Annotated[str | None, about("with --html: the page")] = None

    def ends(self) -> list[list[str]]:
        """How the runs ended: a name, and the value of each run."""
        names = ("state", "trials", "counts", "best", "seconds")
        return [[name, *(shown(getattr(run, name)) for run in self.runs)] for name in names]

    @property
    def text(self) -> str:
        """As lines of text."""
        first, second = (run.run for run in self.runs)
        rows = self.ends()
        rows += [["devices", *(", ".join(kinds) or "-" for kinds in self.devices)]] if any(self.devices) else []
        parts = [grid(["", first, second], rows)]
        if self.config:
            parts.append(grid(["config", first, second], [[key, *map(shown, values)] for key, values in self.config.items()]))
        else:
            parts.append("config: equal")
        parts.append(f"code: {', '.join(self.sources)} differ" if self.sources else "code: equal")
        parts += (
            [grid(["version", first, second], [[name, *pair] for name, pair in self.versions.items()])] if self.versions else []
        )
        parts.append(f"trials: {self.common} of both, {self.only[0]} of the first alone, {self.only[1]} of the second alone")
        return "\n\n".join([*parts, *([self.numbers.text] if self.common else [])])

    @property
    def common(self) -> int:
        """The number of trials that both have."""
        found = self.numbers
        return sum(map(len, (found.equal, found.close, found.different, found.not_compared)))


def shown(value: Any) -> str:
    """A value of a config or of a run as text of at most ``WIDTH`` characters."""
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= WIDTH else text[: WIDTH - 2] + ".."


def pair_of(first: RunFolder, second: RunFolder, tolerance: float = 0.0) -> RunPair:
    """Compare two runs, finished or not, from their folders alone.

    Args:
        first: a run.
        second: another.
        tolerance: largest relative difference of numbers that count as equal.

    Raises:
        Damaged: a config, or a file of arrays, is not as it was written.
    """
    configs, ids = (first.config(), second.config()), (first.trial_ids(), second.trial_ids())
    keys = [key for key in differing(*configs) if key != "overrides"]
    both = [name for name in ids[0] if name in set(ids[1])]
    made = provenance_of(first.files), provenance_of(second.files)
    return RunPair(
        runs=(_end(first), _end(second)),
        config={key: (_at(configs[0], key), _at(configs[1], key)) for key in keys},
        sources=_other_sources(*made),
        versions=_other_versions(*made),
        devices=(kinds_of(devices_of(first)), kinds_of(devices_of(second))),
        numbers=compared(first, second, both, tolerance),
        only=(len(ids[0]) - len(both), len(ids[1]) - len(both)),
    )


def _end(folder: RunFolder) -> ComparedRun:
    found = status(folder)
    best, timing = found["best"], found["timing"] or {}
    counts = ", ".join(f"{count} {word}" for word, count in sorted(found["counts"].items()))
    head = (folder.name, folder.uri, found["state"], found["trials"], counts)
    return ComparedRun(*head, best=None if best is None else best["loss"], seconds=timing.get("ended_s"))


def _at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, whose parts may have dots of their own; None: there is none."""
    if key in config:
        return config[key]
    for name, value in config.items():
        if isinstance(value, Mapping) and key.startswith(f"{name}."):
            return _at(value, key[len(name) + 1 :])
    return None


def _other_sources(first: Provenance | None, second: Provenance | None) -> list[str]:
    a, b = ({} if one is None else {file.path: file.sha256 for file in one.sources} for one in (first, second))
    return sorted(path for path in {*a, *b} if a.get(path) != b.get(path))


def _other_versions(first: Provenance | None, second: Provenance | None) -> dict[str, tuple[str, str]]:
    if first is None or second is None:
        return {}
    a, b = ({"Python": one.python, "qdrun (sources)": one.qdrun[:12], **one.packages} for one in (first, second))
    return {name: (a.get(name, "-"), b.get(name, "-")) for name in {**a, **b} if a.get(name) != b.get(name)}


__all__ = ["RunPair", "pair_of", "shown"]
