"""The JSON schema that editors use: it takes the configs that load, and refuses what the loader refuses for its shape."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.config.axes import AXIS_FORMS
from qdrun.runner.config.schema import config_schema, keys
from qdrun.runner.config.yaml_lines import parse_document

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def printed(*words):
    result = CliRunner().invoke(app, ["schema", *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


SCHEMA = config_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def texts():
    pages = [(page.name, body) for page in sorted((ROOT / "docs").glob("*.md")) for body in yaml_of(page)]
    return [(path.name, path.read_text(encoding="utf-8")) for path in CONFIGS] + pages


def yaml_of(page):
    return re.findall(r"```yaml file=\S+\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


def test_it_is_a_schema_and_the_command_prints_it():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert printed() == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(("name", "text"), texts(), ids=lambda value: value[:20] if "\n" not in value else "")
def test_it_takes_every_config_that_there_is(name, text):
    errors = list(VALIDATOR.iter_errors(parse_document(text).data))
    assert not errors, f"{name}: {errors[0].message}"


GOOD = {"version": 1, "name": "a", "job": {"target": "a:B"}}


@pytest.mark.parametrize(
    "keys",
    [
        {"memory_budget": "auto", "limits": {"memory": "1.5 GiB", "trial_timeout": "10m", "retries": 3, "max_failed": "10%"}},
        {"limits": {"retries": {"oom": 1}, "trial_timeout": 30, "max_failed": 5}, "storage": "s3://bucket/runs"},
        {"device": {"backend": ["cuda", "cpu"], "min_memory": 1024, "slots": 2}},
        {"device": {"backend": "auto", "id": 0}},
        {"sweep": {"params": {"a": [1, "x"], "b.0": {"choice": [1, 2], "samples": 3}, "c": {"normal": [0, 1]}}, "samples": 4}},
        {"sweep": {"params": {"a": [1, 2]}, "exclude": [{"a": 1}], "zip": [], "repeat": 2}},
        {"optimize": {"learning_rate": {"warmup": {"peak": 1, "warmup_steps": 5}}, "bounds": {"a": [0, None]}, "clip": 1}},
    ],
)
def test_it_takes_every_form(keys):
    assert not list(VALIDATOR.iter_errors(GOOD | keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"nmae": "x"},
        {"version": 2},
        {"name": "a/b"},
        {"memory_budget": "some"},
        {"limits": {"retries": {"ooom": 1}}},
        {"limits": {"memory": "2 potatoes"}},
        {"limits": {"trial_timeout": "10 weeks"}},
        {"device": {"backend": "cdua"}},
        {"device": {"backend": ["cpu", "cdua"]}},
        {"sweep": {"params": {"a": {"lgspace": [1, 2, 3]}}}},
        {"sweep": {"params": {"a": 3}}},
        {"sweep": {"params": {"a": {"linspace": [1, 2]}}}},
        {"sweep": {"params": {"a": {"uniform": [1]}}}},
        {"sweep": {"params": {"a": {"samples": 3}}}},
        {"sweep": {"params": {"a": {"range": [1, 5], "grid": [1]}}}},
        {"optimize": {"learning_rate": 0.1, "rule": "adma"}},
        {"optimize": {"learning_rate": {"cosine": {"begin": 1}}}},
    ],
)
def test_it_marks_what_the_loader_refuses(keys):
    assert list(VALIDATOR.iter_errors(GOOD | keys))


def test_keys_have_descriptions_and_the_forms_examples():
    axis = next(part for part in SCHEMA["$defs"]["Axis"]["anyOf"] if part.get("type") == "object" or "$ref" in part)
    assert set(AXIS_FORMS) <= set(axis["properties"])
    assert axis["properties"]["logspace"]["description"].endswith("for example [2, 4, 6]")
    assert "seconds, or ``10m``" in SCHEMA["$defs"]["LimitsSection"]["properties"]["trial_timeout"]["description"]
    assert SCHEMA["$defs"]["OptimizeSection"]["properties"]["rule"]["enum"][:2] == ["sgd", "momentum"]


def test_with_a_config_it_knows_the_parameters_of_its_job():
    schema = printed(str(ROOT / "configs" / "quickstart.yaml"))
    validator = jsonschema.Draft202012Validator(schema)
    data = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    assert not list(validator.iter_errors(data))
    job = data["job"]
    for wrong in ({"stepps": 3}, {"steps": "many"}, {"stiffness": -1.0}):
        assert list(validator.iter_errors(data | {"job": job | {"params": wrong}})), wrong
    assert not list(validator.iter_errors(data | {"job": job | {"params": {"actuation.0": 0.5}}}))
    assert list(validator.iter_errors(data | {"sweep": {"params": {"stifness": [1]}}}))
    assert schema["$defs"]["JobSection"]["properties"]["params"]["properties"]["dt"]["description"] == "time step, s"


def test_a_config_without_its_job_is_an_error(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("version: 1\nname: a\njob: {target: 'gone:Gone'}\n")
    result = CliRunner().invoke(app, ["schema", str(path)])
    assert result.exit_code == 2 and "c.yaml:3: `job.target`" in result.stderr


def test_keys_name_every_section():
    assert {"name", "limits.retries.oom", "optimize.stop.patience", "sweep.samples", "device.slots"} <= set(keys())
