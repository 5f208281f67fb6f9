"""Each error number of a store has its class: waited for, refused by name, or what the store says of a file."""

import errno
import os
import time

import pytest
from store_helpers import make_run, run_one

from qdrun.runner.engine.session import beating
from qdrun.runner.store import files as store_files
from qdrun.runner.store.files import (
    StorageBroken,
    StorageDenied,
    StorageFull,
    StorageUnreachable,
    full_said,
)
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from tests.runner.store.test_away import Mounted

WAITED_FOR = {
    StorageFull: ("ENOSPC", "EDQUOT"),
    StorageDenied: ("EROFS", "EACCES", "EPERM"),
    StorageUnreachable: (
        *("EIO", "ENXIO", "ENODEV", "ESTALE", "ENOTCONN", "ETIMEDOUT", "ENOLINK", "EREMOTEIO", "EHOSTDOWN", "EHOSTUNREACH"),
        *("ENETUNREACH", "ENETDOWN", "ECONNRESET", "ECONNREFUSED", "ENOMEDIUM", "ESHUTDOWN", "EMFILE", "ENFILE", "EAGAIN"),
        *("EBUSY", "ETXTBSY", "ENOLCK"),
    ),
}
CASES = [(kind, name) for kind, names in WAITED_FOR.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[name for _, name in CASES])
def test_an_error_that_may_pass_costs_no_line_and_names_the_folder(tmp_path, monkeypatch, kind, name):
    folder, number = make_run(tmp_path, 2), getattr(errno, name)
    first, second = folder.trial_ids()
    with Journal(folder) as journal:
        disk = Mounted(number)
        monkeypatch.setattr(store_files, "os", disk)
        run_one(folder, journal, first, 1.0)
        disk.away = True
        with pytest.raises(StorageFull) as said:
            journal.write("ended", sync=True, trial=second, attempt=1, status="done", loss=2.0)
        assert type(said.value) is kind and not journal.retry()
        first_line = str(said.value).splitlines()[0]
        assert str(folder.path) in first_line and first_line.endswith(os.strerror(number))
        assert "`qdrun resume" in str(said.value)
        disk.away = False
        assert journal.retry()
    assert [entry["trial"] for entry in read(folder).events if entry["event"] == "ended"] == [first, second]


@pytest.mark.parametrize("name", ["ENAMETOOLONG", "EFBIG", "EINVAL", "ELOOP", "ENOSYS", "EOPNOTSUPP"])
def test_an_error_that_never_passes_is_not_waited_for(tmp_path, name):
    number = getattr(errno, name)
    with pytest.raises(StorageBroken) as said, full_said(str(tmp_path)):
        raise OSError(number, os.strerror(number))
    assert not isinstance(said.value, StorageFull) and said.value.exit_code == 5
    assert str(said.value).startswith(f"the disk of {tmp_path} cannot do that: {os.strerror(number)}\n")
    assert str(said.value).endswith(f"`qdrun resume {tmp_path}`")


@pytest.mark.parametrize("kind", [FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError])
def test_what_a_store_says_of_a_file_stays_what_it_is(kind):
    error = kind(
        getattr(errno, {"FileNotFoundError": "ENOENT", "FileExistsError": "EEXIST"}.get(kind.__name__, "ENOTDIR")), "x"
    )
    with pytest.raises(OSError) as said, full_said("runs"):
        raise error
    assert said.value is error


def test_the_user_is_told_once_that_files_cannot_be_written_and_once_that_they_can(tmp_path, monkeypatch):
    folder, notes = make_run(tmp_path, 1), []
    monkeypatch.setattr("qdrun.runner.engine.session.BEAT_EVERY_S", 0.005)
    with Journal(folder) as journal:
        disk = Mounted(errno.ENOSPC)
        monkeypatch.setattr(store_files, "os", disk)
        disk.away = True
        with beating(journal, note=notes.append):
            until(lambda: notes)
            time.sleep(0.05)
            disk.away = False
            until(lambda: len(notes) > 1)
    assert notes == [
        f"no file can be written in {folder.uri}: the run goes on, and looks lost to others after 30 s",
        f"files can be written in {folder.uri} again",
    ]


def until(what):
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)
