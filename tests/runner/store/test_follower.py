"""The one reader of a journal: what is new since the last look gives the state that all of it gives, and each byte is read once."""

import math

import numpy as np
import pytest

from qdrun.runner.engine.resume import look, work_of
from qdrun.runner.observe.view import view_of
from qdrun.runner.store import columns
from qdrun.runner.store import journal as journal_module
from qdrun.runner.store.attempts import Attempt, ended, requeued
from qdrun.runner.store.follower import EVENTS, Detail, Follower, JournalEntry, read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.store.owner import owner_numbers
from qdrun.runner.store.replay import Replayer, recover, replay
from qdrun.runner.store.trial_state import TrialState
from qdrun.runner.study.trial_file import ids_of, read_trials, trial_lines, trial_of
from qdrun.runner.study.trials import Trial
from tests.runner.store.store_helpers import CountingFiles, make_run, record, run_one
from tests.runner.store.test_table import batch


def one_by_one(folder):
    """The states of all trials by their events, each taken alone: what the columns must say."""
    states, doubled = {name: TrialState(name) for name in folder.trial_ids()}, 0
    for entry in read(folder, Detail.NONE).entries:
        kind = entry.event["event"]
        if kind == "owner":
            for state in states.values():
                state.lose()
        elif kind in ("started", "ended", "retry", "requeued"):
            doubled += states[entry.event["trial"]].apply(entry)
    return states, doubled


def agree(folder, found):
    states, doubled = one_by_one(folder)
    assert dict(found.trials) == states and found.doubled == doubled
    losses = [math.nan if s.entry is None else float(s.entry.event.get("loss", math.nan)) for s in states.values()]
    assert np.array_equal(found.losses, losses, equal_nan=True)
    assert found.counts() == replay(folder).counts() and sum(found.counts().values()) == len(states)
    began = [tried.started_t for state in states.values() for tried in state.attempts if tried.started_t is not None]
    assert found.began_t == min(began, default=None)
    ends = [s.attempts[-1].ended_t if s.entry and s.attempts else None for s in states.values()]
    known = [k for k, end in enumerate(ends) if end is not None]
    assert found.ended_t[known].tolist() == [ends[k] for k in known]
    busy = [state for state in states.values() if state.status == "running"]
    running = [state.id for state in busy for tried in state.attempts if tried.status == "running"]
    assert sorted(name for launch in found.launches() for name in map(found.ids.__getitem__, launch.places)) == sorted(running)


def placed(names, event):
    """The event of a batch with the places of its trials for their ids."""
    rest = {name: value for name, value in event.items() if name not in ("trials", "attempts")}
    return columns.who([names.index(name) for name in event["trials"]], event["attempts"]) | rest


def some_events(folder, journal, rng, of_batch):
    """Write what may happen to trials, also out of order: batches and single trials that begin, end, are tried again and run again."""
    names, number = folder.trial_ids(), int(rng.integers(1, 3))
    some = list(rng.permutation(names)[: int(rng.integers(1, 6))])
    attempts, by = [number] * len(some), {"by": 1} if rng.random() < 0.2 else {}
    match int(rng.integers(0, 7)):
        case 0:
            event = {"trials": some, "attempts": attempts, "launch": int(rng.integers(9)), "device": "cpu"}
            journal.write("begun", **of_batch(names, event), **by)
        case 1:
            short = {"place": {"device": "cpu"}, "started_t": 5.0, "ended_t": 6.0} if rng.random() < 0.5 else {}
            journal.write("rows", **of_batch(names, {**batch(some, rng, 3), "attempts": attempts}), **short, **by)
        case 2:
            journal.write("started", trial=some[0], attempt=number, device="cpu", **by)
        case 3:
            failed = {"status": "failed", "failure": "crash", "error": {"type": "E", "message": "m"}}
            row = failed if rng.random() < 0.3 else record(rng.normal())
            journal.write("ended", trial=some[0], attempt=number, **row, **by)
        case 4:
            journal.write("retry", trial=some[0], attempt=number, failure="crash", charged=bool(rng.integers(2)))
        case 5:
            requeued(journal, {some[0]: "asked for"})
        case 6:
            journal.write("snapshot", devices=[])


@pytest.mark.parametrize("seed", range(40))
def test_looks_at_any_moment_give_what_the_events_give_one_by_one(tmp_path, seed):
    """Of every second run the lines of batches name their trials, as older ones do."""
    of_batch = (lambda names, event: event) if seed % 2 else placed
    rng = np.random.default_rng(seed)
    folder = make_run(tmp_path, int(rng.integers(3, 12)))
    reader, lines = Replayer(folder), 0
    for _ in range(int(rng.integers(1, 4))):
        with Journal(folder) as journal:
            for _ in range(int(rng.integers(0, 20))):
                some_events(folder, journal, rng, of_batch)
                if rng.random() < 0.3:
                    lines += 1
                    reader.look()
    agree(folder, reader.look())
    assert reader.last_seq == max(entry.event["seq"] for entry in read(folder).entries)


def test_what_a_stale_owner_wrote_behind_the_cut_is_taken_back(tmp_path, monkeypatch):
    folder = make_run(tmp_path)
    first, second, _ = folder.trial_ids()
    reader, stale = Replayer(folder), Journal(folder)
    run_one(folder, stale, first, 1.0)

    class Late(Follower):
        def look(self, *, last=False):
            found = super().look(last=last)
            with monkeypatch.context() as blind:
                blind.setattr(journal_module, "check_owner", lambda folder, owner: None)
                run_one(folder, stale, second, 666.0)
                stale.write("mark", sync=True)
            assert reader.look().trials[second].entry.event["loss"] == 666.0, "nobody has said that it does not count"
            return found

    with Journal(folder, gone=max(owner_numbers(folder.files)), reader=Late(folder)) as new:
        assert reader.look().trials[second].entry is None
        run_one(folder, new, second, 2.0)
        found = reader.look()
        agree(folder, found)
        assert found.losses[:2].tolist() == [1.0, 2.0] and found.refused == 3


class MeteredFiles(CountingFiles):
    """Files that count the bytes that are read of a journal."""

    read_bytes = 0

    def read(self, path, start=0, end=None):
        data = self._files.read(path, start, end)
        self.read_bytes += len(data) if path.startswith(EVENTS) else 0
        return data


def test_each_byte_of_a_journal_is_read_once_and_a_resume_reads_it_once(tmp_path):
    folder, rng = make_run(tmp_path, 40), np.random.default_rng(4)
    names = folder.trial_ids()
    with Journal(folder) as journal:
        journal.write("begun", trials=names[:30], attempts=[1] * 30, device="cpu")
        journal.write("rows", **batch(names[:20], rng, 4))
        journal.write("retry", trial=names[39], attempt=1, failure="crash", charged=True)
    metered = RunFolder(folder.uri)
    metered.files = files = MeteredFiles(metered.files)
    reader, size = Replayer(metered), sum(folder.files.sizes(EVENTS).values())
    plan = look(metered, reader=reader)
    assert (len(plan.kept), len(plan.retried), files.read_bytes) == (20, 20, size)
    with Journal(folder, gone=1, reader=reader) as journal:
        state = recover(metered, journal, reader)
        work = {names[one.place]: one for one in work_of(state, plan)}
        ended(journal, [(Attempt(names[25], 2, 2), record(1.0))])
        assert reader.look().trials[names[25]].status == "done"
    assert (work[names[25]].number, dict(work[names[39]].charged)) == (1, {"crash": 1})
    grown = sum(folder.files.sizes(EVENTS).values()) - size
    first_line = folder.files.read(f"{EVENTS}/000002-000001.jsonl").index(b"\n") + 1
    assert files.read_bytes <= size + grown + 2 * first_line + (grown - first_line), (
        "the first line of an owner says what counts"
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_line_of_a_batch_has_places_as_ranges_and_both_forms_name_the_same_trials(tmp_path, seed):
    rng = np.random.default_rng(seed)
    names = make_run(tmp_path, 30).trial_ids()
    some = rng.permutation(names)[: int(rng.integers(1, 31))].tolist()
    some = sorted(some, key=names.index) if seed % 2 else some
    event = {"event": "begun", "trials": some, "attempts": rng.integers(1, 2 + seed, len(some)).tolist(), "device": "cpu"}
    line = event | columns.who([names.index(name) for name in some], event["attempts"])
    del line["trials"]
    assert columns.expanded(line, names) == columns.expanded(event) and "trials" not in line
    assert columns.places_in(line["at"]).tolist() == list(map(names.index, some))
    assert all(start < stop for start, stop in zip(line["at"][::2], line["at"][1::2], strict=True))
    assert columns.names_of({"at": [29, 31]}, names) == [names[29], "line-31"], "the line of the last trial is lost"


def test_a_watch_of_a_run_of_batches_reads_the_ids_of_trials_and_no_parameters(tmp_path, monkeypatch):
    folder, rng = make_run(tmp_path, 6), np.random.default_rng(7)
    with Journal(folder) as journal:
        journal.write("rows", **batch(folder.trial_ids(), rng, 2))
    best = folder.trials()[int(np.argmin(replay(folder).losses))]
    monkeypatch.setattr(RunFolder, "found_trials", None)
    view = view_of(folder)
    assert (view.counts, view.total, view.best[1]) == ({"done": 6}, 6, best.label)


@pytest.mark.parametrize("seed", range(20))
def test_ids_that_are_read_without_their_lines_are_those_of_the_lines_also_of_damaged_ones(seed):
    rng = np.random.default_rng(seed)
    names = [f"{k:012x}" for k in range(4)] if seed % 3 else ['a"b', "c\\d", "é", "x"]
    trials = [Trial(id=n, index=k, replicate=0, seed=k, swept={}, params={"x": k}) for k, n in enumerate(names)]
    data = bytearray(trial_lines(trials))
    if seed % 2:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    data = bytes(data[: int(rng.integers(len(data)))] if seed % 5 == 4 else data)
    found, problems = read_trials(data), ids_of(data)[1]
    assert ids_of(data) == (list(found.trials.ids), found.problems)
    assert bool(problems) == bool(found.damaged) or not found.trials or len(found.trials) < len(names)
    if not problems:
        assert list(ids_of(data)[0]) == names


def test_entries_of_a_batch_are_one_and_slots_keep_them_small(tmp_path):
    folder, rng = make_run(tmp_path, 5), np.random.default_rng(5)
    with Journal(folder) as journal:
        journal.write("rows", **batch(folder.trial_ids(), rng, 2))
    owner, rows = Follower(folder).look().entries
    assert (owner.event["event"], rows.event["event"]) == ("owner", "rows") and "gradients" not in rows.event
    assert not hasattr(rows, "__dict__") and isinstance(rows, JournalEntry)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_line_of_trials_costs_its_own_trials_and_names_them(seed, monkeypatch):
    rng, count = np.random.default_rng(seed), 60
    monkeypatch.setattr("qdrun.runner.study.trial_file.LINE_BYTES", 800)
    kinds = [lambda k: float(rng.normal()), lambda k: "ab"[k % 2], lambda k: [1.5, float(k)], lambda k: 7, lambda k: k // 20]
    params = [{f"p{n}": kind(k) for n, kind in enumerate(kinds)} for k in range(count)]
    trials = [
        Trial(
            id=f"{k * 7919:012x}",
            index=k,
            replicate=k % 2,
            seed=2**62 + k,
            swept={f"p{k // 30}": one[f"p{k // 30}"], "p2": "\ud800"},
            params=one,
        )
        for k, one in enumerate(params)
    ]
    data = trial_lines(trials)
    assert data.count(b"\n") > 3 and list(read_trials(data).trials) == trials
    assert all(trial_of(data, trial.id) == trial for trial in trials[::7])
    lines = data.split(b"\n")[:-1]
    for _ in range(20):
        hurt = list(lines)
        for at in rng.integers(0, len(lines), 1 + seed % 3).tolist():
            line = bytearray(lines[at])
            line[int(rng.integers(len(line)))] ^= 1 << int(rng.integers(8))
            hurt[at] = bytes(line)
        found = read_trials(b"\n".join(hurt) + b"\n")
        assert found.problems and ids_of(b"\n".join(hurt) + b"\n") == (list(found.trials.ids), found.problems)
        whole = [trial for trial in found.trials if trial.id not in found.damaged]
        assert all(trial == trials[trial.index] for trial in whole)
        lost = [trial for trial in trials if trial.index not in {one.index for one in whole}]
        assert len(found.trials) == count and len(found.damaged) == len(lost) > 0
        assert sum(trial.id in found.damaged for trial in lost) >= len(lost) - 6 * (1 + seed % 3), (
            "a flip in the ids costs names"
        )
