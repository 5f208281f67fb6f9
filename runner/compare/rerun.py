"""Runs trials of an earlier run again, from its folder alone, and compares the numbers."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ...compiler.errors import QdrunError
from .. import clock
from ..engine.session import submit
from ..fields import about
from ..observe.ended import RunEnd, Submitted
from ..observe.table import rows_of
from ..observe.timing import Timing
from ..optimize.results import STOPPED
from ..optimize.rungs import ENDS
from ..provenance.again import KEPT_OF, prepared_again
from ..provenance.devices import devices_of, kinds_of
from ..provenance.kept import differences, kept, options_as_then
from ..store.follower import Detail
from ..store.layout import RunFolder
from ..store.replay import replay
from ..study.plan import Prepared
from .numbers import Comparison, compared

TOLERANCES = {"f64": 1e-9, "f32": 1e-4}
"""Relative differences that count as rounding: sums of a batch, and of another device, have another order."""


class SeveralCodes(QdrunError, ValueError):
    """Trials of several versions of a job's code are to run again at once, or those of one that no row has."""


@dataclass(frozen=True)
class RerunDocument:
    """A run that was made from the folder of an earlier one, and its numbers beside that one's."""

    of: Annotated[str, about("id of the earlier run")]
    numbers: Annotated[Comparison, about("the numbers of both")]
    changed: Annotated[list[str], about("what is other than when the earlier run was made: versions of packages")]
    ended: Annotated[RunEnd, about("end of the new run, as for submit")]
    exit_code: Annotated[int, about("exit code of the command")]


@dataclass(frozen=True)
class RerunComparison:
    """A run that was made from an earlier one.

    Attributes:
        done: how it ended.
        comparison: its numbers beside those of the earlier run.
        changed: what is other than when the earlier run was made, as text.
    """

    done: Submitted
    comparison: Comparison
    changed: list[str]

    @property
    def exit_code(self) -> int:
        """0: the numbers are equal within the tolerance; 1: some differ; 5, 130: as of ``submit``."""
        if self.done.exit_code > 1:
            return self.done.exit_code
        return int(bool(self.comparison.different or self.comparison.not_compared))

    @property
    def text(self) -> str:
        """As lines of text."""
        return "\n".join([self.comparison.text, *([f"other than then: {', '.join(self.changed)}"] if self.changed else [])])


def rerun(
    folder: RunFolder,
    trial: str | None = None,
    *,
    code: str | None = None,
    output: str | os.PathLike[str],
    tolerance: float | None = None,
    address: str | None = None,
    quiet: bool = False,
    timing: Timing | None = None,
) -> RerunComparison:
    """Run an earlier run again, in another folder, from nothing but what the earlier one's folder keeps.

    Callbacks and exports of its config are left out. Optimisation runs that were stopped for being behind others stop at the same step.

    Args:
        folder: of the earlier run.
        trial: this trial alone; None: all.
        code: the trials whose rows come from this version of the code, as the column `code` has it; None: all.
        output: folder or URI that gets the new run.
        tolerance: largest relative difference of numbers that are called equal; None: that of the job's precision.
        address: of a Ray cluster to join.
        quiet: show no progress.
        timing: when the command began.

    Raises:
        SeveralCodes: the trials come from several versions of the code.
        NotKept, ConfigError, Damaged: see ``prepared_again``.
        ClusterError: Ray cannot be started or joined.
        StorageFull: there is no room for the run.
        StorageLost: the store of the new run did not answer at its end.
    """
    before = folder.trials()
    chosen = before if trial is None else [one for one in before if one.id == trial]
    rows = list(rows_of(folder, replay(folder, Detail.SMALL)))
    labels = {str(row["trial"]): str(row.get("code") or "") for row in rows}
    if code is not None:
        chosen = [one for one in chosen if labels[one.id].startswith(code) and labels[one.id]]
    several = sorted({labels[one.id] for one in chosen})
    if len(several) > 1 or not chosen:
        raise SeveralCodes(_codes_said(folder, labels, code))
    found = kept(folder, *several)
    with options_as_then(found.provenance):
        prepared, job = prepared_again(folder, found, chosen, local=address is None)
        prepared, now = _silent(prepared), clock.now()
        how = {
            "address": address,
            "dashboard": False,
            "quiet": quiet,
            "more": {KEPT_OF: folder.uri},
            "files": _ends(rows, prepared),
        }
        done = submit(prepared, job, output=os.fspath(output), timing=timing or Timing(now, now), **how)
    done.check_store()
    most = TOLERANCES[job.precision] if tolerance is None else tolerance
    names = [one.id for one in chosen]
    return RerunComparison(
        done, compared(folder, done.folder, names, most), differences(found.provenance) + _other_devices(folder, done.folder)
    )


def _codes_said(folder: RunFolder, labels: Mapping[str, str], code: str | None) -> str:
    count = Counter(labels.values())
    said = ", ".join(f"{number} of {f'code {label}' if label else 'the first code'}" for label, number in count.items())
    head = f"no row of {folder.name} comes from code {code}" if code else f"the rows of {folder.name} come from several codes"
    return f"{head}: {said}\n  do: `qdrun rerun {folder.uri} --code HASH` for those of one version, or name a trial"


def _silent(prepared: Prepared) -> Prepared:
    """Leave out callbacks and exports: others were told of these trials when they ran first."""
    config = prepared.loaded.config.model_copy(update={"callbacks": None, "export": None})
    return prepared.model_copy(update={"loaded": replace(prepared.loaded, config=config)})


def _ends(rows: Sequence[Mapping[str, Any]], prepared: Prepared) -> dict[str, bytes]:
    """The steps at which trials were stopped for being behind others, as a file for workers; none where trials are not compared."""
    optimize = prepared.loaded.config.optimize
    if optimize is None or optimize.stop.trials is None:
        return {}
    behind, steps = STOPPED.index("behind"), dict[str, int]()
    for row in rows:
        if row.get("out.opt.stopped") == behind:
            steps[str(row["trial"])] = int(row["out.opt.steps"])
    return {ENDS: json.dumps(steps).encode()}


def _other_devices(then: RunFolder, now: RunFolder) -> list[str]:
    before, after = (kinds_of(devices_of(folder)) for folder in (then, now))
    return [f"devices {', '.join(before)} -> {', '.join(after)}"] if before and after and before != after else []


__all__ = ["RerunComparison", "RerunDocument", "rerun"]
