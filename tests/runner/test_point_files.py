"""Points of a sweep from files and tables, and arrays that are drawn: what is read, and what is refused with its row."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.config.axes import SweepSection
from qdrun.runner.config.point_files import PointFileError, columns_of, values_of
from qdrun.runner.config.sweep import SweepError, expand

JOB = """
from pydantic import Field
import qdrun as qd
from qdrun.jobs.base import Job, JobParams

class Params(JobParams):
    x: tuple[float, ...] = Field((1.0, 2.0), min_length=2, max_length=2)
    k: float = Field(1.0, gt=0)

class Bowl(Job[Params]):
    gradients = ("x",)

    def build(self):
        x, k, loss = self.input("x"), self.input("k"), self.objective()

        @qd.kernel
        def bowl():
            for i in x:
                loss[None] += k[None] * x[i] ** 2

        self.bowl = bowl

    def simulate(self):
        self.bowl()
"""


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def points(folder, **section):
    return [point.values for point in expand(SweepSection.model_validate(section), folder)]


@pytest.fixture
def rows(tmp_path):
    """Three points of two numbers, in all kinds of files."""
    found = np.random.default_rng().normal(size=(3, 2))
    np.save(tmp_path / "x.npy", found)
    np.savez(tmp_path / "x.npz", x=found, k=np.arange(1, 4))
    parquet.write_table(pa.table({"start": found.tolist(), "k": [1, 2, 3]}), tmp_path / "x.parquet")
    (tmp_path / "k.csv").write_text("k,name\n1,a\n2,b\n3,c\n")
    return found.tolist()


def test_values_come_from_arrays_and_columns(tmp_path, rows):
    assert (
        values_of(tmp_path / "x.npy")
        == values_of(tmp_path / "x.npz", "x")
        == values_of(tmp_path / "x.parquet", "start")
        == rows
    )
    assert values_of(tmp_path / "x.npz", "k") == values_of(tmp_path / "k.csv", "k") == [1, 2, 3]
    assert points(tmp_path, params={"x": {"file": "x.npy"}, "k": [1.0, 2.0]}) == [
        {"x": x, "k": k} for x in rows for k in (1.0, 2.0)
    ]
    table = {"file": "x.parquet", "columns": {"x": "start", "k": "k"}}
    assert points(tmp_path, method="list", table=table) == [{"x": x, "k": k} for x, k in zip(rows, (1, 2, 3))]
    assert points(tmp_path, method="list", table={"file": "k.csv"})[1] == {"k": 2, "name": "b"}


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("none.npy", None, "is not there"),
        ("x.txt", None, "is no file of values"),
        ("x.npz", None, "has 2 columns, and nothing says which one"),
        ("x.npz", "y", "has no `y`"),
        ("x.npy", "y", "is one array and has no `y`"),
        ("x.parquet", "y", "has no column `y`"),
        ("damaged.npy", None, "cannot be read"),
        ("damaged.parquet", None, "cannot be read"),
        ("objects.npy", None, "cannot be read"),
        ("scalar.npy", None, "values are numbers along a first axis"),
        ("text.npy", None, "values are numbers along a first axis"),
        ("empty.npy", None, "has 0 values"),
        ("gap.csv", "k", "row 1 of .*gap.csv has no `k`"),
    ],
)
def test_what_gives_no_values_is_refused_by_name(tmp_path, rows, name, column, said):
    for damaged in ("damaged.npy", "damaged.parquet"):
        (tmp_path / damaged).write_bytes(b"PAR1 and no more")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "scalar.npy", np.array(1.0))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.save(tmp_path / "empty.npy", np.zeros((0, 2)))
    (tmp_path / "gap.csv").write_text("k,name\n1,a\n,b\n")
    with pytest.raises(PointFileError, match=said):
        values_of(tmp_path / name, column)


def test_a_table_without_a_named_column_is_refused(tmp_path, rows):
    with pytest.raises(PointFileError, match="has no column `other`") as caught:
        columns_of(tmp_path / "x.parquet", {"x": "other"})
    assert caught.value.allowed == ("start", "k")
    np.save(tmp_path / "nan.npy", np.array([[1.0, np.nan]]))
    with pytest.raises(SweepError, match="`x` has a value that is not finite"):
        points(tmp_path, params={"x": {"file": "nan.npy"}})
    parquet.write_table(pa.table({"k": [1.0, math.nan]}), tmp_path / "nan.parquet")
    with pytest.raises(SweepError, match=r"row 1 of .* has a `k` that is not finite"):
        points(tmp_path, method="list", table={"file": "nan.parquet"})


@pytest.mark.parametrize("form", [{"normal": [0.0, 0.5]}, {"uniform": [-1, 1]}, {"loguniform": [1e-3, 1]}, {"randint": [0, 9]}])
@pytest.mark.parametrize("shape", [3, [2, 3]])
def test_draws_have_the_shape_that_is_asked_for_and_begin_with_the_same_ones(tmp_path, form, shape):
    drawn = [points(tmp_path, seed=4, params={"x": form | {"shape": shape, "samples": n}}) for n in (2, 5)]
    assert drawn[0] == drawn[1][:2] and np.shape(drawn[1][0]["x"]) == tuple(np.atleast_1d(shape))
    assert len({json.dumps(one) for one in drawn[1]}) == 5
    assert points(tmp_path, method="random", seed=4, samples=2, params={"x": form | {"shape": shape}}) == drawn[0]


def test_a_run_from_a_table_needs_the_table_no_more(tmp_path, rows, monkeypatch):
    (tmp_path / "bowl.py").write_text(JOB)
    parquet.write_table(pa.table({"x": rows, "k": [1.0, 2.0, 3.0]}), tmp_path / "points.parquet")
    config = tmp_path / "bowl.yaml"
    config.write_text(
        "version: 1\nname: bowl\njob: {target: bowl.py:Bowl}\ndevice: {backend: cpu}\n"
        "sweep: {method: list, table: {file: points.parquet}}\n"
    )
    monkeypatch.chdir(tmp_path)
    done = call("submit", config, "--output", tmp_path / "run")
    assert done.exit_code == 0, done.output
    (tmp_path / "points.parquet").unlink()
    (run,) = (tmp_path / "run").iterdir()
    resumed = call("resume", run, "--dry-run")
    assert resumed.exit_code == 0, resumed.output
    again = call("rerun", run, "@1", "--output", tmp_path / "again")
    assert again.exit_code == 0, again.output
    found = json.loads(call("results", run, "--format", "json").output)
    np.testing.assert_allclose(
        [row["loss"] for row in found], [k * np.sum(np.square(x)) for x, k in zip(rows, (1, 2, 3))], rtol=1e-5
    )
    np.testing.assert_allclose(
        [row["grad.x"] for row in found], [2 * k * np.array(x) for x, k in zip(rows, (1, 2, 3))], rtol=1e-5
    )
    parquet.write_table(pa.table({"x": rows, "k": [1.0, -2.0, 3.0]}), tmp_path / "points.parquet")
    refused = call("plan", config)
    assert refused.exit_code == 2 and "greater than 0, got -2.0 (row 1, column `k` of points.parquet)" in refused.output, (
        refused.output
    )
