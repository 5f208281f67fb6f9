"""What a job gives back that is no result: said by its name, with what to write instead."""

import numpy as np
import pytest
from pydantic import Field

import qdrun as qd
from qdrun.jobs.base import BadOutcome, BatchSession, Job, JobParams, Outcome, Session, execute
from qdrun.jobs.core.outcome import arrays_of
from qdrun.jobs.mass_spring import MassSpring
from qdrun.runner.workers import error_record, finished_record
from qdrun.runner.workers.records import COMPILER

GOOD = {"x": 1.0, "many": np.ones(3)}


class Gives(Job[JobParams]):
    gradients = ("x", "many")
    needs_compiler = False
    given = None

    def build(self): ...

    def run(self):
        return self.given


def tried(given):
    job = Gives(JobParams())
    job.given = given
    return finished_record(execute(job, backend="cpu", threads=1, memory_limit_bytes=None))


LOSS = "\n  do: give a float, as `float(self.loss[None])` is one"
KIND = (
    ", which is neither a number nor an array of numbers\n"
    "  do: give numbers; what else a trial has to say can be printed: `qdrun logs` shows it"
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "Gives.run() gave None instead of an Outcome\n  do: end it with `return Outcome(loss, gradients, outputs)`"),
        (
            2.5,
            "Gives.run() gave 2.5 (float) instead of an Outcome\n  do: end it with `return Outcome(loss, gradients, outputs)`",
        ),
        (Outcome(np.ones(2), GOOD), "Gives.run() gave a loss that is not one number: an array of shape (2,) of float64" + LOSS),
        (Outcome(None, GOOD), "Gives.run() gave a loss that is not one number: None" + LOSS),
        (Outcome("abc", GOOD), "Gives.run() gave a loss that is not one number: 'abc' (str)" + LOSS),
        (Outcome(1j, GOOD), "Gives.run() gave a loss that is not one number: 1j (complex)" + LOSS),
        (
            Outcome(10**400, GOOD),
            "Gives.run() gave a loss that is not one number: 100000000000000000...0000000000000000000 (int)" + LOSS,
        ),
        (Outcome(1.0, {"x": 1.0}), "Gives.run() gave no gradient for many\n  do: put it into Outcome.gradients"),
        (Outcome(1.0, GOOD | {"x": "a"}), "run() gave the gradient `x` as 'a' (str)" + KIND),
        (Outcome(1.0, GOOD | {"x": 1j}), "run() gave the gradient `x` as 1j (complex)" + KIND),
        (Outcome(1.0, GOOD, {"fine": 1, "name": "walker"}), "run() gave the output `name` as 'walker' (str)" + KIND),
        (Outcome(1.0, GOOD, {"o": [[1], [1, 2]]}), "run() gave the output `o` as [[1], [1, 2]] (list)" + KIND),
    ],
)
def test_what_is_no_result_is_said(given, said):
    with pytest.raises(BadOutcome) as error:
        tried(given)
    assert str(error.value) == said


def test_a_value_whose_own_text_raises_is_named_by_its_type():
    class Shy:
        def __repr__(self):
            raise RuntimeError("no")

    with pytest.raises(BadOutcome, match=r"Gives.run\(\) gave <Shy instance at .*> \(Shy\) instead of an Outcome"):
        tried(Shy())


def test_numbers_of_all_kinds_are_results():
    given = Outcome(np.float32(1.5), {"x": 1, "many": [1, 2]}, {"half": np.ones(2, np.float16), "yes": True, "none": []})
    record = tried(given)
    assert (record["status"], record["loss"], record["gradients"]["many"].dtype) == ("done", 1.5, np.float64)
    assert {name: (a.dtype.name, a.tolist()) for name, a in record["outputs"].items()} == {
        "half": ("float16", [1.0, 1.0]),
        "yes": ("float64", 1.0),
        "none": ("float64", []),
    }


def test_who_runs_a_job_by_himself_is_told_too():
    with Session(Gives(JobParams())) as session, pytest.raises(BadOutcome, match="instead of an Outcome"):
        session.run()


def test_gradients_that_were_not_wanted_need_not_be_there():
    job = Gives(JobParams(), wanted=["x"])
    job.given = Outcome(1.0, {"x": 2.0})
    assert execute(job, backend="cpu", threads=1, memory_limit_bytes=None).outcome.gradients == {"x": 2.0}


RAISES = """
import qdrun as qd
from qdrun.jobs.base import Job, JobParams


class Raises(Job[JobParams]):
    needs_compiler = False

    def build(self): ...

    def run(self):
        return self.inner()

    def inner(self):
        return qd.field(qd.f64, shape=(1, "abacus"))
"""


def traced(source):
    """The traceback of what a job of this source raises, and the lines of its frames."""
    names = {"__name__": "raises"}
    exec(compile(source, "/somewhere/raises.py", "exec"), names)
    try:
        execute(names["Raises"](JobParams()), backend="cpu", threads=1, memory_limit_bytes=None)
    except Exception as error:
        text = error_record(error.with_traceback(error.__traceback__.tb_next))["traceback"]  # without this function
    return text, [line for line in text.splitlines() if line.startswith("  File")]


def test_the_traceback_of_an_error_that_the_compiler_found_begins_and_ends_in_the_job():
    qd.reset()  # whatever an earlier test of this process has left
    text, lines = traced(RAISES)
    assert lines[0].startswith('  File "/somewhere/raises.py", line 12, in run')
    assert lines[1].startswith('  File "/somewhere/raises.py", line 15, in inner') and len(lines) == 2
    assert text.startswith("Traceback (most recent call last):\n") and "no program in this thread" in text
    assert "The above exception" not in text


def test_the_traceback_of_a_batch_that_cannot_be_built_begins_in_the_job():
    class Broken(MassSpring):
        def build(self):
            raise KeyError("no such table")

    with pytest.raises(KeyError) as caught:
        BatchSession.open(Broken, Broken.Params(), 2, threads=1)
    text = error_record(caught.value.with_traceback(caught.value.__traceback__.tb_next))["traceback"]  # without this function
    lines = [line for line in text.splitlines() if line.startswith("  File")]
    assert len(lines) == 1 and lines[0].startswith(f'  File "{__file__}"') and lines[0].endswith("in build"), text


def test_the_traceback_of_any_other_error_goes_down_into_the_language():
    ours = "exec(compile('def broken(): raise RuntimeError(\\'ours\\')', COMPILER + 'ours.py', 'exec'))"
    source = (
        RAISES.replace('return qd.field(qd.f64, shape=(1, "abacus"))', "return broken()")
        + f"\n\nCOMPILER = {COMPILER[0]!r}\n{ours}\n"
    )
    text, lines = traced(source)
    assert [line.split('"')[1] for line in lines] == ["/somewhere/raises.py"] * 2 + [f"{COMPILER[0]}ours.py"]
    assert text.endswith("RuntimeError: ours\n")


def test_a_traceback_that_does_not_reach_the_job_is_whole():
    with pytest.raises(BadOutcome) as error:
        tried(None)
    text = error_record(error.value)["traceback"]
    assert "in check_outcome" in text and text.endswith("`return Outcome(loss, gradients, outputs)`\n")


class Rows(JobParams):
    kind: str = "a.bin"
    maybe: list[float] | None = None
    cells: list[list[float]] = Field([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


class Shaped(JobParams):
    x: float = 1.0
    many: list[float] = Field([1.0, 2.0, 3.0])
    inner: Rows = Rows()


class GivesShapes(Gives, Job[Shaped]):
    gradients = ("x", "many", "inner.cells", "inner.maybe", "inner.kind", "state")

    def __init__(self, params):
        super().__init__(params)


ALL = {
    "x": 1.0,
    "many": np.ones(3),
    "inner.cells": np.ones((3, 2)),
    "inner.maybe": np.ones(5),
    "inner.kind": 1.0,
    "state": [1.0],
}


@pytest.mark.parametrize(
    ("name", "value", "given", "expected"),
    [
        ("x", np.ones(1), "(1,)", "()"),
        ("many", np.ones(2), "(2,)", "(3,)"),
        ("many", 1.0, "()", "(3,)"),
        ("many", [[1.0], [2.0], [3.0]], "(3, 1)", "(3,)"),
        ("inner.cells", np.ones((2, 3)), "(2, 3)", "(3, 2)"),
        ("inner.cells", np.ones(6), "(6,)", "(3, 2)"),
    ],
)
def test_a_gradient_of_another_shape_than_its_parameter_is_refused(name, value, given, expected):
    job = GivesShapes(Shaped())
    job.given = Outcome(1.0, ALL)
    how = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}
    assert execute(job, **how).outcome is job.given
    job.given = Outcome(1.0, ALL | {name: value})
    with pytest.raises(BadOutcome) as caught:
        execute(job, **how)
    said = f"GivesShapes.run() gave the gradient of `{name}` with shape {given}, the parameter has shape {expected}\n  do: "
    assert str(caught.value).startswith(said)


class Unkind:
    """Raises whatever it is asked."""

    def __float__(self):
        raise RuntimeError("no")

    __repr__ = __array__ = __float__


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones(2) + 1j, "as an array of shape (2,) of complex128" + KIND),
        ([1.0, 2j], "as [1.0, 2j] (list)" + KIND),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), "as a masked array of shape (2,)" + KIND),
        ([1.0, np.ma.masked], "as [1.0, masked] (list)" + KIND),
        (np.array(["1.5"]), "as an array of shape (1,) of <U3" + KIND),
        ("1.5", "as '1.5' (str)" + KIND),
        (None, "as None" + KIND),
        ([1.0, None], "as [1.0, None] (list)" + KIND),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "as an array of shape (1,) of datetime64[D]" + KIND),
        (Unkind(), "(Unkind)" + KIND),
        (2**53 + 1, "as 9007199254740993 (int), and no float is equal to such an integer\n  do: give numbers"),
        (np.array([2**63 + 1], dtype=np.uint64), ", and no float is equal to such an integer\n  do: give numbers"),
        (np.longdouble("1e4000"), "which is too large for 64 bits\n  do: give numbers"),
    ],
)
def test_a_number_that_would_be_changed_is_refused_by_name(value, said):
    for part in ({"x": value}, {"many": value}):
        with pytest.raises(BadOutcome) as caught:
            arrays_of(part, "output")
        assert said in str(caught.value) and f"the output `{next(iter(part))}`" in str(caught.value)
    with pytest.raises(BadOutcome, match=r"gave a loss that is not one number: .*\n  do: give a float"):
        tried(Outcome(value, GOOD))


@pytest.mark.parametrize("part", [{3: 1.0}, {"\ud800": 1.0}, [("x", 1.0)], None])
def test_names_are_texts(part):
    for given in (Outcome(1.0, GOOD, part), Outcome(1.0, part)):
        with pytest.raises(BadOutcome, match="no map from names to numbers"):
            tried(given)


def test_every_number_of_a_record_is_a_float_that_python_has():
    wide, small = np.longdouble(1) / 3, np.full(3, 2, dtype=np.longdouble)
    record = tried(
        Outcome(wide, {"x": wide, "many": small}, {"flag": True, "count": np.int64(-(2**53)), "half": np.float16(0.5)})
    )
    assert type(record["loss"]) is float and record["loss"] == float(wide)
    assert {name: array.dtype for name, array in record["gradients"].items()} == {"x": np.float64, "many": np.float64}
    assert record["gradients"]["many"].tolist() == [2.0, 2.0, 2.0]
    assert {name: float(array) for name, array in record["outputs"].items()} == {"flag": 1.0, "count": -(2.0**53), "half": 0.5}
    assert record["outputs"]["half"].dtype == np.float16
