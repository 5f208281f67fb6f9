"""Parameters that are paths, and the folder of a job."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import Field

from qdrun.jobs.base import Job, JobParams, Outcome, Session, execute
from qdrun.jobs.core.inputs import InputFiles, InputMissing, located, paths_in, takes_files
from qdrun.jobs.mass_spring import MassSpring

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class Part(JobParams):
    mesh: Path | None = None
    more: dict[str, Path] = Field({})


class Whole(JobParams):
    table: Path = Path("table.csv")
    parts: list[Part] = Field([])
    pair: tuple[Path, int] = (Path("pair.txt"), 3)
    name: str = "table.csv"


def test_paths_are_found_at_any_depth_and_become_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = ("table.csv", "meshes/a.obj", "b.obj", "pair.txt", "home/c.obj")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    more = {"b": "sub/../b.obj", "c": "~/c.obj"}
    params = Whole.model_validate({"parts": [{"mesh": "meshes/a.obj", "more": more}, {}]})
    (tmp_path / "sub").mkdir()
    assert takes_files(Whole) and not takes_files(MassSpring.Params)
    written = {"table": "table.csv", "parts.0.mesh": "meshes/a.obj", "pair.0": "pair.txt"}
    written |= {f"parts.0.more.{key}": path for key, path in more.items()}
    assert {name: str(path) for name, path in paths_in(params)} == written
    found = located(params, InputFiles(str(tmp_path)))
    assert [found.table, found.parts[0].mesh, found.parts[0].more["b"], found.pair[0], found.parts[0].more["c"]] == [
        tmp_path / name for name in names
    ]
    assert (found.parts[1], found.pair[1], found.name) == (Part(), 3, "table.csv")
    assert params.table == Path("table.csv"), "what was given is as it was"
    moved = InputFiles(str(tmp_path), {"table.csv": str(tmp_path / "b.obj"), "~/c.obj": str(tmp_path / "pair.txt")})
    found = located(params, moved)
    assert [found.table, found.parts[0].mesh, found.parts[0].more["c"]] == [
        tmp_path / n for n in ("b.obj", "meshes/a.obj", "pair.txt")
    ]
    assert InputFiles.of(moved.as_spec()) == moved and InputFiles.of({}) == InputFiles()
    other = MassSpring.Params()
    assert located(other, InputFiles(str(tmp_path))) is other


def test_a_file_that_is_not_on_this_machine_is_named(tmp_path):
    with pytest.raises(InputMissing, match=r"^the parameter `table` names /.*/table.csv, which is not on .*\n  do: put it on"):
        located(Whole(), InputFiles(str(tmp_path)))


class WritesParams(JobParams):
    x: float = 1.0


class Writes(Job[WritesParams]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        (self.artifacts / f"{self.params.x}.txt").write_text("text")
        return Outcome(self.params.x, {}, {"files": np.array(float(len(list(self.artifacts.iterdir()))))})


def test_the_folder_of_a_job_is_made_when_it_is_asked_for_and_goes_with_the_job():
    one = Writes(WritesParams())
    assert one.take_artifacts() is None
    execute(one, **HOW)
    where = one.artifacts
    assert (where / "1.0.txt").read_text() == "text"
    del one
    assert not where.exists()


def test_a_folder_that_was_taken_is_the_takers_and_the_next_run_has_an_empty_one():
    one = Writes(WritesParams())
    with Session(one, backend="cpu", threads=1) as session:
        session.run()
        taken = one.take_artifacts()
        assert session.run(WritesParams(x=2.0)).outputs["files"] == 1.0
        assert [path.name for path in one.artifacts.iterdir()] == ["2.0.txt"]
    assert [path.name for path in Path(taken.name).iterdir()] == ["1.0.txt"]
    taken.cleanup()
