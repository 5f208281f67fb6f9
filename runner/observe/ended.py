"""The ends of commands that run trials, as documents and as text: submit, resume, rerun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from ..exit_codes import exit_code
from ..fields import Data, about
from ..optimize.results import best_at, value_text
from ..query.picking import best_place
from ..query.run_table import Row, RunTable, column_of
from ..store.files import StorageLost
from ..store.follower import Detail
from ..store.layout import RunFolder
from ..store.replay import Replay, replay
from ..study.trials import counted
from ..text_grid import grid
from ..visible import visible
from . import table
from .remarks import remarks_of
from .show import varied

SHOWN_FAILURES, SHOWN_EXAMPLES = 10, 3


@dataclass(frozen=True)
class Submitted:
    """The end of a run: its state, its folder, and the seconds by phase."""

    folder: RunFolder
    state: str
    timing: dict[str, float | None]
    made: Sequence[Row] = ()
    """The rows, where the table was just made of them."""
    lost: StorageLost | None = None
    """Set if the store did not answer after the last line: nothing of the run can be read."""

    @cached_property
    def _found(self) -> Replay:
        return replay(self.folder, Detail.SMALL)

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The rows of the run. Large arrays stay in the journal (``run_table.Large``).

        Raises:
            StorageLost: the store did not answer at the end of the run.
        """
        self.check_store()
        return self.made or table.rows_of(self.folder, self._found)

    @cached_property
    def best(self) -> Row | None:
        """The row with the smallest loss, with all of its arrays. Raises as ``rows``."""
        rows = RunTable.of(self.rows)
        place = best_place(rows, "loss", rows.names)
        if place is None:
            return None
        row = rows[place : place + 1]
        return table.filled(self.folder, self._found, row, large)[0] if (large := row.large()) else self.rows[place]

    def check_store(self) -> None:
        """Raise what the end of the run met, before anything reads a store that does not answer.

        Raises:
            StorageLost: it did not answer.
        """
        if self.lost is not None:
            raise self.lost

    @property
    def exit_code(self) -> int:
        """0 all trials succeeded, 1 some did not, 5 the run was lost to another process, 130 interrupted."""
        return exit_code(self.state)


@dataclass(frozen=True)
class RunEnd:
    """The end of a run."""

    run: Annotated[str, about("its id")]
    folder: Annotated[str, about("its folder")]
    results: Annotated[str, about("its table, a Parquet file")]
    state: Annotated[str, about("done, failed, cancelled, interrupted, lost; running after --detach")]
    exit_code: Annotated[int, about("exit code of the command")]
    trials: Annotated[int | None, about("number of trials; null if the store does not answer, as `warnings` says")]
    counts: Annotated[Mapping[str, int], about("number of trials by status")]
    best: Annotated[Data | None, about("the row with the smallest loss")]
    failures: Annotated[Sequence[Data], about("trial, error_type and error of each failed trial")]
    warnings: Annotated[Sequence[str], about("gradients that are 0 in every trial, and optimisation runs that lowered no loss")]
    seconds: Annotated[float | None, about("from the start of the command to the end")]
    timing: Annotated[Data, about("seconds by phase; empty after --detach")]
    process: Annotated[int | None, about("after --detach: id of the process of the run")] = None
    job: Annotated[str | None, about("after --detach: the Ray Job of the run")] = None
    address: Annotated[str | None, about("address of the cluster of that job")] = None
    log: Annotated[
        str | None, about("after --detach: log file of the process, or the command that prints the log of the job")
    ] = None

    @classmethod
    def of(cls, done: Submitted) -> RunEnd:
        """The end of a run that has ended. Without its store: without its rows."""
        rows, found = ((), None) if done.lost else (done.rows, done.best)
        return cls(
            run=done.folder.name,
            folder=done.folder.uri,
            results=done.folder.table,
            state=done.state,
            exit_code=done.exit_code,
            trials=None if done.lost else len(rows),
            counts=Counter(column_of(rows, "status")),
            best=found and {name: value for name, value in found.items() if value is not None},
            failures=[{name: row[name] for name in ("trial", "error_type", "error")} for row in _failures(rows)],
            warnings=[str(done.lost)] if done.lost else remarks_of(done.folder),
            seconds=done.timing["ended_s"],
            timing=done.timing,
        )


@dataclass(frozen=True)
class ResumePlan:
    """The decisions of `resume`."""

    run: Annotated[str, about("its id")]
    state: Annotated[str, about("state of the run before")]
    kept: Annotated[Sequence[str], about("trials that have succeeded")]
    retried: Annotated[Mapping[str, str], about("trials that run, or run again, each with the reason")]
    skipped: Annotated[
        Mapping[str, str],
        about("trials that failed by an error of their own, each with the reason; --failed runs them again"),
    ]
    code_changes: Annotated[
        Sequence[str],
        about("how the job's files differ from the code that the run keeps; not compared with --code or --force"),
    ] = ()
    config_changes: Annotated[
        Sequence[str],
        about(
            "keys of the config that were edited since; then `resume` needs --force or --config. Compared with --dry-run alone"
        ),
    ] = ()
    ended: Annotated[RunEnd | None, about("end of the run, as for submit; null with --dry-run")] = None

    @property
    def text(self) -> str:
        """The trials that ``resume`` keeps, runs and skips, by reason."""
        lines = [["kept", str(len(self.kept)), "they have succeeded"]] if self.kept else []
        for word, trials in (("retried", self.retried), ("skipped", self.skipped)):
            reasons = Counter(trials.values()).most_common()
            lines += [[word, str(count), why] for why, count in reasons[:SHOWN_FAILURES]]
            rest = reasons[SHOWN_FAILURES:]
            lines += [[word, str(sum(count for _, count in rest)), f"{len(rest)} other reasons"]] if rest else []
        hint = ["`--failed` runs the skipped ones again"] if self.skipped else []
        hint += [f"code: {text}" for text in self.code_changes]
        if self.config_changes:
            edited = ", ".join(self.config_changes)
            hint.append(f"config: edited since, in {edited}; `resume` refuses it without --force or --config")
        return "\n".join([f"{self.run}: {self.state}", grid(["", "trials", "why"], lines), *hint])


def _failures(rows: Sequence[Row]) -> list[Row]:
    """The rows of trials that failed, those that crashed each time among them."""
    statuses = column_of(rows, "status")
    return [rows[place] for place, status in enumerate(statuses) if status in ("failed", "poisoned")]


def summary_text(done: Submitted) -> str:
    """The end of a submit, as text: counts, best trial, failures, seconds, path of the results."""
    if done.lost:
        return f"{done.state}: {done.lost}\nnext: qdrun status {done.folder.uri}, when the store answers"
    counts = Counter(column_of(done.rows, "status"))
    timing, found = done.timing, done.best
    lines = [
        f"{done.state}: "
        + ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
        + f" of {counted(len(done.rows), 'trial')}"
    ]
    if found is not None:
        own = [name for name in varied(done.rows) if name in found]  # dictionaries may have other keys in each trial
        start = ", ".join(f"{name.removeprefix('param.')}={value_text(found[name])}" for name in own)
        outputs = {
            name.removeprefix("out."): value for name, value in found.items() if name.startswith("out.") and value is not None
        }
        reached = best_at("", outputs)
        where = f"{reached}, from the start {start or 'of the config'}" if reached else start or "its parameters"
        lines.append(f"best: loss {found['loss']:.6g} at {where} (trial {found['trial']})")
    lines += _failure_lines(done)
    lines += [f"warning: {text}" for text in remarks_of(done.folder)]
    parts = [("in all", timing["ended_s"], "s"), ("to the first trial", timing["first_start_s"], "s")]
    parts += [("overhead per trial", timing["overhead_ms_per_trial"], "ms")]
    lines.append("time: " + ", ".join(f"{value:.2f} {unit} {word}" for word, value, unit in parts if value is not None))
    lines += [f"results: {done.folder.table}"]
    left = sum(value is not None for value in column_of(done.rows, "artifacts_folder"))
    where = f"`qdrun results {done.folder.uri} --columns trial,artifacts` names them"
    lines += [f"artifacts: {counted(left, 'trial')} left some; {where}"] if left else []
    lines += [f"next: qdrun {'resume' if done.state in ('lost', 'interrupted') else 'results'} {done.folder.uri}"]
    return "\n".join(lines)


def _failure_lines(done: Submitted) -> list[str]:
    """The failures, equal ones in one line with the first trials that have it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in _failures(done.rows):
        said = f"{row['error_type']}: {visible((row['error'] or '').partition(chr(10))[0])}"
        groups.setdefault((row["status"], said), []).append(row)
    lines = []
    for (status, said), rows in list(groups.items())[:SHOWN_FAILURES]:
        names = ", ".join(row["trial"] for row in rows[:SHOWN_EXAMPLES]) + (", .." if len(rows) > SHOWN_EXAMPLES else "")
        lines.append(f"{status}: {names} {said}" if len(rows) == 1 else f"{status}: {len(rows)} trials ({names}) {said}")
    rest = sum(map(len, list(groups.values())[SHOWN_FAILURES:]))
    return lines + ([f"  ... and {counted(rest, 'more failure')}"] if rest else [])
