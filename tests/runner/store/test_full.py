"""A disk without room: said before the start where that is known, and in flight a pause that loses nothing."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from store_helpers import Machine, make_run, record, rows_written, run_one, trials

from qdrun.jobs.planning.memory_plan import MemoryPlan, PlanEntry
from qdrun.runner.observe.table import write_parquet
from qdrun.runner.store.attempts import Attempt, Log, ended, left_behind, pack, read_log, started
from qdrun.runner.store.encoding import document, read_document
from qdrun.runner.store.files import LocalFiles, StorageFull
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.replay import record_of, replay
from qdrun.runner.study.plan import PlannedGroup
from qdrun.runner.upkeep.space import check_room, estimate, record_bytes


def fill(folder, journal, machine):
    """Three rows on a disk that may be full at any moment; room is made when the journal says that there is none."""
    paused = 0
    for index, trial in enumerate(replay(folder).trials):
        attempt = Attempt(trial, 1, journal.owner.number)
        for write in (
            lambda a=attempt: started(journal, [(a, {})]),
            lambda a=attempt, i=index: ended(journal, [(a, record(i))], sync=True),
        ):
            try:
                write()
            except StorageFull as full:
                assert "make room there; a running run continues automatically" in str(full)
                assert journal.full and journal.waiting == 1
                assert not journal.retry()
                machine.room = None
                assert journal.retry()
                assert not journal.full and journal.waiting == 0
                paused += 1
    return paused


def size_of(folder):
    return sum(file.stat().st_size for file in (folder.path / "events").iterdir())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 900))
@example(room=0)
def test_a_disk_full_at_any_byte_of_the_journal_pauses_and_goes_on(room):
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "runs")
        with Machine() as machine, Journal(folder) as journal:
            before = size_of(folder)  # the line of the owner
            machine.room = room
            paused = fill(folder, journal, machine)
        assert paused == (size_of(folder) - before > room)
        state = replay(folder)
        assert rows_written(folder) == dict.fromkeys(state.trials, 1)
        assert [record_of(folder, trial)["loss"] for trial in state.trials.values()] == [0.0, 1.0, 2.0]
        assert state.damaged == 0
        assert [event["seq"] for event in read(folder).events] == list(range(7))


def test_events_that_wait_for_room_keep_their_order(tmp_path):
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:
        machine.room = 0
        for number in range(3):
            with pytest.raises(StorageFull):
                journal.write("mark", number=number)
        assert journal.waiting == 3
        journal.beat()  # gives its sign of life and does not raise
        machine.room = None
        journal.write("mark", number=3)
        assert journal.waiting == 0
    assert [event["number"] for event in read(folder).events if event["event"] == "mark"] == [0, 1, 2, 3]


def test_a_run_gives_signs_of_life_on_a_full_disk(tmp_path):
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:
        journal.beat()
        path = folder.path / "heartbeat.json"
        path.write_bytes(document(read_document(path.read_bytes()) | {"t": 1.0}))
        os.utime(path, (1.0, 1.0))
        assert folder.silent_s() > 1e6
        machine.room = 0
        journal.beat()
        assert folder.silent_s() < 100


def test_a_journal_that_cannot_even_cut_off_what_a_full_disk_tore_costs_one_line(tmp_path, monkeypatch):
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:
        machine.room = 10

        def refuse(*args):
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(machine, "ftruncate", refuse, raising=False)
        with pytest.raises(StorageFull):
            journal.write("mark", number=0)
        machine.room = None
        assert journal.retry()
        journal.write("mark", number=1)
    found = read(folder)
    assert [event["number"] for event in found.events if event["event"] == "mark"] == [0, 1]
    assert found.damaged == 1


def test_gradients_that_find_no_room_leave_nothing_behind_and_can_be_saved_later(tmp_path):
    folder = make_run(tmp_path, 1)
    attempt = Attempt(trials(1)[0].id, 1)
    large = np.arange(20_000.0)
    for room in (0, 1000, 160_050, 160_150):
        with Machine(room=room), pytest.raises(StorageFull):
            pack(folder, attempt, record(1, large))
        assert left_behind(folder, attempt) is None
        assert not [path for path in folder.path.rglob("*") if path.name.endswith(".partial")]
    assert pack(folder, attempt, record(1, large))["gradients"]["x"]["shape"] == [20_000]


def test_the_table_stays_as_it_was_when_a_new_one_finds_no_room(tmp_path):
    folder = make_run(tmp_path, 1)
    path = write_parquet(folder)
    before = Path(path).read_bytes()
    with Machine(room=100), pytest.raises(StorageFull):
        write_parquet(folder)
    assert Path(path).read_bytes() == before


def test_a_full_object_store_pauses_too(monkeypatch):
    folder = make_run("memory://full/runs")
    system = folder.files.system
    real = system.pipe_file
    with Journal(folder) as journal:

        def full(*args, **options):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(system, "pipe_file", full)
        attempt = Attempt(trials(1)[0].id, 1)
        with pytest.raises(StorageFull):
            ended(journal, [(attempt, record(1))], sync=True)
        assert journal.full and journal.waiting == 1 and not journal.retry()
        monkeypatch.setattr(system, "pipe_file", real)
        assert journal.retry() and journal.waiting == 0
    assert rows_written(folder) == {attempt.trial: 1}


def test_a_log_that_finds_no_room_never_fails_its_trial(tmp_path):
    folder = make_run(tmp_path, 1)
    attempt = Attempt(trials(1)[0].id, 1)
    with Log(folder, attempt, "stdout", limit=10) as log:
        for _ in range(4):
            log.write(b"12345\n")
    assert log.dropped == 14
    assert read_log(folder, attempt, "stdout") == b"12345\n1234\n[14 bytes were dropped: the log was full, or the disk was]\n"
    assert read_log(folder, attempt, "stdout", start=6).startswith(b"1234\n")
    with Log(folder, attempt, "stderr"):
        pass
    assert not (tmp_path / attempt.folder / "stderr.log").exists()


@pytest.fixture
def small_disk():
    """A real file system of one MiB."""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this user may not mount a file system")
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is Linux's")
def test_a_real_full_disk_pauses_a_run_that_then_ends_with_every_row(small_disk):
    folder = make_run(small_disk / "runs", 6)
    names = list(replay(folder).trials)
    ballast = small_disk / "ballast"
    full = 0
    with Journal(folder) as journal:
        run_one(folder, journal, names[0], 0.0, np.zeros(9000))
        with open(ballast, "wb", buffering=0) as stream:
            try:
                while stream.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
        for index, name in enumerate(names[1:], 1):
            attempt = Attempt(name, 1)
            while True:
                try:
                    packed = pack(folder, attempt, record(index, np.full(9000, float(index))))
                    break
                except StorageFull:
                    full += 1
                    ballast.unlink()
            ended(journal, [(attempt, packed)], sync=True)
    assert full == 1
    assert rows_written(folder) == dict.fromkeys(names, 1)


class Room(LocalFiles):
    """A disk with so many free bytes."""

    free = 0

    def free_bytes(self):
        return self.free


def groups(count, gradient_bytes):
    plan = MemoryPlan(entries=(PlanEntry(kind="gradients", bytes=gradient_bytes, source="build()"),))
    return [PlannedGroup(places=range(count), first=0, example="", plan=plan)]


def test_a_run_that_cannot_fit_is_refused_with_the_numbers_before_it_starts():
    made = [trial.model_copy(update={"params": {"x": 0.0, "w": [[0.0] * 100] * 100}}) for trial in trials(100)]
    wanted = estimate(made, groups(len(made), 1 << 30), ["x", "w"])
    assert wanted.least == wanted.most == 100 * record_bytes(np.array(10_001))
    assert record_bytes(np.array(10_001)) > 80_008
    files = Room("/data/runs")
    files.free = 20 << 20
    with pytest.raises(StorageFull) as refused:
        check_room(files, wanted)
    assert str(refused.value) == (
        "not enough room in /data/runs: 100 trials will write at least 9.3 MiB (95.6 KiB each, and 16.0 MiB must be left), "
        "20.0 MiB are free\n  do: make room, set `output` to another disk, or ask for fewer `gradients`; nothing was started"
    )
    files.free = 26 << 20
    assert check_room(files, wanted) == ""


def test_a_gradient_of_unknown_shape_warns_and_is_not_refused():
    made = trials(100)
    wanted = estimate(made, groups(len(made), 1 << 30), ["field"])
    assert wanted.least < 1 << 20 and wanted.most > 100 << 30
    files = Room("/data/runs")
    files.free = 50 << 30
    assert "up to 100.0 GiB: the run will pause when the disk is full" in check_room(files, wanted)


@pytest.mark.parametrize("count", [1, 100, 8192, 8193, 100_000])
def test_a_record_takes_no_more_than_its_estimate(tmp_path, count):
    folder = make_run(tmp_path, 1)
    before = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    rng = np.random.default_rng(count)
    with Journal(folder) as journal:
        owner = read(folder).lengths["000001-000001.jsonl"]
        run_one(folder, journal, trials(1)[0].id, 0.5, rng.standard_normal(count))
    write_parquet(folder)
    path = Path(folder.table)
    empty = 6000  # the columns of a table, once a run
    after = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file()) - before - owner - empty
    assert after <= record_bytes(count) * 1.1, path.stat().st_size


def test_an_object_store_says_nothing_of_its_room():
    folder = make_run("memory://room/runs")
    assert check_room(folder.files, estimate(folder.trials(), folder.plan(), ["x"])) == ""


def test_room_is_asked_of_the_nearest_folder_that_exists(tmp_path):
    assert LocalFiles(str(tmp_path / "not" / "yet")).free_bytes() == pytest.approx(
        os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.2
    )
