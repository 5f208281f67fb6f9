"""``--set a.b=3``: typed as YAML types it, set before validation; errors name the override and the key."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_helpers import write_config
from typer.testing import CliRunner

from qdrun.runner.cli.app import app
from qdrun.runner.cli.output import described
from qdrun.runner.config.overrides import overridden
from qdrun.runner.config.yaml_lines import ConfigError, parse_document
from qdrun.runner.study.prepare import prepare

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines of tests are shared
TEXT = """version: 1
job: {target: "a:B", params: {steps: 3, layers: [{width: 1}, {width: 2}]}}
sweep: {params: {stiffness: {logspace: [2, 4, 6]}, omega: [1, 2], a.b: [5]}}
gradients: [x, y]
"""


def changed(*overrides):
    return overridden(parse_document(TEXT, "c.yaml"), overrides).data


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("limits.memory=1GiB", ("limits", "memory"), "1GiB"),
        ("limits.retries.oom=3", ("limits", "retries", "oom"), 3),
        ("job.params.steps=5", ("job", "params", "steps"), 5),
        ("job.params.dt=1e-3", ("job", "params", "dt"), 1e-3),
        ('job.params.word="5"', ("job", "params", "word"), "5"),
        ("job.params.on=true", ("job", "params", "on"), True),
        ("job.params.none=null", ("job", "params", "none"), None),
        ("job.params.list=[1, 2.5]", ("job", "params", "list"), [1, 2.5]),
        ("job.params.layers.1.width=9", ("job", "params", "layers", 1, "width"), 9),
        ("job.params.layers[0].width=9", ("job", "params", "layers", 0, "width"), 9),
        ("job.params.actuation.2=0.5", ("job", "params", "actuation.2"), 0.5),  # the default is the job's: a dotted name
        ("gradients.1=z", ("gradients", 1), "z"),
        ("name=a=b", ("name",), "a=b"),
        ("sweep.params.omega.0=7", ("sweep", "params", "omega", 0), 7),
        ("sweep.params.omega=[3]", ("sweep", "params", "omega"), [3]),
        ("sweep.params.a.b=[6]", ("sweep", "params", "a.b"), [6]),
        ("sweep.params.new.name=[6]", ("sweep", "params", "new.name"), [6]),
        ("sweep.params.stiffness.logspace.2=9", ("sweep", "params", "stiffness", "logspace", 2), 9),
        ("sweep.params.stiffness.list=[1]", ("sweep", "params", "stiffness"), {"list": [1]}),  # instead of logspace
        ("sweep.params.a.b.linspace=[0, 1, 3]", ("sweep", "params", "a.b"), {"linspace": [0, 1, 3]}),
    ],
)
def test_a_value_is_set_where_its_key_says_and_nothing_else_changes(override, path, value):
    data = changed(override)
    here, before = data, parse_document(TEXT).data
    for part in path[:-1]:
        here = here[part]
    assert here[path[-1]] == value and type(here[path[-1]]) is type(value)
    del here[path[-1]]
    there = before
    for part in path[:-1]:
        there = there.setdefault(part, {}) if isinstance(there, dict) else there[part]
    if isinstance(there, list) or path[-1] in there:
        del there[path[-1]]
    assert data == before


def test_overrides_come_one_after_the_other_and_the_document_stays_as_it_was():
    document = parse_document(TEXT, "c.yaml")
    data = overridden(document, ["job.params={}", "job.params.steps=4", "job.params.steps=5"]).data
    assert data["job"]["params"] == {"steps": 5}
    assert document.data == parse_document(TEXT).data
    assert overridden(document, []) is document


@RELAXED
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text("abc#:'", max_size=4), lambda x: st.lists(x, max_size=3))
)
def test_every_value_of_json_is_read_as_it_is_written(value):
    assert changed(f"job.params.x={json.dumps(value)}")["job"]["params"]["x"] == value


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("limits", ["--set limits: `limits` is not KEY=VALUE", "allowed: limits.memory=1GiB"]),
        ("=3", ["is not KEY=VALUE"]),
        ("a..b=3", ["is not KEY=VALUE"]),
        ("name=", ["--set name=: `name`: there is no value after `=`", "do: write null"]),
        ("name=[1", ["`name`: not valid YAML"]),
        ("name=*x", ["an alias (*name) is not allowed"]),
        ("gradients.5=z", ["`gradients.5`: `gradients` has 2 items and no `5`", "allowed: 0, 1", "set the whole `gradients`"]),
        ("version.x=z", ["`version.x`: `version` is one value and has no `x`", "do: set `version` itself"]),
    ],
)
def test_an_override_that_cannot_be_is_refused_by_name(override, said):
    with pytest.raises(ConfigError) as caught:
        changed(override)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("limits.retires=3", "--set limits.retires=3: `limits.retires`: unknown key\n  allowed: "),
        ("limits.memory=much", "--set limits.memory=much: `limits.memory`: `much` is not an amount of memory"),
        ("sweep.params.x.linspace=[0, 1]", "--set sweep.params.x.linspace=[0, 1]: `sweep.params.x`: `linspace` is"),
        ("job.params.sizee=3", "--set job.params.sizee=3: `job.params.sizee`: the job has no parameter `sizee`"),
        ("job.params.target.9=3.0", "--set job.params.target.9=3.0: `job.params.target.9`: `target` has 2 items and no `9`"),
        ("job.params.size=big", "--set job.params.size=big: `job.params.size`: input should be a valid integer, got 'big'"),
        ("a.b=3", "--set a.b=3: `a`: unknown key\n  allowed: version, "),
        ("device.id.x=3", "--set device.id.x=3: `device.id`"),
        ("job=3", "--set job=3: `job`: a map of keys is needed, got 3"),
        ("gradients=[z]", "--set gradients=[z]: `gradients[0]`: the job has no gradient `z`"),
    ],
)
def test_what_is_wrong_with_a_value_names_the_override_and_not_a_line_of_the_file(tmp_path, override, said):
    with pytest.raises(ConfigError) as caught:
        prepare(write_config(tmp_path), overrides=[override])
    assert said in str(caught.value)
    assert "fake.yaml" not in str(caught.value)
    assert described(caught.value).problems[0].file == f"--set {override}"


def test_a_map_that_an_override_makes_is_its_own(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^--set sweep.params.x.linspace.2=3: `sweep.params.x.linspace`: input should be a valid"
    ):
        prepare(write_config(tmp_path, sweep={"x": {"logspace": [0, 1, 2]}}), overrides=["sweep.params.x.linspace.2=3"])


def test_a_mistake_in_the_file_still_names_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"fake.yaml:3: `job.params.sizee`"):
        prepare(write_config(tmp_path, params={"sizee": 1}), overrides=["job.params.scale=2.0"])


def test_commands_take_overrides_and_the_resolved_config_shows_them(tmp_path):
    config = write_config(tmp_path, sweep={"x": [0, 1, 2]})
    options = ["--set", "sweep.params.x=[4, 5]", "--set", "job.params.target.1=3.5"]
    data = json.loads(CliRunner().invoke(app, ["plan", str(config), "--json", *options]).stdout)
    assert [trial["params"]["x"] for trial in data["trials"]] == [4.0, 5.0]
    assert data["trials"][0]["params"]["target"] == [0.0, 3.5]
    assert data["overrides"] == ["sweep.params.x=[4, 5]", "job.params.target.1=3.5"]
    assert CliRunner().invoke(app, ["explain", str(config), "--json", *options]).exit_code == 0
    resolved = prepare(config, overrides=options[1::2])[0].resolved
    assert resolved["overrides"] == data["overrides"]
    assert resolved["sweep"]["params"]["x"] == {"grid": [4, 5]}
    assert resolved["job"]["params"] == {"target.1": 3.5}
    assert "overrides" not in prepare(config)[0].resolved
    for command in ("plan", "explain", "submit", "check"):
        result = CliRunner().invoke(app, [command, str(config), "--set", "nmae=x"])
        assert (result.exit_code, "did you mean `name`?" in result.stderr) == (2, True)


HUGE = "9" * 400
"""A whole number beyond the range of doubles."""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (f"limits.trial_timeout={HUGE}", "is not a time greater than 0"),
        (f"sweep.params.x=[{HUGE}]", "`x` has a value that is not finite"),
        (f"sweep.params.x={{linspace: [0, {HUGE}, 3]}}", "is not a finite number"),
        (f"sweep.params.x={{normal: [{HUGE}, 1, 2]}}", "is not a finite number"),
        (f"sweep.exclude=[{{x: {HUGE}}}]", "`sweep.exclude"),
        (f"optimize={{learning_rate: {HUGE}}}", "`optimize.learning_rate`"),
    ],
)
def test_a_whole_number_beyond_all_doubles_is_refused_and_no_traceback(tmp_path, override, said):
    """Python's `isfinite` raises at it."""
    with pytest.raises(ConfigError) as error:
        prepare(write_config(tmp_path), overrides=[override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("value", "what", "remedy"),
    [
        ('x="\udce9"', "the byte 0xe9 is not UTF-8", "set the locale of the terminal to one of UTF-8"),
        ("x=caf\udce9", "the byte 0xe9 is not UTF-8", "set the locale of the terminal to one of UTF-8"),
        ('x="\x07"', "the character U+0007 is not allowed in YAML", r'write it as "\\x07", in double quotes'),
        ("x=\ufffe", "the character U+FFFE is not allowed in YAML", r'write it as "\\ufffe", in double quotes'),
    ],
)
def test_characters_that_yaml_does_not_allow_are_named_with_the_remedy_that_works(value, what, remedy):
    with pytest.raises(ConfigError, match=re.escape(what) + "\n.*do: " + remedy):
        overridden(parse_document("version: 1\n"), [f"job.params.{value}"])


@pytest.mark.parametrize("text", ['"\\x07"', '"\\u00e9"', "\u00e9", "\U0001f600"])
def test_what_the_remedies_say_is_taken(text):
    assert overridden(parse_document("version: 1\n"), [f"job.params.x={text}"]).data["job"]["params"]["x"] in "\x07é\U0001f600"
