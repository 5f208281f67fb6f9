"""How full devices were, from the starts and ends of a journal."""

import pytest
from made_runs import GIB, SNAPSHOT

from qdrun.runner.observe.device_load import loads


def event(t, kind, trial=None, **more):
    return {"t": 1000.0 + t, "event": kind, "trial": trial} | more


def only(events, planned=None):
    (load,) = loads(events, 1000.0, planned or {})
    return load


def test_claims_of_what_runs_together_add_up():
    load = only(
        [
            event(0, "snapshot", **SNAPSHOT),
            event(1, "started", "a", device="gpu:0", bytes=3 * GIB),
            event(2, "started", "b", device="gpu:0", bytes=5 * GIB),
            event(4, "ended", "a"),
            event(6, "ended", "b"),
        ]
    )
    assert (load.device, load.capacity) == ("gpu:0", 20 * GIB)
    assert load.times == [1, 2, 4, 6]
    assert load.claimed == [3 * GIB, 8 * GIB, 5 * GIB, 0]
    assert load.running == [1, 2, 1, 0]
    assert load.mean() == (pytest.approx((3 + 16 + 10) / 5 * GIB), pytest.approx(7 / 5))


def test_a_batch_claims_its_bytes_once():
    starts = [event(1, "started", name, device="d", bytes=10, launch=7) for name in "abc"]
    load = only([*starts, event(2, "ended", "a"), event(3, "ended", "b"), event(3, "ended", "c")])
    assert (load.times, load.claimed, load.running) == ([1, 2, 3], [10, 10, 0], [3, 2, 0])


def test_a_batch_that_began_and_ended_between_two_writes_claims_its_bytes_once():
    shared = {"place": {"device": "d", "bytes": 10}, "pid": 3, "lane": 0, "started_t": 1001.0, "ended_t": 1002.0}
    other = shared | {"lane": 1}
    load = only([*(event(3, "ended", name, **shared) for name in "abc"), event(3, "ended", "d", **other)])
    assert (load.times, load.claimed, load.running) == ([1, 2], [20, 0], [4, 0])


def test_devices_are_apart_and_a_retry_ends_an_attempt():
    first, second = loads(
        [
            event(1, "started", "a", device="d0", bytes=1),
            event(2, "retry", "a"),
            event(3, "started", "a", device="d1", bytes=1),
            event(5, "ended", "a"),
        ],
        1000.0,
        {},
    )
    assert (first.times, first.claimed) == ([1, 2], [1, 0])
    assert (second.times, second.claimed, second.capacity) == ([3, 5], [1, 0], None)


def test_what_an_owner_ran_ends_with_the_next_owner():
    load = only([event(1, "started", "a", device="d", bytes=7), event(9, "owner"), event(9, "ended", "a")])
    assert (load.times, load.claimed) == ([1, 9], [7, 0])


def test_a_start_without_bytes_claims_what_was_planned_and_a_host_stands_for_a_device():
    load = only([event(1, "started", "a", host="box", pid=3), event(2, "ended", "a")], {"a": 11})
    assert (load.device, load.claimed) == ("box", [11, 0])


def test_time_does_not_run_back():
    load = only([event(5, "started", "a", device="d", bytes=1), event(3, "ended", "a")])
    assert load.times == [5] and load.claimed == [0]


def test_events_that_fit_nothing_are_left_out():
    assert loads([event(1, "ended", "a"), event(2, "retry", "b"), event(3, "owner")], 1000.0, {}) == []


def test_what_began_and_ended_between_two_writes_has_the_times_of_its_worker():
    place = {"device": "d", "bytes": 5}
    load = only(
        [
            event(1, "started", "a", **place),
            event(9, "ended", "a", started_t=1001.0, ended_t=1002.0),
            event(9, "ended", "b", place=place, started_t=1002.0, ended_t=1004.0),
            event(9, "ended", "c", place=place, started_t=1004.0, ended_t=1020.0),  # another clock: not after its own line
        ]
    )
    assert (load.times, load.running) == ([1, 2, 4, 9], [1, 1, 1, 0])


def test_one_lane_is_never_seen_with_two_trials_though_its_ends_are_written_late():
    place, events = {"device": "d", "bytes": 5}, []
    for k in range(8):  # each begins when the last one has ended; starts and ends are written 0.25 s later, ends after starts
        events.append(event(k + 0.25, "started", f"t{k}", **place))
        if k:
            events.append(event(k + 0.25, "ended", f"t{k - 1}", started_t=999.0 + k, ended_t=1000.0 + k))
    events.append(event(8.25, "ended", "t7", started_t=1007.0, ended_t=1008.0))
    load = only(events)
    assert max(load.running) == 1 and load.mean() == (5.0, 1.0)
    assert load.times == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_start_is_not_moved_behind_the_owner_that_ended_it():
    events = [event(1, "started", "a", device="d", bytes=7), event(4, "owner")]
    load = only([*events, event(9, "ended", "a", started_t=1001.0, ended_t=1003.0)])
    assert (load.times, load.running) == ([1, 4], [1, 0])


def test_such_an_attempt_of_another_clock_does_not_begin_before_its_owner():
    place = {"device": "d", "bytes": 5}
    load = only([event(3, "owner"), event(9, "ended", "b", place=place, started_t=900.0, ended_t=901.0)])
    assert (load.times, load.running) == ([3], [0])
