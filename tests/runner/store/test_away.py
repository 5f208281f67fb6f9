"""A disk that is away for a while is waited for, a run folder that was removed is not; and stores that do not refuse to overwrite."""

import errno
import os
import shutil
import threading

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from store_helpers import make_run, run_one

from qdrun.runner.engine.session import beating
from qdrun.runner.observe.table import rows
from qdrun.runner.store import files as store_files
from qdrun.runner.store import objects
from qdrun.runner.store.attempts import Attempt, Log
from qdrun.runner.store.files import FolderGone, StorageUnknown, StorageUnreachable, open_files
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.owner import cancel_requests


class Mounted:
    """``os`` of a disk that is mounted over a network: while it is ``away``, what reaches it fails with ``error``.

    With ESTALE, files that were open then are of no use afterwards either.
    """

    def __init__(self, error):
        self.error, self.away, self.stale = error, False, set()

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "replace", "link", "listdir", "statvfs", "ftruncate", "fstat"):
            return real

        def call(*words, **options):
            if self.away and name in ("write", "fsync") and self.error == errno.ESTALE:
                self.stale.add(words[0])
            if self.away or (words[0] in self.stale and name in ("write", "fsync", "ftruncate", "fstat")):
                raise OSError(self.error, os.strerror(self.error))
            found = real(*words, **options)
            if name == "open":
                self.stale.discard(found)
            return found

        return call


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_that_is_away_for_a_while_costs_no_line(tmp_path, monkeypatch, error):
    folder = make_run(tmp_path, 3)
    names = folder.trial_ids()
    with Journal(folder) as journal:
        disk = Mounted(error)
        monkeypatch.setattr(store_files, "os", disk)
        run_one(folder, journal, names[0], 1.0)
        disk.away = True
        for name in names[1:]:
            with pytest.raises(StorageUnreachable, match=r"does not answer: .*\n  do: look at the disk"):
                journal.write("ended", trial=name, attempt=1, status="done", loss=2.0)
        assert not journal.retry() and journal.full and journal.waiting == 2
        for way in (
            folder.files.free_bytes,
            lambda: cancel_requests(folder, journal.owner),
            lambda: folder.files.put("x", b"1"),
        ):
            with pytest.raises(StorageUnreachable):
                way()
        journal.beat()  # says nothing, and the heart goes on
        disk.away = False
        assert journal.retry() and not journal.waiting
        journal.write("finished", sync=True, state="done")
    assert [row["loss"] for row in rows(folder)] == [1.0, 2.0, 2.0] and read(folder).damaged == 0


def test_a_run_whose_folder_is_removed_ends_at_once_and_leaves_no_ghost(tmp_path):
    folder = make_run(tmp_path, 2)
    (first, _) = folder.trial_ids()
    journal = Journal(folder)
    run_one(folder, journal, first, 1.0)
    shutil.rmtree(folder.path)
    with pytest.raises(FolderGone, match=rf"{folder.path} is gone: .*\n  do: put it back") as gone:
        journal.write("ended", trial=first, attempt=1, status="done", loss=1.0)
    assert gone.value.exit_code == 5
    with beating(journal):
        pass
    with Log(folder, Attempt(first, 1), "stdout") as log:
        log.write(b"hello")
    assert log.dropped >= 5
    with pytest.raises(FolderGone):
        folder.files.put("results.parquet", b"")
    journal.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", ["nothing", "the folder", "files of trials"])
def test_what_is_left_of_a_removed_folder_gets_nothing_more(tmp_path, left):
    """Whoever removes it meets those who write to it: a part may stay, and the folder may have been made again."""
    folder = make_run(tmp_path, 2)
    (first, _) = folder.trial_ids()
    journal = Journal(folder)
    run_one(folder, journal, first, 1.0)
    shutil.rmtree(folder.path)
    if left != "nothing":
        (folder.path / ("trials" if left == "files of trials" else "")).mkdir(parents=True)
    kept = sorted(tmp_path.rglob("*"))
    with pytest.raises(FolderGone, match="is gone: "):
        journal.beat()
    with pytest.raises(FolderGone, match="is gone: "):
        journal.write("ended", sync=True, trial=first, attempt=1, status="done", loss=1.0)
    with beating(journal):
        pass
    journal.close()
    assert sorted(tmp_path.rglob("*")) == kept


def test_a_folder_that_is_removed_while_a_file_is_written_is_not_made_again(tmp_path, monkeypatch):
    folder = make_run(tmp_path, 1)
    real = os.mkdir

    def meanwhile(path, *words):
        shutil.rmtree(folder.path, ignore_errors=True)
        real(path, *words)

    monkeypatch.setattr(os, "mkdir", meanwhile)
    with pytest.raises(FolderGone):
        folder.files.put("a/b/c", b"data")
    with Log(folder, Attempt("t", 1), "stdout") as log:
        log.write(b"hello")
    assert log.dropped >= 5 and list(tmp_path.iterdir()) == []


def test_a_segment_that_is_unlinked_takes_no_more_lines(tmp_path):
    folder = make_run(tmp_path, 1)
    journal = Journal(folder)
    shutil.rmtree(folder.path / "events")
    with pytest.raises(FolderGone):
        journal.write("mark")
    journal.close()


def test_the_heart_beats_on_whatever_the_store_says(tmp_path, monkeypatch):
    folder = make_run(tmp_path, 1)
    with Journal(folder) as journal:
        beats = threading.Semaphore(0)
        said = iter([StorageUnknown("no bucket"), OSError(errno.EIO, "I/O"), FolderGone("gone")])

        def beat(steps=None):
            beats.release()
            raise next(said, StorageUnknown("still"))

        monkeypatch.setattr(journal, "beat", beat)
        monkeypatch.setattr("qdrun.runner.engine.session.BEAT_EVERY_S", 0.001)
        with beating(journal):
            assert all(beats.acquire(timeout=60) for _ in range(5))


class Careless(MemoryFileSystem):
    """A store that overwrites, whatever it is told."""

    protocol = "careless"
    cachable = False
    store, pseudo_dirs = {}, [""]
    meet = None

    def pipe_file(self, path, value, mode="overwrite", **how):
        if Careless.meet is not None:
            Careless.meet.wait()  # both have looked: there is no claim
        return super().pipe_file(path, value)


@pytest.mark.parametrize("count", [2, 5])
def test_one_of_those_who_claim_at_once_has_it_also_in_a_store_that_overwrites(monkeypatch, count):
    fsspec.register_implementation("careless", Careless, clobber=True)
    monkeypatch.setattr(objects, "SETTLE_S", 0.1)
    monkeypatch.setattr(Careless, "meet", threading.Barrier(count))
    files, won = open_files(f"careless://claims{count}"), []
    threads = [
        threading.Thread(target=lambda own=own: won.append(own) if files.claim("owners/1.json", b"%d" % own) else None)
        for own in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and files.read("owners/1.json") == b"%d" % won[0]
    assert not files.claim("owners/1.json", b"late")
