"""The state machine of a run, with a pretended ledger, workers and clock."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.runner.engine import messages as m
from qdrun.runner.engine.failures import Rules
from qdrun.runner.engine.parts import Asked, TrialAt
from qdrun.runner.engine.state import SweepState
from qdrun.runner.ledger.leases import LeaseEnd
from qdrun.runner.packing import Claim
from qdrun.runner.store.attempts import Failure
from qdrun.runner.store.columns import BatchRows

from .world import CLAIM, MOODS, RULES, SIGNALS, STRAY, STRAYS, Began, World, granted

EXPECTED = {
    "good": "done",
    "user": "failed",
    "nan": "failed",
    "crash": "poisoned",
    "crash once": "done",
    "oom": "failed",
    "needs 70": "done",
    "hang": "failed",
    "infra once": "done",
    "device lost": "failed",
    "lost alone": "failed",
    "bounds": "failed",
    "signal": "poisoned",
    "signal always": "poisoned",
    "stray bounds": "failed",
    "stray": "poisoned",
    "stray always": "poisoned",
}
worlds = st.tuples(
    st.lists(st.sampled_from(MOODS), min_size=1, max_size=14),
    st.integers(0, 2**32),
    st.sampled_from((1, 1, 2, 5)),
    st.booleans(),
)


def check(world):
    """Every trial has its one row, nothing is left anywhere, nobody was charged too often, and no attempt runs for ever."""
    assert {name: len(rows) for name, rows in world.rows().items()} == dict.fromkeys(world.moods, 1)
    assert not world.flights and not world.leases and not world.waiting
    assert sum(world.state.counts.values()) == len(world.moods)
    for name in world.moods:
        for failure in (Failure.infrastructure, Failure.out_of_memory, Failure.crash):
            # the crash after the last retry is looked into before the trial ends
            more = world.checks and failure is Failure.crash
            assert world.retries(name, failure) <= RULES.retries(failure) + more
    assert not [attempt for attempt, said in world.said.items() if attempt[0] == world.owner and said == {"started"}]


@settings(max_examples=200, deadline=None)
@given(worlds, st.integers(0, 150), st.sampled_from((1, 3, 64)), st.booleans())
def test_every_trial_ends_exactly_once_whatever_is_lost_and_whenever_the_runner_is_killed(case, steps, most, told):
    moods, seed, batch, processes = case
    world = World(moods, RULES, random.Random(seed), batch=batch, processes=processes, most=most, told=told)
    for _ in range(steps):
        world.step()
    world.finish()
    check(world)


@settings(max_examples=150, deadline=None)
@given(worlds, st.lists(st.integers(0, 30), min_size=1, max_size=6), st.sampled_from((1, 3, 64)), st.booleans())
def test_every_trial_ends_exactly_once_whatever_is_cancelled_and_when(case, pauses, most, told):
    moods, seed, batch, processes = case
    world = World(moods, RULES, random.Random(seed), batch=batch, processes=processes, most=most, told=told)
    for steps in pauses:
        for _ in range(steps):
            world.step()
        if not world.state.finished:
            world.cancel()
    world.finish()
    check(world)


@settings(max_examples=100, deadline=None)
@given(worlds, st.sampled_from((1, 3, 64)))
def test_without_losses_each_trial_ends_as_it_behaves_and_uses_exactly_its_retries(case, most):
    moods, seed, batch, processes = case
    world = World(moods, RULES, random.Random(seed), batch=batch, processes=processes, most=most)
    world.finish()
    together = {  # a launch ends as a whole with its device
        name for names in world.state.batches if {"device lost"} & {world.moods[n] for n in names} for name in names
    }
    for name, mood in world.moods.items():
        if batch == 1 or name not in together:
            assert world.status(name) == EXPECTED[mood], (name, mood)
    for name, mood in world.moods.items() if batch == 1 else ():
        used = {"crash": Failure.crash, "oom": Failure.out_of_memory, "device lost": Failure.infrastructure}.get(mood)
        used = Failure.infrastructure if mood == "lost alone" else used
        for failure in (Failure.infrastructure, Failure.out_of_memory, Failure.crash):
            if failure is used:
                assert world.retries(name, failure) == RULES.retries(failure)
            elif failure is Failure.crash and mood == "crash once":
                assert world.retries(name, failure) <= 1
            elif mood not in ("needs 70", "infra once"):
                assert world.retries(name, failure) == 0
    assert world.state.outcome == ("done" if set(world.state.counts) == {"done"} else "failed")


signals = st.tuples(
    st.lists(st.sampled_from((*SIGNALS, *STRAYS, *MOODS)), min_size=1, max_size=10),
    st.integers(0, 2**32),
    st.sampled_from((1, 1, 3)),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(signals, st.integers(0, 150), st.lists(st.integers(0, 30), max_size=3), st.sampled_from((1, 3, 64)))
def test_trials_that_are_looked_into_end_exactly_once_whatever_is_lost_or_cancelled(case, steps, pauses, most):
    moods, seed, batch, processes = case
    rng = random.Random(seed)
    world = World(moods, RULES, rng, batch=batch, processes=processes, most=most, checks=True)
    for _ in range(steps):
        world.step()
    for pause in pauses:
        for _ in range(pause):
            world.step()
        if not world.state.finished:
            world.cancel()
    world.finish()
    check(world)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from((*SIGNALS, *STRAYS)),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.sampled_from((1, 3, 64)),
    st.sampled_from((0, 1, 2)),
)
def test_a_trial_that_dies_by_a_signal_is_checked_once_and_only_its_crashes_are_charged(mood, beside, seed, most, retries):
    moods = [mood] + ["good"] * beside
    world = World(moods, Rules(crash=retries), random.Random(seed), processes=True, most=most, checks=True)
    world.finish()
    assert [world.status(name) for name in world.moods] == [EXPECTED[mood] for mood in moods]
    attempts = [launch.checked for call in world.runs for launch in call if launch.trials == (0,)]
    started = sum(isinstance(e, Began) and e.trial == 0 for e in world.journal)
    error, charged = world.rows()[0][0]["error"]["message"], world.retries(0, Failure.crash)
    signal = STRAY if mood in STRAYS else "Segmentation fault"
    if mood in ("bounds", "stray bounds"):
        assert attempts[-2:] == [False, True] and started == 2 and charged == 1
        note = f"its process died before: {signal}; this is what it says when it is run again with every index checked"
        assert error == f"{mood}\n  {note}"
    else:
        assert attempts.count(True) == 1 and started == retries + 2 and charged == max(1, retries)
        how = "died again" if mood in ("signal always", "stray always") else "ended well"
        first, *_, found, advice = error.splitlines()
        assert first == f"{STRAY if mood in STRAYS else f'its process died: {signal}'} ({retries + 2} attempts)"
        assert found == f"  run again with every index checked, it {how}: no index out of bounds was found"
        assert advice.startswith("  do: if a trial before it in its process wrote out of bounds, `qdrun submit --debug` finds")


def test_a_pardon_takes_back_the_end_that_waits_for_the_check():
    world = script(["good"] * 2, Rules(crash=0), processes=True, checks=True)
    for k in (0, 1):
        begun = frozenset(launch.id for launch in world.flights.values() if launch.worker.slot == k)
        world._die(m.WorkerId("d0", k))
        world.tell(m.WorkerDown(m.WorkerId("d0", k), Failure.crash, {"type": "E", "message": "gone"}, begun, "Aborted"))
    assert [world.retries(k, Failure.crash) for k in (0, 1)] == [0, 0]
    world.finish()
    assert world.state.counts == {"done": 2}


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 40), st.data(), st.integers(0, 2**32), st.booleans())
def test_bisection_finds_the_guilty_trial_of_a_batch_and_charges_no_other(size, data, seed, processes):
    guilty = data.draw(st.integers(0, size - 1))
    moods = ["crash" if k == guilty else "good" for k in range(size)]
    world = World(moods, RULES, random.Random(seed), batch=size, processes=processes)
    world.finish()
    assert {name for name in world.moods if world.status(name) != "done"} == {guilty}
    assert world.status(guilty) == "poisoned"
    assert all(world.retries(name, Failure.crash) == 0 for name in world.moods if name != guilty)
    crashes = sum(isinstance(e, m.WriteRetry) and e.trial == guilty for e in world.journal)
    assert crashes <= (size - 1).bit_length() + RULES.crash


def test_trials_of_a_batch_that_did_not_begin_as_the_one_before_lost_the_device_are_not_charged():
    """They ran one by one."""
    world = World(["good"] * 4, RULES, random.Random(0), batch=4, lanes=1)
    world.grant()
    (launch,) = world.flights.values()
    lost = {"status": "failed", "error": {"type": "DeviceError", "message": "lost"}, "failure": Failure.infrastructure}
    world.calls.clear()
    world.flights.clear()
    world.tell(m.LaunchEnded(launch.id, {0: {"status": "done", "loss": 1.0}, 1: lost | {"restart": True}}))
    retries = [(e.trial, e.failure, e.charged) for e in world.journal if isinstance(e, m.WriteRetry)]
    assert sorted(retries) == [(1, "infrastructure", True), (2, "infrastructure", False), (3, "infrastructure", False)]
    assert world.status(0) == "done"
    world.finish()
    assert world.state.counts == {"done": 4}


def script(moods, rules=RULES, **options):
    """A world whose runs the test directs itself: one device with lanes, everything granted at once."""
    world = World(moods, rules, random.Random(0), told=False, **options)
    for k, name in enumerate(list(world.waiting)):
        del world.waiting[name]
        world.leases[f"l{k}"] = (name,)
        world.tell(granted(f"l{k}", "d0", (name,), 100, processes=world.processes))
    return world


def test_when_a_worker_with_several_trials_dies_nobody_is_charged_and_each_runs_alone():
    world = script(["good"] * 3)
    worker = m.WorkerId("d0")
    world._die(worker)
    world.tell(m.WorkerDown(worker, Failure.crash, {"type": "E", "message": "gone"}))
    retries = [e for e in world.journal if isinstance(e, m.WriteRetry)]
    assert [(e.trial, e.failure, e.charged) for e in retries] == [(k, Failure.crash, False) for k in range(3)]
    assert set(world.waiting) == {"t0.2", "t1.2", "t2.2"}
    for k in range(3):
        del world.waiting[f"t{k}.2"]
        world.leases[f"n{k}"] = (f"t{k}.2",)
        world.tell(granted(f"n{k}", "d0", (f"t{k}.2",), 100))
        assert len(world.flights) == 1
        assert next(iter(world.flights.values())).worker == m.WorkerId("d0", 0, 1)
    world.finish()
    assert world.state.counts == {"done": 3}


def test_two_processes_of_a_device_that_die_within_a_second_are_not_charged():
    world = script(["good"] * 2, processes=True)
    for k, after in ((0, 0.0), (1, 0.9)):
        world.now += after
        world._die(m.WorkerId("d0", k))
        world.tell(m.WorkerDown(m.WorkerId("d0", k), Failure.crash, {"type": "E", "message": "gone"}))
    assert [world.retries(k, Failure.crash) for k in (0, 1)] == [0, 0]


def test_an_illegal_address_on_a_gpu_that_lanes_share_charges_nobody_and_each_runs_alone():
    """All lanes of the process have lost the device; which of them was it, nobody knows."""
    world = script(["stray bounds", "good", "good"], checks=True)
    stray, beside, _ = world.flights.values()
    for flight in (stray, beside):
        world.tell(m.Started(flight.id))
    error = {"type": "DeviceError", "message": STRAY}
    world.tell(m.LaunchEnded(stray.id, {0: {"status": "failed", "error": error, "failure": Failure.crash, "restart": True}}))
    retries = {e.trial: (e.failure, e.charged) for e in world.journal if isinstance(e, m.WriteRetry)}
    assert retries == {0: (Failure.crash, False)} | dict.fromkeys((1, 2), (Failure.infrastructure, False))
    assert world.kills == 1 and world.state.trials.alone == {0, 1}
    world.finish()
    assert [world.status(k) for k in range(3)] == ["failed", "done", "done"]
    assert world.rows()[0][0]["error"]["message"].startswith(f"stray bounds\n  its process died before: {STRAY}; ")


def test_a_trial_whose_time_is_up_is_not_looked_into_when_its_process_dies_meanwhile():
    world = script(["hang"], processes=True, checks=True)
    (hang,) = world.flights.values()
    world.tell(m.Started(hang.id))
    world.now = 5.0
    world.tell(m.Tick())
    begun = world._die(hang.worker)
    world.tell(m.WorkerDown(hang.worker, Failure.crash, {"type": "E", "message": "gone"}, begun, "Aborted"))
    (row,) = world.rows()[0]
    assert (row["status"], row["failure"], row["error"]["type"]) == ("failed", "timeout", "Timeout")


def test_two_processes_that_die_more_than_a_second_apart_are_charged():
    world = script(["good"] * 2, processes=True)
    for k, after in ((0, 0.0), (1, 1.1)):
        world.now += after
        world._die(m.WorkerId("d0", k))
        world.tell(m.WorkerDown(m.WorkerId("d0", k), Failure.crash, {"type": "E", "message": "gone"}))
    assert [world.retries(k, Failure.crash) for k in (0, 1)] == [1, 1]


def test_a_trial_that_hangs_is_asked_to_stop_and_then_its_worker_is_killed_and_its_neighbour_runs_again():
    world = script(["hang", "good"])
    hang, good = world.flights.values()
    world.tell(m.Started(hang.id))
    world.now = 4.0
    world.tell(m.Started(good.id))
    world.now = 5.0
    world.tell(m.Tick())
    assert world.asked_to_stop == {hang.id}
    assert world.kills == 0
    world.now = 6.9
    world.tell(m.Tick())
    assert world.kills == 0
    world.now = 7.0
    world.tell(m.Tick())
    assert world.kills == 1
    (row,) = world.rows()[0]
    assert (row["status"], row["failure"], row["error"]["type"]) == ("failed", "timeout", "Timeout")
    assert row["error"]["message"] == "the trial ran longer than limits.trial_timeout, 5 s"
    beside = [e for e in world.journal if isinstance(e, m.WriteRetry)]
    assert [(e.trial, e.failure, e.charged) for e in beside] == [(1, Failure.infrastructure, False)]
    world.finish()
    assert world.status(1) == "done"


def test_time_is_counted_from_the_start_of_the_trial_and_not_while_it_waits():
    world = World(["good"], RULES, random.Random(0))
    world.now = 1000.0
    world.tell(m.Tick())
    world.grant()
    world.now = 1020.0
    world.tell(m.Tick())
    assert not world.asked_to_stop
    (launch,) = world.flights
    world.tell(m.Started(launch))
    assert world.state.next_deadline() == 1025.0


def test_a_worker_that_never_begins_is_replaced_and_its_trial_is_not_charged():
    rules = Rules(infra=1, start_s=30.0)
    world = World(["good"], rules, random.Random(0))
    for _ in range(6):
        world.grant()
        world.wait(30.0)
    retries = [event for event in world.journal if isinstance(event, m.WriteRetry)]
    assert {event.error["message"] for event in retries} == {"its worker did not start within 30 s"} and len(retries) >= 3
    assert not any(event.charged for event in retries) and world.kills == len(retries)


@pytest.mark.parametrize("allowed, failed", [(0, 1), (2, 3)])
def test_when_too_many_fail_no_more_are_started_and_what_runs_may_finish(allowed, failed):
    world = script(["user"] * 4 + ["good"] * 2, Rules(allowed=allowed))
    world.waiting.clear()
    for launch in list(world.flights):
        if world.state.stopping:
            break
        launch = world.flights.pop(launch)
        world.tell(m.LaunchEnded(launch.id, {launch.trials[0]: world._end(launch.trials[0], "user", launch, 1)}))
    assert world.state.counts["failed"] == failed
    assert world.state.stopping == "failed"
    world.finish()
    assert world.state.outcome == "failed"


def test_more_failures_than_allowed_cancel_what_waits():
    world = World(["user"] + ["good"] * 30, Rules(allowed=0), random.Random(1))
    while "t0" in world.waiting:
        world.grant()
    while not world.state.stopping:
        world.progress()
    world.finish()
    assert world.state.counts["cancelled"] >= 20
    assert sum(world.state.counts.values()) == 31


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from((1, 3, 64)), st.floats(0.05, 1.0))
def test_leases_that_are_out_fail_no_more_than_may_but_for_the_trials_that_have_begun(seed, allowed, most, share):
    rng = random.Random(seed)
    moods = ["user" if rng.random() < share else "good" for _ in range(100)]
    world = World(moods, Rules(allowed=allowed), rng, most=most, lanes=2)
    while not world.state.finished:  # workers are far ahead of what the runner hears
        world.grant()
        for _ in range(rng.randint(0, 100)):
            going = world.going()
            if going:
                world._go_on(rng.choice(going))
        world.hear()
    world.finish()
    failed, wrong = world.state.counts["failed"], moods.count("user")
    assert (
        min(allowed + 1, wrong) <= failed <= allowed + 4
    )  # four lanes: one trial on each when the last of those allowed fails
    assert world.state.outcome == ("done" if not wrong else "failed")
    check(world)


def test_ctrl_c_once_lets_running_trials_finish_and_twice_stops_them_now():
    world = World(["good"] * 5 + ["hang"], Rules(), random.Random(0), lanes=1, most=1)
    while len(world.flights) < 2:
        world.grant()
    for call in world.calls:
        world.tell(m.Started(call.order[0]))
    running = {name for launch in world.flights.values() for name in launch.trials}
    world.tell(m.Interrupted())
    assert world.state.counts == {"cancelled": 6 - len(running)}
    assert {name for launch in world.flights.values() for name in launch.trials} == running
    world.now += 10_000
    world.tell(m.Tick())
    assert not world.kills
    world.tell(m.Interrupted())
    assert world.asked_to_stop and world.asked_to_stop <= set(world.flights) and not world.kills
    world.tell(m.Interrupted())
    assert not world.flights
    assert world.state.finished
    assert world.state.outcome == "interrupted"


def test_who_is_asked_to_stop_by_a_second_ctrl_c_has_a_moment_for_it():
    world = World(["hang"], Rules(grace_s=2.0), random.Random(0), lanes=1, most=1)
    while not world.flights:
        world.grant()
    for call in world.calls:
        world.tell(m.Started(call.order[0]))
    for _ in range(2):
        world.tell(m.Interrupted())
    assert world.flights and not world.kills
    world.now += 2.5
    world.tell(m.Tick())
    assert not world.flights and world.state.outcome == "interrupted"


def test_a_trial_can_be_cancelled_while_it_waits_and_while_it_runs():
    world = World(["good"] * 3, RULES, random.Random(0))
    world.tell(m.Cancelled(frozenset([2, 99])))
    assert world.status(2) == "cancelled"
    assert "t2" not in world.waiting
    world.waiting.pop("t0")
    world.leases["l"] = ("t0",)
    world._device_of["l"] = "d0"
    world.tell(granted("l", "d0", ("t0",), 100))
    world.tell(m.Cancelled(frozenset([0])))
    (launch,) = [one.id for one in world.flights.values() if one.trials == (0,)]
    assert launch in world.asked_to_stop
    world.tell(m.LaunchEnded(launch, {0: {"status": "cancelled", "failure": Failure.cancelled}}))
    world.flights.pop(launch)
    assert world.status(0) == "cancelled"
    world.finish()
    assert world.state.outcome == "failed"
    assert world.status(1) == "done"


def test_a_trial_that_succeeds_while_it_is_asked_to_stop_has_succeeded():
    world = script(["good"])
    (launch,) = world.flights
    world.tell(m.Cancelled())
    world.flights.pop(launch)
    world.tell(m.LaunchEnded(launch, {0: {"status": "done", "loss": 2.0}}))
    assert world.status(0) == "done"
    assert world.state.outcome == "done"


def test_nothing_is_launched_while_the_store_is_full_and_no_place_is_held_that_others_could_have():
    world = World(["good"] * 3, RULES, random.Random(0))
    late = next(iter(world.waiting))
    world.tell(m.Storage(full=True))
    assert not world.waiting and not world.leases
    world.leases["late"] = [late]  # it was granted before the ledger heard of it
    world.tell(granted("late", "d0", (late,), 100))
    assert not world.flights and not world.leases
    world.tell(m.Cancelled(frozenset({1})))
    world.tell(m.Storage(full=False))
    assert [wanted.trials for wanted in world.waiting.values()] == [(0,), (2,)]
    world.grant()
    assert world.flights
    world.finish()
    assert world.state.counts == {"done": 2, "cancelled": 1}


def test_out_of_memory_steps_down_the_curve_and_tries_alone_at_last():
    state = SweepState([TrialAt(0), TrialAt(1)], Rules(oom=2), lambda batch: CLAIM)
    (ask,) = state.start(0.0)
    seen = []
    for k in range(3):
        state.handle(granted(f"l{k}", "d0", (ask.requests[0].id,), ask.requests[0].claims["gpu"].points[0].bytes), 0.0)
        (flight,) = state._flights.values()
        seen.append((flight.launch.bytes, 0 in state.trials.alone))
        end = {"status": "failed", "error": {"type": "OutOfMemory", "message": "no"}, "failure": Failure.out_of_memory}
        actions = state.handle(m.LaunchEnded(flight.launch.id, {0: end}), 0.0)
        ask = next((one for one in actions if isinstance(one, m.Ask)), None)
    assert seen == [(100, False), (50, False), (150, True)], "the last time with more than its fastest point"
    assert ask is None
    (row,) = [one.record for one in actions if isinstance(one, m.WriteEnded)]
    assert row["error"]["message"] == "no (3 attempts)"


def test_a_trial_whose_process_had_no_more_memory_for_any_of_them_runs_alone_and_pays_only_then():
    state = SweepState([TrialAt(0)], Rules(oom=0), lambda batch: CLAIM)
    (ask,) = state.start(0.0)
    seen = []
    for k, shared in enumerate((True, False)):
        state.handle(granted(f"l{k}", "d0", (ask.requests[0].id,), 100), 0.0)
        (flight,) = state._flights.values()
        error = {"type": "MemoryError", "message": "no"}
        end = {"status": "failed", "error": error, "failure": Failure.out_of_memory, "shared": shared}
        actions = state.handle(m.LaunchEnded(flight.launch.id, {0: end}), 0.0)
        ask = next((one for one in actions if isinstance(one, m.Ask)), None)
        seen.append((0 in state.trials.alone, [one.charged for one in actions if isinstance(one, m.WriteRetry)]))
    assert seen == [(True, [False]), (True, [])]
    (row,) = [one.record for one in actions if isinstance(one, m.WriteEnded)]
    assert ask is None and (row["status"], row["failure"]) == ("failed", "out_of_memory")


def test_without_a_smaller_point_the_claim_grows_by_half():
    one = {"gpu": Claim.of([(100, 1.0)])}
    state = SweepState([TrialAt(0)], Rules(oom=3), lambda batch: one)
    (ask,) = state.start(0.0)
    asked = []
    for k in range(3):
        state.handle(granted(f"l{k}", "d0", (ask.requests[0].id,), ask.requests[0].claims["gpu"].points[0].bytes), 0.0)
        (flight,) = state._flights.values()
        end = {"status": "failed", "failure": Failure.out_of_memory}
        actions = state.handle(m.LaunchEnded(flight.launch.id, {0: end}), 0.0)
        (ask,) = [one for one in actions if isinstance(one, m.Ask)]
        asked.append(ask.requests[0].claims["gpu"].points[0].bytes)
    assert asked == [150, 225, 337]


def test_a_request_that_nothing_can_hold_is_a_failed_row_that_was_never_started():
    state = SweepState([TrialAt(0)], Rules(), lambda batch: CLAIM)
    state.start(0.0)
    (row,) = state.handle(m.Refused({"t0": "needs 3 GiB, more than the 2 GiB of pool gpu0"}), 0.0)
    assert isinstance(row, m.WriteEnded)
    assert (row.number, row.record["status"], row.record["failure"]) == (0, "failed", "out_of_memory")
    assert state.finished


def test_what_is_granted_after_it_was_withdrawn_is_given_back_at_once():
    state = SweepState([TrialAt(0)], Rules(), lambda batch: CLAIM)
    state.start(0.0)
    state.handle(m.Cancelled(), 0.0)
    assert state.handle(granted("l0", "d0", ("t0",), 100), 0.0) == [m.GiveBack("l0", ("t0",))]
    assert state.finished


def test_a_lease_of_several_requests_is_given_back_once_after_all_of_them():
    world = World(["good"] * 3, RULES, random.Random(0))
    world.waiting.clear()
    world.leases["l"] = ("t0", "t1", "t2")
    world.tell(granted("l", "d0", ("t0", "t1", "t2"), 100))
    (call,) = world.calls
    assert [world.flights[name].trials for name in call.order] == [(0,), (1,), (2,)]
    assert [(e.trial, e.number) for e in world.journal] == [(0, 1)]  # the others have not begun
    while world.calls:
        assert world.leases
        world.progress()
    assert not world.leases
    assert world.state.finished


def test_batches_go_on_under_a_lease_and_one_that_comes_too_late_is_asked_for_again():
    world = World(["good"] * 8, Rules(), random.Random(0), batch=2, lanes=1, most=1, processes=True)
    claims = world.state.claims((0, 1))
    (name, lease), now = ("t0+1", "l1"), 1.0
    actions = world.state.handle(granted(lease, "d0", (name,), 100, processes=True), now)
    (run,) = [one for one in actions if isinstance(one, m.RunLaunches)]
    (go,) = [one for one in actions if isinstance(one, m.GoOn)]
    assert (go.lease, go.request, go.since, go.others) == (lease, "t2+1", now, False) and claims is world.state.claims((2, 3))
    (behind,) = [one for one in world.state.handle(m.GoesOn(lease, "t2+1"), now) if isinstance(one, m.RunLaunches)]
    (launch,) = behind.launches
    assert launch.behind and launch.worker == run.launches[0].worker and launch.trials == (2, 3)
    assert world.state.running == 2  # it has not begun, and is no attempt yet
    first = m.LaunchEnded(run.launches[0].id, {}, rows=(BatchRows((0, 1), (1, 1), {"status": "done"}, {}, {}, {}, (0, 1.0)),))
    (go,) = [one for one in world.state.handle(first, now) if isinstance(one, m.GoOn)]
    assert go.request == "t4+1"
    lost = world.state.handle_all((LeaseEnd(lease, "gone"), m.GoesOn(lease, "t4+1")), now)
    asked = {wanted.id for one in lost if isinstance(one, m.Ask) for wanted in one.requests}
    assert asked == {"t2+1.2", "t4+1.2"} and not [one for one in lost if isinstance(one, m.RunLaunches)]


def test_no_batch_goes_on_where_its_failure_would_end_the_run():
    for allowed, goes in ((3, False), (4, True), (None, True)):
        world = World(["good"] * 8, Rules(allowed=allowed), random.Random(0), batch=2, lanes=1, most=1)
        actions = world.state.handle(granted("l1", "d0", ("t0+1",), 100), 1.0)
        assert any(isinstance(one, m.GoOn) for one in actions) is goes


def test_the_next_batch_of_a_lease_is_found_without_a_look_at_all_that_wait(monkeypatch):
    """Of twice as many small batches each one costs the same: nothing asks for the claims of the others."""
    asked = []

    def cost(batches):
        claims = CLAIM
        state = SweepState(
            [TrialAt(k) for k in range(2 * batches)],
            Rules(),
            lambda batch: asked.append(batch) or claims,
            batches=[(2 * k, 2 * k + 1) for k in range(batches)],
        )
        (ask,) = state.start(0.0)
        asked.clear()
        actions = state.handle(granted("l", "d0", (ask.requests[0].id,), 10), 0.0)
        for _ in range(20):
            (go_on,) = [action for action in actions if isinstance(action, m.GoOn)]
            actions = state.handle(m.GoesOn("l", go_on.request), 0.0)
            head = min(state._flights)
            rows = [{"status": "done", "loss": 1.0}] * 2
            actions += state.handle(m.Started(head), 0.0)
            actions = state.handle(m.LaunchEnded(head, dict(zip(state._flights[head].launch.trials, rows))), 0.0)
        return len(asked)

    assert cost(200) == cost(50) <= 60


def test_requests_with_the_same_claims_are_found_and_others_counted():
    asked, some, other = Asked(), dict(CLAIM), dict(CLAIM)
    asked.add("alone", (7,), some)
    for name, claims in (("a", some), ("b", other), ("c", some)):
        asked.add(name, (1, 2), claims)
    assert asked.alike(some) == ("a", 2) and asked.alike(dict(CLAIM)) == (None, 0)
    assert asked.pop("a") == (1, 2) and asked.pop("a") is None
    assert asked.alike(some) == ("c", 1) and list(asked) == ["alone", "b", "c"] and "b" in asked and len(asked) == 3
