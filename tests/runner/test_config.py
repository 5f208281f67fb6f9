"""What is wrong in a config is said with file, line, caret, allowed values and what to do; nothing is started."""

from pathlib import Path
from textwrap import dedent

import pytest
from runner_helpers import write_config

from qdrun.runner.config.model import DebugSection, load_config
from qdrun.runner.config.yaml_lines import MAX_BYTES, ConfigError, parse_document
from qdrun.runner.study.prepare import prepare

GOOD = dedent(
    """\
    version: 1
    name: robot
    job:
      target: "jobs.py:Robot"
      params: {steps: 200}
    sweep:
      params:
        stiffness: {logspace: [2, 4, 6]}
    limits: {memory: 2GiB}
    """
)


def error_of(tmp_path, text, call=load_config):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        call(path)
    return str(caught.value).replace(str(tmp_path) + "/", "")


def test_a_good_config_is_read_with_its_units(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(GOOD)
    config = load_config(path).config
    assert config.limits.memory == 2 * 2**30
    assert config.gradients is None
    assert config.device.backend == "cpu"
    assert config.sweep.params["stiffness"].form == ("logspace", [2, 4, 6])


def test_an_unknown_key_names_the_line_the_allowed_keys_and_the_nearest_one(tmp_path):
    text = GOOD.replace("limits: {memory", "limits: {memroy")
    assert error_of(tmp_path, text) == dedent(
        """\
        c.yaml:9: `limits.memroy`: unknown key
             9 | limits: {memroy: 2GiB}
               |          ^^^^^^
          allowed: trial_timeout, trial_timeout_s, retries, memory, max_concurrent, device_wait, max_failed
          do: did you mean `memory`?"""
    )


def test_a_word_that_is_not_allowed_names_the_allowed_ones(tmp_path):
    assert error_of(tmp_path, GOOD + "device: {backend: cdua}\n") == dedent(
        """\
        c.yaml:10: `device.backend`: `cdua` is not allowed here
            10 | device: {backend: cdua}
               |          ^^^^^^^
          allowed: auto, cpu, cuda, amdgpu, vulkan, metal, python
          do: did you mean `cuda`?"""
    )


@pytest.mark.parametrize(
    ("word", "hint"), {"gpu": "write auto: GPUs come", "ROCm": "write amdgpu", "mps": "write metal", "x64": "write cpu"}.items()
)
def test_the_name_of_a_backend_in_another_tool_leads_to_ours(tmp_path, word, hint):
    assert f"do: {hint}" in error_of(tmp_path, GOOD + f"device: {{backend: [cpu, {word}]}}\n")


def test_all_problems_are_named_at_once_in_the_order_of_their_lines(tmp_path):
    text = GOOD.replace("name: robot", "name: a/b").replace("2GiB", "2 potatoes") + "gradient: [x]\n"
    message = error_of(tmp_path, text)
    places = [message.index(part) for part in ("c.yaml:2: `name`", "c.yaml:9: `limits.memory`", "c.yaml:10: `gradient`")]
    assert places == sorted(places)
    assert "did you mean `gradients`?" in message


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("version: 1", "version: 2", "c.yaml:1: `version`: `2` is not allowed here"),
        ("version: 1", 'version: "1"', "c.yaml:1: `version`: the text `'1'` is not allowed here, but the number is"),
        (
            "name: robot\n",
            "",
            "c.yaml:1: `name`: this key is missing\n     1 | version: 1\n       | ^^^^^^^\n  do: add `name: my-sweep`",
        ),
        ("{logspace: [2, 4, 6]}", "{lgspace: [2, 4, 6]}", "did you mean `logspace`?"),
        ("{logspace: [2, 4, 6]}", "3", "c.yaml:8: `sweep.params.stiffness`: a swept parameter needs a list or one form"),
        ("{logspace: [2, 4, 6]}", "{logspace: [2, 4]}", "`logspace` is [exponent of the first, of the last, how many]"),
        (
            "{logspace: [2, 4, 6]}",
            "{logspace: [2, a, 6]}",
            "c.yaml:8: `sweep.params.stiffness.logspace[1]`: `a` is not a finite number",
        ),
        ("{logspace: [2, 4, 6]}", "[]", "c.yaml:8: `sweep.params.stiffness`"),
        ("{logspace: [2, 4, 6]}", "{uniform: [2, 1, 6]}", "`uniform` needs low < high"),
        ("{memory: 2GiB}", '{retries: "3"}', "c.yaml:9: `limits.retries`: `3` is neither a whole number nor a map"),
        ("{memory: 2GiB}", "{trial_timeout_s: 0}", "greater than 0"),
        ('"jobs.py:Robot"', "robot", "`robot` does not name a job"),
        (
            "name: robot",
            "name: robot\ndevice: {backend: cuda, gpus: 2}",
            "c.yaml:3: `device`: `gpus: 2` asks for several devices, and a trial runs on one",
        ),
        (
            "name: robot",
            "name: robot\ndevice: {id: [0, 1]}",
            "leave `id` out: each GPU runs trials of its own. One that does not",
        ),
        ("name: robot", "name: robot\ncallbacks: {}", "c.yaml:3: `callbacks`: `callbacks` names nothing to call"),
        ("name: robot", "name: robot\ncallbacks: {run_end: 3}", "`callbacks.run_end`: `3` is neither a command nor a function"),
        ("name: robot", "name: robot\nexport: wand", "c.yaml:3: `export`: `wand` is no tracker"),
        ("name: robot", "name: robot\nexport: [wandb, tensorbord]", "did you mean `tensorboard`?"),
        ("name: robot", "name: robot\nexport: {mlflow: {url: x}}", "c.yaml:3: `export.mlflow.url`: unknown key"),
        (
            "name: robot",
            "name: robot\nexport: {wandb: {mode: off}}",
            "c.yaml:3: `export.wandb.mode`: `off` is not allowed here",
        ),
        ("{memory: 2GiB}", "{memory: 1, memory: 2}", "c.yaml:9: the key `memory` stands twice (first in line 9)"),
    ],
)
def test_each_mistake_is_said_where_it_stands(tmp_path, before, after, said):
    assert said in error_of(tmp_path, GOOD.replace(before, after))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the config is empty"),
        ("- 1", "a config is a map of keys"),
        ("a: [1,\nb: 2", "c.yaml:2: not valid YAML"),
        ("a: &x 1\nb: *x", "c.yaml:2: an alias (*name) is not allowed"),
        ("a: !!python/object:os.system x", "c.yaml:1: the tag"),
        ("[" * 50, "nested deeper than 32 levels"),
        ("1: 2", "a key must be a word"),
        ("a: " + "x" * MAX_BYTES, "the config is larger than"),
    ],
)
def test_yaml_that_is_not_safe_is_refused(tmp_path, text, said):
    assert said in error_of(tmp_path, text)


def test_an_unreadable_file_is_an_error_with_its_name(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the config"):
            load_config(path)


def test_words_are_words_and_numbers_are_numbers():
    data = parse_document("a: [1e-3, .5, on, no, 12:30:00, 010, 0x10, true, ~, 2.5e+3]").data
    assert data["a"] == [0.001, 0.5, "on", "no", "12:30:00", "010", 16, True, None, 2500.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sweep": {"xx": [1]}}, "fake.yaml:7: `sweep.params.xx`: the job has no parameter `xx`"),
        ({"params": {"sizes": 3}}, "fake.yaml:3: `job.params.sizes`: the job has no parameter `sizes`"),
        ({"params": {"size": "3"}}, "fake.yaml:3: `job.params.size`: input should be a valid integer, got '3'"),
        ({"params": {"mood": "god"}}, "did you mean `good`?"),
        ({"sweep": {"scale": [1, -1]}}, "fake.yaml:7: `sweep.params.scale`: input should be greater than 0, got -1"),
        ({"sweep": {"x": [1, 1.0]}}, "two trials are equal"),
        ({"target": "no_such_module:Thing"}, "importing no_such_module failed: ModuleNotFoundError"),
        ({"target": "gone.py:Thing"}, "the path is relative to the config"),
        ({"target": f"{Path(__file__).with_name('fakes.py')}:Quadrtic"}, "allowed: Quadratic"),
        ({"target": f"{Path(__file__).with_name('fakes.py')}:QuadraticParams"}, "is not a job"),
    ],
)
def test_what_does_not_fit_the_job_is_said_at_the_line_that_sets_it(tmp_path, changes, said):
    with pytest.raises(ConfigError) as caught:
        prepare(write_config(tmp_path, **changes))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"x": {"range": [0, 5, 0]}}, ["`range` is [first, end, step]", "do: write, for example, {range: [0, 10, 2]}"]),
        ({"x": {"range": [5, 0]}}, ["the step leads away from the end"]),
        ({"x": {"linspace": [0, 1]}}, ["`linspace` is [first, last, how many]", "{linspace: [0, 1, 5]}"]),
        ({"x": {"linspace": [0, 1, 2.5]}}, ["a whole number from 1 to 10000000"]),
        ({"x": {"loguniform": [0, 1, 3]}}, ["`loguniform` needs 0 < low", "{loguniform: [1e-4, 1e-1, 5]}"]),
        ({"x": {"normal": [0, 0, 3]}}, ["`normal` needs a deviation above 0"]),
        ({"size": {"randint": [0, 2.5, 3]}}, ["`randint` needs whole numbers"]),
        ({"size": {"randint": [4, 4, 3]}}, ["`randint` needs low < high", "allowed: randint: [low, high], without high"]),
        ({"x": {"uniform": [0, 1]}}, ["`uniform` draws values and nothing says how many", "do: add samples: 5"]),
        ({"x": {"uniform": [0, 1, 3], "samples": 3}}, ["says twice how many values to draw"]),
        ({"x": {"uniform": [0]}}, ["`uniform` is [low, high]", "a third number or as `samples`"]),
        ({"x": {"grid": [0], "samples": 3}}, ["`grid` draws nothing", "allowed: uniform, loguniform, normal, randint, choice"]),
        ({"x": {"grid": [0], "list": [1]}}, ["exactly one form, not 2: grid, list", "allowed: grid, list, range"]),
        ({"x": {"choice": []}}, ["`sweep.params.x.choice`", "the list is empty"]),
        ({"x": {"samples": 3}}, ["exactly one form", "{linspace: [0, 1, 5]}"]),
        ({"target.2": [1.0]}, ["`target` has 2 items and no `2`", "allowed: 0, 1", "do: use an index"]),
        ({"x.y": [1.0]}, ["`sweep.params.x.y`: `x` is one value and has no `y`", "do: set `x` itself"]),
    ],
)
def test_a_wrong_form_names_its_key_its_line_what_is_allowed_and_a_fix(tmp_path, keys, said):
    path = write_config(tmp_path, sweep=keys)
    with pytest.raises(ConfigError) as caught:
        prepare(path)
    text = str(caught.value)
    assert f"fake.yaml:7: `sweep.params.{next(iter(keys))}" in text
    for part in said:
        assert part in text


def loaded(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace("limits: {memory: 2GiB}\n", "") + text)
    return load_config(path).config


def test_limits_by_class_of_failure_in_units_and_as_shares(tmp_path):
    limits = loaded(tmp_path, 'limits: {trial_timeout: 10m, retries: {oom: 1}, max_failed: "10%"}\n').limits
    assert limits.timeout_s == 600.0
    assert (limits.retries.infra, limits.retries.oom, limits.retries.crash) == (5, 1, 2)
    assert [limits.failures_allowed(n) for n in (9, 10, 24)] == [0, 1, 2]
    older = loaded(tmp_path, "limits: {trial_timeout_s: 90, retries: 3, max_failed: 4}\n").limits
    assert older.timeout_s == 90.0
    assert (older.retries.infra, older.retries.oom, older.retries.crash, older.failures_allowed(9)) == (3, 3, 3, 4)
    assert loaded(tmp_path, "").limits.failures_allowed(9) is None
    assert [loaded(tmp_path, f"limits: {{trial_timeout: {t}}}").limits.timeout_s for t in ("1.5h", "30s", "45", '"2 d"')] == [
        5400.0,
        30.0,
        45.0,
        172800.0,
    ]


def test_device_budget_and_storage(tmp_path):
    config = loaded(
        tmp_path, "device: {backend: [cuda, cpu], min_memory: 4GiB, slots: 3}\nmemory_budget: auto\nstorage: memory://r\n"
    )
    assert config.device.backends == ("cuda", "cpu")
    assert (config.device.min_memory, config.device.slots) == (4 << 30, 3)
    assert (config.elastic, config.budget_bytes, config.uri) == (True, None, "memory://r")
    config = loaded(tmp_path, "memory_budget: 1GiB\noutput: there\n")
    assert (config.elastic, config.budget_bytes, config.uri) == (False, 1 << 30, "there")
    assert loaded(tmp_path, "").uri == "runs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: {trial_timeout: 10 weeks}", ["`limits.trial_timeout`: `10 weeks` is not a time", "90s, 10m, 1.5h, 2d"]),
        ("limits: {trial_timeout: 1m, trial_timeout_s: 60}", ["say the same", "do: remove trial_timeout_s"]),
        ("limits: {retries: {ooom: 1}}", ["`limits.retries.ooom`: unknown key", "allowed: infra, oom, crash", "`oom`?"]),
        ("limits: {retries: {crash: -1}}", ["`limits.retries.crash`", "greater than or equal to 0"]),
        ('limits: {max_failed: "120%"}', ["`limits.max_failed`: `120%` is neither a count nor a share", '"10%"']),
        ("device: {backend: []}", ["`device.backend`: the list of backends is empty"]),
        ("device: {backend: [cpu, cpu]}", ["`cpu` stands twice", "name each backend once"]),
        ("device: {backend: [auto, cpu]}", ["`auto` is all of them already"]),
        ("device: {backend: [cpu, vulcan]}", ["`vulcan` is not allowed here", "did you mean `vulkan`?"]),
        ("device: {backend: [cuda, cpu], id: 0}", ["`id` names a device of one backend"]),
        ("device: {backend: cpu, together: true}", ["`together` takes a list of several backends", "[cuda, cpu]"]),
        ("device: {slots: 0}", ["`device.slots`", "greater than or equal to 1"]),
        (
            "memory_budget: soon",
            ["`memory_budget`: `soon` is not an amount of memory, and not `auto`", "allowed: auto, bytes as a number"],
        ),
        ("storage: s4://bucket", ["`storage`: `s4` is no protocol of fsspec", "s3, "]),
        ('storage: ""', ["neither a folder nor a URI", "s3://bucket/runs"]),
        ("storage: a\noutput: b", ["`storage` and `output` say the same", "do: remove output"]),
    ],
)
def test_what_is_wrong_with_devices_limits_and_storage_is_said(tmp_path, text, said):
    message = error_of(tmp_path, GOOD.replace("limits: {memory: 2GiB}\n", "") + text + "\n")
    for part in said:
        assert part in message


def test_the_first_backend_that_has_a_device_with_enough_memory_is_taken(tmp_path):
    path = write_config(tmp_path)
    text = path.read_text()
    path.write_text(text + "device: {backend: [metal, vulkan, cpu]}\n")
    assert prepare(path)[0].backend == "cpu"
    path.write_text(text + "device: {backend: [metal, vulkan]}\n")
    with pytest.raises(ConfigError, match=r"no metal device can be used: .*; no vulkan device can be used: "):
        prepare(path)
    path.write_text(text + "device: {backend: cpu, min_memory: 900TB}\n")
    with pytest.raises(ConfigError, match=r"`device.min_memory`: no device has 818.5 TiB for trials: cpu [\d.]+ GiB"):
        prepare(path)


def test_a_gradient_that_the_job_does_not_have_is_refused(tmp_path):
    path = write_config(tmp_path)
    path.write_text(path.read_text().replace("[x, target]", "[x, targt]"))
    with pytest.raises(ConfigError, match=r"fake.yaml:4: `gradients\[1\]`: the job has no gradient `targt`") as caught:
        prepare(path)
    assert "allowed: x, target" in str(caught.value)
    assert "did you mean `target`?" in str(caught.value)


@pytest.mark.parametrize("backend", ["cuda", "amdgpu", "vulkan", "metal"])
def test_a_device_that_is_not_there_is_said_and_auto_finds_one_that_is(tmp_path, backend):
    path = write_config(tmp_path)
    text = path.read_text()
    path.write_text(text + f"device: {{backend: {backend}}}\n")
    with pytest.raises(ConfigError, match=f"no {backend} device can be used"):
        prepare(path)
    path.write_text(text + "device: {backend: auto}\n")
    assert prepare(path)[0].backend == "cpu"


def test_more_threads_than_cores_are_refused(tmp_path):
    path = write_config(tmp_path)
    path.write_text(path.read_text() + "device: {threads: 1000}\n")
    with pytest.raises(ConfigError, match="one trial wants 1000 threads"):
        prepare(path)


@pytest.mark.parametrize(
    ("text", "checks"),
    [
        ("true", {}),
        ("{}", {}),
        ("{overflow: true, nan: false}", {"overflow": True, "nan": False}),
        ("{asserts: false}", {"asserts": False}),
        ("false", None),
        ("null", None),
    ],
)
def test_debug_is_true_or_a_map_of_checks(tmp_path, text, checks):
    path = write_config(tmp_path)
    path.write_text(f"{path.read_text()}debug: {text}\n")
    prepared, _ = prepare(path)
    debug, spec = prepared.loaded.config.debug, prepared.spec(prepared.trials[0])
    usual = {"bounds": True, "asserts": True, "nan": True, "overflow": False}
    assert spec["debug"] == (None if checks is None else usual | checks)
    assert ("debug" in prepared.resolved) == (checks is not None)
    wanted, _ = prepare(path, debug=True)
    assert wanted.loaded.config.debug == (debug or DebugSection())
    assert wanted.loaded.overrides == (() if debug else ("debug=true",))


def test_what_is_wrong_with_debug_is_said(tmp_path):
    path = write_config(tmp_path)
    for text, said in (
        ("yes", "`debug`: `yes` is neither true nor false nor a map of checks\n"),
        ("{nan: 1}", "`debug.nan`: input should be a valid boolean, got 1\n"),
        ("{nans: true}", "`debug.nans`: unknown key\n"),
    ):
        path.write_text(f"{write_config(tmp_path).read_text()}debug: {text}\n")
        with pytest.raises(ConfigError) as caught:
            prepare(path)
        assert said in str(caught.value) and "debug: " in str(caught.value)


def test_the_interpreter_is_a_backend_that_stands_alone(tmp_path):
    path = write_config(tmp_path)
    path.write_text(path.read_text() + "device: {backend: python}\n")
    prepared, _ = prepare(path)
    assert (prepared.backend, prepared.arch, prepared.place.interpreted) == ("cpu", "python", True)
    assert prepared.resolved["device"]["backend"] == prepared.spec(prepared.trials[0])["backend"] == "python"
    path.write_text(write_config(tmp_path).read_text() + "device: {backend: [cpu, python]}\n")
    with pytest.raises(ConfigError, match="`python` interprets kernels for debugging and is never a second choice"):
        prepare(path)
