"""Runs of one user on one machine, each with a ledger of its own: together they promise no more than there is, and each gets its part."""

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.runner.ledger.account import CORES, Account, RunAccount, share
from qdrun.runner.ledger.client import RunLedger
from qdrun.runner.ledger.inventory import Found, pretended
from qdrun.runner.ledger.leases import LeaseEnd
from qdrun.runner.ledger.machine import Machine, with_others_back
from qdrun.runner.packing import Claim, Request

GIB = 1 << 30
HOST = Found(
    "cpu", "", "cpu", kind="cpu/x/1", pool="ram", total=24 * GIB, free=24 * GIB, threads=1, lanes=8, process_bytes=GIB // 4
)


class Runs:
    """Runs that take turns, as their processes would."""

    def __init__(self, folder, found=(HOST,)):
        self.folder, self.found, self.all, self.notes = folder, found, {}, []

    def add(self, name, size, count=100):
        account = Account(name, self.folder)
        rows = with_others_back(self.found, account.others())
        ledger = RunLedger(name, Machine(rows, account, self.notes.append))
        kinds = {row.kind: Claim.of([(size, 1.0)]) for row in self.found}
        ledger.ask([Request(f"t{k}", kinds, time.time()) for k in range(count)])
        self.all[name] = ledger, {}
        return ledger

    def turn(self, name, ends=0):
        """An exchange in which the first leases end; the number of new ones."""
        ledger, held = self.all[name]
        over = list(held)[:ends]
        answer = ledger.exchange([LeaseEnd(lease, "done", 100.0) for lease in over])
        for lease in over:
            del held[lease]
        held.update({lease.id: lease for lease in answer.leases})
        for device in answer.close:
            assert device not in [lease.device for lease in held.values()]
            ledger.closed(device)
        return len(answer.leases)

    def bytes(self, pool="ram"):
        """What all of them have promised of a pool."""
        return sum(
            row["claimed"] + row["process"]
            for ledger, _ in self.all.values()
            for row in ledger.snapshot()["pools"]
            if row["id"] == pool
        )

    def count(self, name):
        return len(self.all[name][1])


def test_two_runs_at_once_promise_no_more_than_the_machine_has(tmp_path):
    """Each alone would take all of it: 18 GiB and 18 GiB of 22.8."""
    runs = Runs(tmp_path)
    runs.add("a", 9 * GIB)
    assert runs.turn("a") == 2
    runs.add("b", 9 * GIB)
    assert runs.turn("b") == 0
    assert any("run of" in why.why or "other runs of yours hold" in why.why for why in runs.all["b"][0].why().values())
    assert any("this machine is shared with a (process" in note for note in runs.notes)
    runs.turn("a", ends=1)
    assert (runs.turn("b"), runs.count("a")) == (1, 1), "what ended goes to the one that waits with nothing"
    for turn in range(20):
        runs.turn("ab"[turn % 2], ends=1)
        assert runs.bytes() <= HOST.capacity and runs.count("a") + runs.count("b") <= 2
    assert runs.count("a") == runs.count("b") == 1


def test_runs_of_small_trials_share_the_cores_equally_and_the_last_one_has_them_all_again(tmp_path):
    runs = Runs(tmp_path)
    runs.add("a", 1 << 20)
    runs.turn("a")
    assert runs.count("a") == 8
    runs.add("b", 1 << 20)
    for _ in range(8):
        runs.turn("a", ends=1)
        runs.turn("b", ends=1)
    assert (runs.count("a"), runs.count("b")) == (4, 4)
    runs.all["a"][0].close()
    runs.turn("b", ends=1)
    assert runs.count("b") == 8 and runs.notes[-1] == "this run has the machine for itself again"


def test_a_large_trial_is_not_passed_by_small_ones_for_ever(tmp_path):
    runs = Runs(tmp_path)
    runs.add("small", 2 * GIB)
    runs.turn("small")
    runs.add("large", 20 * GIB)
    for _ in range(12):
        runs.turn("large")
        runs.turn("small", ends=1)
        assert runs.bytes() <= HOST.capacity
        if runs.count("large"):
            break
    assert runs.count("large") == 1
    for _ in range(12):
        runs.turn("small", ends=1)
        runs.turn("large", ends=1)
        assert runs.bytes() <= HOST.capacity


def test_bytes_of_a_card_are_shared_as_those_of_the_host(tmp_path):
    (card,) = pretended(1, 24 * GIB)
    runs = Runs(tmp_path, [card])
    runs.add("a", 9 * GIB)
    runs.add("b", 9 * GIB)
    for turn in range(12):
        runs.turn("ab"[turn % 2], ends=1)
        assert runs.bytes(card.pool) <= card.capacity
    assert runs.count("a") == runs.count("b") == 1


CHILD = """
import sys, time
from pathlib import Path
from qdrun.runner.ledger.account import Account
made = Account("killed", Path(sys.argv[1]))
made.write(made.entry({"ram": 20 << 30, "cores": 7}, {}, {}))
print("ready", flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_held_is_free_at_once_and_its_files_are_removed(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    runs = Runs(tmp_path)
    runs.add("a", 9 * GIB)
    assert runs.turn("a") == 0
    child.kill()
    child.wait()
    assert runs.turn("a") == 2
    runs.all["a"][0].close()
    assert [path.name for path in (tmp_path / "account").iterdir()] == ["gate"]


def test_nothing_is_granted_while_another_run_has_the_gate(tmp_path, monkeypatch):
    monkeypatch.setattr("qdrun.runner.ledger.account.GATE_S", 0.02)
    runs = Runs(tmp_path)
    runs.add("a", GIB)
    gate = os.open(tmp_path / "account" / "gate", os.O_RDWR)
    fcntl.flock(gate, fcntl.LOCK_EX)
    assert runs.turn("a") == 0
    os.close(gate)
    assert runs.turn("a") == 8


def test_a_folder_of_somebody_else_or_a_link_is_refused(tmp_path):
    (tmp_path / "account").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="is not a folder of yours"):
        Account("a", tmp_path)


def test_what_others_use_does_not_refuse_a_trial_that_fits_when_they_have_ended(tmp_path):
    other = Account("other", tmp_path)
    other.write(other.entry({"ram": 20 * GIB}, {"ram": 18 * GIB}, {}))
    (row,) = with_others_back([replace(HOST, free=5 * GIB)], Account("a", tmp_path).others())
    assert row.free == 23 * GIB


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_processes_that_take_turns_never_hold_more_than_there_is_and_none_starves(data):
    """A model of the processes: in its turn each gives something back, looks at the others, and takes as much as it may."""
    capacity = data.draw(st.integers(4, 40))
    sizes = data.draw(st.lists(st.integers(1, capacity), min_size=2, max_size=4))
    held, since, served = [0] * len(sizes), [0.0] * len(sizes), [0] * len(sizes)

    def entry(k):
        pool = CORES
        return RunAccount(str(k), k, {pool: held[k] * sizes[k]}, {}, {pool: sizes[k]}, since[k])

    turns = data.draw(st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, 3)), min_size=20, max_size=60))
    for t, (k, back) in enumerate(turns, 1):
        held[k] -= min(back, held[k])
        most = share(CORES, capacity, entry(k), [entry(j) for j in range(len(sizes)) if j != k], sizes[k])
        while (held[k] + 1) * sizes[k] <= most:
            held[k], served[k] = held[k] + 1, served[k] + 1
        since[k] = 0.0 if held[k] else since[k] or float(t)
        assert sum(h * s for h, s in zip(held, sizes)) <= capacity
    for t in range(len(turns) + 1, len(turns) + 1 + 12 * len(sizes)):  # from now on all give back everything in each turn
        k = t % len(sizes)
        held[k] = 0
        most = share(CORES, capacity, entry(k), [entry(j) for j in range(len(sizes)) if j != k], sizes[k])
        while (held[k] + 1) * sizes[k] <= most:
            held[k], served[k] = held[k] + 1, served[k] + 1
        since[k] = 0.0 if held[k] else since[k] or float(t)
    assert all(served), (sizes, served)
