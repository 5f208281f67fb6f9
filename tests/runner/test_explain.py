"""``qdrun explain``, ``plan --arch`` and ``memory_budget``: every byte accounted for, remedies that hold, refusals with the arithmetic."""

import json
import re
from collections import Counter

import pytest
from runner_helpers import trial_record, write_config
from typer.testing import CliRunner

import qdrun as qd
from qdrun.runner.cli.app import app
from qdrun.runner.observe import table
from qdrun.runner.observe.show import plan_text, results_text
from qdrun.runner.query.run_table import RunTable
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.study.explain import explain
from qdrun.runner.study.explain import text as explain_text
from qdrun.runner.study.plan import make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.text_grid import grid

run = CliRunner().invoke

SPIN = """
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome


class SpinParams(JobParams):
    speed: float = Field(1.0, description="how fast")
    turns: int = Field(300, ge=1, description="iterations")


class Spin(Job[SpinParams]):
    gradients = ("speed",)

    def build(self):
        self.speed = qd.field(qd.f64, shape=(), needs_grad=True)
        self.loss = qd.field(qd.f64, shape=(), needs_grad=True)
        self.speed[None] = self.params.speed
        speed, loss = self.speed, self.loss

        @qd.kernel
        def spin(turns: qd.i32):
            for i in range(64):
                v = speed[None] + 0.01 * i
                for _ in range(turns):
                    v = qd.sin(v) + 0.5
                loss[None] += v

        self.spin = spin

    def launches(self):
        return [(self.spin, (self.params.turns,))]

    def run(self):
        with qd.ad.Tape(loss=self.loss):
            self.spin(self.params.turns)
        return Outcome(float(self.loss[None]), {"speed": float(self.speed.grad[None])})
"""


@pytest.fixture
def spin(tmp_path):
    """Writes a config on a job whose gradient keeps states; ``more`` are lines of YAML."""
    (tmp_path / "spin.py").write_text(SPIN, encoding="utf-8")

    def write(more="", sweep="{speed: [1.0, 2.0]}"):
        path = tmp_path / "spin.yaml"
        path.write_text(
            f"version: 1\nname: spin\njob: {{target: 'spin.py:Spin'}}\nsweep: {{params: {sweep}}}\n{more}\n", encoding="utf-8"
        )
        return path

    return write


def explained(config, *more):
    result = run(app, ["explain", str(config), "--json", *more])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)["memory"]


def rows_of_spin(threads: int) -> int:
    """Rows of the job's gradient: a worker has one for each SIMD lane, whose number depends on the processor."""
    qd.init(arch=qd.cpu, default_fp=qd.f64, cpu_max_num_threads=threads)
    speed, loss = qd.field(qd.f64, shape=(), needs_grad=True), qd.field(qd.f64, shape=(), needs_grad=True)

    @qd.kernel
    def spin(turns: qd.i32):
        for i in range(64):
            v = speed[None] + 0.01 * i
            for _ in range(turns):
                v = qd.sin(v) + 0.5
            loss[None] += v

    (row,) = spin.grad.plan(300).rows()
    assert row["rows"] % threads == 0 and row["rows"] // threads in (1, 2, 4, 8, 16)
    return row["rows"]


def test_every_byte_is_explained_down_to_the_line_of_the_loop(spin, tmp_path):
    rows = rows_of_spin(threads=2)
    config = spin("device: {threads: 2}", sweep="{speed: [1.0, 2.0], turns: [200, 300]}")
    code, parts = explained(config)
    assert code == 0 and [len(part["trials"]) for part in parts] == [2, 2]
    line = next(n for n, text in enumerate(SPIN.splitlines(), 1) if "range(turns)" in text)
    for part, turns in zip(parts, (200, 300)):
        found = part["explanation"]
        assert found["plan"]["by_kind"]["adstack"] == rows * turns * 8
        (loop,) = found["loops"]
        assert loop["line"] == f"{tmp_path / 'spin.py'}:{line}"
        assert (loop["rows"], loop["bound"], loop["bound_from"], loop["bytes"]) == (rows, turns, "argument", rows * turns * 8)
        entries = found["plan"]["entries"]
        assert sum(e["bytes"] for e in entries if e["kind"] != "code") == found["plan"]["bytes"]
    text = run(app, ["explain", str(config)]).stdout
    assert found["built_again"] == "it overrides run()" and "  built again for each run: it overrides run()\n" in text
    assert f"spin.py:{line}" in text
    assert f"{rows} rows (workers) x 300 x 1 (tape of spin.py" in text
    for title in ("fields and arrays", "loops that keep states", "kernels", "remedies"):
        assert title in text
    assert not (tmp_path / "runs").exists(), "nothing ran"


def test_a_remedy_written_into_the_config_does_what_it_says(spin):
    _, (part,) = explained(spin("device: {threads: 2}"))
    remedies = {remedy["name"]: remedy for remedy in part["explanation"]["remedies"]}
    for name in [name for name in remedies if not name.startswith("qd.init")]:
        _, (again,) = explained(spin(name if name.startswith("device") else f"device: {{threads: 2}}\n{name}"))
        assert again["error"] == ""
        assert again["explanation"]["plan"]["bytes"] == remedies[name]["bytes"], name


@pytest.mark.parametrize("budget", ["", "memory_budget: 20000", "memory_budget: 100"])
def test_a_job_in_time_steps_is_told_the_smallest_budget(tmp_path, budget):
    config = tmp_path / "walk.yaml"

    def write(line):
        job = "job: {target: 'qdrun.jobs.mass_spring:MassSpring', params: {steps: 30, substeps: 20}}"
        config.write_text(f"version: 1\nname: walk\n{job}\n{line}\n", encoding="utf-8")
        return config

    code, (part,) = explained(write(budget))
    assert code == (budget == "memory_budget: 100"), "explained without the budget that is too small"
    names = [remedy["name"] for remedy in part["explanation"]["remedies"]]
    last = part["explanation"]["remedies"][-1]
    assert last["how"].startswith("the smallest budget that works: 30 windows of 1 of 30 steps")
    assert len(names) == len(set(names)) and last["bytes"] == min(r["bytes"] for r in part["explanation"]["remedies"])
    prepared, _ = prepare(write(last["name"]))
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert record["status"] == "done" and record["used_bytes"] == record["planned_bytes"] <= last["bytes"]
    (group,) = make_plan(*prepare(write(f"memory_budget: {last['bytes'] - 1}")))
    assert group.plan is None and f"memory_budget: {last['bytes']}" in group.error


def test_a_budget_goes_through_to_the_trial_and_its_row(spin):
    plain, _ = prepare(spin())
    free = trial_record(plain.spec(plain.trials[0]))
    prepared, job = prepare(spin("memory_budget: 1200"))
    (group,) = make_plan(prepared, job)
    assert group.plan.budget == 1200
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert record["status"] == "done", record
    assert record["used_bytes"] == record["planned_bytes"] == group.plan.bytes <= 1200 < free["used_bytes"]
    assert record["used"] == {kind: n for kind, n in record["planned"].items() if n}
    assert group.plan.by_kind() == {kind: n for kind, n in record["used"].items() if kind != "code"}, (
        "planning compiles nothing"
    )
    assert (record["loss"], record["gradients"]) == (free["loss"], free["gradients"]), "the same bits"


def test_a_budget_that_nothing_fits_is_refused_by_plan_explain_and_trial_with_one_that_works(spin):
    config = spin("memory_budget: 600")
    planned = run(app, ["plan", str(config)])
    assert planned.exit_code == 3
    assert "cannot be planned: OutOfMemory: memory_budget of 600 bytes is too small for one trial: state " in planned.stdout
    smallest = int(re.search(r"memory_budget: (\d+) or more", planned.stdout)[1])
    code, (part,) = explained(config)
    assert code == 1 and "memory_budget of 600 bytes is too small" in part["error"]
    assert part["explanation"]["remedies"][-1]["name"] == f"memory_budget: {smallest}"
    assert "too small" in run(app, ["explain", str(config)]).stdout
    prepared, _ = prepare(config)
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert record["error"]["type"] == "OutOfMemory" and f"memory_budget: {smallest}" in record["error"]["message"]
    prepared, _ = prepare(spin(f"memory_budget: {smallest}"))
    record = trial_record(prepared.spec(prepared.trials[0]))
    assert record["status"] == "done" and record["used_bytes"] <= smallest
    assert run(app, ["plan", str(spin(f"memory_budget: {smallest - 1}"))]).exit_code == 3


def test_amounts_of_memory_are_read_as_everywhere(spin):
    assert prepare(spin("memory_budget: 2GiB"))[0].loaded.config.memory_budget == 2 << 30
    result = run(app, ["plan", str(spin("memory_budget: lots"))])
    assert result.exit_code == 2 and "`lots` is not an amount of memory" in result.stderr


def test_a_plan_above_the_budget_does_not_fit(tmp_path):
    path = write_config(tmp_path, params={"size": 1000})
    path.write_text(path.read_text() + "memory_budget: 1KiB\n")
    result = run(app, ["plan", str(path)])
    assert result.exit_code == 3
    assert "larger than memory_budget (1024 bytes): these trials will not start" in result.stdout


def test_a_plan_for_another_backend_needs_no_device(spin):
    config = spin("device: {threads: 2}")
    result = run(app, ["plan", str(config), "--arch", "cuda"])
    assert result.exit_code == 0, result.output
    assert "planned for cuda, which need not be there" in result.stdout
    assert "64 rows" in result.stdout and "at once" not in result.stdout
    data = json.loads(run(app, ["plan", str(config), "--arch", "cuda", "--json"]).stdout)
    assert data["memory"][0]["by_kind"]["adstack"] == 64 * 300 * 8, "one row for each of 64 iterations"
    assert data["at_once"] is None and data["memory"][0]["arch"] == "cuda"
    refused = run(app, ["plan", str(config), "--arch", "metal"])
    assert refused.exit_code == 1 and "keeps f64 states, and metal has no f64" in refused.stdout
    unknown = run(app, ["explain", str(config), "--arch", "abacus"])
    assert unknown.exit_code == 2 and "'abacus' is not one of" in unknown.output
    _, (part,) = explained(config, "--arch", "cuda")
    assert part["explanation"]["loops"][0]["rows"] == 64
    shares = [int(share) for share in re.findall(r" (\d+) % ", run(app, ["explain", str(config), "--arch", "cuda"]).stdout)]
    assert len(shares) > 2 and 99 <= sum(shares) <= 101, "of the total, in which the driver's context is not"


@pytest.mark.parametrize("width", [100, 140])
def test_tables_fit_the_terminal_and_lose_no_word(spin, monkeypatch, width):
    prepared, job = prepare(spin("device: {threads: 2}"))
    parts, groups = explain(prepared, job), make_plan(prepared, job)

    def tables():
        return explain_text(prepared, parts), plan_text(prepared, groups)

    whole = tables()
    monkeypatch.setattr("qdrun.runner.text_grid._terminal", lambda: width)
    for long, folded in zip(whole, tables()):
        table = [line for line in folded.splitlines() if line.startswith("  ")]
        assert max(map(len, table)) <= width
        lost = Counter("".join(long.split()).replace("-", "")) - Counter("".join(folded.split()).replace("-", ""))
        assert not lost  # what is there twice is the first column, of a table in two parts


def test_the_widest_column_of_a_table_is_folded():
    lines = [["1", "some words in a row"], ["22", "short"]]
    assert grid(["n", "text"], lines, room=0).splitlines()[-2:] == ["1   some words in a row", "22  short"]
    assert grid(["n", "text"], lines, room=18).splitlines()[-3:] == ["1   some words in", "    a row", "22  short"]


def test_no_word_of_a_table_is_broken_and_columns_that_do_not_fit_follow_in_a_second_table():
    lines = [["a1", "WorkerCrashedError: 1.23456e-05 of one-word", "0.000123456789012", "2"]]
    folded = grid(["trial", "error", "out.some_long_name_m", "n"], lines, room=40).splitlines()
    assert folded == [
        *(
            "trial  error",
            "-----  -------------------",
            "a1     WorkerCrashedError:",
            "       1.23456e-05 of",
            "       one-word",
            "",
        ),
        *("trial  out.some_long_name_m  n", "-----  --------------------  -", "a1     0.000123456789012     2"),
    ]
    (broken,) = {max(map(len, grid(["t"], [["x" * 90]], room=30).splitlines()))}
    assert broken == 30, "a word that no line holds is broken"


def test_a_job_that_cannot_be_built_is_explained_by_its_error(spin, tmp_path):
    config = spin()
    (tmp_path / "spin.py").write_text(SPIN.replace("self.spin = spin", "raise RuntimeError('no luck')"), encoding="utf-8")
    code, (part,) = explained(config)
    assert code == 1 and part["error"].startswith("RuntimeError: no luck\n  at ") and part["explanation"] is None
    assert "in build\n    raise RuntimeError('no luck')\n    ^^^^" in part["error"]
    assert "RuntimeError: no luck" in run(app, ["explain", str(config)]).stdout


def test_every_row_of_results_says_how_much_of_its_plan_it_used(spin, tmp_path):
    prepared, job = prepare(spin())
    folder = create(prepared, tmp_path / "runs")
    folder.save_plan(make_plan(prepared, job))
    with Journal(folder) as journal:
        trial = prepared.trials[0]
        journal.write("started", trial=trial.id, attempt=1)
        journal.write("ended", trial=trial.id, attempt=1, **trial_record(prepared.spec(trial)))
    done, waiting = table.rows(folder)
    assert (done["used_of_planned"], waiting["used_of_planned"]) == (1.0, None)
    assert done["used.adstack"] == done["planned.adstack"] == rows_of_spin(threads=1) * 300 * 8
    assert RunTable.of([done, waiting]).batch().column("used_of_planned").to_pylist() == [1.0, None]
    text = run(app, ["results", str(folder.path)]).stdout.splitlines()
    assert text[0].split()[-1] == "used/planned" and text[2].split()[-1] == "1.00" and text[3].split()[-1] == "-"
    for part, shown in ((4864 / 4856, "> 1.00"), (0.9999, "< 1.00"), (1.02, "1.02")):
        assert results_text([{**done, "used_of_planned": part}]).endswith(shown), "1.00 is exactly 1"
