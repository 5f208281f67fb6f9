"""What is written is what is read, bit for bit, or it is said: parameters, documents, lines; and what no line can hold."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from runner_helpers import write_config
from store_helpers import RESOLVED, make_run, record, trials

from qdrun.jobs.base import JobParams
from qdrun.jobs.core import paths
from qdrun.runner.cli.documents import document as model_document
from qdrun.runner.observe.table import rows
from qdrun.runner.store.attempts import Attempt, ended, pack
from qdrun.runner.store.encoding import Damaged, document, is_sealed, lossless, read_document, sealed, unsealed
from qdrun.runner.store.follower import event_at, read
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import OtherFormat, RunFolder, create, write_run
from qdrun.runner.store.replay import record_of, replay
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.trials import Trial, trial_id

ODD = {
    **{
        "inf": math.inf,
        "minus": -math.inf,
        "nan": math.nan,
        "zero": -0.0,
        "tiny": 5e-324,
        "third": 1 / 3,
        "most": 1.7976931348623157e308,
    },
    **{
        "int": 2**200,
        "small": -(2**63) - 1,
        "one": 1,
        "true": True,
        "float": 1.0,
        "none": None,
        "text": "NaN",
        "lone": "a\ud800b",
    },
    **{"pair": "\ud83d\ude00", "key\udc80": [], "list": [[math.inf, None], [], {"$float": "Infinity"}], "$float": "NaN"},
    **{"tag": {"$codepoints": [1]}, "object": {"$object": [["a", 1]]}, "deep": {"a": {"b": [math.nan]}}},
}


def same(a, b):
    """Whether two values have the same types and bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


def strict(text):
    """JSON as readers of others take it: without the words NaN and Infinity, and of UTF-8."""

    def refuse(word):
        raise AssertionError(word)

    return json.loads(text.decode(), parse_constant=refuse)


TEXTS = st.text(st.characters(), max_size=4) | st.sampled_from(["NaN", "$float", "$object", "\ud800", "\udc00", "crc", "of"])
VALUES = st.recursive(
    st.floats() | st.integers(-(2**70), 2**70) | TEXTS | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
@example(ODD)
def test_a_document_gives_back_every_value_with_its_type_and_its_bits(data):
    text = document(data)
    assert same(read_document(text), data)
    assert same(read_document(document(data, indent=1)), data)
    strict(text)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=3), st.integers(0, 2**63 - 1))
@example([ODD], 0)
def test_the_parameters_of_a_run_are_read_as_they_were_written(tmp_path_factory, params, seed):
    sweep = [
        Trial(id=trial_id(one, 0), index=index, replicate=0, seed=seed, swept=one, params=one)
        for index, one in enumerate(params)
    ]
    folder = write_run(tmp_path_factory.mktemp("runs"), "odd", "", {"job": {"params": params[0]}}, sweep, {})
    found = folder.trials()
    dumped = lambda trial: (
        trial.model_dump() | {"swept": dict(sorted(trial.swept.items()))}
    )  # the names have one order in a run
    assert all(same(dumped(a), dumped(b)) for a, b in zip(sweep, found, strict=True))
    assert same(folder.config(), {"job": {"params": params[0]}}) and folder.trial_ids() == [one.id for one in sweep]
    for name in ("trials.jsonl", "run.json", "config.resolved.json", "heartbeat.json"):
        [
            strict(line)
            for line in (folder.files.read(name).splitlines() if name == "trials.jsonl" else [folder.files.read(name)])
        ]


class Plain(BaseModel):
    """Parameters whose model is not ours, so that pydantic would write None for what is not finite within values of any type."""

    clip: float | None = math.inf
    table: dict = Field(default_factory=lambda: {"a": [math.nan, -math.inf], "b": (1, math.inf)})


@pytest.mark.parametrize("base", [Plain, type("Ours", (JobParams, Plain), {})])
def test_what_is_not_finite_stays_a_float_in_parameters_of_any_model(base):
    assert same(paths.plain_params(base()), {"clip": math.inf, "table": {"a": [math.nan, -math.inf], "b": [1, math.inf]}})


def test_a_limit_that_is_infinite_by_default_and_one_in_the_config_reach_the_folder(tmp_path):
    source = tmp_path / "clipped.py"
    source.write_text(
        "from qdrun.jobs.base import Job, JobParams, Outcome\n"
        "class Clipped(Job):\n"
        "    class Params(JobParams):\n"
        "        clip: float | None = float('inf')\n"
        "        low: float = -1.0\n"
        "        x: float = 0.0\n"
        "    gradients = ('x',)\n"
        "    needs_compiler = False\n"
        "    def build(self): pass\n"
        "    def run(self): return Outcome(0.0, {'x': 0.0})\n"
    )
    config = write_config(tmp_path, target=f"{source}:Clipped", sweep={"x": [0.0, 1.0]}, params={"low": -math.inf})
    config.write_text(config.read_text().replace("[x, target]", "[x]").replace("-Infinity", "-.inf"))
    prepared, _ = prepare(config)
    folder = create(prepared, tmp_path / "runs")
    for trial, wanted in zip(folder.trials(), prepared.trials, strict=True):
        assert same(trial.params, wanted.params) and trial.params["clip"] == math.inf and trial.params["low"] == -math.inf
    shown = [(row["param.clip"], row["param.low"]) for row in rows(folder)]
    assert shown == [(math.inf, -math.inf)] * 2


def test_a_line_whose_parameters_are_not_those_of_its_id_is_damage(tmp_path):
    folder = make_run(tmp_path, 2)
    first, second = trials(2)

    def as_format_4(*made):
        lines = [sealed(lossless(trial.model_dump() | {"of": len(made)})) for trial in made]
        folder.files.put("trials.jsonl", b"".join(line + b"\n" for line in lines))

    new = folder.found_trials(), folder.trial_ids(), folder.trial(second.id)
    as_format_4(first, second)
    assert [list(folder.trials()), folder.trial_ids(), folder.trial(second.id)] == [list(new[0].trials), *new[1:]]
    as_format_4(first.model_copy(update={"params": {"x": 3.0}}), second)
    with pytest.raises(
        Damaged, match=rf"trials\.jsonl, line 1: its parameters are not those of its id, {first.id}\n  do: `qdrun resume"
    ):
        folder.trials()


@given(st.binary(max_size=60).map(lambda data: json.dumps({"data": data.hex()}).encode()), st.data())
def test_every_bit_of_a_sealed_line_counts(text, data):
    whole = sealed(text)
    at = data.draw(st.integers(0, 8 * len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at // 8] ^= 1 << at % 8
    assert is_sealed(whole) and not is_sealed(bytes(flipped))
    with pytest.raises(Damaged):
        unsealed(bytes(flipped))
    assert not any(is_sealed(whole[:end]) for end in range(len(whole)))


def test_a_folder_of_another_version_says_so(tmp_path):
    folder = make_run(tmp_path)
    (folder.path / "run.json").write_text('{"format": 2, "id": "x", "created": 1.0}')
    with pytest.raises(OtherFormat, match="has format 2, this version of qdrun reads formats 3 to 5\n  do: read it with the"):
        folder.info()
    (folder.path / "run.json").write_bytes(document({"format": 3, "id": "x", "created": 1.0}))
    assert folder.info()["format"] == 3


class Broken:
    """An object of a job's that cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __float__ = __repr__


UNWRITABLE = {
    "longdouble": np.longdouble(1) / 3,
    "numpy": np.float32(0.5),
    "object": Broken(),
    "huge": 10**5000,
    "set": {1},
    "complex": 1j,
    "bytes": b"\xff",
    "keys": {(1, 2): 3, Broken(): 4},
}


@pytest.mark.parametrize("kind", UNWRITABLE)
@pytest.mark.parametrize("where", ["loss", "used", "outputs"])
def test_a_record_that_no_line_can_hold_costs_its_own_row_alone(tmp_path, kind, where):
    """The runner meets it as it came from the worker, between the rows of others that are written in one go."""
    folder = make_run(tmp_path, 3)
    names = folder.trial_ids()
    if where == "outputs" and kind in ("set", "complex"):
        pytest.skip("written as a list or a text; what a job gives is checked before it gets here")
    bad = record(1.0) | {where: UNWRITABLE[kind] if where == "loss" else {"a": UNWRITABLE[kind]}, "seconds": 0.5}
    with Journal(folder) as journal:
        ends = [(Attempt(name, 1), bad if name == names[1] else record(2.0)) for name in names]
        ended(journal, ends)
        journal.write("mark", value=UNWRITABLE[kind])
        journal.write("finished", state="failed")
    events = read(folder).events
    assert [event["seq"] for event in events] == list(range(len(events))) and events[-1]["event"] == "finished"
    first, second, third = rows(folder)
    assert (first["status"], first["loss"], third["status"], third["loss"]) == ("done", 2.0, "done", 2.0)
    if second["status"] == "done":
        assert kind in ("set", "keys", "complex") and where == "used", "pydantic writes these as lists and texts"
    else:
        assert (second["status"], second["failure"], second["loss"], second["seconds"]) == ("failed", "user_error", None, 0.5)
        assert f"cannot be written down ({where})" in second["error"] and "  do: give numbers" in second["error"]


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_a_worker_packs_whatever_a_job_says_of_itself(tmp_path, kind):
    folder = make_run(tmp_path, 1)
    (name,) = folder.trial_ids()
    attempt = Attempt(name, 1)
    with Journal(folder) as journal:
        ended(journal, [(attempt, pack(folder, attempt, record(2.0) | {"used": {"host": UNWRITABLE[kind]}, "device": "d"}))])
        entry = read(folder).entries[-1]
    found = record_of(folder, replay(folder).trials[name])
    assert found == event_at(folder, entry) and (found["loss"], found["device"]) == (2.0, "d")
    assert kind != "longdouble" or found["used"]["host"] == 1 / 3


def test_documents_of_commands_say_what_is_not_finite_as_text():
    row = {"trial": "a", "param.clip": math.inf, "loss": math.nan, "grad.x": [-math.inf, 1.0]}

    head = {"run": "r", "state": "done", "complete": True, "columns": [], "problems": []}
    text = json.dumps(model_document("results", head | {"rows": [row]}), allow_nan=False)
    (found,) = json.loads(text)["rows"]
    assert found == {"trial": "a", "param.clip": "Infinity", "loss": "NaN", "grad.x": ["-Infinity", 1.0]}


def test_the_run_folder_is_of_its_user_alone(tmp_path):
    where = tmp_path / "runs"
    folder = make_run(where)
    attempt = Attempt(folder.trial_ids()[0], 1)
    with Journal(folder) as journal:
        ended(journal, [(attempt, pack(folder, attempt, record(1.0, np.arange(9000.0))))])
    assert RunFolder(folder.uri).info()["config_hash"] and RESOLVED
    modes = {path.relative_to(where).as_posix(): path.stat().st_mode & 0o777 for path in where.rglob("*")}
    assert len(modes) > 10 and all(mode == (0o700 if (where / name).is_dir() else 0o600) for name, mode in modes.items()), modes
    assert where.stat().st_mode & 0o077, "where runs lie belongs to the user: it is made as everything else"
