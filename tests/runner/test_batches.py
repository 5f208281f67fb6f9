"""Which trials of a sweep run together, how many of them, and what is said of the others. The jobs' side is a stand-in with known sizes."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_helpers import write_config

from qdrun.jobs.base import MemoryPlan
from qdrun.jobs.planning.batch_plan import BatchPlan, HeapPiece
from qdrun.jobs.planning.groups import BuildFacts
from qdrun.runner.config.model import load_config
from qdrun.runner.config.yaml_lines import ConfigError
from qdrun.runner.engine.parts import NOT_CHARGED, Charges, TrialAt
from qdrun.runner.engine.start import batched
from qdrun.runner.observe.planned import SweepPlan
from qdrun.runner.observe.show import plan_text
from qdrun.runner.packing import DeviceSpec, Pool
from qdrun.runner.study import batches
from qdrun.runner.study.batches import Batches, BatchGroup, chunks, groups_of
from qdrun.runner.study.plan import all_same, make_plan
from qdrun.runner.study.prepare import prepare
from qdrun.runner.value_columns import ValueColumn

MIB = 1 << 20


class Known(BatchPlan):
    """Groups of 8 trials, 1,000 bytes each, 500 for all."""

    def bytes(self, trials):
        return 500 + -(-trials // 8) * 8 * 1000

    def max_batch(self, limit):
        return max(0, (limit - 500) // 8000 * 8)


PLAN = Known(8, 1000, 500, (HeapPiece(1, 0, 0),), MemoryPlan())


@pytest.fixture
def known(monkeypatch):
    """``x`` and ``target`` are inputs."""
    asked = []

    def key(job, params, *, wanted=None):
        return json.dumps([params.model_dump(exclude={"x", "target"}), len(params.target)])

    def plan(job, params, **options):
        asked.append(options)
        return PLAN

    monkeypatch.setattr(batches, "group_key", key)
    monkeypatch.setattr(batches, "found_of", lambda job, params, wanted: BuildFacts(("x", "target")))
    monkeypatch.setattr(batches, "why_not_batched", lambda job, params, **options: "")
    monkeypatch.setattr(batches, "batch_plan", plan)
    return asked


def park(memory=100 * MIB, lanes=2, count=1, kind="cpu"):
    return [Pool(f"p{k}", memory) for k in range(count)], [DeviceSpec(f"d{k}", f"p{k}", kind, lanes, 0) for k in range(count)]


def groups(tmp_path, sweep, more="", where=None):
    prepared, job = prepare(write_config(tmp_path, sweep=sweep, more=more))
    pools, devices = where or park()
    return prepared, groups_of(prepared, job, make_plan(prepared, job), {"cpu": 1}, pools, devices)


def test_trials_that_differ_in_inputs_alone_are_one_group(tmp_path, known):
    sweep = {"x": [float(k) for k in range(40)], "scale": [1.0, 2.0], "size": [4, 5]}
    prepared, found = groups(tmp_path, sweep)
    assert len(known) == 2, "once for each shape"
    params = [trial.params for trial in prepared.trials]
    assert sorted(len(group.places) for group in found) == [40] * 4
    for group in found:
        assert len({(params[place]["scale"], params[place]["size"]) for place in group.places}) == 1
        assert not group.why


@pytest.mark.parametrize(
    ("more", "memory", "lanes", "size"),
    [
        ("", 100 * MIB, 2, 56),  # 400 trials, 2 lanes, 4 rounds: 50, and 8 side by side
        ("", 100 * MIB, 1, 104),
        ("", 2 * (500 + 16_000), 2, 16),  # each lane has half of the memory
        ("batch: 20\n", 100 * MIB, 2, 20),
        ("batch: 1000\n", 100 * MIB, 2, 400),
        ("batch: 1000\n", 500 + 24_000, 2, 24),
        ("batch: 2\n", 100 * MIB, 2, 2),
        ("memory_budget: 1009\n", 100 * MIB, 2, 56),
        ("memory_budget: 1008\n", 100 * MIB, 2, 400),  # the 500 bytes of each batch are less for each of more trials
    ],
)
def test_a_batch_fits_and_there_are_enough_for_all_lanes(tmp_path, known, more, memory, lanes, size):
    _, (group,) = groups(tmp_path, {"x": [float(k) for k in range(400)]}, more, park(memory, lanes))
    assert (min(group.size, 400), group.why) == (size, "")


@pytest.mark.parametrize(
    ("sweep", "more", "where", "why"),
    [
        ({"x": [1.0, 2.0]}, "batch: off\n", None, "`batch: off`"),
        ({"x": [1.0, 2.0]}, "batch: 1\n", None, "`batch: 1`"),
        ({"x": [1.0, 2.0]}, "memory_budget: auto\n", None, "`memory_budget: auto` chooses the bytes of each trial"),
        ({"x": [1.0, 2.0]}, "memory_budget: 4000\n", None, "`memory_budget` is 4,000 bytes, a trial of a batch takes 4,250"),
        ({"x": [1.0, 2.0]}, "", park(1000), "two of them do not fit into the memory of a device"),
        ({"x": [1.0]}, "", None, "no other trial differs from it in inputs alone"),
    ],
)
def test_what_runs_one_by_one_is_said_with_the_reason(tmp_path, known, sweep, more, where, why):
    prepared, (group,) = groups(tmp_path, sweep, more, where)
    assert group.size == 1 and group.why.startswith(why)
    text = plan_text(prepared, [], None, [group])
    assert f"{len(group.places)} trial{'s' if len(group.places) > 1 else ''} one by one: {why}" in text


def test_the_reason_of_the_job_and_a_batch_that_cannot_be_planned_are_told(tmp_path, known, monkeypatch):
    monkeypatch.setattr(batches, "why_not_batched", lambda job, params, **options: "it overrides run()")
    assert groups(tmp_path, {"x": [1.0, 2.0]})[1][0].why == "it overrides run()"

    def broken(*args, **options):
        raise RuntimeError("no plan")

    monkeypatch.setattr(batches, "why_not_batched", lambda job, params, **options: "")
    monkeypatch.setattr(batches, "batch_plan", broken)
    assert "a batch cannot be planned" in groups(tmp_path, {"x": [1.0, 2.0]})[1][0].why


def test_the_plan_shows_groups_their_batches_and_bytes(tmp_path, known):
    prepared, found = groups(tmp_path, {"x": [float(k) for k in range(40)]}, "batch: 16\n")
    text = plan_text(prepared, [], None, found)
    assert f"40 trials like x=0: 3 batches of up to 16 in groups of {found[0].width}, 16.1 KiB each on cpu" in text
    data = SweepPlan(prepared, [], None, found).data
    assert data["batch"] == 16
    sizes = {"trials": 40, "example": "x=0", "size": 16, "width": found[0].width, "why": None, "batches": 3}
    assert data["batches"] == [sizes | {"bytes": {"cpu": 16500}}]


def test_the_claim_of_a_batch_is_exact_and_equal_ones_share_an_object():
    places = range(1, 21)
    made = Batches([BatchGroup(places, "t0", 8, {"cpu": PLAN}), BatchGroup((0,), "a", why="so")], 3.0)
    assert made.claims(places[:8]) is made.claims(places[8:16])
    (point,) = made.claims(places[:3])["cpu"].points
    assert (point.bytes, made.claims(places[:3])["cpu"].seconds) == (8500, 3.0)
    assert made.has(4) and not made.has(0) and not made.has(99)
    order = made.of(range(21), alone=[3])
    assert [tuple(batch) for batch in order] == [(0,), (1, 2, *range(4, 10)), (*range(10, 18),), (18, 19, 20), (3,)]
    assert made.of(range(1, 21)) == [places[:8], places[8:16], places[16:]], "neighbours are a range"


def test_a_resumed_run_has_suspects_of_a_crash_in_batches_of_their_own_and_the_guilty_by_themselves():
    places = range(12)
    made = Batches([BatchGroup(places, "t0", 4, {"cpu": PLAN})])
    charged = {8: Charges(crash=1)}
    work = [TrialAt(place, 0, charged.get(place, NOT_CHARGED), place in (1, 2, 3, 5, 7, 8)) for place in places]
    found = batched(work, made)
    assert (8,) in found and [place for batch in found[-2:] for place in batch] == [1, 2, 3, 5, 7]
    assert sorted(place for batch in found for place in batch) == list(places)
    assert max(map(len, found)) <= 4


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 200), st.integers(1, 70), st.sampled_from((1, 4, 8)))
def test_chunks_are_all_of_it_none_is_too_large_and_they_are_nearly_equal(count, size, width):
    found = chunks(range(count), size, width)
    assert [place for part in found for place in part] == list(range(count))
    assert max(map(len, found)) <= size
    if size % width == 0:
        assert len(found) <= -(-count // size) or len(found[0]) % width == 0


def test_columns_are_the_parameters_that_differ_in_any_bit(tmp_path, known):
    prepared, found = groups(tmp_path, {"x": [0.0, 1.0, 2.0]})
    made = prepared.columns(found[0].places)
    assert made.inputs == {"x": [0.0, 1.0, 2.0]}
    assert made.params == prepared.trials[0].params
    assert made.seeds == [trial.seed for trial in prepared.trials]
    assert prepared.spec(prepared.trials[2]) == prepared.shared_spec() | made.own_spec(prepared.trials[2].id, 2)


@pytest.mark.parametrize(
    ("column", "same"),
    [
        ([0.0, -0.0], False),
        ([1, 1.0], False),
        ([1, True], False),
        ([2.0, 2.0], True),
        ([[0.0], [-0.0]], False),
        ([[1.0, 2.0], [1.0, 2.0]], True),
        ([[1, 2], [1.0, 2.0]], False),
        ([None, None], True),
        (["a", "b"], False),
    ],
)
def test_values_are_the_same_to_the_bit_or_not(column, same):
    assert all_same(ValueColumn(column)) is same


@pytest.mark.parametrize(
    ("text", "value"), [("", "auto"), ("batch: auto\n", "auto"), ("batch: off\n", "off"), ("batch: 64\n", 64)]
)
def test_the_key_of_the_config(tmp_path, text, value):
    assert load_config(write_config(tmp_path, more=text)).config.batch == value


@pytest.mark.parametrize("value", ["many", "0", "-3", "1.5", "false", "[8]"])
def test_other_values_are_refused_with_their_line(tmp_path, value):
    path = write_config(tmp_path, more=f"batch: {value}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    line = path.read_text().splitlines().index(f"batch: {value}") + 1
    assert f":{line}:" in str(caught.value)
    assert "is not a number of trials" in str(caught.value) and "allowed: auto, off, a count from 1 on" in str(caught.value)


COMPILED = """
import os, sys
from pathlib import Path
from qdrun.jobs.base import BatchSession
from qdrun.runner.study.batches import compile_batch
from qdrun.runner.study.prepare import prepare

prepared, job = prepare(Path(sys.argv[1]))
if sys.argv[2] == "compile":
    compile_batch(prepared, job, prepared.trials[0])
else:
    params = job.Params.model_validate(prepared.trials[0].params)
    with BatchSession.open(job, params, 19, wanted=prepared.gradients, backend="cpu", threads=1) as session:
        session.job.plan()
        assert len(session.run_columns({}, [0] * 19)) == 19
print(sorted(str(path.name) for path in Path(os.environ["QDRUN_CACHE_DIR"]).rglob("*") if path.is_file()))
"""


def test_kernels_that_are_compiled_before_the_batches_are_those_of_any_size(tmp_path):
    config = write_config(
        tmp_path, target="qdrun.jobs.mass_spring:MassSpring", params={"steps": 3}, sweep={"stiffness": [100.0, 200.0]}
    )
    config.write_text(config.read_text().replace("gradients: [x, target]", "gradients: [stiffness]"))
    environment = {**os.environ, "QDRUN_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILED, str(config)]
    files = [
        subprocess.run([*command, what], env=environment, capture_output=True, text=True, check=True).stdout
        for what in ("compile", "run")
    ]
    assert files[0] == files[1]
    assert files[0].count(",") > 3


def test_batches_of_a_pretended_gpu_are_planned_as_those_of_one_that_is_not_here(tmp_path):
    config = write_config(
        tmp_path,
        target="qdrun.jobs.mass_spring:MassSpring",
        params={"steps": 3},
        sweep={"stiffness": [float(k) for k in range(100, 140)]},
        more="device: {backend: cuda, id: emulated}\n",
    )
    config.write_text(config.read_text().replace("gradients: [x, target]", "gradients: [stiffness]"))
    prepared, job = prepare(config)
    pools, devices = park(kind="cuda/emulated/1")
    (group,) = groups_of(prepared, job, make_plan(prepared, job), {"cuda/emulated/1": 1}, pools, devices)
    assert (group.why, len(group.places)) == ("", 40)
    plan = group.plans["cuda/emulated/1"]
    assert group.size >= 20 and plan.memory.arch == "cuda" and plan.max_batch(plan.bytes(32)) == 32
