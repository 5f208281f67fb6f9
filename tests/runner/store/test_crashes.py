"""A machine that stops between any two file operations, or in the middle of one: each finished trial keeps its one row."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import Machine, make_run, record, rows_written, run_one

from qdrun.runner.store.attempts import Attempt, arrays_of, ended, left_behind, pack, requeued, retried, started
from qdrun.runner.store.columns import made
from qdrun.runner.store.files import LocalFiles
from qdrun.runner.store.follower import read, segments
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, all_runs
from qdrun.runner.store.owner import owner_numbers
from qdrun.runner.store.replay import record_of, recover, replay

LARGE = np.arange(10_000.0)
"""A gradient that does not stay in the journal."""


def gradient_of(index):
    return LARGE + index if index % 2 else None


def session(folder, finished):
    """One runner from its start to the end of all trials. ``finished`` gets the trials whose rows it was told are written."""
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as journal:
        state = recover(folder, journal)
        for index, trial in enumerate(state.trials.values()):
            if trial.entry is not None:
                continue
            number = trial.next_number
            if index == 2 and number == 1:
                attempt = Attempt(trial.id, number, journal.owner.number)
                started(journal, [(attempt, {})])
                retried(journal, attempt, "crash", {"type": "Crash", "message": "signal 11", "traceback": ""})
                number += 1
            run_one(folder, journal, trial.id, index, gradient_of(index), number)
            finished.append(trial.id)
        journal.write("finished", sync=True, state="done")


def check_all_done(folder):
    """Every trial has exactly one row, the right one, with the right gradient."""
    state = replay(folder)
    assert rows_written(folder) == dict.fromkeys(state.trials, 1)
    assert (state.counts(), state.doubled, state.damaged, state.strays) == ({"done": len(state.trials)}, 0, 0, {})
    for index, trial in enumerate(state.trials.values()):
        row = record_of(folder, trial)
        assert row["loss"] == index
        expected = 2.0 * index if gradient_of(index) is None else gradient_of(index)
        np.testing.assert_array_equal(arrays_of(folder, row)["x"], expected)


def crashed_session(folder, stop, part):
    """A session on a machine that stops; the machine, and the trials that were finished before."""
    finished = []
    with Machine(stop, part) as machine:
        session(folder, finished)
    return machine, finished


def go_on(folder):
    """A session on a machine that works."""
    with Machine():
        session(folder, [])


def unfinished(folder):
    """Files of trials that a machine had not finished when it stopped."""
    return list((folder.path / "trials").rglob("*.partial"))


def operations(tmp_path):
    """How many operations a session takes that is never stopped."""
    machine, _ = crashed_session(make_run(tmp_path / "whole", 4), None, 0.0)
    assert {"open", "write", "fsync", "replace", "link", "mkdir", "unlink"} <= set(machine.calls)
    return len(machine.calls)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_crash_between_any_two_operations_neither_loses_nor_doubles_a_row(tmp_path, part):
    source, left = make_run(tmp_path / "runs", 4), 0
    for stop in range(operations(tmp_path)):
        folder = RunFolder(shutil.copytree(source.path, tmp_path / f"stop{stop}"))
        machine, finished = crashed_session(folder, stop, part)
        assert machine.off
        state = replay(folder)
        assert all(state.trials[trial].status == "done" for trial in finished)
        assert max(rows_written(folder).values(), default=0) <= 1
        torn = len(unfinished(folder))
        go_on(folder)
        check_all_done(folder)
        assert not unfinished(folder)
        left += torn
        shutil.rmtree(folder.path)
    assert left > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 75), st.floats(0, 1)), max_size=5))
def test_crash_after_crash_each_finished_row_is_kept_by_all_that_follow(crashes):
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "runs", 4)
        known = set()
        for stop, part in crashes:
            known |= set(crashed_session(folder, stop, part)[1])
            assert {trial.id for trial in replay(folder).trials.values() if trial.status == "done"} >= known
        go_on(folder)
        check_all_done(folder)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 75), st.floats(0, 1))
def test_a_loss_of_power_takes_at_most_what_was_not_synced(stop, part):
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "runs", 4)
        first, *others = replay(folder).trials
        with Machine(stop, part) as machine, Journal(folder) as journal:
            attempt = Attempt(first, 1)
            started(journal, [(attempt, {})])
            ended(journal, [(attempt, pack(folder, attempt, record(0)))], sync=True)
            journal.write("synced", sync=True)
            for index, trial in enumerate(others, 1):
                run_one(folder, journal, trial, index, gradient_of(index))
        synced = any(event["event"] == "synced" for event in read(folder).events)
        machine.lose_power()
        assert not synced or replay(folder).trials[first].status == "done"
        go_on(folder)
        check_all_done(folder)


def test_a_journal_cut_at_any_byte_gives_its_whole_lines(tmp_path):
    folder = make_run(tmp_path, 4)
    go_on(folder)
    (name,) = segments(folder)
    data = (folder.path / name).read_bytes()
    trials = list(replay(folder).trials)
    for cut in range(len(data)):
        (folder.path / name).write_bytes(data[:cut])
        found = read(folder)
        assert len(found.entries) == data.count(b"\n", 0, cut)
        assert found.damaged == 0
        ends = sum(event["event"] == "ended" for event in found.events)
        assert sum(trial.entry is not None for trial in replay(folder, trials=trials).trials.values()) == ends


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1))
def test_a_run_whose_journal_was_cut_at_any_byte_can_go_on(share):
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "runs", 4)
        go_on(folder)
        (name,) = segments(folder)
        data = (folder.path / name).read_bytes()
        (folder.path / name).write_bytes(data[: round(share * len(data))])
        go_on(folder)
        check_all_done(folder)


@pytest.mark.parametrize("name", ["result.json", "gradients.safetensors"])
def test_files_of_an_attempt_cut_at_any_byte_are_not_taken_for_a_result(tmp_path, name):
    folder = make_run(tmp_path, 1)
    (trial,) = replay(folder).trials
    attempt = Attempt(trial, 1)
    with Journal(folder) as journal:
        started(journal, [(attempt, {})])
        pack(folder, attempt, record(0, LARGE))
    path = folder.path / attempt.folder / name
    data = path.read_bytes()
    cuts = range(len(data) - 1) if len(data) < 1000 else [*range(300), *range(300, len(data), 997)]
    for cut in cuts:
        path.write_bytes(data[:cut])
        assert left_behind(folder, attempt) is None, cut
    path.unlink()
    assert left_behind(folder, attempt) is None
    path.write_bytes(data)
    assert left_behind(folder, attempt)["loss"] == 0


def test_a_result_that_no_line_names_is_accepted_by_the_next_owner_and_no_other_file_is_looked_for(tmp_path, monkeypatch):
    folder = make_run(tmp_path, 4)
    first, second, third, _ = replay(folder).trials
    with Journal(folder) as journal:
        for trial in (first, second, third):
            started(journal, [(Attempt(trial, 1), {"device": "cpu"})])
        pack(folder, Attempt(first, 1), record(5, LARGE))
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as journal:
        reads, real = [], LocalFiles.read
        monkeypatch.setattr(LocalFiles, "read", lambda self, path, *words: (reads.append(path), real(self, path, *words))[1])
        state = recover(folder, journal)
    assert [path for path in reads if path.startswith("trials/")] == [Attempt(first, 1).result]
    assert [trial.status for trial in state.trials.values()] == ["done", "waiting", "waiting", "waiting"]
    assert state.trials[first].entry.event["recovered"] is True
    assert state.trials[first].entry.event["by"] == 1
    assert state.trials[second].failures() == {"infrastructure": 1}
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as journal:
        assert rows_written(folder) == {first: 1}
        assert recover(folder, journal).counts() == {"done": 1, "waiting": 3}


def test_the_result_of_an_attempt_that_only_looked_for_the_cause_of_a_crash_is_not_accepted(tmp_path):
    folder = make_run(tmp_path, 1)
    (trial,) = replay(folder).trials
    with Journal(folder) as journal:
        started(journal, [(Attempt(trial, 1), {"checked": True})])
        pack(folder, Attempt(trial, 1), record(0, LARGE))
    with Journal(folder) as journal:
        found = recover(folder, journal).trials[trial]
    assert (found.status, found.entry, found.next_number) == ("waiting", None, 2)


def batch_session(folder):
    """One runner from its start to the end of a batch in which trials succeed, fail, and are tried again; a later one runs what is left."""
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as journal:
        state = recover(folder, journal)
        left = [name for name, trial in state.trials.items() if trial.entry is None]
        if left:
            numbers = [state.trials[name].next_number for name in left]
            again = [name for name in left if name == list(state.trials)[2] and state.trials[name].next_number == 1]
            journal.write("begun", trials=left, attempts=numbers, device="cpu", bytes=64)
            well = [(name, number) for name, number in zip(left, numbers, strict=True) if name not in again]
            index = {name: k for k, name in enumerate(state.trials)}
            failed = [(name, number) for name, number in well if index[name] == 1]
            well = [one for one in well if one not in failed]
            for part in (well[:2], well[2:]):  # as of a batch that is too large for one line
                if part:
                    names, tries = zip(*part, strict=True)
                    losses = np.array([float(index[name]) for name in names])
                    (rows,) = made(names, tries, {"status": "done"}, losses, None, {"x": 2.0 * losses}, {})
                    journal.write("rows", **rows.event())
            for name, number in failed:
                error = {"type": "E", "message": "an assert", "traceback": ""}
                ended(journal, [(Attempt(name, number, journal.owner.number), {"status": "failed", "error": error})])
            for name in again:
                retried(journal, Attempt(name, 1, journal.owner.number), "crash", {"type": "E", "message": "gone"})
                run_one(folder, journal, name, index[name], None, 2)
        journal.write("finished", sync=True, state="failed")


def test_a_batch_with_failures_whose_journal_is_cut_at_any_byte_neither_loses_nor_doubles_a_row(tmp_path):
    folder = make_run(tmp_path, 6)
    batch_session(folder)
    (name,) = segments(folder)
    data = (folder.path / name).read_bytes()
    lines = [k + 1 for k, byte in enumerate(data) if byte == ord("\n")]
    assert len(lines) >= 7
    for cut in sorted({*lines, *(line - 1 for line in lines), *range(0, len(data), 97)}):
        for path in [*(folder.path / "events").glob("000002*"), *(folder.path / "owners").glob("000002*")]:
            path.unlink()
        (folder.path / name).write_bytes(data[:cut])
        before = replay(folder)
        batch_session(folder)
        state = replay(folder)
        assert rows_written(folder) == dict.fromkeys(state.trials, 1), cut
        assert (state.doubled, state.damaged, state.strays) == (0, 0, {})
        assert [trial.status for trial in state.trials.values()] == ["done", "failed", *["done"] * 4]
        for index, (trial, after) in enumerate(state.trials.items()):
            had = before.trials[trial]
            if had.entry is not None:
                assert len(after.attempts) == len(had.attempts), "it ran again"
            elif any(one.status == "running" for one in had.attempts):
                assert after.attempts[len(had.attempts) - 1].status == "lost"
            assert index == 1 or record_of(folder, after)["loss"] == index


def test_a_crash_while_a_run_is_made_leaves_a_whole_run_or_none(tmp_path):
    with Machine() as whole:
        make_run(tmp_path / "whole")
    for stop in range(len(whole.calls)):
        where = tmp_path / f"stop{stop}"
        with Machine(stop, 0.5):
            make_run(where)
        for folder in all_runs(where):
            assert len(folder.trials()) == folder.info()["trials"] == 3
            assert folder.plan() == [] or folder.plan()[0].places == range(3)
            go_on(folder)
            check_all_done(folder)


def test_damaged_lines_are_counted_and_cost_themselves_alone(tmp_path):
    folder = make_run(tmp_path, 3)
    go_on(folder)
    (name,) = segments(folder)
    path = folder.path / name
    lines = path.read_bytes().splitlines()
    hit = next(index for index, line in enumerate(lines) if b'"ended"' in line)
    lines[hit] = lines[hit][:20] + b"\x00" * 7
    lines.insert(hit, b"[1]")
    path.write_bytes(b"\n".join(lines) + b"\n")
    state = replay(folder)
    assert state.damaged == 2
    assert state.counts() == {"done": 2, "running": 1}
    go_on(folder)
    assert rows_written(folder) == dict.fromkeys(state.trials, 1)


def test_a_damaged_first_line_of_an_owner_loses_no_row(tmp_path):
    folder = make_run(tmp_path, 4)
    crashed_session(folder, 40, 0.0)
    done = [trial.id for trial in replay(folder).trials.values() if trial.status == "done"]
    assert done
    go_on(folder)
    name = list(segments(folder))[-1]
    path = folder.path / name
    path.write_bytes(b"\x00" * 10 + path.read_bytes()[10:])
    state = replay(folder)
    assert state.damaged == 1
    assert state.counts() == {"done": 4}


def test_a_trial_that_is_asked_for_again_gets_the_new_row(tmp_path):
    folder = make_run(tmp_path, 2)
    first, second = replay(folder).trials
    with Journal(folder) as journal:
        run_one(folder, journal, first, 1.0)
        run_one(folder, journal, second, 2.0)
        requeued(journal, {first: "asked for with --retry"})
        assert replay(folder).trials[first].status == "waiting"
        run_one(folder, journal, first, 3.0, number=2)
        ended(journal, [(Attempt(first, 3), record(4.0))])
    state = replay(folder)
    assert [record_of(folder, trial)["loss"] for trial in state.trials.values()] == [3.0, 2.0]
    assert state.doubled == 1


def test_partial_files_are_never_seen(tmp_path):
    files = LocalFiles(str(tmp_path))
    with Machine(stop=2, part=0.5):
        files.put("a.json", b"0123456789")
    assert files.names("") == []
    assert len(list(tmp_path.iterdir())) == 1


def test_what_killed_processes_left_unfinished_is_removed_by_the_next_owner(tmp_path):
    folder = make_run(tmp_path)
    names = list(replay(folder).trials)
    attempts = [Attempt(name, 1) for name in names]
    with Journal(folder) as journal:
        started(journal, [(attempt, {}) for attempt in attempts])
        retried(journal, attempts[0], "crash", {"type": "Crash", "message": "signal 9", "traceback": ""})
        ended(journal, [(attempts[1], record(1))])
    paths = [folder.path / attempt.folder / ".gradients.safetensors.0a1b2c3d.partial" for attempt in attempts]
    paths += [folder.path / f".{name}.0a1b2c3d.partial" for name in ("heartbeat.json", "results.parquet")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    with Journal(folder) as journal:
        recover(folder, journal)
    there = [path.exists() for path in paths]
    assert there == [False, False, False, True, True], "the heartbeat and the table are written by others, too"
    for path in paths[3:]:
        os.utime(path, (0, 0))
    with Journal(folder) as journal:
        recover(folder, journal)
    assert not paths[3].exists(), "no process takes so long to write it"


def test_a_result_that_comes_after_its_trial_has_a_row_is_left_alone(tmp_path):
    folder = make_run(tmp_path, 1)
    (trial,) = replay(folder).trials
    with Machine():
        with Journal(folder) as journal:
            started(journal, [(Attempt(trial, 1), {})])
        with Journal(folder) as journal:
            assert recover(folder, journal).trials[trial].status == "waiting"
            run_one(folder, journal, trial, 2.0, number=2)
        pack(folder, Attempt(trial, 1), record(1.0, LARGE))  # its worker outlived its runner
        with Journal(folder) as journal:
            state = recover(folder, journal)
    assert (record_of(folder, state.trials[trial])["loss"], state.doubled) == (2.0, 0)
    assert rows_written(folder) == {trial: 1}
