"""The private folders of a user, where others may have been first, and users without a home folder."""

import os
import stat
import subprocess
import sys
import tempfile

import pytest

from qdrun.compiler.runtime.cache import NoHome, cache_dir
from qdrun.runner import private
from qdrun.runner.cli.app import app
from qdrun.runner.config.values import NoVariable, expanded
from qdrun.runner.ledger.account import Account


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The place in `/tmp`, and the folder of the user's records."""
    monkeypatch.delenv(private.MACHINE_VARIABLE, raising=False)
    monkeypatch.setattr(private, "SHARED_FOLDER", str(tmp_path / "qdrun-{}"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / f"qdrun-{os.getuid()}", tmp_path / "state" / "qdrun" / "machines"


def foreign(place, monkeypatch):
    place.mkdir()
    real = os.getuid()
    monkeypatch.setattr(private.os, "getuid", lambda: real + 1)
    place.rename(place.with_name(f"qdrun-{real + 1}"))


SQUATTED = {
    "a folder of somebody else": foreign,
    "a file": lambda place, _: place.write_text(""),
    "a link": lambda place, _: place.symlink_to(place.parent),
    "a link to nothing": lambda place, _: place.symlink_to(place.parent / "gone"),
    "a pipe": lambda place, _: os.mkfifo(place),
}


@pytest.mark.parametrize("what", [name for name in SQUATTED if not name.startswith("a folder")])
def test_all_processes_of_a_user_share_another_folder_where_theirs_was_taken(shared, what, monkeypatch):
    place, machines = shared
    SQUATTED[what](place, monkeypatch)
    found = private.machine_folder()
    assert found.parent == machines and found == private.machine_folder() and stat.S_IMODE(found.stat().st_mode) == 0o700
    with Account("one").gate() as mine:
        assert mine, "runs of one user still see each other"


def test_a_folder_of_somebody_else_is_not_used(shared, monkeypatch):
    place, machines = shared
    place.mkdir()
    found = place.lstat()
    theirs = os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))
    lstat = type(place).lstat
    monkeypatch.setattr(type(place), "lstat", lambda self: theirs if self == place else lstat(self))
    assert private.machine_folder().parent == machines


@pytest.mark.parametrize("mode", [0o777, 0o500, 0o000])
def test_a_wrong_mode_of_an_own_folder_is_corrected(shared, mode):
    place, _ = shared
    place.mkdir()
    place.chmod(mode)
    assert private.machine_folder() == place and stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_folder_that_a_variable_names_is_refused_with_something_that_can_be_done(tmp_path, monkeypatch):
    (tmp_path / "named").write_text("")
    monkeypatch.setenv(private.MACHINE_VARIABLE, str(tmp_path / "named"))
    with pytest.raises(private.NotPrivate, match=r"named is not a folder of yours: .*\n  do: remove it: `rm -r .*named`"):
        private.machine_folder()


def test_a_user_without_a_home_folder_is_told_what_to_do(monkeypatch):
    for name in ("HOME", "QDRUN_CACHE_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for folder in (cache_dir, private.state_folder):
        with pytest.raises(
            NoHome, match=rf"no home folder: .* user {os.getuid()} has no entry in /etc/passwd\n  do: set HOME to"
        ):
            folder()


def test_a_command_of_such_a_user_ends_with_a_message(tmp_path):
    code = (
        "import pwd\ndef nobody(uid): raise KeyError(uid)\npwd.getpwuid = nobody\nfrom qdrun.runner.cli.app import main; main()"
    )
    (tmp_path / "j.py").write_text("from qdrun.jobs.mass_spring import *\n")
    config = tmp_path / "c.yaml"
    config.write_text("version: 1\nname: a\njob: {target: 'qdrun.jobs.mass_spring:MassSpring'}\n")
    drop = ("HOME", "QDRUN_CACHE_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    words = [sys.executable, "-P", "-c", code, "submit", str(config), "--output", str(tmp_path / "runs"), "-q"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "there is no home folder" in done.stderr and "do: set HOME" in done.stderr


def test_variables_and_the_home_folder_in_paths_are_what_a_shell_makes_of_them(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("LAB", "s3://lab")
    monkeypatch.delenv("NOT_SET", raising=False)
    for text, path in {
        "$HOME/runs": "/home/me/runs",
        "~/runs": "/home/me/runs",
        "${LAB}/a$HOME": "s3://lab/a/home/me",
        "runs/5$": "runs/5$",
        "a~/b": "a~/b",
    }.items():
        assert expanded(text) == path
    for text in ("$NOT_SET/runs", "${NOT_SET}"):
        with pytest.raises(NoVariable, match=r"the variable NOT_SET is not set\n  do: set it, or write the path itself"):
            expanded(text)


def test_the_storage_of_a_config_is_expanded(tmp_path, monkeypatch):
    from runner_helpers import write_config
    from typer.testing import CliRunner

    from qdrun.runner.config.model import load_config

    monkeypatch.setenv("WHERE", str(tmp_path))
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace(f'output: "{tmp_path}/runs"', "storage: $WHERE/runs"))
    assert load_config(config).config.uri == f"{tmp_path}/runs"
    monkeypatch.delenv("WHERE")
    done = CliRunner().invoke(app, ["submit", str(config), "-q"])
    assert done.exit_code == 2 and "the variable WHERE is not set" in done.stderr and not list(tmp_path.glob("*$*"))


def test_the_folder_that_ray_tmpdir_names_is_made(monkeypatch):
    with tempfile.TemporaryDirectory() as above:  # a short name: the paths of sockets are
        monkeypatch.setenv("RAY_TMPDIR", f"{above}/n")
        made = private.SessionFolder()
        assert made.path.is_dir() and made.path.is_relative_to(f"{above}/n")
        made.remove()
