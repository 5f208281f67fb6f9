"""A job that can be built for no trial is refused before Ray and before there is a run folder, with the user's line and a caret."""

import textwrap
import threading

import pytest
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.engine import early_plans, session
from qdrun.runner.engine.early_plans import CannotPlan, EarlyPlans, refuse
from qdrun.runner.remote import detach
from qdrun.runner.study.plan import make_plan, plan_all
from qdrun.runner.study.prepare import prepare

HEAD = """
import qdrun as qd
from pathlib import Path
from qdrun.jobs.base import Job, JobParams, MemoryPlan, Outcome


class Params(JobParams):
    x: float = 1.0
    n: int = 4


class Own(Job[Params]):
    gradients = ("x",)
    needs_compiler = {compiled}

    def plan(self, *, arch=None):
        return super().plan(arch=arch)

    def build(self):
{build}

    def launches(self):
        return getattr(self, "own", [])

    def run(self):
        return Outcome(self.params.x, {{"x": 1.0}})
"""
KERNEL = """
field = qd.field(qd.f32, 4, needs_grad=True)
@qd.kernel
def step():
    for i in field:
        field[i] = speed * 2.0
self.own = [(step, ())]
"""


def job(folder, build, *, sweep=None, compiled=True):
    """A config of a job with this ``build``."""
    source = HEAD.format(build=textwrap.indent(textwrap.dedent(build).strip(), " " * 8), compiled=compiled)
    (folder / "own.py").write_text(source)
    config = write_config(folder, target="own.py:Own", sweep=sweep)
    config.write_text(config.read_text().replace("gradients: [x, target]", "gradients: [x]"))
    return config


@pytest.fixture
def no_ray(monkeypatch):
    """Fails a test that starts Ray."""

    def refused(*words, **more):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(session, "open_cluster", refused)
    monkeypatch.setattr(detach, "_handed", refused)
    for module in (session, detach):
        monkeypatch.setattr(module, "check_environment", lambda *_: None)


def submitted(config, *words):
    result = CliRunner().invoke(app, ["submit", str(config), "--quiet", *words], catch_exceptions=False)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("words", [(), ("--detach",), ("--address", "127.0.0.1:1")], ids=["here", "detached", "address"])
@pytest.mark.parametrize(
    ("build", "said"),
    [
        (KERNEL, ["QdrunNameError: ", "own.py:", " in kernel `step`", "field[i] = speed * 2.0", "^^^^^"]),
        (
            "weights = qd.field(qd.f32, 4)\nweights.from_numpy(__import__('numpy').zeros(7))",
            ["QdrunFitError: ", "own.py:21 in build", "weights.from_numpy(", "^^^^"],
        ),
        (
            "total = 1\ntotal += missing",
            ["NameError: name 'missing' is not defined", "own.py:21 in build", "    total += missing"],
        ),
    ],
    ids=["kernel", "array", "python"],
)
def test_errors_of_the_jobs_own_code_are_refused_before_anything_starts(no_ray, tmp_path, words, build, said):
    code, err = submitted(job(tmp_path, build), *words)
    assert code == 2, err
    assert "the job can be built for no trial, and nothing was started" in err
    for part in said:
        assert part in err, err
    assert not (tmp_path / "runs").exists()


def test_a_module_that_hides_a_file_of_the_job_is_named_beside_the_error(no_ray, tmp_path):
    (tmp_path / "colorsys.py").write_text("ONE = 1.0")
    code, err = submitted(job(tmp_path, "import colorsys\nself.one = colorsys.ONE", compiled=False))
    assert code == 2 and "module 'colorsys' has no attribute 'ONE'" in err
    assert "`import colorsys` finds the installed" in err and "do: give that file another name" in err


def test_a_missing_file_is_refused_here_and_may_be_there_on_a_cluster(no_ray, tmp_path):
    config = job(tmp_path, "Path('no such file').read_text()", compiled=False)
    code, err = submitted(config)
    assert code == 2 and "own.py:20 in build" in err and "^^^" in err
    planned = plan_all(*prepare(config))
    with pytest.raises(CannotPlan):
        refuse(planned)
    refuse(planned, local=False)


def test_a_shape_is_planned_by_a_trial_that_can_be_built_when_the_first_cannot(tmp_path):
    config = job(tmp_path, "assert self.params.x > 1.5, f'x = {self.params.x}'", sweep={"x": [0, 1, 2]}, compiled=False)
    prepared, kind = prepare(config)
    for group in (plan_all(prepared, kind)[0][0], make_plan(prepared, kind)[0]):
        assert group.plan is not None and group.example == "x=2"
        assert group.first == 2 and group.places == range(len(prepared.trials))


def test_shapes_that_cannot_be_built_are_said_at_once_and_the_others_are_planned(tmp_path):
    config = job(tmp_path, "assert self.params.n != 4, 'four'", sweep={"n": [3, 4], "x": [1.0, 2.0]}, compiled=False)
    planned = plan_all(*prepare(config))
    refuse(planned)
    assert [group.plan is not None for group, _ in planned] == [True, False]
    said = early_plans.failures_text([group for group, _ in planned])
    assert said.startswith("n=4,x=1 and 1 trial like it: AssertionError: four\n  at ") and "own.py:20 in build" in said


def test_a_plan_that_takes_long_does_not_hold_ray_up(tmp_path, monkeypatch):
    monkeypatch.setattr(early_plans, "WAIT_S", 0.05)
    go = threading.Event()
    monkeypatch.setattr(early_plans, "plan_each", lambda *words: (go.wait(10), iter(()))[1])
    plans = EarlyPlans(*prepare(write_config(tmp_path)))
    plans.wait()
    go.set()
    assert plans.all() == []
