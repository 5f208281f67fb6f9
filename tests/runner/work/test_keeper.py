"""The log of a worker's process while it grows."""

import os

import pytest

from qdrun.runner.store.files import StorageFull
from qdrun.runner.store.layout import RunFolder
from qdrun.runner.work.capture import ProcessLog
from qdrun.runner.work.keeper import Keeper, cut
from qdrun.runner.work.marks import Marks, last_begun


@pytest.fixture
def log(tmp_path):
    """A file that somebody appends to by its descriptor, as a library in C would."""
    path = tmp_path / "stdout.log"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield path, lambda text: os.write(file, text.encode())
    os.close(file)


def test_a_log_that_is_too_long_keeps_its_beginning_and_its_end_and_says_what_is_gone(log):
    path, write = log
    write("first" + "a" * 995)
    assert cut(path, 1000) == 0
    assert path.stat().st_size == 1000
    write("b" * 9000 + "last")
    dropped = cut(path, 1000)
    assert dropped == 10_004 - 500
    text = path.read_text()
    assert text.startswith("firsta") and text.endswith("last")
    assert "\n[9504 bytes were dropped here: the log was full]\n" in text
    write(", and on")
    assert path.read_text() == text + ", and on"


def test_a_log_that_goes_on_for_ever_stays_short_and_counts_all_that_is_gone(log):
    path, write = log
    keeper = Keeper({"log": path}, limit=1000)
    for k in range(200):
        write(f"{k:04} ".ljust(100, "."))
        keeper.look()
        assert path.stat().st_size <= 1000 + 100
    text = path.read_text()
    assert text.startswith("0000 ") and "0199 " in text
    assert text.count("bytes were dropped here") <= 2
    (last,) = [line for line in text.splitlines() if line.startswith("[")][-1:]
    assert 15_000 < int(last[1:].split()[0]) < 21_000


def test_a_full_disk_does_not_end_the_keeper(log, monkeypatch):
    path, write = log
    write("x" * 5000)

    def full(*args):
        raise StorageFull("no room")

    monkeypatch.setattr("qdrun.runner.work.keeper.cut", full)
    Keeper({"log": path}, full, limit=1000).look(now=True)
    assert path.stat().st_size == 5000


def test_a_log_is_uploaded_when_it_has_changed_and_not_more_often_than_it_is_time(log):
    path, write = log
    sent = []
    keeper = Keeper({"workers/w1/stdout.log": path}, lambda name, data: sent.append((name, data)))
    keeper.look()
    assert sent == []  # nothing was printed
    write("one")
    keeper.look(now=True)
    keeper.look(now=True)
    assert sent == [("workers/w1/stdout.log", b"one")]
    write("two")
    keeper.look()
    assert len(sent) == 1  # a moment ago
    keeper.close()
    assert sent[1:] == [("workers/w1/stdout.log", b"onetwo")]


def test_the_log_of_a_process_reaches_an_object_store_while_it_runs(capfd):
    folder = RunFolder("memory://keeper/run")
    log = ProcessLog(folder, "workers/dev0/w1")
    try:
        os.write(1, b"before it crashed\n")
        log._keeper.look(now=True)
        assert folder.files.read("workers/dev0/w1/stdout.log") == b"before it crashed\n"
    finally:
        log.close()
    assert not log._keeper.is_alive()


def test_what_each_lane_began_last_can_be_read_when_the_process_is_gone(tmp_path):
    marks = Marks(tmp_path, 3)
    assert last_begun(marks.path) == frozenset()
    marks.begin(0, 17)
    marks.begin(2, 1234567890123)
    marks.begin(0, 18)
    assert last_begun(marks.path) == {18, 1234567890123}
    marks.close()
    assert last_begun(marks.path) == {18, 1234567890123}


def test_marks_that_cannot_be_written_are_removed_and_nobody_believes_them(tmp_path, monkeypatch):
    marks = Marks(tmp_path, 1)
    marks.begin(0, 1)
    path = marks.path

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    marks.begin(0, 2)
    assert (marks.path, last_begun(path)) == ("", None)
    marks.begin(0, 3)  # and nothing happens
    assert last_begun(str(tmp_path / "nothing")) is None


def test_a_worker_marks_each_launch_before_it_begins(bench):
    worker = bench.worker("Plain", lanes=1, own_process=True)
    info = worker.hello()
    assert last_begun(info.begun) == frozenset()
    batches = [bench.batch(f"t{k}", launch=k) for k in (5, 6, 7)]
    worker.drop([7])
    ends = [end for news in worker.run_all(batches) for end in news]
    assert [(end.launch, end.begun) for end in ends] == [(5, True), (6, True), (7, False)]
    assert last_begun(info.begun) == {6}
