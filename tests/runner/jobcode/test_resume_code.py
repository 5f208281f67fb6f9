"""Before a run goes on, changed files of its job are named, and its user decides which code it goes on with."""

import importlib
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from runner_helpers import trial_record
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli import confirmation
from qdrun.runner.cli.app import app
from qdrun.runner.compare.rerun import SeveralCodes, rerun
from qdrun.runner.engine import session
from qdrun.runner.engine.resume import config_of
from qdrun.runner.jobcode.imports import IMPORTS
from qdrun.runner.jobcode.live import live_of
from qdrun.runner.jobcode.store import USED, NotKept, read, versions
from qdrun.runner.observe.timing import Timing
from qdrun.runner.provenance.kept import kept
from qdrun.runner.provenance.record import record
from qdrun.runner.provenance.versions import CodeChanged, adopt, code_changes
from qdrun.runner.store.attempts import Attempt, ended, pack
from qdrun.runner.store.files import LocalFiles
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import all_runs, create
from qdrun.runner.study.prepare import prepare

JOB = """
from importlib import import_module

from helper import K
from qdrun.jobs.base import Job, JobParams, Outcome


class P(JobParams):
    x: float = 1.0


class J(Job[P]):
    gradients = ()
    needs_compiler = False

    def build(self): ...

    def launches(self): return []

    def run(self): return Outcome(K * self.params.x)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QDRUN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "home"
    (folder / "pack").mkdir(parents=True)
    (folder / "own.py").write_text(JOB)
    (folder / "helper.py").write_text("K = 1\n")
    (folder / "spare.py").write_text("K = 1\n")
    (folder / "c.yaml").write_text(
        f"version: 1\nname: own\ngradients: []\njob: {{target: 'own.py:J'}}\nsweep: {{params: {{x: [1.0, 2.0]}}}}\n"
        f"storage: {tmp_path / 'runs'}\n"
    )
    yield folder
    IMPORTS.release()


@pytest.fixture
def run(home):
    """A run of which the first trial is done, and the second was never started."""
    prepared, job = prepare(home / "c.yaml")
    folder = create(prepared, home.parent / "runs")
    record(folder.files, prepared, job)
    IMPORTS.release()
    with Journal(folder) as journal:
        write_row(folder, journal, prepared, 0)
        journal.write("finished", state="cancelled")
    return folder


def write_row(folder, journal, prepared, place):
    trial = prepared.trials[place]
    attempt = Attempt(trial.id, 1, journal.owner.number)
    made = trial_record(prepared.spec(trial)) | ({"code": prepared.target.label} if prepared.target.label else {})
    ended(journal, [(attempt, pack(folder, attempt, made))])


class Killed(BaseException):
    """The process ends here."""


def test_a_run_has_its_code_from_the_moment_at_which_it_can_be_resumed(home, monkeypatch):
    put, left = LocalFiles.put, [0]

    def killed_at(files, path, data, **options):
        if not left[0]:
            raise Killed
        left[0] -= 1
        put(files, path, data, **options)

    monkeypatch.setattr(LocalFiles, "put", killed_at)
    monkeypatch.setattr(session, "attend", lambda *words: (_ for _ in ()).throw(Killed))
    options = {"timing": Timing(0.0, 0.0), "address": None, "dashboard": False, "quiet": True}
    found = []
    for count in range(40):
        left[0] = count
        with pytest.raises(Killed):
            session.submit(*prepare(home / "c.yaml"), output=str(home.parent / "killed"), **options)
        found = all_runs(home.parent / "killed")
        if found:
            break
    assert [set(read(one.files, versions(one.files).current).modules) >= {"helper"} for one in found] == [True] and count > 8
    assert config_of(found[0])[0].target.code == versions(found[0].files).current


@pytest.mark.parametrize("lost", ["all of it", "the list of its versions", "a part of that list"])
def test_a_run_whose_record_of_its_code_is_lost_goes_on_with_one_code(home, run, lost):
    code = versions(run.files).current
    if lost == "all of it":
        (run.path / "code.json").unlink()
        shutil.rmtree(run.path / "code")
        shutil.rmtree(run.path / "source")
    else:
        (run.path / "code.json").write_text('{"versions": [' if lost == "a part of that list" else "")
        edited(home)
        with pytest.raises(CodeChanged, match=r"helper\.py was edited"):
            config_of(run)
    prepared, _ = config_of(run, code="kept")
    adopt(run, prepared.target)
    assert prepared.target.code == code == versions(run.files).current and set(read(run.files, code).modules) >= {"helper"}


def test_a_run_that_does_not_say_which_of_its_codes_it_uses_is_refused(home, run):
    edited(home)
    adopt(run, config_of(run, code="new")[0].target)
    (run.path / "code.json").unlink()
    with pytest.raises(
        NotKept, match=r"code\.json is not there, or damaged: it says which of 2 versions of its code the run uses"
    ):
        config_of(run, code="kept")


def loss_of(prepared):
    return trial_record(prepared.spec(prepared.trials[1]))["loss"]


def edited(home):
    (home / "helper.py").write_text("K = 5\n")


CHANGES = {
    "edited": (lambda home: (home / "helper.py").write_text("K = 5\n"), r"{home}/helper\.py was edited"),
    "removed": (lambda home: (home / "helper.py").unlink(), r"{home}/helper\.py is gone, or not imported any more"),
    "added": (
        lambda home: ((home / "helper.py").write_text("from more import K\n"), (home / "more.py").write_text("K = 5\n")),
        r"{home}/more\.py was added",
    ),
    "the job's file": (lambda home: (home / "own.py").write_text(JOB + "\n# more\n"), r"{home}/own\.py was edited"),
    "all is gone": (lambda home: (home / "own.py").unlink(), r"cannot read the job's file {home}/own\.py"),
}


@pytest.fixture
def installed(home, tmp_path, monkeypatch):
    """Packages that an installer has put on the path, a file that is run by its path, one that is read, and a run that uses all of it."""
    there = tmp_path / "target"
    (there / "lib-1.0.dist-info").mkdir(parents=True)
    (there / "wide" / "deep").mkdir(parents=True)
    for name, text in {"single.py": "K = 1\n", "wide/__init__.py": "", "wide/deep/part.py": "K = 1\n"}.items():
        (there / name).write_text(text)
    monkeypatch.syspath_prepend(str(there))
    (home / "tool.sh").write_text("echo 1\n")
    (home / "data").mkdir()
    (home / "data" / "k.txt").write_text("1\n")
    lines = "import single, wide.deep.part\nfrom pathlib import Path\nTOOL = Path(__file__).parent / 'tool.sh'\n"
    (home / "own.py").write_text(lines + f"READ = {str(home / 'data' / 'k.txt')!r}\n" + JOB)
    prepared, job = prepare(home / "c.yaml")
    folder = create(prepared, home.parent / "live")
    record(folder.files, prepared, job)
    IMPORTS.release()
    for name in ("single", "wide", "wide.deep", "wide.deep.part"):
        sys.modules.pop(name, None)
    return there, folder


LIVE = {
    "a module": (lambda there, home: (there / "single.py").write_text("K = 2\n"), "the installed package single was changed"),
    "a part of a package": (
        lambda there, home: (there / "wide" / "deep" / "part.py").write_text("K = 2\n"),
        "the installed package wide was changed",
    ),
    "a file that a package has got": (
        lambda there, home: (there / "wide" / "more.py").write_text(""),
        "the installed package wide was changed",
    ),
    "a package that is gone": (lambda there, home: (there / "single.py").unlink(), "the installed package single is gone"),
    "a script": (lambda there, home: (home / "tool.sh").write_text("echo 2\n"), "tool.sh was edited; the run keeps no copy"),
    "a file by its whole path": (
        lambda there, home: (home / "data" / "k.txt").unlink(),
        "k.txt is gone; the run keeps no copy",
    ),
}


@pytest.mark.parametrize("what", LIVE)
def test_what_a_run_uses_and_does_not_keep_is_named_when_it_has_changed(home, installed, what):
    change, said = LIVE[what]
    there, run = installed
    assert code_changes(run) == []
    change(there, home)
    importlib.invalidate_caches()
    (found,) = code_changes(run)
    assert said in found
    with pytest.raises(CodeChanged, match=re.escape(said)):
        config_of(run)


def test_what_a_rerun_uses_is_that_of_its_own_time(home, installed):
    there, run = installed
    (there / "single.py").write_text("K = 2\n")
    code = read(run.files, versions(run.files).current)
    assert live_of(code)["packages"]["single"] != code.live["packages"]["single"]
    assert set(live_of(code)["packages"]) == {"single", "wide"} and "numpy" not in live_of(code)["packages"]


def test_strings_that_no_path_has_name_no_file(run):
    code = read(run.files, versions(run.files).current)
    one = next(iter(code.modules.values()))
    strings = '["\\ud800 a", "a\\x00 b", "/dev/null ", "' + "a/" * 140 + '"]'
    code.modules[one.name] = replace(one, data=one.data + f"\nODD = {strings}\n".encode())
    assert live_of(code)["files"] == code.live["files"]


@pytest.mark.parametrize("how", CHANGES)
def test_changed_files_are_named_and_both_ways_to_go_on(home, run, how):
    change, said = CHANGES[how]
    assert config_of(run)[0].target.code == versions(run.files).current and code_changes(run) == []
    change(home)
    with pytest.raises(CodeChanged, match=said.format(home=home)) as caught:
        config_of(run)
    assert f"`qdrun resume {run.uri} --code kept`" in str(caught.value) and "`--code new`" in str(caught.value)
    prepared, _ = config_of(run, code="kept")
    assert loss_of(prepared) == 2.0 and not prepared.target.label
    result = CliRunner().invoke(app, ["resume", run.uri, "-q"])
    assert result.exit_code == 2 and "the code of" in result.stderr and "--code kept" in result.stderr


def test_files_that_the_job_does_not_import_may_change(home, run):
    (home / "spare.py").write_text("K = 7\n")
    (home / "unrelated.py").write_text("K = 7\n")
    assert code_changes(run) == []
    run.files.claim(f"{USED}/spare", b"")
    assert code_changes(run) == [f"{home}/spare.py was edited"], "a trial has imported it by a computed name"


def test_new_code_is_kept_beside_the_first_and_its_rows_say_so(home, run):
    edited(home)
    prepared, _ = config_of(run, code="new")
    assert versions(run.files).all == (kept(run).code.digest,), "nothing is kept until the run goes on"
    adopt(run, prepared.target)
    assert prepared.target.label == prepared.target.code[:12] and loss_of(prepared) == 10.0
    with Journal(run, gone=1) as journal:
        write_row(run, journal, prepared, 1)
        journal.write("finished", state="done")
    rows = load(run.uri).rows
    assert [row["loss"] for row in rows] == [1.0, 10.0]
    assert [row.get("code") for row in rows] == [None, prepared.target.label]
    assert code_changes(run) == [], "the new code is the one to compare with"
    (home / "helper.py").write_text("K = 9\n")
    again, _ = config_of(run, code="kept")
    assert loss_of(again) == 10.0 and again.target.label == prepared.target.label
    assert (run.path / "source" / "helper.py").read_text() == "K = 1\n"


def test_rows_of_several_codes_are_run_again_one_version_at_a_time(home, run, monkeypatch):
    edited(home)
    prepared, _ = config_of(run, code="new")
    adopt(run, prepared.target)
    with Journal(run, gone=1) as journal:
        write_row(run, journal, prepared, 1)
        journal.write("finished", state="done")
    with pytest.raises(
        SeveralCodes, match=rf"come from several codes: 1 of the first code, 1 of code {prepared.target.label}\n"
    ):
        rerun(run, output=home.parent / "again")
    asked = []
    monkeypatch.setattr("qdrun.runner.compare.rerun.submit", lambda prepared, job, **_: asked.append(prepared) or 1 / 0)
    for options, loss, count in (({"code": prepared.target.label}, 10.0, 1), ({"trial": prepared.trials[0].id}, 1.0, 1)):
        with pytest.raises(ZeroDivisionError):
            rerun(run, output=home.parent / "again", **options)
        trials = asked[-1].trials
        assert len(trials) == count and trial_record(asked[-1].spec(trials[0]))["loss"] == loss
    with pytest.raises(SeveralCodes, match=r"no row of .* comes from code 123"):
        rerun(run, output=home.parent / "again", code="123")


def test_force_goes_on_with_the_present_files(home, run):
    edited(home)
    assert loss_of(config_of(run, force=True)[0]) == 10.0


@pytest.mark.parametrize(("answer", "chosen"), [("kept", "kept"), ("new", "new"), ("", None), ("y", None)])
def test_a_user_of_a_terminal_is_asked(monkeypatch, capsys, answer, chosen):
    monkeypatch.setattr(confirmation, "on_terminal", lambda: True)
    monkeypatch.setattr(sys.stdin, "readline", lambda: f"{answer}\n", raising=False)
    if chosen is None:
        with pytest.raises(confirmation.NotWanted, match="nothing was started\n  do: `qdrun resume --code kept` or"):
            confirmation.which_code(["helper.py was edited"], None)
    else:
        assert confirmation.which_code(["helper.py was edited"], None) == chosen
    assert "helper.py was edited" in capsys.readouterr().err
    assert confirmation.which_code([], None) is None and confirmation.which_code(["x"], "new") == "new"


def test_a_dry_run_names_the_changes(home, run):
    edited(home)
    said = CliRunner().invoke(app, ["resume", run.uri, "--dry-run"]).stdout
    assert f"code: {home}/helper.py was edited" in said
    data = json.loads(CliRunner().invoke(app, ["resume", run.uri, "--dry-run", "--json"]).stdout)
    assert data["code_changes"] == [f"{home}/helper.py was edited"] and data["config_changes"] == []
    config = Path(run.info()["config"])
    config.write_text(config.read_text() + "limits: {max_concurrent: 1}\n")
    said = CliRunner().invoke(app, ["resume", run.uri, "--dry-run"]).stdout
    assert "config: edited since, in limits.max_concurrent; `resume` refuses it without --force or --config" in said
    assert "config: " not in CliRunner().invoke(app, ["resume", run.uri, "--dry-run", "--force"]).stdout


def test_a_run_of_an_older_qdrun_goes_on_with_the_files_as_they_are(home, run):
    for path in (run.path / "code").iterdir():
        path.unlink()
    (run.path / "code.json").unlink()
    edited(home)
    assert code_changes(run) == [] and loss_of(config_of(run)[0]) == 10.0
    assert kept(run).code.modules["helper"].data == b"K = 1\n", "`rerun` takes what it had kept"
    assert Path(kept(run).code.modules["helper"].origin) == home / "helper.py"
