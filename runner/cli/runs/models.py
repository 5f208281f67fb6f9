"""The JSON documents of the commands in this folder."""

from __future__ import annotations

from typing import Any

from ..models import Data, Part, about


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
