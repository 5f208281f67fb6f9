"""A sweep in batches from the command to the table: the rows are those of trials that run one by one."""

import numpy as np
import pytest
from runner_helpers import write_config

from qdrun.runner import submit
from qdrun.runner.store.follower import read

ROBOTS = """version: 1
name: robots
job: {target: "qdrun.jobs.mass_spring:MassSpring", params: {steps: 12}}
gradients: [stiffness, actuation]
sweep:
  method: random
  samples: 21
  seed: 3
  params: {stiffness: {uniform: [100.0, 1000.0]}, actuation.0: {uniform: [0.1, 0.4]}}
"""
NUMBERS = ("loss", "gradient_norm", "grad.stiffness", "grad.actuation", "out.walked_m")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, local_ray):
    """The same sweep in batches of up to 8, and one by one."""
    folder = tmp_path_factory.mktemp("robots")
    text = ROBOTS + f"output: {folder}/runs\n"
    return [submit(write_config(folder, text=text, more=f"batch: {batch}\n")) for batch in (8, "off")]


def test_rows_of_batches_are_those_of_single_trials(runs):
    together, alone = ({row["trial"]: row for row in run.rows} for run in runs)
    assert list(together) == list(alone)
    for name, row in together.items():
        assert row["status"] == alone[name]["status"] == "done"
        assert row["seed"] == alone[name]["seed"]
        for column in NUMBERS:
            expected = np.atleast_1d(alone[name][column])
            assert np.allclose(row[column], expected, rtol=1e-10, atol=1e-15 + 1e-13 * np.abs(expected).max()), (name, column)
        assert row["used_of_planned"] == 1.0
        assert row["attempts"] == 1
        assert row["launched"].startswith(("recorded: ", "one by one, as a first run is"))
        assert "; trials of a group: " in row["launched"] and "; " not in alone[name]["launched"]
    columns = [set(run.arrow.column_names) for run in runs]
    assert {name for name in columns[0] ^ columns[1] if not name.endswith(".trials")} == set()


def test_the_journal_has_a_line_for_each_batch(runs):
    entries = [entry for entry in read(runs[0].folder).entries if entry.event["event"] == "ended"]
    assert len(entries) == 21
    assert len({(entry.segment, entry.start) for entry in entries}) == 3


def test_arrays_of_a_batch_are_read_by_trial(runs):
    together, alone = runs
    for name in list(together.gradients):
        got, expected = together.gradients[name], alone.gradients[name]
        assert got["actuation"].shape == expected["actuation"].shape == (4,)
        assert np.allclose(got["stiffness"], expected["stiffness"], rtol=1e-10)


OPTIMIZE = """optimize: {rule: adam, steps: 4, learning_rate: 0.05, scale: {stiffness: 1000}, bounds: {actuation: [0, 0.5]}}
"""


def test_descents_of_a_batch_find_what_single_trials_find(one_worker, tmp_path):
    text = ROBOTS.replace("samples: 21", "samples: 5") + OPTIMIZE + f"output: {tmp_path}/runs\n"
    together, alone = (
        {row["trial"]: row for row in submit(write_config(tmp_path, text=text, more=f"batch: {batch}\n")).rows}
        for batch in (8, "off")
    )
    assert list(together) == list(alone) and len(alone) == 5
    for name, row in together.items():
        assert row["status"] == alone[name]["status"] == "done"
        assert row["out.opt.steps"] == 4.0 and row["out.opt.stopped"] == 0.0
        for column in (*NUMBERS, "out.opt.history", "out.opt.stiffness", "out.opt.actuation", "out.opt.gradient_norm"):
            expected = np.atleast_1d(alone[name][column])
            assert np.allclose(row[column], expected, rtol=1e-8, atol=1e-11 * np.abs(expected).max()), (name, column)


GRID = """version: 1
name: grid
job: {target: "qdrun.jobs.mass_spring:MassSpring", params: {steps: 12}}
gradients: [stiffness, actuation]
device: {backend: cpu, slots: 1}
sweep: {params: {stiffness: [150.0, 300.0, 450.0, 600.0], damping: [0.0, 0.4, 0.9]}}
"""


def test_batches_that_have_one_value_of_a_parameter_each_have_their_own(local_ray, tmp_path):
    """They run in one program, which was opened with the value of the first."""
    text = GRID + f"output: {tmp_path}/runs\n"
    together, alone = (
        {row["trial"]: row for row in submit(write_config(tmp_path, text=text, more=f"batch: {batch}\n")).rows}
        for batch in (3, "off")
    )
    assert list(together) == list(alone) and len({row["loss"] for row in alone.values()}) == 12
    for name, row in together.items():
        for column in NUMBERS:
            expected = np.atleast_1d(alone[name][column])
            assert np.allclose(row[column], expected, rtol=1e-10, atol=1e-15 + 1e-13 * np.abs(expected).max()), (name, column)
