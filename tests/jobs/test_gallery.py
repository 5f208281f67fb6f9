"""What every job of the gallery has: one readable file, batches, a reference, two configs, tests, a picture, a section of the page."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml
from gallery_checks import REFERENCES, reference

from benchmarks.gallery import CASES
from qdrun.jobs.base import Job, why_not_batched

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in REFERENCES.glob("*.json"))
MOST_LINES, MOST_SECONDS = 150, 20
FULL_SIZE = {"diffmpm2d_optimize"}
"""Configs of the size that the reference has: their sweeps are the small ones."""
CHECKS = ("gradients_are_differences", "batch_is_alone", "leaves_a_picture", "reference")


def config(name: str) -> tuple[str, dict]:
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    return text, yaml.safe_load(text)


def class_of(target: str) -> type[Job]:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def test_the_benchmark_knows_every_job():
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_job_is_one_readable_file_whose_trials_run_in_batches(name):
    job = class_of(config(name)[1]["job"]["target"])
    assert inspect.getmodule(job).__name__.rpartition(".")[2] == name
    assert len(inspect.getsource(inspect.getmodule(job)).splitlines()) <= MOST_LINES
    assert job.declares() and job.gradients
    assert all(field.description for field in job.Params.model_fields.values())
    assert (
        why_not_batched(job, job.Params(**({} if name == "fwi_circle" else reference(name).get("small", {}).get("size", {}))))
        == ""
    )


@pytest.mark.parametrize("name", NAMES)
def test_its_reference_has_a_value_a_tolerance_and_a_source(name):
    known = reference(name)
    assert {"quantity", "value", "tolerance", "source", "size"} <= set(known)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_sweeps_it_and_another_one_optimises_it_and_leaves_a_picture(name):
    text, sweep = config(name)
    more, descent = config(f"{name}_optimize")
    assert sweep["sweep"]["params"] and descent["optimize"]["rule"]
    job, pictured = class_of(sweep["job"]["target"]), class_of(re.search(r"qdrun\.\S+:\w+Picture\b", more)[0])
    assert issubclass(pictured, job) and pictured.save is not Job.save
    for config_name, one in ((name, text), (f"{name}_optimize", more)):
        assert f"qdrun submit configs/{config_name}.yaml" in one
        assert config_name in FULL_SIZE or float(re.search(r"([\d.]+) s on two cores", one)[1]) <= MOST_SECONDS


@pytest.mark.parametrize("name", NAMES)
def test_its_tests_compare_gradients_batches_and_the_reference_and_ask_for_a_picture(name):
    text = (ROOT / "tests" / "jobs" / f"test_{name}.py").read_text(encoding="utf-8")
    assert [check for check in CHECKS if f"{check}(" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_it(name):
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
    picture = f"pictures/gallery-{name}.png"
    assert f"({picture})" in section and (ROOT / "docs" / picture).is_file()
    assert f"(../configs/{name}.yaml)" in section and f"(../configs/{name}_optimize.yaml)" in section
