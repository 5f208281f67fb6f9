"""Bytes in use: what workers say, as people and the ledger get it."""

import pytest
from runner_helpers import FAKES, write_config

from qdrun.runner.engine import loop
from qdrun.runner.engine.memory_use import observed, steadier, used_of
from qdrun.runner.engine.messages import WorkerId
from qdrun.runner.ledger import Machine, RunLedger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.observe.view import device_views, view_of
from qdrun.runner.packing import Claim, Request
from qdrun.runner.ray_adapter import worker_pool
from qdrun.runner.store.follower import read
from qdrun.runner.workers.spec import LaneState, Progress

from .local import run_config
from .test_elastic import cpu

GIB, MIB = 1 << 30, 1 << 20


def said(lanes=(), process=0, free=0, total=0):
    states = tuple(LaneState(k, bytes=held) for k, held in enumerate(lanes))
    return Progress(states, 0, process, free, total)


def test_of_a_card_the_driver_s_count_and_of_a_host_the_processes_of_its_workers():
    one, two = pretended(2, 24 * GIB)
    host = cpu(GIB, lanes=2)
    seen = {
        WorkerId(one.id): said(free=20 * GIB, total=24 * GIB, process=300 * MIB),
        WorkerId(two.id): said(free=24 * GIB - 1, total=24 * GIB),
        WorkerId("cpu", 0): said(process=200 * MIB, total=8 * GIB, free=GIB),
        WorkerId("cpu", 1): said(process=100 * MIB),
        WorkerId("gone"): said(process=GIB),
    }
    assert used_of({row.id: row for row in (one, two, host)}, seen) == {one.pool: 4 * GIB, two.pool: MIB, host.pool: 300 * MIB}


def test_what_is_neither_free_nor_held_by_our_programs_is_taken_off_the_capacity():
    (card,) = pretended(1, 24 * GIB)
    ledger = RunLedger("run", Machine([card]))
    claims = {card.kind: Claim.of([(4 * GIB, 1.0)])}
    ledger.ask([Request("a", claims, 0.0)])
    assert len(ledger.exchange().leases) == 1, "4 GiB are claimed, and nothing of them is allocated yet"
    held = {"fields": GIB, "staging": 9 * GIB}
    seen = {WorkerId(card.id): said(lanes=[held], free=24 * GIB - GIB - card.charge() - 3 * GIB, total=24 * GIB)}
    ((pool, (free, ours)),) = observed({card.id: card}, seen).items()
    assert (pool, free, ours) == (card.pool, 20 * GIB - card.charge(), GIB + card.charge())
    ledger.observe(pool, free, ours)
    (state,) = ledger.snapshot()["pools"]
    assert state["foreign"] == 3 * GIB
    assert state["free"] == card.capacity - 3 * GIB - 4 * GIB - card.charge()


def test_memory_that_is_nobody_s_in_one_look_alone_is_not_taken_for_others():
    assert steadier({"a": (10, 5), "b": (1, 1)}, {"a": (7, 5), "c": (3, 4)}) == {"a": (10, 5), "c": (3, 4)}
    assert steadier({"a": (7, 5)}, {"a": (10, 5)}) == {"a": (10, 5)}


def test_a_host_and_an_imitation_of_a_card_tell_the_ledger_nothing():
    host = cpu(GIB)
    imitation = pretended(1, GIB)[0]
    imitation = imitation.__class__(imitation.id, "", "cuda", kind="cuda/emulated/1", pool="ram", total=GIB)
    seen = {WorkerId(host.id): said(total=GIB, free=1), WorkerId(imitation.id): said(total=GIB, free=1)}
    assert observed({host.id: host, imitation.id: imitation}, seen) == {}


@pytest.mark.slow
def test_bytes_in_use_are_in_the_journal_on_the_board_and_in_what_watch_shows(local_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SNAPSHOT_EVERY_S", 0.1)
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(worker_pool, "LOOK_EVERY_S", 0.1)
    config = write_config(tmp_path, params={"sleep_s": 1.0}, sweep={"x": [0, 1]})
    host = cpu(GIB, lanes=1)
    state, folder, board = run_config(config, found=[host])
    assert state == "done"
    snapshots = [event for event in read(folder).events if event["event"] == "snapshot"]
    used = [event["used"][host.pool] for event in snapshots if "used" in event]
    assert used and all(20 * MIB < amount < 2 * GIB for amount in used)
    assert board.snapshot["used"].keys() == {host.pool}
    (device,) = device_views(board.snapshot, ())
    assert device.used == board.snapshot["used"][host.pool]
    assert view_of(folder).counts == {"done": 2}


@pytest.mark.slow
def test_slots_are_the_trials_that_run_at_once_in_the_one_process_of_a_card(local_ray, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    config = write_config(
        tmp_path, target=f"{FAKES}:OnDevice", params={"marks": str(marks), "sleep_s": 0.4}, sweep={"number": list(range(6))}
    )
    text = config.read_text().replace("gradients: [x, target]\n", "")
    config.write_text(text + "device: {backend: cuda, id: emulated, slots: 3}\n")
    state, folder, _ = run_config(config)
    assert state == "done"
    now, most = set(), 0
    for event in read(folder).events:
        if event["event"] == "started":
            now.add(event["trial"])
        elif event["event"] == "ended":
            now.remove(event["trial"])
        most = max(most, len(now))
    rows = [event for event in read(folder).events if event["event"] == "ended"]
    assert most == 3 and {row["lane"] for row in rows} == {0, 1, 2}
    assert len({row["pid"] for row in rows}) == 1
