"""``qdrun check``: right gradients pass, wrong ones do not, whatever the precision and the shape; exit codes and output."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.jobs.base import BadOutcome, Job, JobParams, Outcome, check_gradients
from qdrun.jobs.core.checks import run_checks
from qdrun.runner.cli.app import app

JOBS = """
import os
import random
import numpy as np
from pydantic import Field
import qdrun as qd
from qdrun.jobs.base import BadOutcome, Job, JobParams, Outcome


class Params(JobParams):
    x: float = Field(2.0, gt=0)
    many: list[float] = [0.5] * 40
    ticks: int = Field(100, ge=2)
    off: float = 0.0
    loss: float = 1.0


class Right(Job[Params]):
    gradients = ("x", "many")
    horizon = "ticks"
    needs_compiler = False

    def build(self): ...

    def run(self):
        p, many = self.params, np.array(self.params.many)
        if p.loss < 0:
            raise ZeroDivisionError("no such loss")
        weights = np.arange(many.size) + 1.0
        loss = p.loss * p.ticks * (p.x**3 + np.sum(weights * many**2))
        exact = {"x": 3 * p.loss * p.ticks * p.x**2, "many": 2 * p.loss * p.ticks * weights * many}
        exact["many"][17] += p.off
        return Outcome(float(loss), {name: exact[name] for name in self.wanted})


class Unnamed(Right):
    gradients = ("other",)


class Beside(Right):
    gradients = ("x", "end.speed", "state")

    def run(self):
        return Outcome(3 * self.params.x, {"x": 3.0, "end.speed": 1.0, "state": np.ones(3)})


class Kernels(Job[Params]):
    gradients = ("x",)
    precision = "f32"
    horizon = "ticks"
    real = qd.f64

    def build(self):
        real = self.real if self.real is not None else self.program.options.default_fp
        self.x, self.loss = (qd.field(real, shape=(), needs_grad=True) for _ in range(2))
        self.x[None] = self.params.x
        x, loss, ticks = self.x, self.loss, self.params.ticks

        @qd.kernel
        def cube():
            for _ in range(ticks):
                loss[None] += x[None] * x[None] * x[None]

        self.cube = cube

    def run(self):
        with qd.ad.Tape(loss=self.loss):
            self.cube()
        return Outcome(float(self.loss[None]), {"x": float(self.x.grad[None]) + self.params.off} if self.wanted else {})


class Live(Kernels):
    # what `run` leaves in `start` the next run would read, if it were not put back

    left = []

    def build(self):
        super().build()
        self.start = start = qd.field(qd.f64, shape=(), needs_grad=True)
        loss = self.loss

        @qd.kernel
        def add():
            loss[None] += start[None]

        @qd.kernel
        def leave():
            start[None] = 1e-3

        self.add, self.leave = add, leave

    def fill(self):
        self.x[None] = self.params.x

    def run(self):
        with qd.ad.Tape(loss=self.loss):
            self.cube()
            self.add()
        self.leave()
        return Outcome(float(self.loss[None]) + 1e-3 * len(self.left), {"x": float(self.x.grad[None])} if self.wanted else {})


class Leaves(Live):
    # the list is the class's

    def run(self):
        found = super().run()
        self.left.append(1)
        return found


class Looks(Live):
    # it has an input, and a run that Python decides

    def build(self):
        super().build()
        self.input("x")


class PushParams(JobParams):
    steps: int = 100
    push: list[float] = Field([0.01] * 100)
    rest: list[float] = Field([0.5] * 101)
    each: list[float] = Field([0.1] * 7)
    strict: bool = False

    def model_post_init(self, context):
        if self.strict and (self.steps != 100 or len(self.push) != 100):
            raise ValueError("a hundred pushes")


class Push(Job[PushParams]):
    # the fields are as long as the horizon

    gradients = ("push", "rest", "each")

    def build(self):
        n = self.params.steps
        self.push = push = qd.field(qd.f64, n, needs_grad=True)
        self.rest = rest = qd.field(qd.f64, n + 1, needs_grad=True)
        self.each = each = qd.field(qd.f64, 7, needs_grad=True)
        self.loss = loss = qd.field(qd.f64, (), needs_grad=True)

        @qd.kernel
        def step():
            for i in push:
                loss[None] += qd.sin(push[i]) * rest[i + 1] + each[0] ** 2 * rest[0]

        self.step = step

    def fill(self):
        self.push.from_numpy(np.array(self.params.push))
        self.rest.from_numpy(np.array(self.params.rest))
        self.each.from_numpy(np.array(self.params.each))

    def run(self):
        with qd.ad.Tape(loss=self.loss):
            self.step()
        found = {name: getattr(self, name).grad.to_numpy() for name in self.wanted}
        return Outcome(float(self.loss[None]), found)


class Period(Push):
    def build(self):
        if self.params.steps < 50:
            raise ValueError("too few steps for a period")
        super().build()


class Away(Kernels):
    # an index far outside: unchecked, it ends the process

    def build(self):
        super().build()
        field, loss = qd.field(qd.f64, 4), self.loss

        @qd.kernel
        def cube():
            for i in range(1):
                loss[None] += field[i + (1 << 29)]

        self.cube = cube


class Ends(Right):
    def run(self):
        print("about to end", flush=True)
        os.abort()


class Single(Kernels):
    real = qd.f32


class Default(Kernels):
    real = None
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own.py").write_text(JOBS)

    def write(name, params=None):
        path = write_config(tmp_path, target=f"own.py:{name}", params=params, sweep={"off": [0.0]})
        path.write_text(path.read_text().replace("gradients: [x, target]\n", "").split("sweep:")[0])
        return str(path)

    return write


def run(*words):
    result = CliRunner().invoke(app, ["check", "--in-process", *words])
    return result.exit_code, result.stdout, result.stderr


def test_gradients_that_are_right_pass_on_a_short_horizon_and_large_ones_are_sampled(config):
    code, out, _ = run(config("Right"))
    assert code == 0, out
    assert "horizon: ticks = 32 of 100" in out and "tolerance: 0.0001 relative, in f64" in out
    data = json.loads(run(config("Right"), "--json", "--most", "5")[1])
    assert [(row["name"], row["index"]) for row in data["rows"]] == [
        ("x", []),
        *(("many", [i]) for i in (0, 9, 19, 29, 39)),
        ("many (direction)", []),
    ]
    assert all(row["relative_error"] < 1e-7 and row["agrees"] and row["tells"] for row in data["rows"])
    assert data["horizon"] == {"ticks": 32}
    assert json.loads(run(config("Right"), "--json", "--horizon", "7")[1])["rows"][0]["given"] == 7 * 12


@pytest.mark.parametrize("words", [(), ("--most", "40")], ids=["seen by the direction", "seen by its own row"])
def test_one_wrong_element_is_found(config, words):
    code, out, _ = run(config("Right"), "--set", "job.params.off=40.0", *words)
    assert code == 1
    assert out.count("DIFFERS") == 1 and "gradients differ" in out
    assert ("many[17]" if words else "many (direction)") in next(line for line in out.splitlines() if "DIFFERS" in line)
    assert run(config("Right"), "--set", "job.params.off=40.0", "--tolerance", "0.9", *words)[0] == 0


@pytest.mark.parametrize(
    ("name", "precision", "tolerance"), [("Kernels", "f64", 1e-4), ("Single", "f32", 5e-2), ("Default", "f64", 1e-4)]
)
def test_a_job_runs_in_f64_where_it_can_and_the_tolerance_follows(config, name, precision, tolerance):
    data = json.loads(run(config(name), "--json")[1])
    assert (data["precision"], data["tolerance"], data["agrees"]) == (precision, tolerance, True)
    assert run(config(name, {"off": 300.0}))[0] == 1  # of 384


def test_a_job_that_leaves_something_of_a_run_behind_in_its_process_is_found(config):
    """Trials of a sweep run in the process of the one before, and perhaps in its program: each must give what it gives alone."""
    assert run(config("Live"))[0] == 0
    code, out, err = run(config("Leaves"))
    assert code != 0 and "differ" not in out
    assert "Leaves.run() gives the loss as 256.0" in err and "after runs with other values, and gave 256" in err
    assert (
        "do: keep what a run changes in fields and attributes of the job, which are put back; globals and attributes of classes"
        in err
    )


def test_a_job_with_inputs_that_is_built_for_each_trial_says_why(config):
    why = "it overrides run()"
    code, out, _ = run(config("Looks"))
    assert code == 0 and f"built for each trial, although it has inputs: {why}\n" in out
    assert json.loads(run(config("Looks"), "--json")[1])["rebuilt"] == why
    assert json.loads(run(config("Live"), "--json")[1])["rebuilt"] == ""


def test_gradients_that_no_parameter_belongs_to_are_named(config):
    """They were left out without a word: "1 gradients agree" said nothing of the others."""
    code, text, _ = run(config("Beside"))
    assert code == 0 and "not compared, for no parameter of the job has this name: end.speed, state\n" in text
    assert json.loads(run(config("Beside"), "--json")[1])["not_compared"] == ["end.speed", "state"]
    assert "not compared" not in run(config("Right"))[1]
    assert json.loads(run(config("Right"), "--json")[1])["not_compared"] == []


def test_gradients_below_the_noise_tell_nothing_and_do_not_pass(config):
    code, out, _ = run(config("Right", {"loss": 0.0}))
    assert code == 1
    assert "nothing to compare" in out and "do: a longer --horizon" in out


def test_one_sided_differences_at_the_edge_of_what_the_model_allows():
    class Edge(JobParams):
        x: float = 0.0

        def model_post_init(self, context):
            if not 0.0 <= self.x <= 1.0:
                raise ValueError("outside")

    class Parabola(Job[Edge]):
        gradients = ("x",)
        needs_compiler = False

        def build(self): ...

        def run(self):
            return Outcome((self.params.x + 2.0) ** 3, {"x": 3 * (self.params.x + 2.0) ** 2})

    for x, slope in ((0.0, 12.0), (1.0, 27.0), (0.5, 18.75)):
        (row,) = check_gradients(Parabola, Edge(x=x))
        assert row.given == slope
        assert row.difference == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("Unnamed", ["--set", "job.params.x=2.0"], "no gradient of Unnamed is a parameter"),
        ("Right", ["--horizon", "1"], "Right does not take ticks = 1: input should be greater than or equal to 2"),
        (
            "Right",
            ["--set", "job.params.loss=-1.0"],
            "Right raised ZeroDivisionError: no such loss\n  at {own}:28 in run\n"
            '    raise ZeroDivisionError("no such loss")\n    ' + "^" * 39 + "\n"
            "  with ticks = 32 of 100; `--horizon 100` runs all of them\n  do: correct the job",
        ),
        ("Right", ["--set", "job.params.x=-1.0"], "`job.params.x`: input should be greater than 0"),
    ],
)
def test_what_cannot_be_checked_is_said(config, name, words, said):
    path = config(name)
    code, _, err = run(path, *words)
    assert code == 2
    said = said.format(own=Path(path).with_name("own.py"))
    assert said in err, err


def test_a_job_without_time_steps_takes_no_horizon(tmp_path):
    path = str(write_config(tmp_path))
    code, out, _ = run(path)
    assert code == 0 and "horizon" not in out
    code, _, err = run(path, "--horizon", "5")
    assert code == 2 and 'has no parameter `steps` to set to --horizon 5\n  do: write horizon = "<name>"' in err


def test_the_job_is_built_once_where_only_live_parameters_change():
    from qdrun.jobs.mass_spring import MassSpring, MassSpringParams

    class Counted(MassSpring):
        built = 0

        def build(self):
            type(self).built += 1
            super().build()

    rows, precision, rebuilt, _ = run_checks(Counted(MassSpringParams(steps=32)))
    assert (Counted.built, precision, len(rows), rebuilt) == (1, "f64", 5, "")
    assert all(row.agrees(1e-6) and row.tells for row in rows)


def test_a_gradient_of_another_shape_is_refused():
    class Wrong(JobParams):
        x: list[float] = Field([1.0, 2.0])

    class Shapes(Job[Wrong]):
        gradients = ("x",)
        needs_compiler = False

        def build(self): ...

        def run(self):
            return Outcome(1.0, {"x": np.zeros(3)})

    with pytest.raises(BadOutcome, match=r"the gradient of `x` with shape \(3,\), the parameter has shape \(2,\)"):
        check_gradients(Shapes, Wrong())


def test_a_loss_that_is_a_small_rest_of_large_parts_has_more_noise_than_its_digits(config):
    path = str(Path(__file__).parents[2] / "configs" / "optimize.yaml")
    code, out, _ = run(path, "--horizon", "16")  # the robot has not touched the ground: it moves by the rounding of its masses
    assert code == 1 and "nothing to compare" in out and "DIFFERS" not in out


def test_lists_with_an_item_for_each_time_step_are_cut_with_the_horizon(config):
    code, out, err = run(config("Push"))
    assert code == 0, err
    assert "horizon: steps = 32 of 100, and push, rest cut to it\n" in out
    data = json.loads(run(config("Push"), "--horizon", "5", "--most", "99", "--json")[1])
    assert data["horizon"] == {"steps": 5} and data["cut"] == ["push", "rest"] and not data["unshortened"]
    assert [row["name"] for row in data["rows"]] == ["push"] * 5 + ["rest"] * 6 + ["each"] * 7
    assert data["rows"][0]["given"] == pytest.approx(np.cos(0.01) * 0.5, rel=1e-12) and data["agrees"]


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("Period", {}, "Period raised ValueError: too few steps for a period"),
        ("Push", {"strict": True}, "Push does not take steps = 32: value error, a hundred pushes"),
    ],
)
def test_the_whole_horizon_is_run_and_said_where_nothing_shorter_works(config, name, params, said):
    code, out, err = run(config(name, params), "--most", "1")
    assert code == 0, err
    assert f"horizon: steps = 100 of 100\nthe whole horizon was run, for with fewer steps: {said}\n" in out
    code, _, err = run(config(name, params), "--horizon", "32")
    assert code == 2 and said in err


def test_an_index_out_of_bounds_is_the_users_line(config):
    code, _, err = run(config("Away"))
    assert code == 2
    assert f"index out of range: axis 0 of `field` has index {1 << 29} but extent 4\n  at " in err
    assert "in kernel `cube`\n    loss[None] += field[i + (1 << 29)]\n                  ^^^^" in err


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_a_job_that_ends_its_process_is_told_with_its_signal_and_its_parameters(config, words):
    path = config("Ends", {"x": 3.5})
    result = CliRunner().invoke(app, ["check", path, "--set", "job.params.ticks=7", *words])
    assert result.exit_code == 1
    said = json.loads(result.stdout.removeprefix("about to end\n"))["error"]["message"] if words else result.stderr
    assert "own.py:Ends died by SIGABRT (Aborted) while it was checked\n  at base (x=3.5, " in said and "ticks=7" in said
    assert "\n  every index of its kernels was checked, so other native code" in said and "\n  do: `gdb --args python" in said
    assert "Fatal Python error: Aborted" in result.stderr
    for name, code in (("Right", 0), ("Unnamed", 2), ("Away", 1)):
        extra = ["--set", "debug={bounds: false, asserts: false}"] if name == "Away" else []
        result = CliRunner().invoke(app, ["check", config(name), *extra])
        assert result.exit_code == code, result.stderr
    assert "died by SIGSEGV (Segmentation fault)" in result.stderr and "its indices were not checked" in result.stderr
