"""The log of a worker's process while it grows, on an object store; what its lanes began last."""

import os
import time

import pytest

from qdrun.runner.store.layout import RunFolder
from qdrun.runner.workers.capture import ProcessLog, Uploader
from qdrun.runner.workers.marks import Marks, last_begun


@pytest.fixture
def log(tmp_path):
    """A file that somebody appends to by its descriptor, as a library in C would."""
    path = tmp_path / "stdout.log"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield path, lambda text: os.write(file, text.encode())
    os.close(file)


def test_a_log_is_uploaded_when_it_has_changed_and_not_more_often_than_it_is_time(log):
    path, write = log
    sent = []
    uploader = Uploader({"workers/w1/stdout.log": path}, lambda name, data: sent.append((name, data)))
    uploader.look()
    assert sent == []  # nothing was printed
    write("one")
    uploader.look(now=True)
    uploader.look(now=True)
    assert sent == [("workers/w1/stdout.log", b"one")]
    write("two")
    uploader.look()
    assert len(sent) == 1  # a moment ago
    uploader.close()
    assert sent[1:] == [("workers/w1/stdout.log", b"onetwo")]


def test_the_log_of_a_process_reaches_an_object_store_while_it_runs(capfd):
    folder = RunFolder("memory://keeper/run")
    log = ProcessLog(folder, "workers/dev0/w1")
    try:
        os.write(1, b"before it crashed\n")
        end = time.monotonic() + 30.0
        while not (log.where / "stdout.log").stat().st_size:
            assert time.monotonic() < end
            time.sleep(0.01)
        log._uploader.look(now=True)
        assert folder.files.read("workers/dev0/w1/stdout.log") == b"before it crashed\n"
    finally:
        log.close()
    assert not log._uploader.is_alive()


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
    ends = [end for news in worker.run_all(batches) for end in news.ends]
    assert [(end.launch, end.begun) for end in ends] == [(5, True), (6, True), (7, False)]
    assert last_begun(info.begun) == {6}
