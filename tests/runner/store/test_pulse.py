"""Whether a run lives where the clock of who looks and that of who writes are hours apart: what counts is whether its heart beats."""

import os
import platform
import threading
import time

import pytest
from store_helpers import make_run

from qdrun.runner.observe.listing import listed
from qdrun.runner.observe.table import rows
from qdrun.runner.processes import pid_space
from qdrun.runner.store import owner, status
from qdrun.runner.store.encoding import document
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.owner import MOST_SKEW_S, lives, seems

HOUR = 3600.0


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(owner, "WATCH_S", 0.4)
    monkeypatch.setattr(status, "WATCH_S", 0.4)
    monkeypatch.setattr(owner, "WATCH_EVERY_S", 0.01)


def beat(folder, ahead_s, number=0):
    """A heartbeat of another machine, whose clock is so far ahead."""
    sign = {"t": time.time() + ahead_s + 1e-3 * number, "pid": 1, "host": "elsewhere", "owner": 1, "where": ""}
    folder.files.put("heartbeat.json", document(sign))


class Heart:
    """The process of a run on another machine."""

    def __init__(self, folder, ahead_s):
        self.folder, self.ahead_s, self.over = folder, ahead_s, threading.Event()
        beat(folder, ahead_s)

    def __enter__(self):
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        count = 0
        while not self.over.wait(0.02):
            count += 1
            beat(self.folder, self.ahead_s, count)

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()


def state_of(folder):
    return status.status(folder)["state"]


@pytest.mark.parametrize("ahead_s", [-HOUR, -31.0, HOUR], ids=["an hour behind", "half a minute behind", "an hour ahead"])
def test_one_look_knows_a_run_that_lives_from_one_that_is_lost_whatever_the_clocks_say(where, ahead_s):
    folder = make_run(where)
    Journal(folder)
    with Heart(folder, ahead_s):
        assert state_of(folder) == "running" and lives(folder)
        assert {row["status"] for row in rows(folder)} == {"waiting"}
    assert state_of(folder) == "lost" and not lives(folder)
    assert {row["status"] for row in rows(folder)} == {"lost"}


def test_where_clocks_agree_nobody_waits(where, monkeypatch):
    folder = make_run(where)
    Journal(folder)
    monkeypatch.setattr(owner, "beating", lambda folders, seconds: pytest.fail("it is watched"))
    for ahead_s, alive in [(0.0, True), (-29.0, True), (1.5, True), (-MOST_SKEW_S - 10.0, False)]:
        beat(folder, ahead_s)
        assert seems(folder) is alive and lives(folder) is alive


def test_a_process_of_this_machine_that_is_gone_is_not_watched(tmp_path):
    folder = make_run(tmp_path)
    gone = {"pid": 2**22 + 1, "host": platform.node(), "owner": 1, "where": pid_space()}
    folder.files.put("heartbeat.json", document({"t": time.time(), **gone}))
    os.utime(folder.path / "heartbeat.json", (1e9, 1e9))
    assert seems(folder) is False


def test_a_list_watches_all_runs_at_once(tmp_path, monkeypatch):
    folders = [make_run(tmp_path) for _ in range(6)]
    for folder in folders:
        Journal(folder)
        beat(folder, -HOUR)
    watches, real = [], owner.beating

    def counted(some, seconds):
        some = list(some)
        watches.append(len(some))
        return real(some, seconds)

    monkeypatch.setattr(status, "beating", counted)
    with Heart(folders[2], -HOUR):
        states = {row["id"]: row["state"] for row in status.list_runs(tmp_path)}
        assert {row["id"]: row["state"] for row in listed(str(tmp_path), 10)} == states
        assert [row["id"] for row in listed(str(tmp_path), 1, "running")] == [folders[2].name]
    assert states == {folder.name: "running" if folder is folders[2] else "lost" for folder in folders}
    assert watches[:2] == [6, 6]
