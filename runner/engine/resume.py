"""Resumes a run that was interrupted, cancelled or lost: decides which trials are kept, run again, or skipped."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...jobs.base import Job
from .. import clock
from ..config.model import load_config
from ..config.values import differing
from ..config.yaml_lines import ConfigError
from ..observe import table
from ..observe.ended import ResumePlan, Submitted
from ..observe.timing import Timing
from ..observe.view import RunWatch
from ..provenance.again import KEPT_OF, prepared_again
from ..provenance.inputs import changed
from ..provenance.kept import kept
from ..provenance.record import inputs_of
from ..provenance.versions import CodeChange, adopt, code_for
from ..ray_adapter.jobs_api import known_dead
from ..store.attempts import Failure, missing_file, requeued
from ..store.journal import Journal
from ..store.layout import TRIALS, ConfigChanged, RunFolder, config_hash
from ..store.owner import latest_owner, seems
from ..store.replay import DONE, Replay, Replayer, recover, run_state
from ..store.status import status
from ..store.summary import current
from ..store.trial_state import TrialState
from ..study.plan import Prepared
from ..study.prepare import prepare
from ..study.shipping import Shipped
from ..study.target import input_files
from ..study.trial_list import Trial, Trials
from .event_writer import Kept
from .parts import Charges, TrialAt
from .session import How, attend

SHOWN = 3
BY_NAME = "the trial was cancelled"
"""The error of a trial that was cancelled individually."""


def look(folder: RunFolder, *, failed: bool = False, reader: Replayer | None = None) -> ResumePlan:
    """Compute the decisions of ``resume`` from the run's folder. ``failed``: also retry failed trials. ``reader``: has read its journal."""
    state = (reader or Replayer(folder)).look()
    return _plan(folder, state, failed, run_state(folder, state))


def over(folder: RunFolder, plan: ResumePlan) -> Submitted | None:
    """The end of a run without remaining trials; None if there are some, or if its end is not in the journal yet."""
    if plan.retried or plan.state not in ("done", "failed", "cancelled"):
        return None
    if not current(folder):  # its runner was killed between its last line and the table: there is none, or an older one
        folder.files.sweep("")
        table.write_table(folder)
    return Submitted(folder, plan.state, status(folder)["timing"] or Timing(0.0, 0.0).summary())


def _plan(folder: RunFolder, state: Replay, failed: bool, now: str) -> ResumePlan:
    kept, retried, skipped = [], {}, {}
    rows = {trial.id: trial.entry.event for trial in state.single_rows() if trial.status == "done" and trial.entry}
    there = folder.files.below(TRIALS) if any(event.get("files") for event in rows.values()) else {}
    lost = {name: path for name, event in rows.items() if (path := missing_file(event, there))}
    for place, (name, code) in enumerate(zip(state.ids, state.status.tolist(), strict=True)):
        if name in lost:
            retried[name] = f"{lost[name]} is not there, or not whole"
        elif code == DONE:
            kept.append(name)
        else:
            why, again = _judge(state.state_at(place))
            (retried if again or failed else skipped)[name] = why
    return ResumePlan(folder.name, now, tuple(kept), retried, skipped)


def _judge(trial: TrialState) -> tuple[str, bool]:
    """Why a trial is not done, and whether it runs again without being asked for."""
    if trial.entry is None:
        if trial.damaged:
            return "a line of the journal that names it is damaged", True
        return ("its attempt was lost with the run" if trial.attempts else "it never started"), True
    error: Mapping[str, Any] = trial.entry.event.get("error") or {}
    text = str(error.get("message", "")).partition("\n")[0]
    failure = trial.entry.event.get("failure")
    if trial.status == "cancelled":
        return (text, False) if text.startswith(BY_NAME) else (text or "it was cancelled with the run", True)
    what = ": ".join(str(part) for part in (failure, error.get("type"), text) if part)
    return f"{trial.status}: {what}", failure == Failure.infrastructure


def work_of(state: Replay, plan: ResumePlan) -> list[TrialAt]:
    """The trials that run again, with the facts about their earlier attempts."""
    charged, suspects = state.charged, state.suspects
    return [
        TrialAt(state.places[name], state.trials[name].next_number - 1, Charges(charged.get(name, {})), name in suspects)
        for name in plan.retried
    ]


def resume(
    folder: RunFolder,
    *,
    config: os.PathLike[str] | None = None,
    force: bool = False,
    failed: bool = False,
    debug: bool = False,
    address: str | None = None,
    dashboard: bool = False,
    quiet: bool = False,
    timing: Timing | None = None,
    shipped: Shipped | None = None,
    asks: str | None = None,
    code: CodeChange | None = None,
    reader: Replayer | None = None,
) -> Submitted:
    """Take a run over and bring it to its end. One that has ended and has nothing left to run stays as it is.

    Args:
        folder: the run's folder; no process runs it now.
        config: replaces the config in the folder.
        force: continue although the config, or the files of the job, have changed since; the trials stay those of the run.
        failed: run trials again that failed by an error of their own.
        debug: in debug mode, as ``submit --debug``; the rows of these trials say what was checked.
        address: of a cluster, see ``submit``.
        dashboard: start Ray's.
        quiet: show no progress.
        timing: when the command began.
        shipped: where the config and the job lie, when they came along to a cluster: then they are those of the run.
        asks: the dashboard of a cluster that the user has named: whether the run's old process still lives there.
        code: where the files of the job have changed: go on with the code that the run keeps, or with the new one.

        reader: has read the journal so far.

    Raises:
        CodeChanged: they have, and ``code`` is not given.
        ConfigChanged: the config is another one than the run was made from, or is gone.
        RunAlive: the run is alive.
    """
    reader = Replayer(folder) if reader is None else reader
    if done := over(folder, look(folder, failed=failed, reader=reader)):
        return done
    prepared, job = config_of(folder, config, force=force, debug=debug, local=address is None, shipped=shipped, code=code)
    now = clock.now()
    if reader.look().wrong:  # ``config_of`` may have mended the list of trials
        reader = Replayer(folder)

    def stage(journal: Journal) -> tuple[list[TrialAt], Kept]:
        adopt(folder, prepared.target)
        state = recover(folder, journal, reader)
        plan = _plan(folder, state, failed, "lost")
        again = {name: why for name, why in plan.retried.items() if state.trials[name].entry is not None}
        if again:
            requeued(journal, again)
        before = state.counts() - Counter(state.trials[name].status for name in plan.retried)
        best = RunWatch(folder, prepared.trials, reader).best(reader.look()) if before else None
        return work_of(state, plan), Kept(dict(before), best)

    how = How(timing or Timing(now, now), address, dashboard, quiet)
    gone = _gone(folder, asks)
    groups = [] if debug or prepared.loaded.config.elastic or prepared.target.label else folder.plan()
    return attend(prepared, job, folder, how, stage, [(group, ()) for group in groups], gone=gone, reader=reader)


def _gone(folder: RunFolder, asks: str | None) -> int:
    """The number of the owner of a run whose process is known to be gone; 0 where that is not known, or there is none."""
    owner = latest_owner(folder)
    if owner is None:
        return 0
    gone = owner.gone or (seems(folder) is not False and known_dead(folder, owner, asks))
    return owner.number if gone else 0


def config_of(
    folder: RunFolder,
    config: os.PathLike[str] | None = None,
    *,
    force: bool = False,
    debug: bool = False,
    local: bool = True,
    shipped: Shipped | None = None,
    code: CodeChange | None = None,
) -> tuple[Prepared, type[Job[Any]]]:
    """The config of a run, read again; its trials are those of the run.

    The job is the one that the run keeps, unless ``code`` asks for the present one.

    It is the copy in the run's folder, whose relative paths begin where the config lay that it was made from. What lies there now is
    compared and never run.

    Args:
        folder: of the run.
        config: another one, which is run.
        force: do not compare.
        debug: in debug mode; the checks are those of the config, or the usual ones. Nothing of this is compared.
        local: the trials run on this machine.
        shipped: where it lies when it came along; then there is nothing to compare. Nor is there where the run was made from the folder of
            another one, and has all of it in its own.
        code: see ``resume``.

    Raises:
        NotKept: something of the code that the run keeps is missing.
        CodeChanged: see ``resume``.
        ConfigChanged: it has changed since, or its files have.
        ConfigError: it is wrong.
    """
    info, resolved = folder.info(), folder.config()
    if KEPT_OF in info and config is None and shipped is None:
        return prepared_again(folder, kept(folder), folder.trials(), local=local, debug=debug)
    overrides = [*resolved.get("overrides", ()), *(shipped.overrides(resolved) if shipped else ())]
    place = Path(shipped.config if shipped else config or str(info["config"]))
    text = None if shipped or config else folder.config_text()
    if text is None and not place.is_file():
        raise ConfigChanged(
            f"there is no config at {place}\n  do: `qdrun resume {folder.uri}` takes the copy in the run's folder"
        )
    target = code_for(folder, "new" if code is None and force else code, home="" if shipped is None else shipped.root)
    sweep = load_config(place, overrides, text).config.sweep
    stored = folder.trials() if sweep is not None and sweep.files else None  # the files may be others by now
    how = {"backend": resolved["device"]["backend"], "text": text, "target": target, "trials": stored}
    prepared, job = prepare(place, local=local, overrides=overrides, **how)
    changes: dict[str, Any] = {"trials": Trials.of(_trials(folder, prepared))}
    if debug and prepared.loaded.config.debug is None:
        changes["loaded"] = load_config(place, [*overrides, "debug=true"], text)
    if shipped is not None:
        changes["inputs"] = input_files({"folder": os.path.dirname(shipped.config)})
        return prepared.model_copy(update=changes), job
    if not force:
        folder.check_config(prepared.resolved)
        if text is not None:
            _check_original(folder, place)
        source = prepared.target.source if target is None else None
        digest = source and hashlib.sha256(source.encode()).hexdigest()[:16]
        if target is None and digest != info.get("source_hash"):
            raise ConfigChanged(
                f"{prepared.target.file} has changed since {folder.name} was made\n"
                f"  do: submit it as a run of its own, or go on with the new file: `qdrun resume {folder.uri} --force`"
            )
        if others := changed(prepared.inputs, inputs_of(folder.files)):
            raise ConfigChanged(
                f"{', '.join(others[:SHOWN])}{', ..' if len(others) > SHOWN else ''}: changed since trials of {folder.name} read them"
                "\n  do: submit a new run, or continue with the present files: "
                f"`qdrun resume {folder.uri} --force`"
            )
    return prepared.model_copy(update=changes), job


def config_changes(folder: RunFolder) -> list[str]:
    """The keys in which the config that a run was made from differs from the copy that the run keeps; none where it is gone. It is parsed,
    and nothing that it names is loaded.
    """
    info, text = folder.info(), folder.config_text()
    place, overrides = Path(str(info.get("config", ""))), folder.config().get("overrides", ())
    if KEPT_OF in info or text is None or not place.is_file():
        return []
    try:
        now = load_config(place, overrides)
    except ConfigError:
        return ["it is no config any more"]
    if now.document.text == text:
        return []
    mine, other = (one.config.model_dump(mode="json") for one in (load_config(place, overrides, text), now))
    return differing(mine, other)


def _check_original(folder: RunFolder, place: Path) -> None:
    """Refuse to go on silently with a config that its user has edited since.

    Raises:
        ConfigChanged: names the keys that differ.
    """
    if differ := config_changes(folder):
        raise ConfigChanged(
            f"{place} has changed since {folder.name} was made: {', '.join(differ)}\n"
            "  do: submit it as a run of its own; or go on with the trials of this run, as they were: "
            f"`qdrun resume {folder.uri} --force`, or under the new limits: add `--config {place}`"
        )


def _trials(folder: RunFolder, prepared: Prepared) -> Sequence[Trial]:
    """The trials of a run. Where lines of ``trials.jsonl`` are damaged, and all others are those of the config, it is written again.

    Raises:
        Damaged: it is damaged, and the config gives other trials now.
    """
    found = folder.found_trials()
    if not found.problems:
        return found.trials
    whole = [trial for trial in found.trials if trial.id not in found.damaged]
    same = all(trial.index < len(prepared.trials) and trial.id == prepared.trials[trial.index].id for trial in whole)
    if not same or config_hash(folder.config()) != config_hash(prepared.resolved):
        return folder.trials()
    folder.save_trials(prepared.trials)
    return prepared.trials


__all__ = ["config_of", "look", "over", "resume", "work_of"]
