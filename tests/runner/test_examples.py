"""``qdrun new`` and ``qdrun examples``: what they write runs as it is, and nothing is overwritten."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.examples import catalog
from qdrun.runner.examples.catalog import examples, of_name
from qdrun.runner.examples.sweep import sweep_text
from qdrun.runner.study.prepare import prepare

ROOT = Path(__file__).parents[2]
LIMITED = """
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class LimitedParams(JobParams):
    steps: int = 3
    weights: list[float] = Field([0.0, 2.0], description="of the terms; the first one: any")
    share: float = Field(1.0, ge=0, le=1)


class Limited(Job[LimitedParams]):
    gradients = ("share", "weights")

    def build(self):
        share, weights, loss = self.input("share"), self.input("weights"), self.objective()

        @qd.kernel
        def add():
            for i in weights:
                loss[None] += share[None] * weights[i]

        self.add = add

    def simulate(self):
        self.add()


class Fixed(Limited):
    gradients = ("weights",)


class WholeParams(JobParams):
    steps: int = 3


class Whole(Job[WholeParams]):
    needs_compiler = False


class BareParams(JobParams):
    speed: float


class Bare(Job[BareParams]):
    needs_compiler = False
"""


def call(*words, code: int = 0):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_config_is_listed_with_what_it_shows_and_its_seconds():
    listed = json.loads(call("examples", "--json").stdout)["examples"]
    assert {row["config"] for row in listed} == {path.name for path in (ROOT / "configs").glob("*.yaml")}
    for row in listed:
        assert row["seconds"] and len(row["shows"]) > 20, (
            f"configs/{row['config']}: begin with `# what it shows`, then `#   qdrun submit configs/.. 5 s on two cores`"
        )
    text = call("examples").stdout
    assert "bounce_once_optimize.yaml" in text and "qdrun examples copy NAME" in text


@pytest.mark.parametrize("job", sorted({one.job for one in examples()}))
def test_a_copy_runs_from_its_folder(job, here):
    told = call("examples", "copy", job, "mine").stdout
    assert re.search(r"next: qdrun submit mine/\w+.yaml", told)
    assert (here / "mine" / f"{job}.py").read_text() == of_name(job)[0].source().read_text()
    for one in of_name(job):
        prepared, found = prepare(here / "mine" / one.config.name)
        assert prepared.target.file == str(here / "mine" / f"{job}.py") and found.__module__.startswith("qdrun_job_")
        assert len(prepared.trials) == len(prepare(one.config)[0].trials)
        assert " configs/" not in (here / "mine" / one.config.name).read_text()


def test_an_example_is_found_by_its_config_too_and_an_unknown_one_is_refused(here):
    assert call("examples", "copy", "quickstart", "q").stdout.endswith("next: qdrun submit q/quickstart.yaml\n")
    assert of_name("quickstart") == of_name("optimize.yaml") == of_name("mass_spring")
    said = call("examples", "copy", "quikstart", code=2).stderr
    assert said.startswith("there is no example `quikstart`\n  do: choose one of absorbing_volume, billiards, bounce_once, ")
    assert call("examples", "copy", code=2).stderr.count("qdrun examples") and [p.name for p in here.iterdir()] == ["q"]


def test_a_config_without_its_seconds_is_listed_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text("# A sweep.\n#   qdrun submit configs/a.yaml\nversion: 1\njob: {target: 'a:B'}\n")
    monkeypatch.setattr(catalog.configs, "__file__", str(tmp_path / "__init__.py"))
    assert [(one.shows, one.seconds, one.job) for one in examples()] == [("A sweep.", None, "a")]
    assert "A sweep." in call("examples").stdout


def test_nothing_is_overwritten_and_then_nothing_is_written(here):
    (here / "smoke_optimize.yaml").write_text("mine")
    said = call("examples", "copy", "smoke", code=2).stderr
    assert said == "smoke_optimize.yaml exists already, and nothing was written\n  do: choose another name or folder\n"
    assert [path.name for path in here.iterdir()] == ["smoke_optimize.yaml"]
    call("new", "job", "pendulum")
    before = {path: path.read_text() for path in here.iterdir()}
    said = call("new", "job", "pendulum", code=2).stderr
    assert said.startswith("pendulum.py, pendulum.yaml exist already, and nothing was written")
    assert call("new", "sweep", "pendulum", code=2).stderr.startswith("pendulum.yaml exists already")
    assert {path: path.read_text() for path in here.iterdir()} == before


def test_a_new_job_has_right_gradients_and_runs_at_once(here, one_worker):
    told = call("new", "job", "wave_tank").stdout
    assert told == "wrote wave_tank.py, wave_tank.yaml\nnext: qdrun submit wave_tank.yaml\n"
    text = (here / "wave_tank.py").read_text() + (here / "wave_tank.yaml").read_text()
    assert "class WaveTankParams(JobParams)" in text and "class WaveTank(Job[" in text and not re.search("skeleton", text, re.I)
    done = subprocess.run([sys.executable, "wave_tank.py"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and done.stdout.count("finite difference") == 4, done.stderr
    call("check", "wave_tank.yaml", "--in-process")
    call("submit", "wave_tank.yaml")
    rows = json.loads(call("results", "latest", "--format", "json").stdout)
    assert len(rows) == 25 and {row["status"] for row in rows} == {"done"} and all(row["grad.angle"] for row in rows)


def test_the_optimisation_in_the_comment_of_a_new_job_works(here, one_worker):
    call("new", "job", "swing", "--dir", "sub")
    config = here / "sub" / "swing.yaml"
    config.write_text(config.read_text().replace("# optimize:", "optimize:"))
    call("submit", config, "--set", "sweep.params.angle=[0.8]", "--set", "sweep.params.speed=[0.1]")
    (row,) = json.loads(call("results", "latest", "--format", "json").stdout)
    assert row["status"] == "done" and row["loss"] < 1e-8


def test_a_new_sweep_of_the_robot_runs_at_once(here, one_worker):
    call("new", "sweep", "robots")
    call("submit", "robots.yaml", "--set", "job.params.steps=20")
    rows = json.loads(call("results", "latest", "--format", "json").stdout)
    assert [row["param.stiffness"] for row in rows] == [900.0, 950.0, 1000.0, 1050.0, 1100.0]
    assert {row["status"] for row in rows} == {"done"}


def test_a_new_sweep_stays_within_the_range_of_a_parameter(here):
    (here / "limited.py").write_text(LIMITED)
    call("new", "sweep", "shares", "--job", "limited.py:Limited", "--dir", "configs")
    prepared, _ = prepare(here / "configs" / "shares.yaml")
    assert [trial.params["share"] for trial in prepared.trials] == pytest.approx([0.9, 0.925, 0.95, 0.975, 1.0])
    text = (here / "configs" / "shares.yaml").read_text()
    assert "target: ../limited.py:Limited" in text and "#   weights: [0.0, 2.0]    # of the terms; the first one: any\n" in text


def test_a_new_sweep_takes_an_element_of_a_list(here):
    (here / "limited.py").write_text(LIMITED)
    (here / "a.yaml").write_text(sweep_text("a", "limited.py:Fixed", here))
    found = [trial.params["weights"] for trial in prepare(here / "a.yaml")[0].trials]
    assert [x for x, _ in found] == pytest.approx([-0.1, -0.05, 0.0, 0.05, 0.1]) and {y for _, y in found} == {2.0}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            "Whole",
            "limited.py:Whole has no parameter that is a float, so there is nothing to sweep\n  do: give it one with a default",
        ),
        ("Bare", "limited.py:Bare has no default for `speed`, which a sweep needs\n  do: give the parameters defaults"),
        ("Gone", "limited.py has no `Gone`"),
    ],
)
def test_a_job_that_cannot_be_swept_at_once_is_refused(job, said, here):
    (here / "limited.py").write_text(LIMITED)
    assert said in call("new", "sweep", "a", "--job", f"limited.py:{job}", code=2).stderr
    assert not (here / "a.yaml").exists()


@pytest.mark.parametrize("name", ["Pendulum", "a-b", "2d", "class", "../up", ""])
def test_a_name_that_is_no_module_is_refused(name, here):
    for kind in ("job", "sweep"):
        assert (
            f"`{name}` cannot be the name of a module\n  do: use lower-case letters" in call("new", kind, name, code=2).stderr
        )
    assert not list(here.iterdir())


@pytest.mark.parametrize("name", ["random", "numpy", "qdrun"])
def test_a_job_does_not_hide_a_module(name, here):
    said = call("new", "job", name, code=2).stderr
    assert said == f"{name}.py would have the name of a module that is installed\n  do: choose another name\n"
    call("new", "sweep", name)


def test_the_documents_name_the_files(here):
    data = json.loads(call("new", "job", "pendulum", "--json").stdout)
    assert data == {"schema": "qdrun.new/1", "written": ["pendulum.py", "pendulum.yaml"], "next": "qdrun submit pendulum.yaml"}
    data = json.loads(call("examples", "copy", "skeleton", "s", "--json").stdout)
    assert data["written"] == ["s/skeleton.py", "s/skeleton.yaml"] and data["examples"] is None
    call("new", "job", "other", "--job", "a.py:B", code=2)
