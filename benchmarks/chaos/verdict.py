"""What must hold after a run that was killed and resumed, read from its folder alone."""

import math
from collections import Counter
from pathlib import Path

import numpy as np

from qdrun.runner.observe.table import rows
from qdrun.runner.store.attempts import arrays_of
from qdrun.runner.store.follower import read
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.replay import record_of, replay

from .jobs import KILLS, batched, expected

TOLERANCE = 1e-12
"""Relative, of numbers that kernels compute in f64."""


def judge(play):
    """Add to the verdict of ``play`` what is wrong with the run."""
    found, one, problems = play.find(), play.scenario, play.verdict.problems
    if found is None:
        problems.append("there is no run")
        return
    folder = RunFolder(found)
    events, state = read(folder), replay(folder)
    if len(state.trials) != one.trials:
        problems.append(f"{len(state.trials)} trials instead of {one.trials}")
    allowed = allowed_ends(one, folder)
    problems += _rows(folder, events, state, allowed)
    problems += _values(folder, state, one)
    problems += _notes(play, folder, events, state)
    if state.finished is None or state.finished.get("state") != one.outcome:
        problems.append(f"the journal's last word is {state.finished}")
    retries = [event for event in events.events if event["event"] == "retry"]
    checked = sum(bool({**event, **(event.get("place") or {})}.get("checked")) for event in events.events)
    if one.kind == "rerun" and not one.batch and play.fired and not checked and not Path(f"{play.notes}.rerun").exists():
        problems.append("a trial died by a signal, and did not run again with checks")
    if one.batch:
        problems += _bisected(one, state, retries, allowed)
        play.verdict.facts |= {"batch": one.batch.size, "traps": [trap for _, trap in one.batch.traps]}
    play.verdict.facts |= {
        "owners": state.owner,
        "checked": checked,
        "retries": dict(Counter(str(event["failure"]) for event in retries)),
        "errors": sorted({str((event.get("error") or {}).get("message", ""))[:160] for event in retries}),
        "recovered": sum(bool(event.get("recovered")) for event in events.events),
        "partial": sum(1 for _ in found.rglob("*.partial")),
        "refused": state.refused,
    }


def allowed_ends(one, folder):
    """How each trial may end: pairs of status and class of failure."""
    trials = folder.trials()
    return {trial.id: one.batch.ends(int(trial.params["number"])) if one.batch else {("done", None)} for trial in trials}


def _rows(folder, events, state, allowed):
    """Exactly one row for each trial, in the journal and in the table, that says how it had to end."""
    out = []
    written = Counter(event["trial"] for event in events.events if event["event"] == "ended")
    again = Counter(event["trial"] for event in events.events if event["event"] == "requeued")
    for name in state.trials:
        if written[name] - again[name] != 1:
            out.append(f"trial {name} has {written[name]} rows and was requeued {again[name]} times")
    if state.doubled or state.damaged or state.strays:
        out.append(f"{state.doubled} rows doubled, {state.damaged} lines damaged, {len(state.strays)} unknown trials")
    ends = {name: trial.entry.event if trial.entry else {} for name, trial in state.trials.items()}
    bad = {
        name: trial.status
        for name, trial in state.trials.items()
        if (trial.status, ends[name].get("failure")) not in allowed[name]
    }
    if bad:
        errors = {str((event.get("error") or {}).get("message", ""))[:300] for event in ends.values()}
        out.append(f"not as they must end: {bad}: {errors}")
    try:
        import pyarrow.parquet as pq

        table = pq.read_table(folder.table).to_pylist()
    except OSError as error:
        return [*out, f"no table: {error}"]
    right = [row["status"] in {status for status, _ in allowed.get(row["trial"], ())} for row in table]
    if [row["trial"] for row in table] != list(state.trials) or not all(right):
        out.append(f"the table has {Counter((row['trial'], row['status']) for row in table)}")
    return out + ([] if len(rows(folder)) == len(state.trials) else ["`rows` does not give one row for each trial"])


def _values(folder, state, one):
    """Each row is that of its trial."""
    out = []
    params = {trial.id: trial.params for trial in folder.trials()}
    for name, trial in state.trials.items():
        record = record_of(folder, trial)
        if record is None or record.get("status") != "done":
            continue
        if not (_computed if one.batch else _exact)(folder, record, one, params[name]["number"]):
            out.append(f"the row of trial {name} is not its own")
    return out


def _exact(folder, record, one, number):
    loss, gradient = expected(one.salt, number, one.mean_s)
    return record["loss"] == loss and np.array_equal(arrays_of(folder, record)["x"], gradient)


def _computed(folder, record, one, number):
    """Whether all numbers of a trial of a batch are right, within ``TOLERANCE``."""
    loss, gradients, outputs = batched(one.salt, number, one.batch.array, descends=one.batch.descends)
    found = arrays_of(folder, record), arrays_of(folder, record, "outputs")
    pairs = [(record["loss"], loss)]
    for there, known in zip(found, (gradients, outputs), strict=True):
        pairs += [(there.get(name), value) for name, value in known.items()]
    return all(there is not None and _near(there, value) for there, value in pairs)


def _near(there, value):
    there, value = np.asarray(there, dtype=np.float64), np.asarray(value, dtype=np.float64)
    return there.shape == value.shape and np.allclose(there, value, rtol=TOLERANCE, atol=0.0)


def _bisected(one, state, retries, allowed):
    """A trial is charged for what it does itself alone, and where a batch is halved, in no more attempts than that takes.

    Where other faults happen, or other programs share the process, more can be charged.
    """
    if one.kind not in ("guilty", "hang"):
        return []
    good = {name for name, ends in allowed.items() if ends == {("done", None)}}
    out = [f"trial {event['trial']} was charged" for event in retries if event.get("charged", True) and event["trial"] in good]
    kills = sum(trap in KILLS for _, trap in one.batch.traps)
    most = 1 + kills * math.ceil(math.log2(one.trials))
    if one.place != "emulated":
        over = {name: len(state.trials[name].attempts) for name in good if len(state.trials[name].attempts) > most}
        out += [f"more attempts than halving takes, {most}: {over}"] if over else []
    return out


def _notes(play, folder, events, state):
    """A trial whose row was written never ran again; its result is of an attempt that came to its end.

    Each time that it ran is an attempt, unless a runner was killed before it had heard that a trial of a lease has begun.
    """
    if not play.notes.exists():
        return ["no trial has run"]
    lines = [line.split() for line in play.notes.read_text().splitlines()]
    begun = Counter(int(number) for what, number, *_ in lines if what == "begin")
    number_of = {trial.id: int(trial.params["number"]) for trial in folder.trials()}
    out = []
    for name, trial in state.trials.items():
        number = number_of[name]
        if begun[number] > len(trial.attempts) + (state.owner - 1):
            out.append(f"trial {name} ran {begun[number]} times in {len(trial.attempts)} attempts")
        done_t = next(
            (e["t"] for e in events.events if e["event"] == "ended" and e["trial"] == name and e["status"] == "done"), None
        )
        late = [
            t for what, n, _, t in lines if what == "begin" and int(n) == number and done_t is not None and float(t) > done_t
        ]
        if late:
            out.append(f"trial {name} ran again after its row was written")
        if trial.status not in ("failed", "poisoned") and not any(what == "end" and int(n) == number for what, n, *_ in lines):
            out.append(f"trial {name} never came to its end")
    play.verdict.facts["runs"] = sum(begun.values())
    return out
