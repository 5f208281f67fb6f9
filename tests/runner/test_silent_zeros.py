"""A gradient of zero that a newcomer did not want is told in one line, with the source line where one is to blame."""

from pathlib import Path

import numpy as np
import pytest
from jobs_with_residuals import Decay, DecayParams
from jobs_with_zeros import ByHand, ByHandParams, Throw, ThrowParams
from runner_helpers import write_config
from typer.testing import CliRunner

import qdrun as qd
from qdrun.jobs.planning.gradient_notes import GradientNote
from qdrun.runner import load, submit
from qdrun.runner.cli.app import app
from qdrun.runner.engine import early_plans, session
from qdrun.runner.engine.early_plans import CannotPlan
from qdrun.runner.observe.planned import plan_of
from qdrun.runner.observe.remarks import REMARKS, _fruitless, remarks_of, zeros
from qdrun.runner.observe.report.document import html
from qdrun.runner.observe.report.material import gather
from qdrun.runner.optimize.jacobian import Jacobian, choose
from qdrun.runner.store.encoding import document
from qdrun.runner.store.layout import write_run
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.target import TargetError

JOBS = Path(__file__).with_name("jobs_with_zeros.py")
CONFIG = """version: 1
name: zeros
job: {{target: "{jobs}:{job}", params: {{way: {way}}}}}
sweep: {{params: {{mass: [1.1, 1.2, 1.3]}}}}
output: {runs}
"""


def at(text):
    """The line of the jobs' file that holds a text, as messages name it."""
    lines = JOBS.read_text(encoding="utf-8").splitlines()
    return f"{JOBS.name}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


CUT = {
    "cast": [
        f"the path from `mass` to the objective is cut at {at('k = qd.i32')} (`k = qd.i32(mass[None] * 10.0)`): cast to i32"
    ],
    "array": [
        f"the path from `{name}` to the objective is cut at {at('y[i] = mass')} (`y[i] = mass[None] * 2.0"
        for name in ("mass", "speed")
    ],
    "unwritten": ["no kernel that is launched writes the objective; do: add to it in a kernel"] * 2,
    "early": [
        f"the objective reads `y` at {at('loss[None] += y[i] ** 2')} (`loss[None] += y[i] ** 2`) before a kernel writes it at "
        f"{at('y[i] = mass')} (`y[i] = mass[None] * 2.0 + speed[None] * i`); do: launch the kernel that writes `y` first"
    ]
    * 2,
    "clamp": [],
    "right": [],
}


def config(folder, way, job="Throw"):
    """A config of a job that goes this way."""
    return write_config(folder, text=CONFIG.format(jobs=JOBS, job=job, way=way, runs=folder / "runs"))


def prepared(folder, way):
    """A sweep of it."""
    return prepare(config(folder, way))


@pytest.mark.parametrize("way", CUT)
def test_a_plan_names_the_line_that_cuts_a_gradient_and_says_nothing_of_a_connected_one(tmp_path, way):
    found = plan_of(*prepared(tmp_path, way))
    lines = [line for line in found.text.splitlines() if line.startswith("warning: ")]
    assert len(lines) == len(CUT[way]) == len(found.data["warnings"])
    for line, said in zip(lines, CUT[way]):
        assert line.startswith("warning: the gradient of the objective with respect to `") and said in line and "; do: " in line


@pytest.mark.parametrize(
    ("way", "job", "said"),
    [
        ("cast", "Throw", f"is always 0: the path from `mass` to the objective is cut at {at('k = qd.i32')}"),
        ("array", "Throw", "`y` has no gradient; do: make `y` with needs_grad=True"),
        (
            "right",
            "Own",
            f"the path from `mass` to `loss` is cut at {at('qd.floor')} (`loss[None] += qd.floor(mass[None])`)",
        ),
    ],
)
def test_a_check_names_the_cause_instead_of_a_longer_horizon(tmp_path, way, job, said):
    out = CliRunner().invoke(app, ["check", str(config(tmp_path, way, job)), "--in-process"]).output
    assert said in out and "longer --horizon" not in out


def rows(*gradients, **more):
    """Rows of trials that are done."""
    return [{"status": "done", "loss": 1.0, "grad.x": g} | more for g in gradients]


def test_a_gradient_that_is_zero_in_every_trial_is_told_with_the_cause_that_is_known():
    cast = GradientNote(name="x", connected=True, why="a path from `x` to the objective is cut at a.py:3: cast to i32")
    (said,) = zeros(rows(0.0, [0.0, -0.0]), {"x": cast})
    assert said == f"the gradient of `x` is exactly 0 in all 2 trials: {cast.why}"
    assert "a minimum, or a branch or a limit that no trial leaves" in zeros(rows(0.0), {})[0]
    for others in (rows(0.0, 1e-300), rows([0.0, 1.0], [1.0, 0.0]), [{"status": "failed", "grad.x": 0.0}], rows(), rows([])):
        assert zeros(others, {}) == []
    assert zeros(rows(0.0), {"x": GradientNote(name="x", connected=False, warning="told before")}) == []


def test_elements_at_an_end_whose_gradient_is_zero_in_every_trial_are_told():
    (said,) = zeros(rows([1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]), {})
    assert said.startswith("the gradient of `x` is exactly 0 in all 2 trials in elements 2 to 3 of 4: no kernel reads them")
    assert "in element 0 of 3" in zeros(rows(np.array([0.0, 1.0, 1.0])), {})[0]
    assert "elements 2 to 3 of 4" in zeros(rows([1.0, float("nan"), 0.0, -0.0]), {})[0]
    for others in ([0.0, 1.0], [[0.0, 1.0], [0.0, 1.0]], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], 1.0):
        more = rows(others, [1.0, 0.0]) if others == [0.0, 1.0] else rows(others)
        assert zeros(more, {}) == []
    assert zeros(rows([1.0, 0.0], [1.0, 0.0, 0.0]), {}) == [], "of vectors of one length"


def test_the_report_shows_the_remarks_on_a_run(tmp_path):
    folder = write_run(tmp_path, "made", "version: 1\n", {"name": "made", "gradients": []}, [], {})
    text = "the gradient of `x` is exactly 0 in all 2 trials: <cast> to i32"
    folder.files.put(REMARKS, document({"remarks": [text]}))
    page = html([gather(folder)], "")
    assert '<p class="warning">Warning: the gradient of `x` is exactly 0 in all 2 trials: &lt;cast&gt; to i32</p>' in page


def test_optimisation_runs_that_lower_no_loss_are_told_with_what_to_do():
    up, down, flat = (
        {"out.opt.history": history, "out.opt.stopped": 0.0} for history in ([1.0, 9.0, float("nan")], [1.0, 0.9], [1.0, 1.0])
    )
    (said,) = _fruitless(rows(0.1, **up), 1000.0)
    assert said == (
        "no optimisation run lowered its loss (1 run): every step of learning_rate 1000 overshoots; do: optimize.learning_rate: 10 or less"
    )
    assert "a schedule with smaller rates" in _fruitless(rows(0.1, **up), {"cosine": {"start": 9.0}})[0]
    assert "compares the gradients" in _fruitless(rows(0.1, **up), None)[0]
    assert "it stays the same, as at a minimum" in _fruitless(rows(0.1, **flat), 0.1)[0]
    assert _fruitless(rows(0.1, **up) + rows(0.1, **down), 1.0) == [] == _fruitless(rows(0.1), 1.0)


@pytest.mark.slow
def test_a_submit_ends_with_the_warning_and_keeps_it_for_status_results_report_and_python(one_worker, tmp_path):
    done = submit(config(tmp_path, "clamp"), output=tmp_path / "runs", quiet=True)
    (said,) = done.warnings
    assert said.startswith("the gradient of `mass` is exactly 0 in all 3 trials: a minimum, or a branch or a limit")
    for command in ("status", "results"):
        found = CliRunner().invoke(app, [command, done.folder.uri])
        assert f"warning: {said}" in found.output + found.stderr
    own = submit(config(tmp_path, "right", "Own"), output=tmp_path / "runs", quiet=True)
    assert any("floor() has derivative 0" in text for text in own.warnings)
    assert load(submit(config(tmp_path, "right"), output=tmp_path / "runs", quiet=True).folder.uri).warnings == []


@pytest.mark.slow
def test_a_learning_rate_at_which_no_trial_improves_is_told(one_worker, tmp_path):
    path = config(tmp_path, "right")
    path.write_text(path.read_text() + "optimize: {rule: sgd, learning_rate: 1000, steps: 3}\n")
    (said,) = submit(path, output=tmp_path / "runs", quiet=True).warnings
    assert said.startswith("no optimisation run lowered its loss (3 runs): every step of learning_rate 1000 overshoots")


@pytest.mark.slow
def test_a_job_that_cannot_be_built_leaves_no_run(local_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(early_plans, "WAIT_S", 0.05)
    with pytest.raises(CannotPlan, match="no such material"):
        submit(config(tmp_path, "right", "SlowToFail"), output=tmp_path / "runs", quiet=True)
    assert not list((tmp_path / "runs").iterdir())
    assert session.CannotPlan is CannotPlan


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            "Aliased",
            "parameter `mass` of AliasParams has an alias, and configs and tables know parameters by the names of their fields\n  do: ",
        ),
        (
            "OfArray",
            "parameter `mass` of ArrayParams is a numpy array, which a config cannot hold\n  do: declare it as list[float]",
        ),
    ],
)
def test_parameters_that_no_config_can_hold_are_refused_with_what_to_do(tmp_path, job, said):
    with pytest.raises(qd.QdrunError) as refused:
        prepare(write_config(tmp_path, text=CONFIG.format(jobs=JOBS, job=job, way="right", runs="runs")))
    assert said in str(refused.value) and isinstance(refused.value.__cause__, TargetError)


def test_a_class_that_pydantic_cannot_make_is_refused_at_its_line(tmp_path):
    text = "import numpy as np\nfrom qdrun.jobs.base import Job, JobParams\n\n\nclass P(JobParams):\n    x: np.ndarray = None\n"
    (tmp_path / "job.py").write_text(text)
    with pytest.raises(qd.QdrunError) as refused:
        prepare(write_config(tmp_path, text='version: 1\nname: a\njob: {target: "job.py:J"}\n'))
    said = str(refused.value)
    assert "job.py:5" in said and "_generate_schema" not in said and "do: declare it as list[float]" in said


def test_a_memory_budget_holds_for_the_jacobian_too():
    names, params = ["height", "rate", "offset"], DecayParams(data=np.linspace(3.0, 1.0, 40).tolist())
    expected, smallest = None, 0
    for budget in (None, 1_000_000, 1):
        job = Decay(params)
        with job.opened(threads=1, memory_budget_bytes=None if budget == 1 else budget) as made:
            plan = made.plan()
            made.run()
            if budget == 1:
                made.program.options.__dict__["memory_budget"] = plan.bytes + 1
                with pytest.raises(qd.OutOfMemory, match="too small for `levenberg_marquardt`") as refused:
                    Jacobian(made, names, choose(made, plan, names), plan.bytes)
                smallest = refused.value.smallest
                assert plan.bytes < smallest and f"memory_budget: {smallest} or more" in str(refused.value)
                made.program.options.__dict__["memory_budget"] = smallest
            found = Jacobian(made, names, choose(made, plan, names), plan.bytes)
            values = found.at(made.params)
            expected = values if expected is None else expected
            assert np.array_equal(values, expected)
            assert budget != 1 or plan.bytes + found.plan.bytes <= smallest
            found.close()


def test_a_job_that_launches_a_kernel_for_each_step_is_advised_to_declare_its_steps():
    job = ByHand(ByHandParams())
    with pytest.raises(qd.OutOfMemory) as refused, job.opened(threads=1, memory_budget_bytes=8_000) as made:
        made.plan()
    assert "do: memory_budget: " in str(refused.value) and "declare time steps: state(), time_steps() and time_loop()" in str(
        refused.value
    )
    assert "`step` is launched again and again" in str(refused.value)


def test_remarks_of_a_run_that_has_not_ended_are_those_of_its_plan(tmp_path):
    class Folder:
        uri, files = "", None

        def plan(self):
            return plan_of(*prepared(tmp_path, "cast")).groups

    class Files:
        def read(self, name):
            raise FileNotFoundError(name)

    Folder.files = Files()
    assert len(remarks_of(Folder())) == 1


def test_paths_of_a_job_are_known_without_running_it():
    with Throw(ThrowParams(way="cast")).opened(threads=1) as made:
        mass, speed = made.gradient_paths()
    assert (mass.connected, mass.cuts[0].kind, mass.cuts[0].name) == (False, "cast", "i32")
    assert speed.connected and not speed.cuts and str(speed) == "the gradient of the objective reaches `speed`"
