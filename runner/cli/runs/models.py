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


class MeasurePart(Part):
    """How much the loss depends on one parameter."""

    name: str = about("name of the parameter")
    numbers: int = about("number of its numbers")
    elasticity: Any = about("mean of d ln(loss) / d ln(parameter) over the points")
    elasticity_spread: Any = about("standard deviation of it over the points")
    elasticity_error: Any = about("standard error of the mean from repeats; null without repeats")
    effect: Any = about(
        "mean magnitude of the change of the loss over the width of the parameter, or for a change of it by 100 %"
    )
    effect_error: Any = about("standard error of it from repeats; null without repeats")
    width: float | None = about(
        "from its least to its largest value in the sweep; null where it has one value or several numbers"
    )
    total_bound: Any = about("upper bound of its total Sobol index, for independent uniform parameters; null without a width")


class InteractionPart(Part):
    """How much two parameters interact."""

    one: str = about("name of a parameter")
    other: str = about("name of another one")
    strength: Any = about("mixed second derivative times both widths, as a share of the range of the losses")
    pairs: int = about("pairs of points that it was computed from; 0: from a fit of all points")


class TrialHealthPart(Part):
    """The gradient of one trial."""

    trial: str = about("its id")
    norm: Any = about("Euclidean norm of its gradient, over all parameters")
    growth: Any = about("the norm to the power of 1 / time steps; null where the steps are not known")
    fault: str = about("what is wrong with it; empty where nothing is")


class ContradictionPart(Part):
    """Two neighbours in the sweep whose losses differ otherwise than their gradients say."""

    parameter: str = about("the parameter in which they differ")
    trials: list[str] = about("their ids")
    slope: Any = about("difference of the losses divided by that of the parameter")
    low: Any = about("least derivative at these and the next points")
    high: Any = about("largest derivative at these and the next points")


class CheckedTrialPart(Part):
    """One trial beside differences of its loss."""

    trial: str = about("its id")
    agrees: bool = about("whether all gradients agree with their differences")
    worst: float | None = about("largest relative error of those that can be compared; null where there is none")
    error: str = about("why it could not be checked; empty where it was")


class Sensitivity(Part):
    """What the gradients of a run say about its parameters."""

    run: str = about("its id")
    trials: int = about("number of trials with a loss and gradients")
    points: int = about("number of different points; trials at one point are repeats")
    skipped: int = about("number of other trials")
    parameters: list[MeasurePart] = about("the parameters with a gradient, the largest effect first")
    interactions: list[InteractionPart] = about("pairs of swept parameters, the strongest first")
    health: list[TrialHealthPart] = about("the trials, in the order of the sweep")
    contradictions: list[ContradictionPart] = about("neighbours that contradict their gradients, the worst first")
    compared: int = about("pairs of neighbours that were looked at")
    checks: list[CheckedTrialPart] = about("with `--check N`: N trials beside differences of their losses")


class SearchRound(Part):
    """One round of a search."""

    run: str = about("id of its run, below `rounds` in the folder")
    trials: int = about("number of its trials")
    evaluations: int = about("evaluations of the loss that it took")
    loss: Any = about("least loss of its trials; null without one")


class Search(Part):
    """A search."""

    folder: str = about("its folder or URI")
    state: str = about("`done`, or how its last run ended")
    evaluations: int = about("evaluations that it may take")
    spent: int = about("evaluations that it has taken")
    rounds: list[SearchRound] = about("its rounds")
    best_loss: Any = about("least loss of all rounds; null without one")
    best_trial: str | None = about("id of its trial")
    best_run: str | None = about("folder of its run")
