"""A job that stays open while its parameters change gives what a job built for them gives, to the bit; dotted paths into parameters."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import BaseModel, Field

import qdrun as qd
from qdrun.jobs.base import Job, JobParams, Outcome, Session, execute
from qdrun.jobs.core import paths
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

JOBS = {
    "mass_spring": (
        MassSpring,
        MassSpringParams(steps=40),
        [{"stiffness": 700.0}, {"actuation": [0.1, 0.2, 0.3, 0.1]}, {"substeps": 4}],
    ),
    "mpm88": (
        Mpm88,
        Mpm88Params(particles=36, steps=30),
        [{"stiffness": 30.0}, {"velocity": [2.0, -0.5], "stiffness": 25.0}, {"grid": 20}],
    ),
}


def numbers(outcome):
    parts = {"loss": outcome.loss, **outcome.gradients, **outcome.outputs}
    return {name: np.asarray(value).tobytes() for name, value in parts.items()}


def built(job, params, wanted, budget):
    with job(params, wanted=wanted).opened(threads=1, memory_budget_bytes=budget) as made:
        return numbers(made.run())


@pytest.mark.parametrize("wanted", [None, ()], ids=["with gradients", "forward only"])
@pytest.mark.parametrize("part", [1, 3], ids=["all steps", "a window"])
@pytest.mark.parametrize("name", ["mass_spring", pytest.param("mpm88", marks=pytest.mark.slow)])
def test_other_inputs_give_what_a_build_gives_and_others_build_again(name, part, wanted):
    job, first, changes = JOBS[name]
    budget = None
    if part > 1:
        with job(first, wanted=wanted).opened(threads=1) as made:
            made.run()
            budget = made.peak_bytes() // part
    with Session(job(first, wanted=wanted), threads=1, memory_budget_bytes=budget) as session:
        assert (session.job.window < first.steps) == (part > 1)
        visited = [first, *(first.model_copy(update=change) for change in changes), first, first]
        for number, params in enumerate(visited):
            assert numbers(session.run(params)) == built(job, params, wanted, budget), number
        assert session.builds == 3  # the constant of a kernel, there and back
    if budget:
        assert session.peak_bytes <= budget


def test_set_says_whether_it_could_and_changes_nothing_when_not():
    start = MassSpringParams(steps=8)
    with MassSpring(start).opened(threads=1) as job:
        for change in ({"substeps": 4}, {"steps": 9}, {"actuation": [0.1] * 3}):
            assert not job.set(start.model_copy(update=change))
            assert job.params == start
        assert job.set(start.model_copy(update={"stiffness": 5.0}))
        assert job.params.stiffness == 5.0 and float(job.stiffness[None]) == 5.0


class Small(JobParams):
    x: float = 1.0


def test_a_job_that_overrides_run_is_built_for_every_run_but_the_first():
    class Plain(Job[Small]):
        needs_compiler = False

        def build(self):
            self.sum = 0.0

        def run(self):
            self.sum += self.params.x  # would be wrong in a second run
            return Outcome(self.sum)

    with Session(Plain(Small())) as session:
        losses = [session.run(params).loss for params in (None, Small(x=3.0), None, Small(x=3.0))]
    assert losses == [1.0, 3.0, 3.0, 3.0] and session.builds == 4


class Tossed(Job[Small]):
    """x plus a random number; it may read its seed."""

    def build(self):
        x, loss = self.input("x"), self.objective()
        self.number = self.seed if type(self).reads else 0

        @qd.kernel
        def toss():
            loss[None] += x[None] + qd.random(qd.f64)

        self.toss = toss

    def simulate(self):
        self.toss()


def test_an_open_job_becomes_that_of_another_trial_where_it_gives_what_a_build_gives():
    Tossed.reads = False
    with Session(Tossed(Small(), seed=1)) as session:
        for seed, x in enumerate((1.0, 2.0, -0.0, 0.0), 2):
            assert session.renew(Small(x=x), None, seed) and session.job.seed == seed
            alone = execute(Tossed(Small(x=x), seed=seed), backend="cpu", threads=1, memory_limit_bytes=None)
            assert session.run().loss == alone.outcome.loss
        assert session.builds == 1
    Tossed.reads = True
    with Session(Tossed(Small(), seed=1)) as session:
        assert not session.renew(Small(x=2.0), None, 2)
    with Session(MassSpring(MassSpringParams(steps=8))) as session:
        assert not session.renew(MassSpringParams(steps=8), ("stiffness",), 0), "other gradients"
        assert not session.renew(MassSpringParams(steps=9), None, 0), "other steps"
        assert session.renew(MassSpringParams(steps=8, stiffness=2.0), None, 0)


class Layer(BaseModel):
    width: int = 3
    taps: tuple[float, float] = (0.5, 1.5)


class Nested(JobParams):
    layers: list[Layer] = Field([Layer(), Layer(width=7)])
    best: Layer | None = Layer(width=9)
    named: dict[str, Layer] = Field(default_factory=lambda: {"a": Layer()})
    needed: list[float]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layers.1.width", 4),
        ("layers.0.taps.1", 2.5),
        ("best.width", 4),
        ("best.taps.0", 2.5),
        ("named.a.width", 5),
        ("needed", [1.0]),
    ],
)
def test_a_path_sets_one_value_and_leaves_the_other_defaults(path, value):
    values = {"needed": [0.0]}
    paths.put(values, path, value, Nested)
    whole = Nested.model_validate(values).model_dump(mode="json")
    assert paths.get(whole, path) == value
    default = Nested(needed=[0.0]).model_dump(mode="json")
    paths.put(default, path, value)
    assert whole == default
    assert Nested(needed=[0.0]).layers[1].width == 7  # the model's default is its own


def test_a_path_finds_the_defaults_of_what_is_half_given():
    values = {"needed": [0.0], "layers": [{}, {"width": 8}], "named": {"a": {}}, "best": {}}
    for path in ("layers.1.taps.0", "named.a.taps.0", "best.taps.0"):
        paths.put(values, path, 9.0, Nested)
    whole = Nested.model_validate(values)
    assert (whole.layers[1].width, whole.layers[1].taps) == (8, (9.0, 1.5))
    assert whole.named["a"].taps == whole.best.taps == (9.0, 1.5)


@pytest.mark.parametrize(
    ("path", "said", "allowed"),
    [
        ("layers.2.width", "`layers` has 2 items and no `2`", ("0", "1")),
        ("layers.x", "`layers` has 2 items and no `x`", ("0", "1")),
        ("layers.-1.width", "`layers` has 2 items and no `-1`", ("0", "1")),
        ("best.width.x", "`best.width` is one value and has no `x`", ()),
        ("needed.0", "`needed` has no default, so `needed.0` has no list to change", ()),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path, said, allowed):
    with pytest.raises(paths.PathError) as caught:
        paths.put({}, path, 1, Nested)
    assert (str(caught.value), caught.value.allowed) == (said, allowed)
    assert caught.value.hint


def test_has_and_get():
    values = {"a": {"b": [1, {"c": 2}]}}
    assert paths.get(values, "a.b.1.c") == 2 and paths.has(values, "a.b.0")
    assert not any(paths.has(values, path) for path in ("a.c", "a.b.5", "a.b.0.c", "z"))
