"""One writer at a time: who took a run over wins, whatever the one before still writes; what others may ask of the owner."""

import errno
import os
import platform
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_helpers import zombie
from store_helpers import make_run, record, rows_written, run_one

from qdrun.runner.processes import pid_space
from qdrun.runner.processes import started as process_started
from qdrun.runner.store import journal as journal_module
from qdrun.runner.store import owner
from qdrun.runner.store.attempts import Attempt, arrays_of, ended, pack, started
from qdrun.runner.store.encoding import document
from qdrun.runner.store.files import StorageFull
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.owner import (
    CancelRequests,
    OwnerLost,
    RunAlive,
    ask_to_cancel,
    cancel_requests,
    latest_owner,
    lives,
    owner_numbers,
)
from qdrun.runner.store.replay import record_of, recover, replay
from qdrun.runner.store.status import request_cancel


def test_a_stale_owner_notices_at_its_next_write_and_writes_nothing(where):
    folder = make_run(where)
    first, second, _ = replay(folder).trials
    stale = Journal(folder)
    run_one(folder, stale, first, 1.0)
    stale.write("mark", sync=True)
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as new:
        before = len(read(folder).entries)
        with pytest.raises(
            OwnerLost, match=f"process {os.getpid()} on .* has taken {folder.name} over from this process"
        ) as lost:
            stale.write("ended", trial=second, attempt=1, status="done", loss=9.0, sync=True)
        assert f"qdrun status {folder.uri}" in str(lost.value)
        with pytest.raises(OwnerLost):
            stale.beat()
        stale.close()
        assert len(read(folder).entries) == before
        run_one(folder, new, second, 2.0)
    assert [record_of(folder, t)["loss"] for t in replay(folder).trials.values() if t.entry] == [1.0, 2.0]


def test_what_a_stale_owner_wrote_after_it_had_looked_is_refused(where, monkeypatch):
    folder = make_run(where)
    first, second, third = replay(folder).trials
    stale = Journal(folder)
    run_one(folder, stale, first, 1.0)
    stale.write("mark", sync=True)
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as new:
        with monkeypatch.context() as blind:  # it had looked just before the take-over
            blind.setattr(journal_module, "check_owner", lambda folder, owner: None)
            run_one(folder, stale, second, 8.0)
            run_one(folder, stale, third, 9.0)
            stale.write("mark", sync=True)
        run_one(folder, new, second, 2.0)
    found = read(folder)
    assert found.refused == 5
    state = replay(folder)
    assert rows_written(folder) == {first: 1, second: 1}
    assert record_of(folder, state.trials[second])["loss"] == 2.0
    assert state.trials[third].status == "waiting"


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["take", "write", "blind", "sync"]), st.integers(0, 3), st.integers(0, 3)), max_size=14
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_however_owners_come_and_go_each_trial_has_one_row_by_an_owner_that_counted(tmp_path_factory, actions):
    folder = make_run(tmp_path_factory.mktemp("runs"), 4)
    names, owners, kept = list(replay(folder).trials), [Journal(folder)], {}
    look = journal_module.check_owner
    for action, who, trial in actions:
        journal = owners[who % len(owners)]
        latest = journal is owners[-1]
        journal_module.check_owner = (lambda folder, owner: None) if action == "blind" else look
        try:
            if action == "take":
                owners.append(Journal(folder, gone=max(owner_numbers(folder.files), default=0)))
            elif action == "sync":
                journal.write("mark", sync=True)
            else:
                loss = len(owners) * 10.0 + trial
                ended(journal, [(Attempt(names[trial], 1, journal.owner.number), record(loss))])
                if latest:
                    kept.setdefault(names[trial], loss)
        except OwnerLost:
            assert not latest
        finally:
            journal_module.check_owner = look
    state = replay(folder)
    assert {name: record_of(folder, trial)["loss"] for name, trial in state.trials.items() if trial.entry} == kept
    for journal in owners:
        journal.close()


def test_a_run_whose_process_lives_is_not_taken_over(where):
    folder = make_run(where)
    with Journal(folder) as journal:
        with pytest.raises(RunAlive, match=f"is run by process {os.getpid()} on .*, heard of 0 s ago\n  do: wait") as alive:
            Journal(folder)
        assert f"qdrun cancel {folder.uri}" in str(alive.value)
        assert latest_owner(folder) == journal.owner
    with Journal(folder) as journal:  # the one before has let it go
        assert journal.owner.number == 2


@pytest.mark.parametrize(
    ("pid", "host", "age", "taken"), [(2**22 + 1, None, 0, True), (1, "else", 0, False), (1, "else", 99, True)]
)
def test_who_is_silent_loses_the_run(where, pid, host, age, taken):
    folder = make_run(where)
    claim = {
        "number": 1,
        "token": "a",
        "pid": pid,
        "host": host or platform.node(),
        "t": time.time() - age,
        "where": pid_space(),
    }
    folder.files.put("owners/000001.json", document(claim))
    if taken:
        Journal(folder).close()
    else:
        with pytest.raises(RunAlive, match="process 1 on else"):
            Journal(folder)


def test_the_run_of_a_process_that_ended_and_was_never_waited_for_is_free(where):
    """In a container without an init nobody waits for orphans: their process ids stay."""
    folder = make_run(where)
    with zombie() as pid:
        assert process_started(pid)
        claim = {"number": 1, "token": "a", "pid": pid, "host": platform.node(), "t": time.time(), "where": pid_space()}
        folder.files.put("owners/000001.json", document(claim))
        beat = {"t": time.time(), "pid": pid, "host": claim["host"], "owner": 1, "where": claim["where"]}
        folder.files.put("heartbeat.json", document(beat))
        assert latest_owner(folder).gone and folder.silent_s() == float("inf") and not lives(folder)
        Journal(folder).close()


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"pid": 2**22 + 1, "where": "another boot/4026531836"}, False),
        ({"pid": 2**22 + 1, "where": f"{pid_space().partition('/')[0]}/1"}, False),
        ({"started": "1"}, True),
    ],
    ids=["it lives", "it is gone", "of another boot or machine", "of another namespace", "its id is another process's now"],
)
def test_a_process_is_known_to_be_gone_only_among_the_process_ids_that_it_had(where, change, gone):
    """Two containers of one host may have one name; what one of them does not see may live in the other."""
    folder = make_run(where)
    claim = {"number": 1, "token": "a", "pid": os.getpid(), "host": platform.node(), "t": time.time()}
    claim |= {"started": process_started(os.getpid()), "where": pid_space()} | change
    folder.files.put("owners/000001.json", document(claim))
    beat = {"t": time.time(), "pid": claim["pid"], "host": claim["host"], "owner": 1, "where": claim["where"]}
    folder.files.put("heartbeat.json", document(beat))
    assert latest_owner(folder).gone is gone
    assert (folder.silent_s() == float("inf")) is (gone and "pid" in change)
    if gone:
        Journal(folder).close()
    else:
        with pytest.raises(RunAlive):
            Journal(folder)


def test_a_heartbeat_keeps_the_run(where):
    folder = make_run(where)
    old = {"number": 1, "token": "a", "pid": 1, "host": "else", "t": time.time() - 99}
    folder.files.put("owners/000001.json", document(old))
    folder.files.put("heartbeat.json", document({"t": time.time(), "pid": 1, "host": "else", "owner": 1}))
    with pytest.raises(RunAlive):
        Journal(folder)


def test_an_owner_that_is_known_to_be_gone_is_not_the_one_that_came_after_it(where):
    """Two that both know it take the run over: the second one meets the first."""
    folder = make_run(where)
    dead = Journal(folder)
    with Journal(folder, gone=dead.owner.number) as first:
        with pytest.raises(RunAlive, match=f"is run by process {os.getpid()}"):
            Journal(folder, gone=dead.owner.number)
        first.write("mark", sync=True)
        assert latest_owner(folder) == first.owner


@pytest.mark.parametrize("ours", [False, True], ids=["another machine", "this machine"])
@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
@pytest.mark.parametrize("lives", [True, False])
def test_clocks_that_are_wrong_neither_take_a_run_from_who_lives_nor_keep_it_for_who_does_not(
    where, ours, ahead_s, lives, monkeypatch
):
    """The clock of the owner's machine is an hour off, or ours has jumped: what counts is whether its heart beats."""
    folder = make_run(where)
    pid, host = (os.getpid(), platform.node()) if ours else (1, "else")
    claim = {"number": 1, "token": "a", "pid": pid, "host": host, "t": time.time() + ahead_s}
    folder.files.put("owners/000001.json", document(claim))
    monkeypatch.setattr(folder.files, "changed", lambda path: 0.0)
    monkeypatch.setattr(owner, "WATCH_S", 0.3)
    monkeypatch.setattr(owner, "LOST_AFTER_S", 0.6)
    monkeypatch.setattr(owner, "WATCH_EVERY_S", 0.01)
    beats, sleep = [], time.sleep

    def beat(seconds=0.0):
        beats.append(seconds)
        if lives or len(beats) == 1:
            t = time.time() + ahead_s
            folder.files.put("heartbeat.json", document({"t": t, "pid": pid, "host": host, "owner": 1}))
        sleep(seconds)

    beat()
    monkeypatch.setattr(time, "sleep", beat)
    if lives:
        with pytest.raises(RunAlive, match="heard of"):
            Journal(folder)
    else:
        Journal(folder).close()
    assert (len(beats) == 2) == lives


def test_two_claims_at_once_give_one_owner(where, monkeypatch):
    folder = make_run(where)
    real = folder.files.claim

    def overtaken(path, data):
        assert real(path, document({"number": 1, "token": "b", "pid": 1, "host": "else", "t": time.time()}))
        return real(path, data)

    monkeypatch.setattr(folder.files, "claim", overtaken)
    with pytest.raises(RunAlive, match="was taken over by another process at this moment"):
        Journal(folder)
    assert latest_owner(folder).host == "else"


def test_a_disk_without_hard_links_has_one_owner_too(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = make_run(tmp_path)
    assert len(folder.plan()) == 1
    with Journal(folder) as journal:
        assert latest_owner(folder) == journal.owner
        assert not folder.files.claim("owners/000001.json", b"another")
        assert latest_owner(folder) == journal.owner


def test_a_damaged_claim_holds_and_can_be_taken_over(where):
    folder = make_run(where)
    folder.files.put("owners/000001.json", b'{"number": 1, "tok')
    assert latest_owner(folder).number == 1
    with Journal(folder) as journal:
        assert journal.owner.number == 2


def test_a_stale_worker_cannot_touch_the_files_of_a_later_attempt(where):
    folder = make_run(where)
    first = next(iter(replay(folder).trials))
    stale = Journal(folder)
    started(stale, [(Attempt(first, 1), {})])
    stale.write("mark", sync=True)
    with Journal(folder, gone=max(owner_numbers(folder.files), default=0)) as new:
        recover(folder, new)
        run_one(folder, new, first, 2.0, np.full(9000, 2.0), number=2)
        pack(folder, Attempt(first, 2), record(7.0, np.full(9000, 7.0)))  # the stale runner tries again as well
    row = record_of(folder, replay(folder).trials[first])
    assert row["loss"] == 2.0
    assert arrays_of(folder, row)["x"][0] == 2.0
    assert sorted(folder.files.names(f"trials/{first}")) == ["a2", "a2-owner2"]


def test_requests_to_cancel_reach_this_owner_and_not_the_next(where):
    folder = make_run(where)
    first, second, _ = replay(folder).trials
    with Journal(folder) as journal:
        assert cancel_requests(folder, journal.owner) == CancelRequests()
        ask_to_cancel(folder, first)
        ask_to_cancel(folder, first)
        ask_to_cancel(folder, "../../evil")
        assert cancel_requests(folder, journal.owner) == CancelRequests(False, frozenset([first, "../../evil"]))
        assert request_cancel(folder) == ("running", True)
        assert cancel_requests(folder, journal.owner).whole
        journal.beat()
    with Journal(folder) as journal:
        assert cancel_requests(folder, journal.owner) == CancelRequests()
        run_one(folder, journal, second, 1.0)
        journal.write("mark", sync=True)
        assert request_cancel(folder, second) == ("running", False)
        with pytest.raises(LookupError, match="has no trial nothing\n  do: `qdrun results"):
            request_cancel(folder, "nothing")
        journal.write("finished", sync=True, state="done")
    assert request_cancel(folder) == ("done", False)


def test_no_request_is_read_its_name_says_it_all(tmp_path, monkeypatch):
    """The owner looks twice a second, and thousands of trials may have been cancelled; and a damaged request cannot end the run."""
    folder = make_run(tmp_path)
    with Journal(folder) as journal:
        odd = "a/b %\udc80.json"
        for name in (names := [*replay(folder).trials, odd]):
            ask_to_cancel(folder, name)
        for name in folder.files.names("requests"):
            folder.files.put(f"requests/{name}", b"\x00")
        monkeypatch.setattr(folder.files, "read", None)
        assert cancel_requests(folder, journal.owner).trials == {*names[:-1], "a/b %\\udc80.json"}


def test_a_claim_whose_journal_finds_no_room_can_be_made_again_at_once(where, monkeypatch):
    """In one Python session: the process lives, and its failed claim must not keep it from another try."""
    folder = make_run(where)

    def full(path):
        raise StorageFull("no room")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(folder.files, "grow", full)
        with pytest.raises(StorageFull, match="no room"):
            Journal(folder)
    with Journal(folder) as journal:
        assert journal.owner.number == 2
