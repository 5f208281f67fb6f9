"""Tags, notes, and what is removed: only what was shown, never a live run, never a file that is no part of one."""

import json
import os
import shutil
import time

import pytest
from test_documents import call, finished  # noqa: F401 - a fixture
from typer.testing import CliRunner

from qdrun.compiler.runtime.cache import cache_dir
from qdrun.runner import load
from qdrun.runner.cli import confirmation
from qdrun.runner.cli.app import app
from qdrun.runner.store.files import open_files
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, write_run
from qdrun.runner.study.trials import Trial
from qdrun.runner.upkeep import caches
from qdrun.runner.upkeep.labels import WrongLabel
from qdrun.runner.upkeep.removal import NotRemovable, removal_of, remove

TRIALS = [Trial(id="a1", index=0, replicate=0, seed=0, swept={}, params={})]


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of three entries: of 100 days, of 2 days, of now."""
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    for kind, name, days, size in (("data", "old", 100, 1000), ("kept", "young", 2, 500), ("cells", "now", 0, 10_000)):
        folder = cache_dir() / kind / name / "below"
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(size))
        os.utime(folder.parent, (time.time() - 86_400 * days,) * 2)
    return cache_dir()


def left(cache):
    return sorted(path.name for kind in caches.KINDS for path in (cache / kind).iterdir())


def test_tags_and_notes_are_shown_and_found_by(finished):  # noqa: F811
    where = finished.path.parent
    other = write_run(where, "other", "", {}, TRIALS, {})
    assert run("tag", finished.path, "baseline", "paper/fig2").stdout == f"{finished.name}: baseline, paper/fig2\n"
    assert run("note", finished.path, "too stiff\nsecond line").exit_code == 0
    run("note", finished.path, "better \x1b[31mnow")
    assert run("note", finished.path).stdout.splitlines()[0].endswith("  too stiff")
    assert run("tag", other.path).stdout == f"{other.name}: no tags\n" and run("note", other.path).stdout == "no notes\n"
    listed = call("ls", "--runs", where, "--tag", "baseline", "--tag", "paper/fig2")[1]["runs"]
    assert [(row["id"], row["tags"], row["note"]) for row in listed] == [
        (finished.name, ["baseline", "paper/fig2"], "better \x1b[31mnow")
    ]
    shown = run("ls", "--runs", where).stdout
    assert "baseline, paper/fig2" in shown and "better" in shown and "\x1b" not in shown
    assert run("ls", "--runs", where, "--tag", "none").stdout == f"no runs with tag `none` in {where}\n"
    again = load(finished.path)
    again.tag("baseline", remove=True)
    again.note("third")
    assert (
        again.tags == ("paper/fig2",) and again.notes[-1] == "third" and call("tag", finished.path)[1]["tags"] == ["paper/fig2"]
    )
    assert call("note", finished.path)[1]["notes"][0]["text"] == "too stiff\nsecond line"
    (finished.path / "labels.json").write_text("{")
    assert again.tags == () and call("ls", "--runs", where)[0] == 0, "damaged labels hide no run"


def test_what_is_no_tag_and_no_note_is_refused(finished):  # noqa: F811
    for word in ("", "two words", "x" * 65, "-x", "a\nb"):
        with pytest.raises(WrongLabel, match="is no tag\n  do: use letters"):
            load(finished.path).tag(word)
    with pytest.raises(WrongLabel, match="has no tag `x`\n  do: its tags: none"):
        load(finished.path).tag("x", remove=True)
    for text in (" \n", "x" * 4001):
        with pytest.raises(WrongLabel, match="do: write between 1 and 4000"):
            load(finished.path).note(text)


def test_a_run_is_removed_once_that_is_confirmed_and_other_files_stay(finished, monkeypatch):  # noqa: F811
    size = sum(path.stat().st_size for path in finished.path.rglob("*") if path.is_file())
    (finished.path / "mine.txt").write_text("12345")
    outside = finished.path.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    os.symlink(outside, finished.path / "inputs")
    told = call("rm", finished.path, "--dry-run")[1]
    assert (
        told["removed"] is False and told["runs"][0]["stays"] == ["mine.txt"] and told["bytes"] == pytest.approx(size, abs=100)
    )
    silent = run("rm", finished.path)
    assert "nothing was removed\n  do: --yes" in silent.stderr and "stays: mine.txt" in silent.stdout
    monkeypatch.setattr(confirmation, "on_terminal", lambda: True)
    assert CliRunner().invoke(app, ["rm", str(finished.path)], input="n\n").exit_code == 0 and finished.is_run
    said = CliRunner().invoke(app, ["rm", finished.name, "--runs", str(finished.path.parent)], input="y\n")
    assert "remove 1 runs" in said.stderr and "removed: " in said.stdout
    assert [path.name for path in finished.path.iterdir()] == ["mine.txt"] and (outside / "kept").read_text() == "x"
    assert run("rm", finished.name, "--runs", finished.path.parent).exit_code == 2, "it is gone"


def test_a_live_run_is_never_removed(tmp_path):
    folder = write_run(tmp_path, "live", "", {}, TRIALS, {})
    with Journal(folder) as journal:
        journal.write("submitted", sync=True)
        journal.beat()
        for words in (["rm", folder.path, "--yes"], ["rm", folder.path, "--dry-run"]):
            refused = run(*words)
            assert (
                refused.exit_code == 2 and f"{folder.name} is running: it is not removed\n  do: `qdrun cancel" in refused.stderr
            )
        found = call("gc", "--runs", tmp_path, "--state", "running", "--state", "lost", "--older-than", "1s", "--yes")[1]
        assert found["runs"] == [] and folder.is_run
        journal.write("finished", sync=True, state="done")
        with pytest.raises(NotRemovable, match="is run by process"):  # it writes its table now
            remove(removal_of(folder))
    remove(removal_of(folder))
    assert not folder.path.exists()


def test_a_run_in_the_queue_of_a_cluster_is_not_removed(tmp_path):
    folder = write_run(tmp_path, "queued", "", {}, TRIALS, {})
    folder.files.put("launch.json", b"{}")
    os.utime(folder.path / "heartbeat.json", (1, 1))
    shutil.rmtree(folder.path / "heartbeat.json", ignore_errors=True)
    (folder.path / "heartbeat.json").unlink()
    with pytest.raises(NotRemovable, match="was handed to a cluster and has not begun"):
        remove(removal_of(folder))


def test_a_run_of_another_storage_is_removed():
    folder = write_run("memory://upkeep", "away", "", {}, TRIALS, {})
    with Journal(folder) as journal:
        journal.write("finished", sync=True, state="done")
    folder.files.put("notes.txt", b"x")
    remove(removal_of(folder))
    assert sorted(open_files(folder.uri).below("")) == ["notes.txt"] and not RunFolder(folder.uri).is_run


def test_gc_frees_what_is_old_or_too_much_and_shows_it_before(cache, tmp_path):
    told = call("gc")[1]
    assert [(entry["kind"], entry["bytes"]) for entry in told["caches"]] == [("data", 1000)] and told["removed"] is False
    assert "inputs that were downloaded" in run("gc").stdout and left(cache) == ["now", "old", "young"]
    assert [entry["kind"] for entry in call("gc", "--cache", "10KiB")[1]["caches"]] == ["data", "kept"], (
        "what may be in use stays"
    )
    assert call("gc", "--older-than", "1d", "--yes")[1]["removed"] is True and left(cache) == ["now"]
    assert run("gc", "--yes").stdout == "nothing to remove\n"
    wrong = run("gc", "--older-than", "old")
    assert wrong.exit_code == 2 and "--older-than" in wrong.stderr and "30d, 12h, 90min" in wrong.stderr


def test_caches_are_held_within_their_limits(cache, monkeypatch):
    caches.trim()
    assert left(cache) == ["now", "young"]
    monkeypatch.setattr(caches.unwanted, "__defaults__", (caches.AGE_S, 10_200))
    caches.trim()
    assert left(cache) == ["now", "young"], "it was looked at an hour ago at most"
    os.utime(cache / "trimmed", (1, 1))
    caches.trim()
    assert left(cache) == ["now"]


def test_gc_removes_old_runs_of_a_state_without_tags(finished, cache):  # noqa: F811
    where = finished.path.parent
    asked = ["gc", "--runs", where, "--state", "failed", "--older-than", "100d"]
    assert call(*asked)[1]["runs"] == [], "it is young"
    asked[-1] = "1s"
    path = finished.path / "run.json"
    time.sleep(max(0.0, 1.1 - (time.time() - path.stat().st_mtime)))
    assert [row["run"] for row in call(*asked)[1]["runs"]] == [finished.name]
    load(finished.path).tag("keep")
    assert call(*asked)[1]["runs"] == [] and call(*[word if word != "failed" else "done" for word in asked])[1]["runs"] == []
    load(finished.path).tag("keep", remove=True)
    assert call(*asked, "--yes")[1]["removed"] is True and not finished.path.exists()


def test_documents_name_every_field(finished):  # noqa: F811
    assert json.loads(run("rm", finished.path, "--dry-run", "--json").stdout)["schema"] == "qdrun.rm/1"


def test_gc_removes_the_remains_of_runs_that_were_never_made_and_nothing_else(cache, tmp_path):
    runs = tmp_path / "runs"
    made = write_run(runs, "made", "", {}, TRIALS, {})
    young, old, foreign, others = (
        runs / name for name in ("20260101-000000-a-0a0a", "20260101-000000-b-0b0b", "mine", "20260101-000000-c-0c0c")
    )
    for folder in (young, old, foreign, others):
        folder.mkdir()
        (folder / "config.yaml").write_text("x")
    (old / ".trials.jsonl.0123abcd.partial").write_text("half")
    (others / "thesis.tex").write_text("x")
    for folder in (old, foreign, others):
        os.utime(folder, (1, 1))
    assert [(one["run"], one["state"]) for one in call("gc", "--runs", runs, "--yes")[1]["runs"]] == [(old.name, "never made")]
    assert not old.exists() and all(folder.exists() for folder in (young, foreign, others)) and made.is_run
