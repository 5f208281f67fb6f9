"""The JSON documents of the commands in this folder."""

from __future__ import annotations

from typing import Any

from ..models import Data, Part, about, may


class DifferencePart(Part):
    """A number that is not what it was."""

    column: str = about("name of the column")
    then: Any = about("the value in the earlier run; of an array, where the two differ most")
    now: Any = about("the value in the new run")
    relative: Any = about(
        "the difference relative to the largest magnitude in either; `Infinity`: one is missing or not finite"
    )


class ComparisonPart(Part):
    """The numbers of trials in two runs: losses, gradients, outputs, and how trials ended."""

    tolerance: float = about("largest relative difference of numbers that count as equal")
    equal: list[str] = about("trials with numbers that are equal to the bit")
    close: list[str] = about("trials with numbers that are equal within the tolerance")
    worst: float = about("largest relative difference of these")
    different: dict[str, list[DifferencePart]] = about("other trials, each with the numbers that differ")
    not_compared: list[str] = about("trials that have no row in one of the runs")


class Rerun(Part):
    """A run that was made from the folder of an earlier one, and its numbers beside that one's."""

    of: str = about("id of the earlier run")
    numbers: ComparisonPart = about("the numbers of both")
    changed: list[str] = about("what is other than when the earlier run was made: versions of packages")
    ended: Data = about("end of the new run, as for submit")
    exit_code: int = about("exit code of the command")


class Export(Part):
    """What was handed on to trackers."""

    run: str = about("its id")
    trackers: list[str] = about("names of the trackers that have all of it")
    trials: int = about("number of trials")
    points: int = about("number of points of their live values")
    notes: list[str] = about("what went wrong or was left out")
    exit_code: int = about("exit code of the command")


class ComparedRun(Part):
    """One of two runs."""

    run: str = about("its id")
    folder: str = about("its folder or URI")
    state: str = about("as in status")
    trials: int = about("number of trials")
    counts: str = about("number of trials by status, as text")
    best: Any = about("smallest loss; null without one")
    seconds: float | None = about("from the start of the command to the end")


class Compare(Part):
    """Two runs beside each other. Pairs have a value of the first run and one of the second."""

    runs: list[ComparedRun] = about("both runs")
    config: dict[str, list[Any]] = about(
        "keys of the resolved configs with other values, each with the pair; null: a config lacks it"
    )
    sources: list[str] = about("files of the jobs that differ, or that one run lacks")
    versions: dict[str, list[str]] = about("versions that differ: Python, packages, the sources of qdrun, each with the pair")
    devices: list[list[str]] = about("kinds of devices of each run")
    numbers: ComparisonPart = about("the numbers of the trials that both have")
    only: list[int] = about("number of trials that one run alone has")
    html: str | None = may("with --html: the page")


class NotePart(Part):
    """A note."""

    t: float = about("when it was written, in seconds since 1970")
    text: str = about("what it says")


class Tag(Part):
    """The tags and notes of a run."""

    run: str = about("its id")
    tags: list[str] = about("its tags, sorted")
    notes: list[NotePart] = about("its notes, the oldest first")


class RemovedRun(Part):
    """A run that goes."""

    run: str = about("its id")
    folder: str = about("its folder or URI")
    state: str = about("as in status")
    age_s: float | None = about("seconds since it was made; null if unknown")
    tags: list[str] = about("its tags")
    files: int = about("number of files")
    bytes: int = about("their size")
    stays: list[str] = about("names in its folder that are no part of a run")


class RemovedEntry(Part):
    """An entry of a cache that goes."""

    path: str = about("its folder")
    kind: str = about("data: downloaded inputs; kept: code of runs that ran again; cells: jobs of notebooks")
    age_s: float = about("seconds since its last use")
    bytes: int = about("its size")


class Rm(Part):
    """What was removed, or would be."""

    runs: list[RemovedRun] = about("runs")
    caches: list[RemovedEntry] = about("entries of caches")
    bytes: int = about("size of all")
    removed: bool = about("whether it was removed; false: it would be, with --yes")
