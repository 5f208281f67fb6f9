"""Lines of the journal: strict JSON whatever is in them, whole or not there, synced in time."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import Machine, make_run

from qdrun.runner.store import journal as journal_module
from qdrun.runner.store.encoding import plain, unsealed
from qdrun.runner.store.follower import event_at, read, segments
from qdrun.runner.store.journal import Journal, line_of

VALUES = st.recursive(
    st.one_of(st.floats(), st.integers(), st.text(), st.none(), st.booleans()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def strict(text):
    def refuse(word):
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4))
def test_every_line_is_strict_json_and_gives_back_what_was_written(event):
    line = line_of(event)
    assert line.count(b"\n") == 1
    assert set(strict(line)) == {*plain(event), "crc"}
    assert unsealed(line[:-1]) == plain(event)


def test_values_that_only_python_knows_are_written_too():
    assert strict(line_of({"text": "bad \udc80", "loss": float("nan"), "many": (1, float("-inf"))})) == {
        "text": "bad \\udc80",
        "loss": "NaN",
        "many": [1, "-Infinity"],
        "crc": "ba6857d7",
    }


def test_a_lone_surrogate_anywhere_in_an_event_costs_no_row(tmp_path):
    """As text, so that what reads it need not know: tables, terminals."""
    folder = make_run(tmp_path)
    odd = {"device": "card \ud800", "outputs": {"\udfff": [1.0]}, "error": {"message": ["a", "\udc80b"]}}
    with Journal(folder) as journal:
        journal.write("ended", trial="t0", **odd)
        read_back = read(folder)
    assert read_back.damaged == 0
    (entry,) = (entry for entry in read_back.entries if entry.event["event"] == "ended")
    clean = {"device": "card \\ud800", "outputs": {"\\udfff": [1.0]}, "error": {"message": ["a", "\\udc80b"]}}
    assert event_at(folder, entry) == entry.event | clean


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(min_size=1, max_size=5).map("k".__add__), VALUES, max_size=3), max_size=5), st.floats(0, 1)
)
def test_whatever_byte_a_crash_stops_at_the_whole_lines_before_it_are_read(tmp_path_factory, records, share):
    folder = make_run(tmp_path_factory.mktemp("runs"))
    with Journal(folder) as journal:
        for fields in records:
            journal.write("row", **fields)
    (path,) = (folder.path / name for name in segments(folder))
    whole = path.read_bytes()
    cut = round(share * len(whole))
    path.write_bytes(whole[:cut])
    found = read(folder)
    assert (len(found.events), found.damaged) == (whole[:cut].count(b"\n"), 0)
    with Journal(folder) as journal:
        journal.write("after")
    found = read(folder)
    assert (found.events[-1]["event"], found.damaged) == ("after", 0)


def test_damage_in_the_middle_is_counted_and_the_rest_is_read(tmp_path):
    folder = make_run(tmp_path)
    (folder.path / "events").mkdir()
    lines = (line_of({"event": "a"}), b"rubbish\n", line_of({"event": "b"}), b"[1]\n", b'{"event":"unsealed"}\n')
    (folder.path / "events/000001-000001.jsonl").write_bytes(b"".join(lines))
    found = read(folder)
    assert [event["event"] for event in found.events] == ["a", "b"]
    assert found.damaged == 3


def test_a_journal_that_is_not_there_yet_is_empty(where):
    assert read(make_run(where)).entries == []


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

        def time(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(journal_module, "time", clock)
    return clock


def test_lines_are_synced_after_half_a_second_at_the_latest_and_at_once_when_asked(tmp_path, clock):
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:

        def syncs(act):
            before = machine.calls.count("fsync")
            act()
            return machine.calls.count("fsync") - before

        assert syncs(lambda: [journal.write("row") for _ in range(100)]) == 0
        assert syncs(lambda: journal.write("row", sync=True)) == 1
        assert syncs(lambda: journal.write("row")) == 0
        clock.now += 0.6
        assert syncs(journal.retry) == 1  # no further line has to come
        assert syncs(journal.retry) == 0
        journal.write("row")
        clock.now += 0.6
        assert syncs(lambda: [journal.write("row") for _ in range(100)]) == 1


def test_a_batch_is_one_write(tmp_path):
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:
        before = machine.calls.count("write")
        journal.write_all([("row", {"number": number}) for number in range(64)])
        assert machine.calls.count("write") == before + 1


def test_an_object_store_is_written_twice_a_second_and_not_for_each_line(clock, monkeypatch):
    folder = make_run("memory://twice/runs")
    puts = []
    real = folder.files.put
    monkeypatch.setattr(folder.files, "put", lambda path, data, **options: puts.append(path) or real(path, data, **options))
    with Journal(folder) as journal:
        puts.clear()
        for _ in range(100):
            journal.write("row")
        assert puts == [] and journal.waiting == 100 and not journal.full
        clock.now += 0.6
        assert journal.retry()
        assert puts == ["events/000001-000001.jsonl"] and journal.waiting == 0
    assert len(read(folder).events) == 101


def test_a_long_journal_goes_on_in_a_new_segment(where, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", {True: 1000, False: 1000})
    folder = make_run(where)
    with Journal(folder) as journal:
        for number in range(40):
            journal.write("row", number=number, sync=True)
    with Journal(folder) as journal:
        journal.write("row", number=40)
    assert len(folder.files.names("events")) > 3
    assert [event["number"] for event in read(folder).events if event["event"] == "row"] == list(range(41))


def test_no_room_for_a_new_segment_lets_the_old_one_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", {True: 500, False: 500})
    folder = make_run(tmp_path)
    with Machine() as machine, Journal(folder) as journal:
        real = folder.files.grow

        def full(path):
            raise journal_module.StorageFull(path)

        monkeypatch.setattr(folder.files, "grow", full)
        for number in range(10):
            journal.write("row", number=number, sync=True)
        monkeypatch.setattr(folder.files, "grow", real)
        for number in range(10, 20):
            journal.write("row", number=number, sync=True)
        assert machine.calls
    assert [event["number"] for event in read(folder).events if event["event"] == "row"] == list(range(20))
    assert len(folder.files.names("events")) > 1
