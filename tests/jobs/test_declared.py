"""Jobs that declare what goes in and out: values, gradients, plans, and what is refused by name."""

import numpy as np
import pytest
from pydantic import Field

import qdrun as qd
from qdrun.compiler.errors import QdrunRuntimeError
from qdrun.jobs.base import Job, JobParams, Outcome, Session, check_gradients, execute
from qdrun.jobs.mass_spring import MassSpring, MassSpringParams
from qdrun.jobs.mpm88 import Mpm88, Mpm88Params

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


class CurveParams(JobParams):
    height: float = 1.5
    bends: list[float] = Field([0.5, -0.25, 2.0])
    power: int = 2
    rounds: int = 3


class Curve(Job[CurveParams]):
    """sum_i height * bends[i]^power * rounds, of which the parts are an output."""

    gradients = ("height", "bends")

    def build(self):
        n = len(self.params.bends)
        self.height, self.bends, self.power = self.input("height"), self.input("bends"), self.input("power")
        self.loss, self.parts = self.objective(), self.output("parts", n)
        self.largest = self.output("largest")
        height, bends, power, loss, parts, largest = (
            *(self.height, self.bends, self.power),
            *(self.loss, self.parts, self.largest),
        )

        @qd.kernel
        def add(round: qd.i32):
            for i in range(n):
                part = height[None]
                for _ in range(power[None]):
                    part *= bends[i]
                parts[i] += part
                qd.atomic_max(largest[None], part)
                loss[None] += part

        self.add = add

    def simulate(self):
        for round in range(self.params.rounds):
            self.add(round)


def expected(p):
    bends = np.array(p.bends)
    parts = p.rounds * p.height * bends**p.power
    return {
        "loss": parts.sum(),
        "height": parts.sum() / p.height,
        "bends": p.rounds * p.height * p.power * bends ** (p.power - 1),
        "parts": parts,
        "largest": max(0.0, parts.max() / p.rounds),
    }


def drawn(seed):
    r = np.random.default_rng(seed)
    return CurveParams(height=float(r.normal()), bends=r.normal(size=3).tolist(), power=2 + seed // 5, rounds=2)


def test_inputs_objective_and_outputs_give_the_closed_form_in_one_program_and_in_many():
    with Session(Curve(CurveParams())) as session:
        for seed in range(8):
            params = drawn(seed)
            outcome, want = session.run(params), expected(params)
            found = {"loss": outcome.loss, **outcome.gradients, **outcome.outputs}
            assert found.keys() == want.keys()
            for name, value in want.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
            alone = execute(Curve(params), **HOW).outcome
            assert alone.loss == outcome.loss and np.array_equal(alone.gradients["bends"], outcome.gradients["bends"])
        assert session.builds == 3, "other floats do not build again"


def test_gradients_equal_differences():
    for row in check_gradients(Curve, drawn(11)):
        assert row.relative_error < 1e-7, row


def test_a_run_begins_where_the_first_one_began():
    with Curve(CurveParams()).opened(threads=1) as job:
        first, second = job.run(), job.run()
    assert first.loss == second.loss and np.array_equal(first.outputs["parts"], second.outputs["parts"])


def test_the_plan_of_what_simulate_launches_is_what_is_used():
    for wanted in (None, ("height",), ()):
        done = execute(Curve(CurveParams(), wanted=wanted), **HOW)
        assert done.plan.whole and done.plan.bytes == done.peak_bytes
        assert sorted(done.outcome.gradients) == sorted(("height", "bends") if wanted is None else wanted)
    with Curve(CurveParams(rounds=5)).opened() as job:
        assert [args for _, args in job.launches()] == [(0,)], "launches that no plan tells apart are named once"


def test_launches_whose_arguments_bound_a_loop_are_all_planned():
    class Grows(Job[CurveParams]):
        gradients = ("height",)

        def build(self):
            height, loss = self.input("height"), self.objective()

            @qd.kernel
            def power(n: qd.i32):
                for _ in range(1):
                    x = 1.0
                    for _ in range(n):
                        x = qd.sin(x * height[None])
                    loss[None] += x

            self.power = power

        def simulate(self):
            for n in (3, 50, 7):
                self.power(n)

    done = execute(Grows(CurveParams()), **HOW)
    assert done.plan.by_kind()["adstack"] > 0 and done.plan.bytes == done.peak_bytes


def test_a_list_of_another_length_builds_again():
    with Session(Curve(CurveParams())) as session:
        longer = CurveParams(bends=[1.0, 2.0, 3.0, 4.0])
        assert session.run(longer).loss == pytest.approx(expected(longer)["loss"])
        assert session.builds == 2


REFERENCE = {  # of the jobs as they were when they wrote run() themselves
    MassSpring: (
        MassSpringParams(steps=60),
        {
            "loss": -0.0006390328808534122,
            "stiffness": -5.026274753926247e-06,
            "actuation": [-0.00443164, -0.00878774, -0.00848326, 0.00042799],
        },
    ),
    Mpm88: (
        Mpm88Params(particles=36, steps=40),
        {"loss": 0.11684744924078647, "velocity": [0.02247552, -0.01273011], "stiffness": -2.273058835423116e-06},
    ),
}


@pytest.mark.parametrize("job", REFERENCE)
def test_shipped_jobs_give_what_they_gave_when_they_wrote_run_themselves(job):
    params, numbers = REFERENCE[job]
    outcome = execute(job(params), **HOW).outcome
    for name, value in numbers.items():
        found = outcome.loss if name == "loss" else outcome.gradients[name]
        np.testing.assert_allclose(found, value, rtol=1e-12 if isinstance(value, float) else 2e-5, err_msg=name)


# ---- refused by name
def opened(build, simulate=None, gradients=(), params=None):
    def run(self):
        self.kernels = []
        build(self)

    body = {"build": run, "simulate": simulate or (lambda self: None), "gradients": tuple(gradients), "Params": CurveParams}
    kind = type("Wrong", (Job,), body)
    with kind(params or CurveParams()).opened() as job:
        return job.plan()


@pytest.mark.parametrize(
    ("build", "gradients", "message"),
    [
        (
            lambda self: self.input("hight"),
            (),
            r"no parameter `hight` for an input\n  do: name one of: height, bends, power, rounds",
        ),
        (lambda self: (self.input("height"), self.input("height")), (), r"declares the input `height` twice"),
        (
            lambda self: (self.objective(), self.objective()),
            (),
            r"Wrong declares two objectives\n  do: add both up in one field",
        ),
        (lambda self: (self.output("a"), self.output("a")), (), r"declares the output `a` twice"),
        (
            lambda self: self.input("height"),
            (),
            r"simulate\(\) and declares no objective\n  do: write `self.loss = self.objective",
        ),
        (
            lambda self: self.objective(),
            ("bends",),
            r"gradients names `bends`, which is no input\n  do: write `self.input\('bends'\)",
        ),
        (lambda self: self.input("power"), ("power",), r"gradients names `power`, which is a whole number"),
        (lambda self: (self.params.height, self.input("height")), (), r"reads the value of `height` while it is built"),
        (lambda self: (self.input("bends"), sum(self.params.bends)), (), r"reads the value of `bends`.*\n  do: use the field"),
        (lambda self: (self.input("bends"), self.params.model_dump()), (), r"reads the value of `bends`"),
    ],
)
def test_declarations_that_cannot_be_are_refused(build, gradients, message):
    with pytest.raises(ValueError, match=message):
        opened(build, gradients=gradients)


def test_values_that_are_no_numbers_are_no_inputs():
    class Named(JobParams):
        name: str = "x"
        whole: int = 2**40
        empty: list[float] = Field([])

    class Wrong(Job[Named]):
        def build(self):
            self.objective()
            self.input(self.which)

        def simulate(self): ...

    for which, message in (("name", "value is 'x': no number"), ("empty", r"value is \[\]"), ("whole", "too large for i32")):
        Wrong.which = which
        with pytest.raises(ValueError, match=message), Wrong(Named()).opened():
            pass


def test_the_length_of_an_input_may_be_read_and_other_values_are_what_they_are():
    seen = []

    def build(self):
        self.objective()
        self.input("bends")
        p = self.params
        seen.append((len(p.bends), p.height, isinstance(p, CurveParams)))

    opened(build)
    assert seen == [(3, 1.5, True)]


def test_a_kernel_that_takes_the_value_of_an_input_as_a_constant_is_refused():
    def build(self):
        loss, p = self.objective(), self.params
        self.input("height")

        @qd.kernel
        def constant():
            loss[None] += p.height

        self.constant = constant

    with pytest.raises(Exception, match="reads the value of `height`"):
        opened(build, lambda self: self.constant())


def test_an_attribute_that_every_job_has_is_not_assigned_in_build():
    def build(self):
        self.objective()
        self.wanted = qd.field(qd.f64, shape=3)

    with pytest.raises(
        ValueError, match=r"build\(\) assigns `self.wanted`, which every job has: the gradients asked for\n  do: give the"
    ):
        opened(build, lambda self: None)


@pytest.mark.parametrize("name", ["run", "simulate", "plan", "save"])
def test_a_kernel_does_not_hide_a_method_that_is_called_after_build(name):
    def build(self):
        loss = self.objective()

        @qd.kernel
        def add():
            loss[None] += 1.0

        setattr(self, name, add)

    with pytest.raises(ValueError, match=rf"assigns `self.{name}`, which every job has: its method {name}\(\)\n  do: give the"):
        opened(build, lambda self: None)


def build_square(self):
    loss = self.objective()
    self.x = qd.field(qd.f64, shape=(), needs_grad=True, name="x")
    x = self.x

    @qd.kernel
    def square():
        loss[None] += x[None] ** 2

    @qd.kernel
    def asked() -> qd.f64:
        return x[None]

    self.square, self.asked = square, asked

    @qd.ad.grad_replaced
    def replaced():
        square()

    self.replaced = replaced


@pytest.mark.parametrize(
    ("simulate", "message"),
    [
        (
            lambda self: self.x.fill(1.0),
            r"Python writes `x` in Wrong.simulate, which may only launch kernels\n  do: do it in a kernel",
        ),
        (
            lambda self: self.x[None] > 1.0 and self.square(),
            r"Python reads `x` in Wrong.simulate.*\n  do: read it after the launches",
        ),
        (lambda self: self.x.to_numpy(), r"Python reads `x` in Wrong.simulate"),
        (lambda self: self.asked(), r"kernel `asked` returns values in Wrong.simulate.*\n  do: have it store them in a field"),
        (lambda self: self.square.grad(), r"the gradient of kernel `square` is launched in Wrong.simulate"),
        (lambda self: self.replaced(), r"has a gradient of its own, whose launches cannot be found.*\n  do: name all launches"),
        (lambda self: self.params.height, None),
    ],
)
def test_simulate_may_only_launch(simulate, message):
    if message is None:
        opened(build_square, simulate)
        return
    with pytest.raises(QdrunRuntimeError, match=message):
        opened(build_square, simulate)


def test_simulate_may_not_decide_by_the_value_of_an_input():
    def build(self):
        self.input("height")
        build_square(self)

    with pytest.raises(ValueError, match="reads the value of `height`"):
        opened(build, lambda self: self.square() if self.params.height > 0 else None)


def test_a_job_without_simulate_and_run_says_what_to_write():
    class Empty(Job[CurveParams]):
        def build(self): ...

    with (
        pytest.raises(NotImplementedError, match=r"Empty has no simulate\(\) and no run\(\)"),
        Empty(CurveParams()).opened() as job,
    ):
        job.run()


def test_a_job_that_overrides_run_may_declare_inputs_too():
    class Both(Job[CurveParams]):
        def build(self):
            self.height = self.input("height")

        def run(self):
            return Outcome(float(self.height[None]) * 2)

    with Session(Both(CurveParams())) as session:
        assert [session.run(CurveParams(height=h)).loss for h in (1.0, 4.0)] == [2.0, 8.0]
        assert session.builds == 3 and session.rebuilt == "it overrides run()"


# ---- recorded at the second run
def recorded(job):
    return [bool(one._graph) for one in job._recorded.values()], [one.why for one in job._recorded.values() if one.why]


def test_the_launches_of_a_run_are_recorded_at_its_second_and_give_the_same_bits():
    r = np.random.default_rng(3)
    every = [
        MassSpringParams(steps=20, stiffness=float(r.uniform(500, 1500)), actuation=r.uniform(0.1, 0.3, 4).tolist())
        for _ in range(5)
    ]
    with Session(MassSpring(every[0]), threads=1) as session:
        for number, params in enumerate([*every, every[0]]):
            outcome = session.run(params)
            assert recorded(session.job) == ([number > 0], [])
            how = "recorded: " if number else "one by one, as a first run is"
            assert session.job.launched().startswith(how)
            alone = execute(MassSpring(params), **HOW).outcome
            assert outcome.loss == alone.loss and outcome.outputs == alone.outputs
            assert outcome.gradients["stiffness"] == alone.gradients["stiffness"]
            assert np.array_equal(outcome.gradients["actuation"], alone.gradients["actuation"])
        assert session.builds == 1 and session.job.plan().bytes == session.job.peak_bytes()


def test_what_is_recorded_has_the_heap_and_the_random_numbers_of_each_run():
    class Walks(Job[CurveParams]):
        gradients = ("height",)

        def build(self):
            height, loss, rounds = self.input("height"), self.objective(), self.params.rounds

            @qd.kernel
            def walk():
                for _ in range(3):
                    x = height[None]
                    for _ in range(rounds * 10):
                        x = qd.sin(x + 0.1 * qd.random(qd.f64))
                    loss[None] += x

            self.walk = walk

        def simulate(self):
            self.walk()
            self.walk()

    with Session(Walks(CurveParams()), threads=1) as session:
        for height in (0.3, 0.7, -0.4, 0.3):
            params = CurveParams(height=height)
            outcome, alone = session.run(params), execute(Walks(params), **HOW).outcome
            assert (outcome.loss, outcome.gradients) == (alone.loss, alone.gradients)
        assert recorded(session.job) == ([True], [])


def test_a_job_that_looks_at_its_fields_is_built_for_each_run():
    class Looks(Job[CurveParams]):
        def build(self):
            self.height, self.loss = self.input("height"), self.objective()
            height, loss = self.height, self.loss

            @qd.kernel
            def add():
                loss[None] += height[None]

            self.add = add

        def launches(self):
            return [(self.add, ())]

        def simulate(self):
            for _ in range(int(self.height[None])):
                self.add()

    with Session(Looks(CurveParams())) as session:
        losses = [session.run(CurveParams(height=h)).loss for h in (1.0, 2.0, 3.0, 4.0)]
        assert losses == [1.0, 4.0, 9.0, 16.0] and session.builds == 4
        assert session.rebuilt.startswith("Python reads `height` in Looks.simulate")


class Counts(Job[CurveParams]):
    """Its first launch adds 1; a job that is not put back would add more at its next run."""

    count: object

    def build(self):
        self.input("height")
        loss, self.calls, self.seen = self.objective(), 0, [0]

        @qd.kernel
        def add(number: qd.i32):
            loss[None] += number

        self.add, self.numbers = add, iter(range(1, 100))

    def simulate(self):
        self.add(type(self).count(self))


def attribute(job):
    job.calls += 1
    return job.calls


def item(job):
    job.seen[0] += 1
    return job.seen[0]


def items(job):
    job.seen.append(1)
    return len(job.seen) - 1


@pytest.mark.parametrize(("count", "name"), [(attribute, "calls"), (item, "seen"), (items, "seen")])
def test_a_job_whose_simulate_changes_its_attributes_is_built_for_each_run(count, name):
    Counts.count = count
    with Session(Counts(CurveParams())) as session:
        assert [session.run(CurveParams(height=h)).loss for h in (1.0, 2.0, 3.0)] == [1.0, 1.0, 1.0]
        assert session.builds == 3 and session.rebuilt == f"simulate() changes the attribute `{name}`"
    with Counts(CurveParams()).opened() as job:
        job.run()
        with pytest.raises(
            RuntimeError, match=f"Counts cannot run again: simulate.. changes the attribute `{name}`\n  do: open"
        ):
            job.run()


def test_a_job_whose_simulate_launches_something_else_when_it_is_called_again_is_found_out():
    Counts.count = lambda job: next(job.numbers)  # an iterator: what it holds cannot be looked at
    with Session(Counts(CurveParams())) as session:
        session.run()
        session.run(CurveParams(height=2.0))
        assert session.rebuilt == "simulate() launches something else when it is called again"


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_constants_have_the_values_of_arrays_in_the_type_of_the_job(precision):
    values = np.random.default_rng().normal(size=(4, 3))

    class Constants(Job[JobParams]):
        def build(self):
            self.objective()
            self.table, self.rows = self.constant(values), self.constant(values, vectors=True)
            self.numbers = self.constant(np.arange(4))

        def simulate(self): ...

    Constants.precision = precision
    with Constants(JobParams()).opened(threads=1) as job:
        assert job.table.shape == (4, 3) and job.rows.shape == (4,) and job.rows.n == 3
        for field in (job.table, job.rows):
            found = field.to_numpy()
            assert found.dtype == np.dtype(precision.replace("f", "float")) and (found == values.astype(found.dtype)).all()
        assert job.numbers.to_numpy().tolist() == [0, 1, 2, 3] and job.numbers.dtype == qd.i32
