"""The folder of a run: the same on every file system, and no name that leads out of it."""

import os
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_helpers import RESOLVED, CountingFiles, make_run, record, rows_written, run_one, trials

from qdrun.runner.observe.listing import LogFollower, listed, logs_of
from qdrun.runner.observe.table import arrow, rows, write_parquet
from qdrun.runner.query.run_table import RunTable
from qdrun.runner.store.attempts import (
    STREAMS,
    Attempt,
    Log,
    ResultMissing,
    arrays_of,
    ended,
    pack,
    read_log,
    requeued,
    retried,
    started,
    write_spec,
)
from qdrun.runner.store.encoding import document
from qdrun.runner.store.files import LocalFiles, StorageFull, StorageUnknown, escaped, open_files
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import (
    FORMAT,
    ConfigChanged,
    NoPlace,
    RunFolder,
    RunNotFound,
    all_runs,
    config_hash,
    find,
    write_run,
)
from qdrun.runner.store.owner import ask_to_cancel, cancel_requests
from qdrun.runner.store.replay import record_of, recover, replay
from qdrun.runner.store.status import list_runs, status


def act(folder, steps):
    """Does the same things with a run, wherever it lies; what can be seen of it after each."""
    names, seen, journal = list(replay(folder).trials), [], Journal(folder)
    for what, trial in steps:
        name, owner = names[trial], journal.owner.number
        attempt = Attempt(name, replay(folder).trials[name].next_number, owner)
        if what == "take":
            journal.close()
            journal = Journal(folder)
            recover(folder, journal)
        elif what == "start":
            started(journal, [(attempt, {"device": "cpu"})])
        elif what == "left":
            started(journal, [(attempt, {})])
            pack(folder, attempt, record(trial, np.full(9000, float(trial))))
        elif what == "end":
            large = np.full(9000, float(trial)) if trial % 2 else None
            ended(journal, [(attempt, pack(folder, attempt, record(trial, large)))])
        elif what == "retry":
            retried(journal, attempt, "crash", {"type": "Crash", "message": "", "traceback": ""})
        elif what == "requeue":
            requeued(journal, {name: "asked"})
        elif what == "cancel":
            ask_to_cancel(folder, name)
        else:
            with Log(folder, attempt, "stdout") as log:
                log.write(b"hello\n")
        journal.write("mark", sync=True)
        state = replay(folder)
        seen.append([(t.status, t.next_number, dict(t.failures())) for t in state.trials.values()])
        seen.append((state.owner, state.doubled, rows_written(folder), cancel_requests(folder, journal.owner)))
        seen.append([arrays_of(folder, record_of(folder, t) or {}) for t in state.trials.values()])
        seen.append(read_log(folder, attempt, "stdout"))
    journal.close()
    return [str(item) for item in seen] + [str(rows(folder))]


STEPS = st.tuples(st.sampled_from(["take", "start", "left", "end", "retry", "requeue", "cancel", "log"]), st.integers(0, 2))


@settings(max_examples=15, deadline=None)
@given(st.lists(STEPS, max_size=8))
def test_a_run_in_memory_and_one_on_the_disk_behave_alike(tmp_path_factory, steps):
    here = tmp_path_factory.mktemp("runs")
    assert act(make_run(here), steps) == act(make_run(f"memory://alike/{here.name}"), steps)


def test_runs_are_found_and_listed_wherever_they_lie(where):
    folder, other = make_run(where), make_run(where, 1)
    assert {run.name for run in all_runs(where)} == {folder.name, other.name}
    assert find(folder.name, where).uri == find(folder.uri, where).uri == folder.uri
    with pytest.raises(
        RunNotFound, match=f"no run at `nothing`\n  do: give the folder of a run; the latest in .*{folder.name}"
    ):
        find("nothing", where)
    if "://" not in str(where):
        with pytest.raises(RunNotFound, match=f"no run at `{where}`\n  do: .* holds runs: .*{folder.name}"):
            find(str(where), where + "/none")
    with pytest.raises(RunNotFound, match="there are no runs in"):
        find("nothing", where + "/none")
    assert find("latest", where).uri == max((folder, other), key=lambda run: run.info()["created"]).uri
    assert find(other.name[-4:], where).uri == other.uri
    assert find(other.name[9:-1], where).uri == other.uri, "a part of it"
    start = folder.name[:8]  # the date: of both, but at midnight
    with pytest.raises(RunNotFound, match=f"`{start}` fits 2 runs in .*\n  do: give more of the id: .*{folder.name}"):
        find(start, where)
    assert [row["state"] for row in list_runs(where)] == ["running", "running"]
    assert pickle.loads(pickle.dumps(folder)).info() == folder.info()  # what crosses to a worker is the URI alone


def test_a_file_system_that_is_not_there_is_named_with_the_remedy():
    with pytest.raises(StorageUnknown, match=r"cannot open nowhere://x: .*\n  do: use a local folder, or install"):
        open_files("nowhere://x")
    assert all(isinstance(open_files(f"{word}:///data/runs"), LocalFiles) for word in ("file", "local"))
    with pytest.raises(ValueError, match="is not a folder of this machine"):
        print(RunFolder("memory://x/y").path)


def test_a_file_system_with_folders_gets_those_that_a_file_needs(tmp_path):
    """What fsspec opens need not be an object store: sftp, or here a folder that is reached through it."""
    files = open_files(f"dir::file://{tmp_path}/new")
    assert not isinstance(files, LocalFiles)
    run = make_run(f"dir::file://{tmp_path}/new")
    with Journal(run) as journal:
        journal.write("ended", trial=run.trials()[0].id, attempt=1, status="done", loss=1.0)
    assert replay(run).counts()["done"] == 1 and [row.name for row in all_runs(f"dir::file://{tmp_path}/new")] == [run.name]
    assert files.at(run.name).claim("owners/000009.json", b"1") and not files.at(run.name).claim("owners/000009.json", b"2")


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        NoPlace, match=r"cannot make the run's folder .*/file/.*: Not a directory\n  do: set `storage` .*--output"
    ):
        make_run(tmp_path / "file")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_plan_is_written_once_and_the_config_is_compared(where):
    folder = make_run(where)
    before = folder.plan()
    folder.save_plan([])
    assert folder.plan() == before
    folder.check_config(dict(reversed(RESOLVED.items())))
    with pytest.raises(
        ConfigChanged, match=r"another config; other now: gradients, job.target, limits.x\n  do: submit .* --force`"
    ):
        folder.check_config(RESOLVED | {"gradients": ["y"], "job": {"target": "other:J", "params": {}}, "limits": {"x": 1}})
    assert folder.info()["config_hash"] == config_hash(RESOLVED)


@given(st.text())
def test_no_name_leads_out_of_its_folder(name):
    part = escaped(name)
    assert (
        part
        and len(part) <= 200
        and set(part) <= set("%-_." + "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    )
    assert not part.startswith(".")
    assert Attempt(name, 1).folder.count("/") == 2


@given(st.lists(st.text(max_size=80), unique=True, max_size=5))
def test_different_names_stay_different(names):
    assert len({escaped(name) for name in names}) == len(names)


def test_a_run_with_an_evil_name_stays_inside(tmp_path):
    where = tmp_path / "runs"
    folder = write_run(where, "../../evil/\x00", "", RESOLVED, trials(1), {})
    assert folder.path.parent == where
    assert find(folder.name, where).info()["name"] == "../../evil/\x00"


def test_a_record_that_names_a_file_outside_is_refused(tmp_path):
    folder = make_run(tmp_path)
    row = {"gradients": {"x": {"shape": [1], "dtype": "float64", "file": "../../other.safetensors"}}}
    with pytest.raises(ResultMissing, match="names a file outside of itself"):
        arrays_of(folder, row)
    row["gradients"]["x"]["file"] = "trials/none/a1/gradients.safetensors"
    with pytest.raises(
        ResultMissing,
        match=r"cannot be read: .*\n  do: remove the file if it is there; `qdrun resume .*` then runs the trial again",
    ):
        arrays_of(folder, row)


def test_small_arrays_stay_in_the_journal_and_large_ones_go_to_a_file(where):
    folder = make_run(where, 2)
    names = list(replay(folder).trials)
    rng = np.random.default_rng(1)
    small, large = rng.standard_normal((64, 127)), rng.standard_normal((64, 129)).astype(np.float32).repeat(2, 0)
    with Journal(folder) as journal:
        for name, array in zip(names, (small, large)):
            attempt = Attempt(name, 1)
            packed = pack(
                folder, attempt, {"status": "done", "loss": 1.0, "gradients": {"x": array, "a/b": -1.5}, "outputs": {}}
            )
            ended(journal, [(attempt, packed)])
    assert folder.files.names("trials") == [names[1]]
    for name, array in zip(names, (small, large)):
        found = arrays_of(folder, record_of(folder, replay(folder).trials[name]))
        np.testing.assert_array_equal(found["x"], array)
        assert found["a/b"] == -1.5
    first, second = rows(folder)
    assert first["grad.a/b"] == -1.5 and len(first["grad.x"]) == 64
    assert second["grad.a/b"] == -1.5 and "grad.x" not in second
    assert second["grad_file.x"] == f"trials/{names[1]}/a1/gradients.safetensors"
    assert RunTable.of([first, second]).batch().num_rows == 2
    with pytest.raises(ValueError, match="an array cannot be named __metadata__"):
        pack(folder, Attempt(names[0], 2), {"gradients": {"__metadata__": large}})


def test_numbers_that_are_not_finite_survive(where):
    folder = make_run(where, 1)
    (name,) = replay(folder).trials
    with Journal(folder) as journal:
        run_one(folder, journal, name, float("nan"), [float("inf"), 1.5, float("-inf")])
    (row,) = rows(folder)
    assert np.isnan(row["loss"])
    assert row["grad.x"] == [float("inf"), 1.5, float("-inf")]
    np.testing.assert_array_equal(arrays_of(folder, record_of(folder, replay(folder).trials[name]))["x"], row["grad.x"])


def test_the_table_says_whether_the_run_has_ended(where, tmp_path):
    folder = make_run(where)
    names = list(replay(folder).trials)
    with Journal(folder) as journal:
        run_one(folder, journal, names[0], 1.0)
        journal.write("mark", sync=True)
        out = write_parquet(folder, tmp_path / "half.parquet")
        said = pq.read_schema(out).metadata
        assert (said[b"qdrun.complete"], said[b"qdrun.state"]) == (b"false", b"unfinished")
        for index, name in enumerate(names[1:], 1):
            run_one(folder, journal, name, index)
        journal.write("finished", sync=True, state="done")
    assert write_parquet(folder) == folder.table
    (tmp_path / "whole.parquet").write_bytes(folder.files.read("results.parquet"))
    said = pq.read_schema(tmp_path / "whole.parquet").metadata
    assert (said[b"qdrun.complete"], said[b"qdrun.state"], said[b"qdrun.run"]) == (b"true", b"done", folder.name.encode())
    assert arrow(folder).to_pandas()["loss"].tolist() == [1.0, 1.0, 2.0]
    assert status(folder)["state"] == "done"


def test_a_spec_is_kept_as_plain_text(where):
    folder = make_run(where, 1)
    attempt = Attempt(trials(1)[0].id, 2, 3)
    write_spec(folder, attempt, {"params": {"x": float("inf")}})
    assert b'"$float": "Infinity"' in folder.files.read(f"trials/{attempt.trial}/a2-owner3/spec.json")


@pytest.mark.slow
def test_twenty_thousand_trials_are_replayed_by_a_handful_of_reads(where):
    count = 20_000
    folder = make_run(where, count)
    names = [trial.id for trial in trials(count)]
    done = count - count % 64
    with Journal(folder) as journal:
        for start in range(0, done, 64):
            batch = [Attempt(name, 1) for name in names[start : start + 64]]
            started(journal, [(attempt, {"device": "cpu"}) for attempt in batch])
            ended(journal, [(attempt, record(1.0)) for attempt in batch])
        running = [Attempt(name, 1) for name in names[-10:]]
        started(journal, [(attempt, {}) for attempt in running], sync=True)
    segments = len(folder.files.names("events"))
    counting = folder.files = CountingFiles(folder.files)
    state = replay(folder)
    assert state.counts() == {"done": done, "running": 10, "waiting": count - done - 10}
    assert counting.calls["read"] <= segments + 1  # the segments, the trials
    assert sum(counting.calls.values()) <= segments + 3  # the names and the sizes of the segments
    counting.calls.clear()
    with Journal(folder) as journal:
        opened = counting.calls.copy()
        recover(folder, journal)
    assert (counting.calls - opened)["read"] <= 2 * segments + 4 + len(running)
    assert counting.calls.total() <= 5 * segments + 2 * len(running) + 40


def named(where, name, created):
    """A run with a name and a time of its own."""
    files = open_files(where).at(name)
    files.put("run.json", document({"format": FORMAT, "id": name, "name": "n", "created": created}))
    return RunFolder(files)


def test_the_latest_run_is_found_without_looking_into_those_of_other_days(where, monkeypatch):
    """In a bucket each look is a request. Clocks on walls differ: a name of the day before may be that of the later run."""
    for k in range(1, 29):
        named(where, f"202602{k:02}-120000-n-aaaa", float(k))
    late = named(where, "20260301-230000-n-aaaa", 101.0)
    named(where, "20260302-010000-n-aaaa", 100.0)
    named(where, "zz-of-somebody", 3.0)
    looks, real = [], RunFolder.is_run
    monkeypatch.setattr(RunFolder, "is_run", property(lambda folder: looks.append(folder.name) or real.fget(folder)))
    assert find("latest", where).uri == late.uri
    assert len(looks) == 7, (
        looks
    )  # `latest` itself at two places, the three, a day more for the time zones, and the first that is older
    assert [row["id"] for row in listed(where, 2)] == ["zz-of-somebody", "20260302-010000-n-aaaa"]
    assert len(looks) == 9


def test_a_latest_run_among_folders_that_are_none(where):
    files = open_files(where)
    files.put("99999999-000000-n/other", b"")
    assert named(where, "by-hand", 1.0).uri == find("latest", where).uri
    with pytest.raises(RunNotFound, match="no run at `latest`"):
        find("latest", f"{where}/nothing")


def test_files_below_a_folder_are_listed_with_their_bytes(where):
    files = open_files(where).at("run")
    for path, data in {"trials/a/a1/out.log": b"12", "trials/b": b"", "trials-of-others": b"1", "x/trials/c": b"1"}.items():
        files.put(path, data)
    assert files.below("trials") == {"trials/a/a1/out.log": 2, "trials/b": 0}
    assert files.below("nothing") == {}


def test_who_looks_at_the_logs_of_all_trials_asks_for_those_that_there_are(where):
    """In a bucket each question is a request: two for each trial, three times a second with `logs -f`."""
    folder = make_run(where, 30)
    names = [trial.id for trial in trials(30)]
    with Journal(folder) as journal:
        for name in names:
            run_one(folder, journal, name, 1.0)
        with Log(folder, Attempt(names[7], 1), "stdout") as log:
            log.write(b"seven\n")
    folder.files = counting = CountingFiles(folder.files)
    (part,) = logs_of(folder)
    assert (part["trial"], part["text"]) == (names[7], "seven\n")
    reads = counting.calls["read"]
    (part,) = logs_of(folder, names[7])
    assert part["text"] == "seven\n" and reads < 10
    follower = LogFollower(folder, None, None, STREAMS)
    before = counting.calls.copy()
    assert [part["text"] for part in follower.news()] == ["seven\n"]
    assert list(follower.news()) == []
    made = counting.calls - before
    assert made["below"] == 2 and made["read"] < 10


def test_a_place_below_the_home_folder_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = make_run("~/qd")
    assert (
        folder.path.parent == tmp_path / "qd"
        and find(folder.name, "~/qd").uri == folder.uri == RunFolder(f"~/qd/{folder.name}").uri
    )


@pytest.mark.parametrize("place", ["runs\0x", "reference://", "reference://x", "filecache://", "nowhere://"])
def test_a_place_that_cannot_be_is_refused_by_name(place):
    with pytest.raises(StorageUnknown, match=r"(is no path: it has a NUL|cannot open .*)\n?.*\n  do: "):
        make_run(place)


def test_of_several_runs_with_a_name_the_newest_is_read_where_that_is_asked_for_and_said(tmp_path):
    made = [write_run(tmp_path, name, "", RESOLVED, trials(1), {}) for name in ("robot", "robot", "robot-2", "a-robot")]
    with pytest.raises(RunNotFound, match="fits 4 runs"):
        find("robot", tmp_path)
    newest = max(made[:2], key=lambda folder: folder.name)
    with pytest.warns(UserWarning, match=f"`robot` names 2 runs in .*: the newest is read, {newest.name}"):
        assert find("robot", tmp_path, newest=True).name == newest.name
    with pytest.raises(RunNotFound, match="fits"):
        find("obo", tmp_path, newest=True)
    assert find(made[0].name, tmp_path, newest=True).name == made[0].name


@pytest.mark.parametrize("own", [True, False])
def test_what_a_killed_process_left_of_a_file_goes_when_the_file_is_written_again(tmp_path, own):
    """In folders that no resume sweeps: tables and reports anywhere, records of a search."""
    files = LocalFiles(str(tmp_path), own=own)
    old, young, other = (
        tmp_path / f".{name}.partial" for name in ("table.parquet.aaaa", "table.parquet.bbbb", "other.parquet.cccc")
    )
    for path in (old, young, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (1, 1))
    with files.writing("table.parquet") as stream:
        stream.write(b"whole")
    files.put("other.parquet", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [young.name, "other.parquet", "table.parquet"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageFull, SystemExit])
@pytest.mark.parametrize("where", ["local", "memory://made"])
def test_a_run_that_is_not_made_after_all_leaves_no_folder(tmp_path, error, where):
    """Ctrl-C in `submit`, for example: a folder without a run would be in the way of `ls`."""
    place = str(tmp_path / "runs") if where == "local" else f"{where}-{error.__name__}"
    seen = []

    def describe(files):
        seen.append(files.names(""))
        files.put("source/job.py", b"")
        raise error("no more")

    with pytest.raises(error):
        write_run(place, "mine", "", {}, [], {}, describe)
    assert "config.yaml" in seen[0] and open_files(place).below("") == {}
    assert where != "local" or list((tmp_path / "runs").iterdir()) == []
    folder = write_run(place, "mine", "", {}, [], {})
    assert folder.is_run
