"""``Job.data``: files that a job is built from; ``Job.save``: files that it leaves after a run."""

import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from pydantic import BaseModel

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome, Session, execute, why_not_batched
from qdrun.jobs.core.inputs import InputFiles, InputMissing, fetched, located
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class FitParams(JobParams):
    x: float = 3.0
    target: str = "target.npy"


class Fit(Job[FitParams]):
    """loss = sum((x - target)**2); leaves the residuals, and the number of its runs."""

    gradients = ("x",)

    def build(self):
        values = np.load(self.data(self.params.target))
        self.x, self.loss = self.input("x"), self.objective()
        self.target, self.away = qd.field(qd.f64, shape=len(values)), qd.field(qd.f64, shape=len(values), needs_grad=True)
        self.target.from_numpy(values)
        x, loss, target, away = self.x, self.loss, self.target, self.away

        @qd.kernel
        def subtract():
            for i in away:
                away[i] = x[None] - target[i]

        @qd.kernel
        def add():
            for i in away:
                loss[None] += away[i] ** 2

        self.subtract, self.add = subtract, add

    def simulate(self):
        self.subtract()
        self.add()

    def save(self):
        np.save(self.artifacts / "away.npy", self.away.to_numpy())


TARGET = np.array([1.0, 2.0, 4.0])


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "target.npy", TARGET)
    return tmp_path


def fit(folder, **params):
    return Fit(located(FitParams(**params), InputFiles(str(folder))), wanted=["x"])


def left(job):
    taken = job.take_artifacts()
    with taken as place:
        return {path.name: np.load(path) for path in Path(place).iterdir()}


def test_data_lies_relative_to_the_config_and_is_known_once_the_job_is_built(folder, monkeypatch):
    job = fit(folder)
    assert execute(job, **HOW).outcome.loss == pytest.approx(((3.0 - TARGET) ** 2).sum())
    assert job.asked == {"target.npy": folder / "target.npy"}
    monkeypatch.chdir(folder)
    assert execute(Fit(FitParams()), **HOW).outcome.loss == pytest.approx(((3.0 - TARGET) ** 2).sum()), "without a runner"
    moved = InputFiles("/nowhere", {"target.npy": str(folder / "target.npy")})
    assert execute(Fit(located(FitParams(), moved)), **HOW).outcome.loss > 0
    assert FitParams() == FitParams() and FitParams(x=1.0).model_dump() == {"x": 1.0, "target": "target.npy"}


def test_data_that_is_missing_or_asked_for_too_late_says_what_to_do(folder):
    with pytest.raises(
        InputMissing, match=r"^Fit\.data\('no\.npy'\) names /.*/no\.npy, which is not on .*\n  do: put it there \(relative"
    ):
        execute(fit(folder, target="no.npy"), **HOW)
    with (
        fit(folder).opened() as job,
        pytest.raises(RuntimeError, match=r"^Fit\.data\('late'\) is called after build\(\)\n  do: call it"),
    ):
        job.data("late")

    class Bare(BaseModel):
        x: float = 1.0

    class Other(Job[Bare]):
        needs_compiler = False

        def build(self):
            self.data("x")

    with pytest.raises(TypeError, match=r"Other\.data\('x'\): Bare does not know the config\n  do: derive it from JobParams"):
        execute(Other(Bare()), **HOW)


def test_a_uri_is_downloaded_once_for_each_version_of_it(folder, tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.put_file(str(folder / "target.npy"), "/bucket/target.npy")
    cache, calls = tmp_path / "cache", []
    real = type(memory).get_file
    monkeypatch.setattr(
        type(memory), "get_file", lambda self, *args, **more: calls.append(args[0]) or real(self, *args, **more)
    )
    params = located(FitParams(target="memory://bucket/target.npy"), InputFiles(str(folder), {}, str(cache)))
    for _ in range(2):
        job = Fit(params, wanted=["x"])
        assert execute(job, **HOW).outcome.loss == pytest.approx(((3.0 - TARGET) ** 2).sum())
    assert len(calls) == 1 and job.asked["memory://bucket/target.npy"].is_relative_to(cache)
    np.save(folder / "target.npy", TARGET + 1.0)
    memory.put_file(str(folder / "target.npy"), "/bucket/target.npy")
    assert execute(Fit(params, wanted=["x"]), **HOW).outcome.loss == pytest.approx(((2.0 - TARGET) ** 2).sum())
    memory.pipe({"/bucket/deep/a.txt": b"a", "/bucket/deep/er/b.txt": b"b"})
    place = fetched("memory://bucket/deep", str(cache))
    assert place.name == "deep" and [(place / name).read_bytes() for name in ("a.txt", "er/b.txt")] == [b"a", b"b"]
    assert fetched(f"file://{folder}/target.npy") == folder / "target.npy"
    assert fetched("memory://bucket/deep/a.txt").read_bytes() == b"a", "in a folder that goes with the process"
    with pytest.raises(
        InputMissing, match=r"^memory://bucket/gone cannot be read: FileNotFoundError: .*\n  do: check the URI and the"
    ):
        fetched("memory://bucket/gone", str(cache))
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_lanes_that_download_at_once_get_whole_files(tmp_path):
    fsspec.filesystem("memory").pipe("/bucket/big", bytes(1 << 20))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(fetched("memory://bucket/big", str(tmp_path)).stat().st_size))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1 << 20] * 8


def test_a_file_that_comes_in_part_is_no_input(tmp_path, monkeypatch):
    system = fsspec.filesystem("memory")
    system.pipe("/bucket/part", b"whole")
    monkeypatch.setattr(type(system), "get_file", lambda self, found, to: Path(to).write_bytes(b"who"))
    with pytest.raises(InputMissing, match="memory://bucket/part cannot be read: OSError: 3 of 5 bytes of /bucket/part came"):
        fetched("memory://bucket/part", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_job_saves_once_after_its_run_and_in_a_descent_at_the_point_that_is_kept(folder):
    job = fit(folder)
    execute(job, **HOW)
    np.testing.assert_array_equal(left(job)["away.npy"], 3.0 - TARGET)
    section = {"rule": "sgd", "steps": 3, "learning_rate": 0.4, "params": ["x"]}
    found = execute(job := fit(folder), **HOW, body=body_of(section)).outcome
    best = float(np.asarray(found.outputs["opt.x"]))
    assert found.outputs["opt.kept"] < 3.0, "the steps are too long: the best point is not the last one"
    assert OptimizeSection.model_validate(section).keep == "best"
    np.testing.assert_array_equal(left(job)["away.npy"], best - TARGET)
    assert why_not_batched(Fit, job.params) == "it overrides save()"
    with Session(fit(folder), backend="cpu", threads=1) as session:
        session.run()
        assert session.job.take_artifacts() is None, "only a whole trial is saved"
    assert Job.save(job) is None and not Late(FitParams()).saves()


class Late(Job[FitParams]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        (self.artifacts / "x.txt").write_text("x")
        return Outcome(1.0)


@pytest.mark.parametrize("how", ["kernel", "field", "fails"])
def test_what_save_may_not_do_is_refused_and_what_it_raises_is_the_trials_error(folder, how):
    class Wrong(Fit):
        def save(self):
            if how == "kernel":
                self.subtract()
            elif how == "field":
                self.away.fill(0.0)
            raise ValueError("no room for videos")

    kind, message = {
        "kernel": (
            qd.QdrunRuntimeError,
            r"^kernel `subtract` is launched in Wrong\.save\(\), which may only read\n  do: launch it",
        ),
        "field": (
            qd.QdrunRuntimeError,
            r"^Python writes `away` in Wrong\.save\(\), which may only read\n  do: write it before, or to an",
        ),
        "fails": (ValueError, "no room for videos"),
    }[how]
    with pytest.raises(kind, match=message):
        execute(Wrong(located(FitParams(), InputFiles(str(folder)))), **HOW)
    job = fit(folder)
    assert execute(job, **HOW).outcome.loss > 0, "nothing is left behind"
