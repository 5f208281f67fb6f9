"""The journal loses at most the line that a crash tore."""

import json

from hypothesis import given
from hypothesis import strategies as st

from qdrun.runner.journal import Journal, read

NUMBERS = st.one_of(st.floats(), st.integers(), st.text(), st.lists(st.floats(), max_size=3))


@given(st.lists(st.dictionaries(st.text(min_size=1, max_size=5).map("k".__add__), NUMBERS, max_size=3), max_size=5), st.data())
def test_whatever_byte_a_crash_stops_at_the_whole_lines_before_it_are_read(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    with Journal(path) as journal:
        for record in records:
            journal.write("row", **record)
    whole = path.read_bytes()
    cut = round(data.draw(st.floats(0, 1)) * len(whole))
    path.write_bytes(whole[:cut])
    events, damaged = read(path)
    assert len(events) == whole[:cut].count(b"\n")
    assert damaged == 0
    with Journal(path) as journal:
        journal.write("after")
    events, damaged = read(path)
    assert events[-1]["event"] == "after"
    assert damaged <= 1


def test_every_line_is_strict_json_also_with_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "events.jsonl"
    with Journal(path) as journal:
        journal.write("row", loss=float("nan"), values=[float("inf"), -float("inf"), 1.5])

    def refuse(word):
        raise AssertionError(word)

    record = json.loads(path.read_text(), parse_constant=refuse)
    assert float(record["loss"]) != float(record["loss"])
    assert [float(value) for value in record["values"]] == [float("inf"), -float("inf"), 1.5]


def test_damage_in_the_middle_is_counted_and_the_rest_is_read(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event":"a"}\nrubbish\n{"event":"b"}\n[1]\n')
    events, damaged = read(path)
    assert [event["event"] for event in events] == ["a", "b"]
    assert damaged == 2


def test_a_journal_that_is_not_there_yet_is_empty(tmp_path):
    assert read(tmp_path / "none") == ([], 0)
