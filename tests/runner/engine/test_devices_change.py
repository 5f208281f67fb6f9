"""Devices that join a cluster while a run goes on, and devices that are gone: what the runner makes of them. Without Ray."""

import time
from dataclasses import replace

import pytest

from qdrun.runner.engine import loop
from qdrun.runner.engine import messages as m
from qdrun.runner.engine.event_writer import Inside, Outside
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.loop import Runner
from qdrun.runner.engine.parts import TrialAt
from qdrun.runner.engine.start import Roster
from qdrun.runner.engine.state import SweepState
from qdrun.runner.ledger import Machine, RunLedger
from qdrun.runner.ledger.inventory import pretended
from qdrun.runner.observe.board import Board
from qdrun.runner.observe.live import display
from qdrun.runner.observe.timing import Timing
from qdrun.runner.packing import Claim
from qdrun.runner.ray_adapter.worker_pool import RayWorkers
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.files import LocalFiles
from qdrun.runner.store.follower import read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.store.replay import replay
from qdrun.runner.study.trial_list import Trial, Trials
from qdrun.runner.upkeep.space import SPARE_BYTES
from qdrun.runner.workers.spec import BatchColumns, BatchSpec, WorkerSpec

from .world import granted

GIB = 1 << 30
SMALL, LARGE = pretended(1, 8 * GIB)[0], replace(pretended(2, 80 * GIB)[1], kind="cuda/large/80")
HOST = replace(SMALL, id="cpu@later@t1", backend="cpu", pool="ram", uuid="")


class Changing(RunLedger):
    """A ledger whose devices come and go."""

    def __init__(self, *found):
        super().__init__("made", Machine(found))
        self.found = self.source._found

    def join_now(self, found):
        self.found.append(found)
        self._ledger.add_device(found)
        self.source._added.add(found.id)

    def lose_now(self, found):
        self.found.remove(found)
        self._ledger.lose_device(found.id, "its node is gone")


class Instant:
    """Workers that have done everything when they are asked; ``after`` is called with each launch."""

    def __init__(self, after):
        self.after, self.launches, self.news = after, [], []

    def launch(self, launches, batches):
        for launch in launches:
            self.launches.append(launch)
            self.news += [m.Started(launch.id), *self.after(launch)]

    def drop(self, worker, launches): ...

    def poll(self, timeout_s):
        news, self.news = self.news, []
        return news

    def look(self):
        return {}

    def ask_to_stop(self, worker, trials): ...

    def kill(self, worker): ...

    def alive(self, device):
        return True

    def close(self): ...


def done(launch):
    return [m.LaunchEnded(launch.id, {f"t{place}": {"status": "done", "loss": 1.0} for place in launch.trials})]


def died(launch, failure=Failure.infrastructure):
    return [m.WorkerDown(launch.worker, failure, {"type": "Gone", "message": "gone", "traceback": ""})]


class NoInterrupts:
    count = asked = 0

    def check(self): ...


def run(tmp_path, ledger, after, *, bytes_=GIB, kinds=(SMALL.kind, LARGE.kind), trials=3, clock=time.monotonic):
    made = [Trial(id=f"t{k}", index=k, replicate=0, seed=k, swept={"x": k}, params={"x": k}) for k in range(trials)]
    folder = write_run(tmp_path, "made", "version: 1\n", {"name": "made"}, made, {})
    claims = dict.fromkeys(kinds, Claim.of([(bytes_, 1.0)]))
    state = SweepState(len(made), Rules(), lambda batch: claims)
    workers = Instant(after)
    inside = Inside(Trials.of(made), lambda places: BatchColumns({}, {}, []))
    board = Board(run=folder.name, total=trials)
    with Journal(folder) as journal, display(board, quiet=True) as screen:
        outside = Outside(folder, journal, board, screen, Timing(time.time(), time.time()), ledger, workers, NoInterrupts())
        outcome = Runner(state, inside, outside, clock).run()
    return outcome, replay(folder), workers.launches


def test_a_device_that_joins_while_the_run_goes_on_is_used_as_what_it_is(tmp_path):
    """Cores: each lane is a process of its own, as it would be if they had been there from the start."""
    ledger = Changing(SMALL)
    held = []

    def after(launch):
        """All lanes of both are taken before the first trial ends."""
        if not held:
            ledger.join_now(HOST)
        held.append(launch)
        return [end for one in held for end in done(one)] if len(held) >= SMALL.lanes + HOST.lanes else []

    outcome, state, launches = run(tmp_path, ledger, after, trials=SMALL.lanes + HOST.lanes)
    assert outcome == "done" and set(state.counts()) == {"done"}
    slots = {name: sorted(one.worker.slot for one in launches if one.worker.device == name) for name in (SMALL.id, HOST.id)}
    assert slots == {SMALL.id: [0] * SMALL.lanes, HOST.id: list(range(HOST.lanes))}


def test_a_trial_whose_only_device_is_gone_waits_for_it_and_is_not_refused(tmp_path):
    ledger = Changing(SMALL, LARGE)
    deaths = []

    def after(launch):
        assert launch.worker.device == LARGE.id
        if deaths:
            return done(launch)
        deaths.append(launch)
        ledger.lose_now(LARGE)
        return died(launch)

    real = ledger.exchange

    def exchange(*args, **kwargs):
        if deaths and LARGE not in ledger.devices() and ledger.why():
            ledger.join_now(LARGE)
        return real(*args, **kwargs)

    ledger.exchange = exchange
    outcome, state, launches = run(tmp_path, ledger, after, bytes_=20 * GIB, trials=1)
    assert outcome == "done" and len(launches) == 2
    assert [tried.status for tried in state.trials["t0"].attempts] == ["retried", "done"]


def test_a_trial_that_fits_no_device_that_there_has_been_is_refused(tmp_path):
    outcome, state, launches = run(tmp_path, Changing(SMALL), done, bytes_=20 * GIB)
    assert outcome == "failed" and not launches and state.counts() == {"failed": 3}


BAD = replace(SMALL, id="cuda:bad", pool="bad", uuid="bad")


def broken(launch):
    error = {"type": "DeviceError", "message": "fallen off the bus\nmore", "traceback": ""}
    return [m.WorkerDown(launch.worker, Failure.infrastructure, error)]


def unsaved(launch):
    """The node cannot write to the store."""
    record = {
        "status": "failed",
        "failure": Failure.infrastructure,
        "error": {"type": "OSError", "message": "read-only", "traceback": ""},
    }
    return [m.LaunchEnded(launch.id, {f"t{place}": record for place in launch.trials})]


@pytest.mark.parametrize(("bad", "why"), [(broken, "DeviceError: fallen off the bus"), (unsaved, "OSError: read-only")])
def test_a_device_that_is_of_no_use_does_not_eat_the_retries_of_all_trials(tmp_path, monkeypatch, bad, why):
    """It is free again at once, each time, while the good one is busy: it would be granted one trial after the other."""
    busy, rounds = [], []
    poll = Instant.poll

    def slowly(self, timeout_s):
        rounds.append(None)
        if busy and len(rounds) % 20 == 0:
            self.news += done(busy.pop(0))
        return poll(self, timeout_s)

    def after(launch):
        if launch.worker.device == BAD.id:
            return bad(launch)
        busy.append(launch)
        return []

    monkeypatch.setattr(Instant, "poll", slowly)
    ledger = Changing(SMALL, BAD)
    outcome, state, launches = run(tmp_path, ledger, after, trials=40)
    assert outcome == "done" and state.counts() == {"done": 40}
    there = [launch for launch in launches if launch.worker.device == BAD.id]
    assert 3 <= len(there) <= 3 * BAD.lanes
    (folder,) = tmp_path.iterdir()
    (avoided,) = [event for event in read(RunFolder(folder)).events if event["event"] == "avoided"]
    assert (avoided["device"], avoided["seconds"], avoided["why"]) == (BAD.id, 30.0, why)


def test_the_only_device_is_not_avoided_and_the_trials_say_what_is_wrong_with_it(tmp_path):
    outcome, state, launches = run(tmp_path, Changing(BAD), broken)
    assert outcome == "failed" and state.counts() == {"failed": 3} and len(launches) == 3 * 6
    assert not [event for event in read(RunFolder(next(tmp_path.iterdir()))).events if event["event"] == "avoided"]


def test_results_that_find_no_room_pause_the_run_until_there_is_some(tmp_path, monkeypatch):
    """The disk still takes the lines of the journal: nothing else would say that it is full, and every trial would use its retries up."""
    free, looks = [SPARE_BYTES - 1], []

    def free_bytes(self):
        looks.append(None)
        if len(looks) == 3:
            free[0] = SPARE_BYTES
        return free[0]

    def after(launch):
        if free[0] == SPARE_BYTES:
            return done(launch)
        error = {"type": "StorageFull", "message": "no room left in runs\nmore", "traceback": ""}
        record = {"status": "failed", "failure": Failure.infrastructure, "error": error}
        return [m.LaunchEnded(launch.id, {f"t{place}": record for place in launch.trials})]

    monkeypatch.setattr(LocalFiles, "free_bytes", free_bytes)
    monkeypatch.setattr(loop, "LOOK_EVERY_S", 0.01)
    outcome, state, launches = run(tmp_path, Changing(SMALL), after, trials=40)
    assert outcome == "done" and state.counts() == {"done": 40} and len(looks) == 3
    events = read(RunFolder(next(tmp_path.iterdir()))).events
    retries = [event for event in events if event["event"] == "retry"]
    assert {event["charged"] for event in retries} == {False} and not [e for e in events if e["event"] == "avoided"]
    assert len(launches) == 40 + len(retries) and len(retries) <= 2 * SMALL.lanes


def test_a_trial_whose_time_is_up_while_its_result_waits_for_room_is_no_timeout():
    state = SweepState([TrialAt(0)], Rules(timeout_s=10.0), lambda batch: {"gpu": Claim.of([(1, 1.0)])})
    state.start(0.0)
    state.handle(granted("l1", "d", ("t0",), 1), 0.0)
    state.handle(m.Started(1), 1.0)
    assert any(isinstance(action, m.AskToStop) for action in state.handle(m.Tick(), 11.5))
    error = {"type": "StorageFull", "message": "no room left in runs", "traceback": ""}
    record = {"status": "failed", "failure": Failure.infrastructure, "error": error}
    actions = state.handle(m.LaunchEnded(1, {0: record}), 12.0)
    (retry,) = [action for action in actions if isinstance(action, m.WriteRetry)]
    assert (retry.failure, retry.charged) == (Failure.infrastructure, False)
    assert m.NoRoom("no room left in runs") in actions and not any(isinstance(action, m.WriteEnded) for action in actions)


def test_the_roster_asks_again_for_a_device_that_it_does_not_know():
    rows = [SMALL]
    roster = Roster(lambda: rows)
    rows[:] = [LARGE]
    assert roster[LARGE.id] is LARGE and roster[SMALL.id] is SMALL and len(roster) == 2
    assert (roster.kind(LARGE.id), roster.kind("nowhere")) == (LARGE.kind, "")
    with pytest.raises(KeyError):
        roster["nowhere"]


def test_a_worker_whose_device_was_lost_a_moment_ago_is_down_and_the_run_goes_on():
    worker = m.WorkerId("cuda:7", 0, 0)
    launch = m.Launch(4, worker, (0,), (1,), GIB, 1.0, "l1")
    spec = WorkerSpec(run="r", owner=1, token="", device="cuda:7", backend="cuda")

    def options(device):
        raise KeyError(device)

    workers = RayWorkers("r", lambda where: spec, options)
    workers.launch((launch,), (BatchSpec("l1", (), (), BatchColumns({}, {}, [])),))
    (down,) = workers.poll(5.0)
    assert (down.worker, down.why) == (worker, m.Unready.lost)
    assert down.error["message"] == "cuda:7 is not there any more: 'cuda:7'"
    assert not workers.alive("cuda:7")
