"""Runs the rounds of a search, one after the other, and goes on with a search that was interrupted.

The folder of a search has ``search/<owner>.json``, with the id and the trials of each round, and below ``rounds`` a folder for each run.
What a round asks for follows from the rows of those before; when a search goes on, it is asked for again and must be the same.

A search has owners as a run has (store/owner.py), and each owner writes a record of its own: that of the latest owner counts. So a process
that was stopped while another one took the search over can overwrite nothing of it, whenever it wakes up.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from ...compiler.errors import QdrunError
from ..clock import now
from ..config.model import Loaded, load_config
from ..config.values import differing
from ..engine.resume import resume
from ..engine.session import submit
from ..fields import about
from ..observe.table import rows as rows_of
from ..observe.timing import Timing
from ..optimize.descent import optimized
from ..provenance.versions import CodeChange, CodeChanged, code_changed, code_for
from ..ray_adapter.cluster import kept_open
from ..stops import Stops, counted_signals
from ..store.files import Files, LocalFiles, StorageLost, open_files
from ..store.layout import BEAT_EVERY_S, LOST_AFTER_S, RunFolder
from ..store.owner import Owner, OwnerLost, RunAlive, check_owner, give_up, latest_owner, take
from ..store.status import status
from ..study.prepare import prepare
from ..study.target import Target
from .plans import NotSearchable, Round, Row, rounds_of

RECORDS, BELOW = "search", "rounds"
PATIENCE_S = 2 * LOST_AFTER_S
ROUND = "search_round"
"""In the ``run.json`` of a round: the owner of the search that began it, and its number."""


class SearchRuns(QdrunError, RuntimeError):
    """Another process runs the search."""


class SearchChanged(QdrunError, ValueError):
    """A search cannot go on: its config has changed, or its rounds are others than those that it has run."""


@dataclass(frozen=True)
class SearchRound:
    """One round of a search."""

    run: Annotated[str, about("id of its run, below `rounds` in the folder")]
    trials: Annotated[int, about("number of its trials")]
    evaluations: Annotated[int, about("evaluations of the loss that it took")]
    loss: Annotated[float | None, about("least loss of its trials; null without one")]


@dataclass(frozen=True)
class SearchResult:
    """A search."""

    folder: Annotated[str, about("its folder or URI")]
    state: Annotated[str, about("`done`, or how its last run ended")]
    evaluations: Annotated[int, about("evaluations that it may take")]
    spent: Annotated[int, about("evaluations that it has taken")]
    rounds: Annotated[list[SearchRound], about("its rounds")]
    best_loss: Annotated[float | None, about("least loss of all rounds; null without one")]
    best_trial: Annotated[str | None, about("id of its trial")]
    best_run: Annotated[str | None, about("folder of its run")]


@dataclass
class SearchProgress:
    """A search, as far as it has come.

    Attributes:
        folder: its folder or URI.
        evaluations: that it may take, and ``spent`` those that it has taken.
        rounds: of each round the id of its run, its trials and overrides, its evaluations, and its least loss.
        best: the row with the least loss, and ``best_run``, the folder of its run; None before the first.
        state: ``done``, or how the last run ended: ``interrupted``, ``cancelled`` and so on.
    """

    folder: str
    evaluations: int
    spent: int = 0
    rounds: list[dict[str, Any]] = field(default_factory=list)
    best: Row | None = None
    best_run: str = ""
    state: str = "done"

    def result(self) -> SearchResult:
        """What it has found, without the trials of its rounds."""
        rounds = [SearchRound(one["run"], len(one["trials"]), one["evaluations"], one["loss"]) for one in self.rounds]
        best, counts = self.best or {}, (self.evaluations, self.spent)
        return SearchResult(
            self.folder, self.state, *counts, rounds, best.get("loss"), best.get("trial"), self.best_run or None
        )


@dataclass(frozen=True)
class RoundSettings:
    """With which Ray the rounds run, how much is shown, and the code of a search that goes on, see ``versions.code_for``."""

    address: str | None = None
    quiet: bool = False
    debug: bool = False
    code: CodeChange | None = None


def search(
    config: Path,
    *,
    overrides: Sequence[str] = (),
    folder: str,
    where: RoundSettings = RoundSettings(),
    told: Callable[[str], None] = lambda text: None,
) -> SearchProgress:
    """Run a search, or go on with the one in ``folder``, until its evaluations are spent or a round does not come to its end.

    Args:
        config: the YAML file.
        overrides: of keys of the config.
        folder: of the search: a folder or URI.
        where: see ``RoundSettings``.
        told: gets a line after each round.

    Raises:
        NotSearchable: the config has no ``search``, or one that does not fit its other sections.
        SearchChanged: the search in the folder is another one.
        SearchRuns: another process runs it, or has taken it over from this one.
        CodeChanged: the files of its job have changed, and ``where`` does not say which code it goes on with.
        ConfigError, ClusterError, CannotPlan: as ``submit`` does.
    """
    loaded = load_config(config, overrides)
    section = loaded.config.search
    if section is None:
        raise NotSearchable(
            f"{config} has no section `search`\n  do: add one, as in `search: {{evaluations: 10000}}`, or use `qdrun submit`"
        )
    sweep = loaded.config.sweep
    if sweep is None:
        raise NotSearchable(
            "search needs a sweep: where its trials come from\n  do: add `sweep.params`, as in {x: {uniform: [0, 1]}}"
        )
    one = (
        ["sweep.samples=1"] if sweep.samples is None and any(a.draws and a.count is None for a in sweep.params.values()) else []
    )
    files, found = open_files(folder), SearchProgress(folder, section.evaluations)
    target = _Record(files, found, _identity(loaded)).code(f"qdrun search {config} --output {folder}", where.code)
    prepared, _ = prepare(config, local=where.address is None, overrides=[*overrides, *one], target=target)
    optimize = loaded.config.optimize
    names = [] if optimize is None else optimized(optimize, prepared.gradients, prepared.trials.params(0))
    chooser = rounds_of(section, sweep, optimize, names, loaded.folder)
    ray, stops = ExitStack(), Stops()
    with _claimed(folder, files) as owner, ray:
        record, opened = _Record(files, found, _identity(loaded), owner), False
        while (left := section.evaluations - found.spent) > 0 and (asked := chooser.ask(left)) is not None:
            if not opened and not record.next_has_ended():
                job, opened = {"job_name": f"search {loaded.config.name}"}, True
                ray.enter_context(kept_open(where.address, prepared.ray_devices, job))
                ray.enter_context(counted_signals(stops))  # Ray replaces the handlers of the main thread when it starts
            if stops.asked:
                found.state = "interrupted"
                break
            run, found.state = record.run(config, overrides, asked, where, prepared.target)
            record.check()
            if found.state not in ("done", "failed"):
                break
            rows = rows_of(run)
            record.ended(run, rows, chooser.tell(rows))
            told(_line(found))
    return found


@contextmanager
def _claimed(uri: str, files: Files) -> Iterator[Owner]:
    """Claim the folder of a search as runs are claimed, with signs of life: two processes would both run all rounds.

    When another process takes it over, the round that runs here is interrupted.

    Raises:
        SearchRuns: another process has it.
    """
    if isinstance(files, LocalFiles):
        files.make_folder("")
    folder = RunFolder(uri)
    try:
        owner = take(folder)
    except RunAlive as error:
        other = latest_owner(folder)
        who = f"process {other.pid} on {other.host}" if other is not None else "another process"
        raise SearchRuns(
            f"{who} runs the search in {uri}\n  do: wait for its end, or stop it with Ctrl-C there; --output names another folder"
        ) from error
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            try:
                check_owner(folder, owner)
                folder.beat(owner.number)
            except OwnerLost:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return
            except (OSError, QdrunError):  # a store that is away comes back
                pass
            over.wait(BEAT_EVERY_S)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield owner
    except OwnerLost as error:
        raise _taken_over(folder) from error
    finally:
        over.set()
        thread.join(BEAT_EVERY_S)
        if not isinstance(sys.exception(), StorageLost):  # that store would not answer
            with suppress(OSError, QdrunError):
                give_up(folder, owner)


def _taken_over(folder: RunFolder) -> SearchRuns:
    now = latest_owner(folder)
    who = f"process {now.pid} on {now.host}" if now is not None else "another process"
    return SearchRuns(
        f"{who} has taken the search in {folder.uri} over from this process, which writes nothing more\n"
        f"  do: wait for its end; `qdrun search` with --output {folder.uri} shows the result"
    )


class _Record:
    """The rounds of a search, on disk and in memory.

    Args:
        files: of its folder.
        found: the search.
        config: the config, as plain data.
        owner: this process; None: it only reads.

    Raises:
        SearchChanged: the folder has the search of another config.
        OwnerLost: another process has taken the search over.
    """

    def __init__(self, files: Files, found: SearchProgress, config: Mapping[str, Any], owner: Owner | None = None) -> None:
        self._files, self._found, self._config, self._owner = files, found, config, owner
        record = _read(files) or {"config": config, "rounds": []}
        if others := differing(record["config"], config):
            raise SearchChanged(
                f"the search in {found.folder} was made from another config; other now: {', '.join(others)}\n"
                "  do: give its config, or --output another folder for a new search"
            )
        self._known: list[dict[str, Any]] = record["rounds"]
        if owner is not None and self._known:
            self._keep()  # from now on the record of this owner counts

    def check(self) -> None:
        """Check that the search still belongs to this process.

        Raises:
            OwnerLost: it does not.
        """
        assert self._owner is not None
        check_owner(RunFolder(self._found.folder), self._owner)

    def code(self, command: str, code: CodeChange | None) -> Target | None:
        """The code of the latest round, which all rounds to come have; None: there is none yet, or it keeps none."""
        run = next((run for one in reversed(self._known) if one["run"] and (run := self._begun(one))), None)
        try:
            return None if run is None else code_for(run, code)
        except CodeChanged as error:
            raise code_changed(run or RunFolder(self._found.folder), error.changes, command) from None

    def next_has_ended(self) -> bool:
        """Whether the next round has ended before, so that its run need not go on."""
        place = len(self._found.rounds)
        run = self._begun(self._known[place]) if place < len(self._known) else None
        return run is not None and status(run)["state"] in ("done", "failed")

    def run(
        self, config: Path, overrides: Sequence[str], asked: Round, where: RoundSettings, target: Target
    ) -> tuple[RunFolder, str]:
        """Run a round with the code of ``target``, or bring one to its end that has begun; its folder and its state."""
        found, owner = self._found, self._owner
        assert owner is not None
        before = self._known[len(found.rounds)] if len(found.rounds) < len(self._known) else None
        mark = f"{owner.number}/{1 + len(found.rounds)}"
        entry = {"run": "", "mark": mark, "trials": asked.trials, "overrides": asked.overrides, "evaluations": 0, "loss": None}
        if before is not None and any(before[key] != entry[key] for key in ("trials", "overrides")):
            raise SearchChanged(
                f"round {1 + len(found.rounds)} of the search in {found.folder} would have other trials than it has: the job, numpy or"
                " Optuna is another one, or a run was changed\n  do: begin a new search, in another folder"
            )
        found.rounds.append(entry)
        run = None if before is None else self._begun(before)
        if before is not None and run is not None:
            entry |= {"run": run.name, "mark": before["mark"]}
            self._keep()
            return run, self._resumed(run, where)
        self._keep()  # its trials are on disk before its run begins
        sweep = {"method": "list", "trials": asked.trials}
        sets = [f"sweep={json.dumps(sweep)}", *(f"{key}={json.dumps(value)}" for key, value in asked.overrides.items())]
        how = {"local": where.address is None, "debug": where.debug, "target": target}
        prepared, job = prepare(config, overrides=[*overrides, *sets], **how)
        timing = Timing(command_t=now(), submitted_t=now())
        done = submit(
            prepared,
            job,
            output=f"{found.folder}/{BELOW}",
            timing=timing,
            address=where.address,
            dashboard=False,
            quiet=where.quiet,
            more={ROUND: mark},
        )
        done.check_store()
        entry["run"] = done.folder.name
        self._keep()
        return done.folder, done.state

    def _resumed(self, run: RunFolder, where: RoundSettings) -> str:
        """Bring a round that has begun to its end. A process that has lost the search may still run it, until it notices."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                how = {"address": where.address, "quiet": where.quiet, "debug": where.debug, "code": where.code or "kept"}
                done = resume(run, **how)
                done.check_store()
                return done.state
            except RunAlive:
                if time.monotonic() > until:
                    raise
            time.sleep(BEAT_EVERY_S)

    def _begun(self, entry: Mapping[str, Any]) -> RunFolder | None:
        """The folder of a round that has begun. The process may have died before it noted the id: then the run says whose round it is."""
        below = [RunFolder(f"{self._found.folder}/{BELOW}/{name}") for name in sorted(self._files.names(BELOW))]
        if entry["run"]:
            return next((one for one in below if one.name == entry["run"] and one.is_run), None)
        return next((one for one in below if one.is_run and one.info().get(ROUND) == entry["mark"]), None)

    def ended(self, run: RunFolder, rows: Sequence[Row], evaluations: int) -> None:
        """A round has come to its end."""
        found = self._found
        have = [row for row in rows if row["loss"] is not None and math.isfinite(row["loss"])]
        least = min(have, key=lambda row: row["loss"], default=None)
        if least is not None and (found.best is None or least["loss"] < found.best["loss"]):
            found.best, found.best_run = least, run.uri
        found.spent += evaluations
        found.rounds[-1] |= {"evaluations": evaluations, "loss": None if least is None else least["loss"]}
        self._keep()

    def _keep(self) -> None:
        """Write the record of this owner.

        Raises:
            OwnerLost: another process has taken the search over.
        """
        self.check()
        assert self._owner is not None
        rounds = [*self._found.rounds, *self._known[len(self._found.rounds) :]]
        data = {"version": 1, "config": self._config, "rounds": rounds}
        self._files.put(f"{RECORDS}/{self._owner.number:06}.json", json.dumps(data, indent=1).encode())


def _read(files: Files) -> dict[str, Any] | None:
    """The record of the latest owner that has left one."""
    names = sorted(name for name in files.names(RECORDS) if name.endswith(".json"))
    if not names:
        return None
    try:
        record = json.loads(files.read(f"{RECORDS}/{names[-1]}"))
        if isinstance(record["config"], dict) and isinstance(record["rounds"], list):
            return record
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise SearchChanged(
        f"{files.root}/{RECORDS}/{names[-1]} is damaged\n"
        "  do: begin a new search, in another folder; `qdrun results` shows the rounds of this one"
    )


def _identity(loaded: Loaded) -> dict[str, Any]:
    """What makes a search the same one: its config, with overrides applied."""
    return json.loads(loaded.config.model_dump_json(by_alias=True))


def _line(found: SearchProgress) -> str:
    last, best = found.rounds[-1], "none" if found.best is None else f"{found.best['loss']:.9g}"
    loss = "no loss" if last["loss"] is None else f"{last['loss']:.9g}"
    return (
        f"round {len(found.rounds)}: {len(last['trials']):,} trials, {last['evaluations']:,} evaluations, least loss {loss};"
        f" {found.spent:,} of {found.evaluations:,} evaluations, best {best}"
    )


__all__ = ["RoundSettings", "SearchChanged", "SearchProgress", "SearchResult", "SearchRound", "SearchRuns", "search"]
