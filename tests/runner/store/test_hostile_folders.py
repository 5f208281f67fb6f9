"""Whatever lies in the place of a file of a run: it costs that run alone, is told by name, and nothing waits for it."""

import json
import os
import shutil
import signal
import socket
from contextlib import contextmanager, suppress

import pytest
from store_helpers import make_run, run_one
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.observe.table import write_table
from qdrun.runner.regular_files import NoFile
from qdrun.runner.store.files import open_files
from qdrun.runner.store.journal import Journal

PATIENCE_S = 60


@contextmanager
def limited():
    """A test that waits for a pipe ends instead."""

    def late(*_):
        raise AssertionError("it waits for what lies there")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def sparse(path):
    with open(path, "wb") as stream:
        stream.truncate(40 << 30)


def a_socket(path):
    here = os.getcwd()
    os.chdir(os.path.dirname(path))  # its name must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.basename(path))
    finally:
        os.chdir(here)


THINGS = {
    "pipe": os.mkfifo,
    "device": lambda path: os.symlink("/dev/zero", path),
    "huge": sparse,
    "folder": os.mkdir,
    "socket": a_socket,
    "loop": lambda path: os.symlink(os.path.basename(path), path),
    "deep": lambda path: open(path, "w").write("[" * 200_000),
    "empty": lambda path: open(path, "w").close(),
    "binary": lambda path: open(path, "wb").write(bytes(range(256)) * 40),
}
FILES = ("run.json", "events/000001-000001.jsonl", "trials.jsonl", "heartbeat.json", "summary.json", "labels.json")
FILES += ("results.parquet", "plan.json", "config.resolved.json", "owners/000002.json", "requests/000001-cancel-run.json")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two runs that have ended."""
    where = tmp_path_factory.mktemp("hostile")
    for _ in range(2):
        folder = make_run(where, 2)
        with Journal(folder) as journal:
            for name in folder.trial_ids():
                run_one(folder, journal, name, 1.0)
            journal.write("finished", sync=True, state="done", timing={})
        write_table(folder)
    return where


def qdrun(*words):
    with limited():
        done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("what", THINGS)
def test_a_list_of_runs_shows_the_others(good, tmp_path, what):
    for k, name in enumerate(FILES[:2]):
        runs = tmp_path / f"runs{k}"
        shutil.copytree(good, runs)
        hurt, whole = sorted(runs.iterdir())
        (hurt / name).unlink()
        THINGS[what](str(hurt / name))
        rows = {row["id"]: row["state"] for row in json.loads(qdrun("ls", "--runs", str(runs), "--json").stdout)["runs"]}
        # without its end a run runs, or is lost when it has said nothing for long
        readable = what in ("deep", "empty", "binary") and name != "run.json"
        assert rows[whole.name] == "done" and rows[hurt.name] in ("damaged", *(("running", "lost") if readable else ()))


@pytest.mark.slow
@pytest.mark.parametrize("what", THINGS)
def test_what_lies_in_the_place_of_a_file_costs_one_run_and_no_wait(good, tmp_path, what):
    for name in FILES[list(THINGS).index(what) % 4 :: 4]:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        shutil.copytree(good, tmp_path / "runs")
        hurt, whole = sorted((tmp_path / "runs").iterdir())
        place = hurt / name
        place.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            place.unlink()
        THINGS[what](str(place))
        runs = str(tmp_path / "runs")
        rows = {row["id"]: row for row in json.loads(qdrun("ls", "--runs", runs, "--json").stdout)["runs"]}
        assert rows[whole.name]["state"] == "done"
        for words in (["status"], ["results"], ["resume", "--dry-run"], ["tag", "x"], ["rm", "--dry-run"], ["watch", "--json"]):
            done = qdrun(words[0], hurt.name, *words[1:], "--runs", runs)
            assert done.exit_code in (0, 1, 2, 5), (name, words, done.output)
            assert done.output.strip(), (name, words)
        assert qdrun("compare", whole.name, hurt.name, "--runs", runs).exit_code in (0, 1, 2)
        assert qdrun("gc", "--runs", runs, "--dry-run").exit_code in (0, 2)
        assert qdrun("results", whole.name, "--runs", runs).exit_code == 0


@pytest.mark.parametrize("what", ["pipe", "device", "huge", "folder", "socket", "loop"])
def test_what_is_no_file_is_told_by_its_path_and_its_kind(tmp_path, what):
    THINGS[what](str(tmp_path / "run.json"))
    with limited(), pytest.raises(NoFile, match=r"run\.json is damaged: it is .*\n  do: remove it"):
        open_files(tmp_path).read("run.json")


def test_rows_of_other_segments_are_shown_where_one_is_no_file(good, tmp_path):
    shutil.copytree(good, tmp_path / "runs")
    hurt = sorted((tmp_path / "runs").iterdir())[0]
    os.mkfifo(hurt / "events" / "000001-000002.jsonl")
    found = json.loads(qdrun("results", str(hurt), "--json").stdout)
    assert [row["loss"] for row in found["rows"]] == [1.0, 1.0]
    assert any("000001-000002.jsonl" in text for text in found["problems"])


def test_a_name_that_is_no_text_and_one_with_control_characters_are_listed(good, tmp_path):
    shutil.copytree(good, tmp_path / "runs")
    first, second = sorted((tmp_path / "runs").iterdir())
    os.rename(first, os.fsencode(tmp_path / "runs") + b"/20261128-\xff\xfe-made")
    os.rename(second, tmp_path / "runs" / "20261128-\x1b[31mred\nx")
    for words in (["ls"], ["ls", "--json"], ["status"], ["gc", "--dry-run"]):
        done = qdrun(*words, "--runs", str(tmp_path / "runs"))
        assert done.exit_code == 0 and "\x1b" not in done.stdout, done.output
