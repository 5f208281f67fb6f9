"""Leases of many trials in the state machine: what has begun is known, and what has not was never an attempt."""

import random

from qdrun.runner.engine import messages as m
from qdrun.runner.store.attempts import Failure

from .world import RULES, Began, World, granted


def many(moods=("good",) * 4, rules=RULES):
    """A lease of all trials on one worker, and its launches."""
    world = World(list(moods), rules, random.Random(0), told=False)
    world.waiting.clear()
    world.leases["l"] = tuple(f"t{place}" for place in world.moods)
    world.tell(granted("l", "d0", world.leases["l"], 100))
    (call,) = world.calls
    return world, [world.flights[name] for name in call.order]


def done(world, launch):
    world.flights.pop(launch.id, None)
    world.tell(m.LaunchEnded(launch.id, {launch.trials[0]: {"status": "done", "loss": 1.0}}))


def notes(world, kind):
    return [(e.trial, e.number) for e in world.journal if isinstance(e, kind)]


GONE = {"type": "WorkerCrashedError", "message": "gone"}


def down(world, launch, begun, failure=Failure.crash):
    world._die(launch.worker)
    world.tell(m.WorkerDown(launch.worker, failure, GONE, begun))


def test_a_crash_in_a_lease_charges_the_trial_that_ran_and_no_other_and_the_others_keep_their_number():
    world, launches = many()
    done(world, launches[0])
    down(world, launches[0], frozenset([launches[2].id]))
    retries = [(e.trial, e.failure, e.charged, e.error["type"]) for e in world.journal if isinstance(e, m.WriteRetry)]
    assert retries == [
        (1, Failure.infrastructure, False, "ResultLost"),
        (2, Failure.crash, True, "WorkerCrashedError"),
    ]
    assert notes(world, Began) == [(0, 1), (1, 1), (2, 1)]
    assert set(world.waiting) == {"t1.2", "t2.2", "t3.2"}
    assert (world.state.trials.number[3], world.state.trials.tries[3]) == (0, 0)
    assert world.state.trials.alone >= {2} and 1 not in world.state.trials.alone


def test_where_nobody_knows_what_a_worker_had_begun_all_that_it_had_are_suspects_and_none_is_charged():
    world, launches = many()
    done(world, launches[0])
    down(world, launches[0], None)
    retries = [(e.trial, e.failure, e.charged) for e in world.journal if isinstance(e, m.WriteRetry)]
    assert retries == [(k, Failure.crash, False) for k in (1, 2, 3)]
    assert world.state.trials.alone >= {1, 2, 3}


def test_a_node_that_is_lost_charges_those_that_are_known_to_have_begun():
    world, launches = many()
    done(world, launches[0])
    world.tell(m.Started(launches[1].id))
    down(world, launches[0], None, Failure.infrastructure)
    retries = [(e.trial, e.failure, e.charged) for e in world.journal if isinstance(e, m.WriteRetry)]
    assert retries == [(1, Failure.infrastructure, True)]
    assert set(world.waiting) == {"t1.2", "t2.2", "t3.2"}


def test_the_time_of_each_trial_of_a_lease_counts_from_its_own_start():
    world, launches = many()
    world.tell(m.Started(launches[0].id))
    world.now = 4.0
    done(world, launches[0])
    world.now = 6.0
    world.tell(m.Started(launches[1].id, 0.5))
    assert world.state.next_deadline() == 10.5
    world.now = 10.5
    world.tell(m.Tick())
    assert world.asked_to_stop == {launches[1].id}
    world.now = 12.5
    world.tell(m.Tick())
    assert world.kills == 1
    assert world.status(1) == "failed"
    assert notes(world, m.WriteRetry) == []  # the two behind it had not begun
    assert set(world.waiting) == {"t2.2", "t3.2"}


def test_a_trial_that_waits_in_a_lease_is_cancelled_without_an_attempt_and_its_worker_lives():
    world, launches = many()
    world.tell(m.Cancelled(frozenset([2])))
    assert world.dropped == {launches[2].id}
    assert not world.asked_to_stop
    world.finish()
    assert [world.status(k) for k in range(4)] == ["done", "done", "cancelled", "done"]
    assert (2, 1) not in notes(world, Began)
    (row,) = world.rows()[2]
    assert row["error"]["message"] == "the trial was cancelled"
    assert world.kills == 0


def test_a_trial_that_had_begun_when_it_was_taken_for_waiting_is_asked_to_stop():
    world, launches = many()
    world.tell(m.Cancelled(frozenset([1])))
    done(world, launches[0])
    world.tell(m.Started(launches[1].id))
    assert world.asked_to_stop == {launches[1].id}
    world.now += 2.0
    world.tell(m.Tick())
    assert world.kills == 1
    assert world.status(1) == "cancelled"


def test_ctrl_c_lets_the_trial_of_a_lease_that_runs_finish_and_the_others_do_not_begin():
    world, launches = many()
    world.tell(m.Interrupted())
    assert world.dropped == {launch.id for launch in launches[1:]}
    (stopping,) = [e for e in world.stops if isinstance(e, m.Stopping)]
    assert stopping.running == 1
    world.finish()
    assert world.state.counts == {"done": 1, "cancelled": 3}
    assert notes(world, Began) == [(0, 1)]


def test_on_a_full_disk_what_has_not_begun_comes_back_and_runs_when_there_is_room():
    world, _ = many()
    world.tell(m.Storage(full=True))
    while world.calls:
        world.progress()
    assert notes(world, Began) == [(0, 1)]
    assert not world.leases and not world.waiting, "others can have the place"
    world.finish()
    assert world.state.counts == {"done": 4}
    assert sorted(notes(world, Began)) == [(k, 1) for k in range(4)]


def test_a_worker_that_dies_between_two_launches_charges_those_that_had_their_turn_with_infrastructure():
    world, launches = many()
    down(world, launches[0], frozenset())
    retries = [(e.trial, e.failure, e.charged) for e in world.journal if isinstance(e, m.WriteRetry)]
    assert retries == [(0, Failure.infrastructure, True)]


def test_a_suspect_gets_a_launch_of_its_own_out_of_its_lease():
    world, launches = many()
    down(world, launches[0], frozenset([launches[0].id]))
    again = ("t1.2", "t0.2", "t2.2")
    for name in again:
        del world.waiting[name]
    world.leases["n"] = again
    world.tell(granted("n", "d0", again, 100))
    world.finish()
    own = [launches for launches in world.runs if launches[0].lease == "n"]
    assert [tuple(one.trials[0] for one in launches) for launches in own] == [(1,), (0,), (2,)]
