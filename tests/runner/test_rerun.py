"""A run from the folder of an earlier one alone, and the numbers of both side by side."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from runner_helpers import trial_record
from typer.testing import CliRunner

from qdrun.runner import load
from qdrun.runner.cli.app import app
from qdrun.runner.compare import rerun as rerun_module
from qdrun.runner.compare.numbers import compared
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.engine.resume import config_of
from qdrun.runner.jobcode.store import KEPT
from qdrun.runner.observe.ended import Submitted
from qdrun.runner.provenance import inputs as inputs_module
from qdrun.runner.provenance.again import KEPT_OF, prepared_again
from qdrun.runner.provenance.kept import NotKept, differences, kept, options_as_then
from qdrun.runner.provenance.record import FILE, Provenance, record, record_data
from qdrun.runner.store.attempts import Attempt, ended, pack
from qdrun.runner.store.files import StorageLost
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import RunFolder, create
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare

JOB = """
from pathlib import Path

import numpy as np
import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class PullParams(JobParams):
    table: Path = Path("numbers.txt")
    k: float = 1.0
    steps: int = 5


class Pull(Job[PullParams]):
    gradients = ("k",)

    def build(self):
        self.k, self.loss = self.input("k"), self.objective()
        values = np.array([float(word) for word in self.params.table.read_text().split()])
        values += np.load(self.data("shift.npy"))
        self.x = qd.field(qd.f64, shape=len(values))
        self.x.from_numpy(values)
        k, x, loss, steps = self.k, self.x, self.loss, self.params.steps
        from {helper} import FACTOR  # not before a worker builds it

        @qd.kernel
        def pull():
            for i in x:
                for t in range(steps):
                    loss[None] += qd.sin(k[None] * x[i] * FACTOR + t)

        self.pull = pull

    def simulate(self):
        self.pull()
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config, its job, a module of that, and the file that it reads; the cache of sources is the test's own."""
    folder = tmp_path / "home"
    folder.mkdir()
    helper = f"helper_{tmp_path.name.replace('-', '_')}"
    (folder / "pull.py").write_text(JOB.format(helper=helper))
    (folder / f"{helper}.py").write_text("FACTOR = 1.5\n")
    (folder / "numbers.txt").write_text(" ".join(map(repr, np.random.default_rng().normal(size=4).tolist())))
    np.save(folder / "shift.npy", np.random.default_rng().normal(size=4))
    (folder / "pull.yaml").write_text(
        "version: 1\nname: pull\njob: {target: 'pull.py:Pull'}\ngradients: [k]\n"
        f"sweep: {{params: {{k: [0.5, 1.5, 2.5]}}}}\nstorage: {tmp_path / 'runs'}\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("qdrun.runner.provenance.kept.cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr("qdrun.runner.jobcode.store.cache_dir", lambda: tmp_path / "cache")
    yield folder
    sys.modules.pop(helper, None)


def made(home):
    """A run of that config whose trials were run here."""
    prepared, job = prepare(home / "pull.yaml")
    folder = create(prepared, home.parent / "runs")
    record(folder.files, prepared, job)
    record_data(folder.files, prepared, [name for group in make_plan(prepared, job) for name in group.data])
    done(folder, prepared)
    return folder


def done(folder, prepared, change=lambda record: record):
    with Journal(folder) as journal:
        for trial in prepared.trials:
            attempt = Attempt(trial.id, 1)
            ended(journal, [(attempt, pack(folder, attempt, change(trial_record(prepared.spec(trial)))))])
        journal.write("finished", state="done")


def gone(folder):
    """A folder is gone, and what this process has imported from it."""
    shutil.rmtree(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if not place.startswith(str(folder))]


def call(*words):
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.stdout, result.output
    return result.exit_code, json.loads(result.stdout)


def test_a_run_is_run_again_from_its_folder_alone_with_equal_numbers(one_worker, home, tmp_path):
    code, first = call("submit", home / "pull.yaml", "--quiet")
    assert code == 0
    gone(home)
    code, again = call("rerun", first["folder"], "--output", tmp_path / "again", "--quiet")
    assert code == 0, again
    assert len(again["numbers"]["equal"]) == 3 and not again["numbers"]["close"] and not again["numbers"]["different"]
    assert again["of"] == first["run"] and again["ended"]["folder"].startswith(str(tmp_path / "again"))
    assert load(again["ended"]["folder"]).folder.info()[KEPT_OF] == first["folder"]
    gone(first["folder"])
    gone(tmp_path / "cache")
    code, third = call("rerun", again["ended"]["folder"], "@1", "--output", tmp_path / "third", "--quiet")
    assert code == 0 and third["ended"]["trials"] == 1
    assert len(third["numbers"]["equal"] + third["numbers"]["close"]) == 1, "alone it has no batch"
    (about,) = load(third["ended"]["folder"]).devices.values()
    assert about["backend"] == "cpu" and about["memory_bytes"] > 0 and about["driver"] == "Linux"
    assert [one["path"] for one in load(third["ended"]["folder"]).provenance["inputs"]] == ["numbers.txt", "shift.npy"]


def test_everything_comes_from_the_folder_and_its_numbers_are_the_same(home, tmp_path):
    folder = made(home)
    gone(home)
    found = kept(folder)
    prepared, _ = prepared_again(folder, found, folder.trials())
    assert Path(prepared.target.file) == home / "pull.py" and prepared.target.import_root == str(home), "as errors name them"
    place = Path(sys.modules[prepared_again(folder, found, folder.trials())[1].__module__].__file__)
    assert place.is_relative_to(tmp_path / "cache"), "files beside the job are those that were kept, never its folder's"
    copies = {name: str(folder.path / f"inputs/{k}/{name}") for k, name in enumerate(("numbers.txt", "shift.npy"))}
    assert prepared.inputs.copies == copies
    again = create(prepared, tmp_path / "again", {KEPT_OF: folder.uri})
    record(again.files, prepared, prepared_again(folder, found, folder.trials())[1])
    done(again, prepared)
    both = compared(folder, again, folder.trial_ids())
    assert both.equal == folder.trial_ids() and both.text == "numbers: 3 equal to the bit"
    shutil.rmtree(folder.path)
    continued, _ = config_of(again)
    assert continued.target.home == KEPT and continued.target.code == prepared.target.code


def test_rows_of_a_store_that_does_not_answer_are_not_compared(home, tmp_path, monkeypatch):
    lost = Submitted(RunFolder(tmp_path / "new"), "done", {}, lost=StorageLost("the run ends without its store"))
    monkeypatch.setattr(rerun_module, "submit", lambda *args, **options: lost)
    monkeypatch.setattr(rerun_module, "compared", lambda *args: pytest.fail("the store was read"))
    with pytest.raises(StorageLost):
        rerun_module.rerun(made(home), output=tmp_path)


@pytest.mark.parametrize("damage", ["provenance", "source", "lacks", "input"])
def test_what_a_folder_does_not_keep_or_keeps_otherwise_is_refused(home, damage):
    folder = made(home)
    place, message = {
        "provenance": (FILE, r"has no provenance\.json, or a damaged one: it does not say what was run\n  do: `qdrun resume "),
        "source": (
            "source/pull.py",
            r"/source/pull\.py is not as it was written\n  do: put .*/home/pull\.py there, as it was when",
        ),
        "lacks": ("source/pull.py", r"/source/pull\.py is not as it was written"),
        "input": (
            "inputs/0/numbers.txt",
            r"/inputs/0/numbers\.txt is not as it was written\n  do: put .*/home/numbers\.txt there, as the",
        ),
    }[damage]
    (folder.path / place).unlink() if damage == "lacks" else (folder.path / place).write_text("{}")
    with pytest.raises(NotKept, match=message):
        kept(folder)
    result = CliRunner().invoke(app, ["rerun", folder.uri])
    assert result.exit_code == 2 and not (home.parent / "cache" / "runs").exists()


def test_a_job_that_is_too_large_to_be_kept_is_refused_before_it_runs(home, monkeypatch):
    monkeypatch.setattr("qdrun.runner.jobcode.closure.CODE_BYTES", 10)
    with pytest.raises(
        ConfigError, match=r"more than 0 MiB of files that are not installed; .*pull\.py is beyond that\n  do: "
    ):
        made(home)


def test_an_input_that_is_too_large_is_read_where_it_was_as_long_as_it_is_what_it_was(home, monkeypatch):
    monkeypatch.setattr(inputs_module, "INPUT_BYTES", 3)
    folder = made(home)
    assert load(folder.uri).provenance["notes"][0].startswith("numbers.txt is not copied: ")
    assert not (folder.path / "inputs").exists()
    assert kept(folder).copies == {name: str(home / name) for name in ("numbers.txt", "shift.npy")}
    (home / "numbers.txt").write_text("0")
    with pytest.raises(
        NotKept, match=r"^the run has read numbers\.txt, which was too large .* no more, what it was\n  do: put it there"
    ):
        kept(folder)


def test_a_module_of_another_place_with_the_same_name_is_not_imported(home, monkeypatch):
    folder = made(home)
    (helper,) = home.glob("helper_*.py")
    helper.write_text("FACTOR = 2.5\n")
    monkeypatch.syspath_prepend(str(home))
    prepared, _ = prepared_again(folder, kept(folder), folder.trials())
    assert trial_record(prepared.spec(prepared.trials[0]))["loss"] == load(folder.uri).rows[0]["loss"]


def test_a_job_of_a_package_is_kept_with_its_place_in_it(home, tmp_path, monkeypatch):
    package = f"package_{home.parent.name.replace('-', '_')}"
    monkeypatch.chdir(home)
    (home / package / "sub").mkdir(parents=True)
    for folder in (home / package, home / package / "sub"):
        (folder / "__init__.py").touch()
    (home / package / "sub" / "job.py").write_text((home / "pull.py").read_text())
    config = home / "pull.yaml"
    config.write_text(config.read_text().replace("pull.py:Pull", f"{package}.sub.job:Pull"))
    folder = made(home)
    gone(home)
    monkeypatch.chdir(home.parent)
    prepared, job = prepared_again(folder, kept(folder), folder.trials())
    assert sys.modules[job.__module__].__file__.startswith(str(tmp_path / "cache"))
    assert sys.modules[job.__module__].__file__.endswith(f"/source/{package}/sub/job.py")
    assert trial_record(prepared.spec(prepared.trials[0]))["loss"] == load(folder.uri).rows[0]["loss"]


def test_options_of_the_environment_are_as_they_were(monkeypatch):
    monkeypatch.setenv("QD_FAST_MATH", "1")
    monkeypatch.setenv("QD_OPT_LEVEL", "1")
    then = {"QD_FAST_MATH": "0", "OMP_NUM_THREADS": "3", "QDRUN_PRINT": "lower"}
    with options_as_then(Provenance(command=(), directory="", python="", platform="", packages={}, variables=then, target="")):
        assert os.environ["QD_FAST_MATH"] == "0" and "QD_OPT_LEVEL" not in os.environ and "QDRUN_PRINT" not in os.environ
    assert os.environ["QD_FAST_MATH"] == "1" and os.environ["QD_OPT_LEVEL"] == "1"


def test_what_is_other_than_then_is_named(home):
    then = kept(made(home)).provenance
    assert differences(then) == []
    old = then.model_copy(update={"qdrun": "1", "python": "3.1", "packages": then.packages | {"numpy": "0.1", "gone": "2"}})
    said = differences(old)
    assert said[0] == "the source files of qdrun" and said[1].startswith("Python 3.1 -> ")
    assert said[2] == f"numpy 0.1 -> {then.packages['numpy']}" and said[3] == "gone 2 -> none"


def test_numbers_are_equal_close_or_different(home, tmp_path):
    folder = made(home)
    prepared, _ = prepare(home / "pull.yaml")
    ids = folder.trial_ids()

    def changed(record):
        scale = {0.5: 1.0, 1.5: 1.0 + 1e-13, 2.5: 1.001}[record.pop("k")]
        return record | {"gradients": {"k": np.asarray(record["gradients"]["k"]) * scale}, "loss": record["loss"]}

    other = create(prepared, tmp_path / "other")
    with Journal(other) as journal:
        for trial in prepared.trials:
            attempt = Attempt(trial.id, 1)
            found = changed(trial_record(prepared.spec(trial)) | {"k": trial.params["k"]})
            ended(journal, [(attempt, pack(other, attempt, found))])
    both = compared(folder, other, [*ids, "000000000000"], 1e-9)
    assert (both.equal, both.close, list(both.different)) == ([ids[0]], [ids[1]], [ids[2]])
    assert both.not_compared == ["000000000000"] and 0 < both.worst < 1e-12
    (one,) = both.different[ids[2]]
    assert one.column == "grad.k" and one.relative == pytest.approx(1e-3, rel=1e-2)
    assert both.text.splitlines()[0].startswith("numbers: 1 equal to the bit, 1 equal within ")
    assert f"  {ids[2]}: grad.k " in both.text
    failing = create(prepared, tmp_path / "failing")
    error = {"type": "E", "message": "no", "traceback": ""}
    with Journal(failing) as journal:
        attempt = Attempt(ids[0], 1)
        ended(journal, [(attempt, {"status": "failed", "loss": float("nan"), "error": error, "failure": "user_error"})])
    (status, kind, loss, grad) = compared(folder, failing, ids[:1]).different[ids[0]]
    assert [one.column for one in (status, kind, loss, grad)] == ["status", "error_type", "loss", "grad.k"]
    assert (status.then, status.now, kind.now, grad.now) == ("done", "failed", "E", "-") and loss.relative == np.inf


def test_two_runs_are_compared_by_config_code_and_numbers(home, tmp_path):
    first = made(home)
    text = (home / "pull.yaml").read_text()
    (home / "pull.yaml").write_text(
        text.replace("2.5]", "3.5]").replace("gradients: [k]", "gradients: [k]\nlimits: {trial_timeout: 60s}")
    )
    (home / "pull.py").write_text((home / "pull.py").read_text() + "\n# the same, said in another way\n")
    second = made(home)
    code, said = call("compare", first.uri, second.uri)
    assert code == 0 and [run["run"] for run in said["runs"]] == [first.name, second.name]
    assert said["config"]["sweep.params.k.grid"] == [[0.5, 1.5, 2.5], [0.5, 1.5, 3.5]]
    assert (
        set(said["config"]) == {"sweep.params.k.grid", "limits.trial_timeout"}
        and said["config"]["limits.trial_timeout"][1] == 60.0
    )
    assert said["sources"] == ["pull.py"] and said["versions"] == {} and said["only"] == [1, 1]
    assert len(said["numbers"]["equal"]) == 2 and not said["numbers"]["different"]
    shown = CliRunner().invoke(app, ["compare", first.uri, second.uri]).stdout
    assert "code: pull.py differ" in shown and "trials: 2 of both, 1 of the first alone, 1 of the second alone" in shown
    assert "numbers: 2 equal to the bit" in shown and "sweep.params.k" in shown and "3 done" in shown
    same = CliRunner().invoke(app, ["compare", first.uri, first.uri]).stdout
    assert "config: equal" in same and "code: equal" in same and "3 equal to the bit" in same
