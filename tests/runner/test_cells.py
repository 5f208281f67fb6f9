"""A class as a config: it travels by its module, by its file, or, defined in a notebook, by the text of the definitions that it uses."""

import linecache
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdrun.jobs.base import Job, JobParams
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.runner import plan, submit
from qdrun.runner.api import Rows
from qdrun.runner.config.written import NotData, config_text
from qdrun.runner.config.yaml_lines import ConfigError, parse_document
from qdrun.runner.interactive.cells import InteractiveSession
from qdrun.runner.interactive.configs import WrongArgument, config_source
from qdrun.runner.observe.html import table_html
from qdrun.runner.study.target import TargetError

CELLS = """
import math
import numpy as np
import qdrun as qd
from qdrun.jobs.base import Job, JobParams
from os.path import *
real, STEPS, LIMITS = qd.f64, 3, {"low": [1, 2.5], "high": (float("inf"), None)}
---
real = qd.f64
LIMIT = float("inf")
Pair = qd.types.vector(2, real)
points = np.zeros(3)
x = "a local name of `build` hides me"
---
class FitParams(JobParams):
    speed: float = 2.0
---
@qd.func
def half(v):
    return 0.5 * v

def scale():
    return join("a", str(STEPS)) == "a/3" and LIMITS["high"][0] == LIMIT
---
@qd.kernel
def compare(speed: qd.template(), loss: qd.template()):
    for i in range(1):
        loss[None] += half(speed[None] ** 2)
---
class Fit(Job[FitParams]):
    gradients = ("speed",)

    def build(self):
        x = self.input("speed")
        assert scale() and Pair is not None and math.pi > 3
        self.speed, self.loss = x, self.objective()

    def simulate(self):
        compare(self.speed, self.loss)
---
class Uses(Job[FitParams]):
    def run(self):
        return points
---
def twice(v):
    return missing_text(v)
"""


def session(monkeypatch, cells=CELLS):
    """The names that cells define, as IPython defines them: each compiled under a name that linecache knows."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    texts = [text.strip("\n") + "\n" for text in cells.split("---\n")]
    for number, text in enumerate(texts):
        name = f"/tmp/ipykernel_0/{number}.py"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec", dont_inherit=True), vars(main))
    return InteractiveSession(vars(main), texts)


def test_a_class_of_cells_is_a_module_with_what_it_uses_and_nothing_else(monkeypatch):
    text = session(monkeypatch).module("Fit")
    assert text.startswith('"""The job Fit of a notebook')
    assert "import math\n" in text and "from os.path import join as join" not in text and " import join as join" in text
    assert "STEPS = 3\n" in text and "LIMIT = float('inf')\n" in text and "points" not in text and "hides me" not in text
    assert text.index("class FitParams") < text.index("class Fit(") and text.index("def half") < text.index("def compare")
    names = {"__name__": "written"}
    linecache.cache["written.py"] = (len(text), None, text.splitlines(True), "written.py")
    exec(compile(text, "written.py", "exec", dont_inherit=True), names)
    speed = float(np.random.default_rng().uniform(1, 2))
    with names["Fit"](names["FitParams"](speed=speed), wanted=["speed"]).opened() as job:
        outcome = job.run()
    assert outcome.loss == pytest.approx(0.5 * speed**2) and outcome.gradients["speed"] == pytest.approx(speed)


@pytest.mark.parametrize(
    "head",
    ["%%time\n", "%%capture\n", "%%time\n%%capture out\n", "%%prun -q\n", "%load_ext x\n%time y = 1\n", "%%memit -r 1\n! ls\n"],
)
def test_a_class_of_a_cell_below_magics_travels_like_any_other(monkeypatch, head):
    transformed = pytest.importorskip("IPython.core.inputtransformer2").TransformerManager().transform_cell
    text = "class Deep:\n    size = 3\n\n@staticmethod\ndef half(v):\n    return v / 2\n"
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(text, "<timed exec>", "exec", dont_inherit=True), vars(main))
    made = InteractiveSession(vars(main), [transformed(head + text)])
    assert made.module("Deep").endswith("class Deep:\n    size = 3\n")
    assert made.module("half").endswith("@staticmethod\ndef half(v):\n    return v / 2\n")


@pytest.mark.parametrize("magic", ["bash", "writefile deep.py", "javascript"])
def test_what_a_magic_of_another_language_has_below_it_is_no_definition(monkeypatch, magic):
    transformed = pytest.importorskip("IPython.core.inputtransformer2").TransformerManager().transform_cell
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile("class Deep:\n    size = 3\n", "<string>", "exec", dont_inherit=True), vars(main))
    with pytest.raises(TargetError, match="the text of `Deep`, which Deep uses, is not known"):
        InteractiveSession(vars(main), [transformed(f"%%{magic}\nclass Deep:\n    size = 4\n")]).module("Deep")


def test_the_definition_that_counts_is_that_of_the_value(monkeypatch):
    found = session(monkeypatch)
    failed = "raise ValueError\n@qd.func\ndef half(v):\n    return 7.0 * v\n"
    assert "0.5 * v" in InteractiveSession(found.names, [*found.cells, failed]).module("Fit"), (
        "a cell that has failed has defined nothing"
    )
    vars(sys.modules["__main__"])["STEPS"] = 4
    assert "STEPS = 4\n" in found.module("Fit"), "data has its present value"


def test_what_cannot_travel_is_refused_by_name(monkeypatch):
    found = session(monkeypatch)
    with pytest.raises(
        TargetError, match=r"Uses uses `points`, a ndarray of this session, .*\n  do: make it a parameter of the job"
    ):
        found.module("Uses")
    main = vars(sys.modules["__main__"])
    exec(compile("def missing_text(v):\n    return v\n", "<stdin>", "exec"), main)
    with pytest.raises(
        TargetError, match=r"the text of `missing_text`, which twice uses, is not known: .*\n  do: write it into a file"
    ):
        InteractiveSession(main, found.cells).module("twice")


def test_a_definition_made_from_an_earlier_one_of_its_name_is_refused(monkeypatch):
    found = session(
        monkeypatch, "class A:\n    def f(self):\n        return A\n---\nclass A(A):\n    def g(self):\n        return A\n"
    )
    with pytest.raises(
        TargetError, match=r"`A` is made from an earlier `A` of the notebook, .*\n  do: give the two definitions"
    ):
        found.module("A")
    assert "return A" in session(monkeypatch, "class A:\n    def f(self):\n        return A\n").module("A"), (
        "its methods may name it"
    )


def test_a_class_of_a_prompt_is_refused(monkeypatch):
    main = session(monkeypatch, "")
    exec("class Typed: pass", main.names)
    with pytest.raises(TargetError, match="the text of `Typed`, which Typed uses, is not known"):
        InteractiveSession(main.names, []).module("Typed")


class Nested:
    class Inner(Job[MassSpringParams]):
        def build(self): ...


def test_a_class_travels_by_its_module_or_its_file(tmp_path, monkeypatch):
    source = config_source(MassSpring, {"sweep": {"stiffness": np.array([1.0, 2.0])}, "limits": None})
    assert "target: qdrun.jobs.mass_spring:MassSpring\n" in source.text and (source.root, source.own) == ("", False)
    (tmp_path / "own_file_job.py").write_text(
        "from qdrun.jobs.base import Job, JobParams, Outcome\n\n\nclass P(JobParams):\n    x: float = 1.0\n\n\n"
        "class Own(Job[P]):\n    needs_compiler = False\n\n    def build(self): ...\n\n"
        "    def run(self):\n        return Outcome(self.params.x)\n"
    )
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "job.py").write_text((tmp_path / "own_file_job.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    import own_file_job
    from own_package import job as packaged

    assert f"{tmp_path}/own_file_job.py:Own" in config_source(own_file_job.Own, {}).text
    source = config_source(packaged.Own, {})
    assert "target: own_package.job:Own\n" in source.text and source.root == str(tmp_path)
    found = plan(own_file_job.Own, sweep={"x": [1.0, 2.0]}, name="two")
    assert [trial.params for trial in found.prepared.trials] == [{"x": 1.0}, {"x": 2.0}] and found.data["name"] == "two"
    with pytest.raises(TargetError, match="Inner is defined inside of `Nested`"):
        config_source(Nested.Inner, {})
    monkeypatch.setattr(own_file_job, "Own", None)
    with pytest.raises(TargetError, match=r"own_package.job has no such `Own` any more"):
        old = packaged.Own
        packaged.Own = None
        config_source(old, {})


def test_keys_are_those_of_a_config_and_validated_like_one(tmp_path):
    swept = {"method": "zip", "params": {"stiffness": [1.0, 2.0], "damping": range(2)}}
    found = plan(MassSpring, params=MassSpringParams(steps=7), sweep=swept, gradients=["stiffness"], limits={"memory": "1GiB"})
    assert [trial.params["damping"] for trial in found.prepared.trials] == [0, 1]
    assert all(trial.params["steps"] == 7 for trial in found.prepared.trials) and found.prepared.gradients == ("stiffness",)
    with pytest.raises(
        ConfigError, match=r"submit\(MassSpring\):\d+: `sweep.params.stifness`: .*(?s:.)*did you mean `stiffness`"
    ):
        submit(MassSpring, sweep={"stifness": [1.0]})
    with pytest.raises(ConfigError, match="`speed`: unknown key"):
        plan(MassSpring, speed=3)
    with pytest.raises(
        WrongArgument, match=r"sweep: the config a.yaml says that itself\n  do: overrides=\[\.\.\], as in overrides=\['sweep"
    ):
        submit("a.yaml", sweep={})
    with pytest.raises(WrongArgument, match="JobParams is no job"):
        submit(JobParams)
    with pytest.raises(WrongArgument, match="7 is neither a config nor the class of a job"):
        submit(7)
    with pytest.raises(NotData, match="a object, cannot be written into a config"):
        plan(MassSpring, params={"steps": object()})


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc.=", min_size=1, max_size=4), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    PLAIN | st.sampled_from(["1e5", "0x1f", "~", "yes", "null", "2026-01-01", "1_000", ".5", "- a", "a: b", "#", "'", "\n x"])
)
def test_data_is_read_back_as_it_was_written(value):
    read = parse_document(config_text({"key": value}), "x").data["key"]
    assert repr(read) == repr(value)


def test_what_a_notebook_shows_is_escaped_and_cut(tmp_path):
    nasty = "<script>alert('$x$')</script>"
    shown = table_html([nasty], [[nasty]], total=1000)
    assert "<script" not in shown and "$" not in shown and "&lt;script&gt;" in shown and "and 999 more rows" in shown
    found = plan(MassSpring, params={"steps": 4}, sweep={"stiffness": [1.0]})
    assert found._repr_html_().startswith("<pre ") and "stiffness=1" in found._repr_html_() and repr(found) == found.text
    empty = {"replicate": 0, "status": "failed", "seconds": 1.0, "planned_bytes": 1, "used_bytes": 1, "used_of_planned": 1.0}
    rows = Rows(
        empty | {"trial": f"t{k}", "param.a": nasty if k else "b", "error": nasty, "error_type": "E"} for k in range(60)
    )
    html = rows._repr_html_()
    assert html.count("<tr>") == 51 and "and 10 more rows" in html and "<script" not in html and "<th>a</th>" in html
    assert rows == list(rows) and isinstance(rows, list)
