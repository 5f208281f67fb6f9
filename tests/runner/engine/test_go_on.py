"""Batches that go on under a lease, through the whole loop: each lane builds one program for all batches of a group."""

import time

import pytest
from runner_helpers import write_config

from qdrun.jobs.core.batch import BatchSession
from qdrun.runner.engine import start
from qdrun.runner.observe.table import rows

from .local import ThreadWorkers, run_config
from .test_elastic import cpu

LANES = 2


def run(folder, batch):
    config = write_config(
        folder,
        target="qdrun.jobs.mass_spring:MassSpring",
        params={"steps": 6},
        sweep={"stiffness": {"linspace": [300.0, 900.0, 24]}},
        more=f"batch: {batch}\n",
    )
    config.write_text(config.read_text().replace("gradients: [x, target]", "gradients: [stiffness]"))
    state, made, _ = run_config(config, found=[cpu(1 << 30, lanes=LANES)])
    assert state == "done"
    return {row["param.stiffness"]: (row["loss"], row["grad.stiffness"]) for row in rows(made)}


def test_each_lane_builds_one_program_for_all_batches_of_a_group(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "RayWorkers", ThreadWorkers)
    opened, original, ran, columns = [], BatchSession.open.__func__, [], BatchSession.run_columns

    def open_(cls, *args, **options):
        opened.append(original(cls, *args, **options))
        return opened[-1]

    def run_columns(self, *args, **options):
        ran.append(self)
        time.sleep(0.3)  # as a batch of many trials takes: the next one is here before this one is over
        return columns(self, *args, **options)

    monkeypatch.setattr(BatchSession, "open", classmethod(open_))
    monkeypatch.setattr(BatchSession, "run_columns", run_columns)
    for name in ("together", "alone"):
        (tmp_path / name).mkdir()
    together = run(tmp_path / "together", 2)
    assert len(ran) == 12 and len(opened) <= 2 * LANES  # on a machine that is slow the next one comes late now and then
    alone = run(tmp_path / "alone", "off")
    assert len(ran) == 12 and together.keys() == alone.keys()
    for key, (loss, gradient) in together.items():
        assert loss == pytest.approx(alone[key][0], rel=1e-12) and gradient == pytest.approx(alone[key][1], rel=1e-12)
