"""The pure parts of a run: failures, plans in a thread, claims, what resume does."""

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_helpers import write_config

from qdrun.runner.engine.failures import Rules, counted, decide, halves, last, smaller
from qdrun.runner.engine.resume import look, work_of
from qdrun.runner.exit_codes import exit_code
from qdrun.runner.packing import Claim
from qdrun.runner.ray_adapter.worker_pool import death_of
from qdrun.runner.store import attempts
from qdrun.runner.store.attempts import Attempt, Failure
from qdrun.runner.store.journal import Journal
from qdrun.runner.store.layout import create
from qdrun.runner.store.replay import recover
from qdrun.runner.study.plan import Hung, each_within, plan_all
from qdrun.runner.study.prepare import prepare
from qdrun.runner.study.requests import Claims, claim_of, curve


@given(st.sampled_from(list(Failure)), st.integers(0, 6), st.integers(1, 10))
def test_a_trial_is_tried_again_exactly_as_often_as_its_class_allows(failure, retries, count):
    rules = Rules(infra=retries, oom=retries, crash=retries)
    decision = decide(failure, Counter({failure: count}), rules)
    again = failure in (Failure.infrastructure, Failure.out_of_memory, Failure.crash) and count <= retries
    assert (decision.status is None) == again
    if not again:
        assert decision.status == {"crash": "poisoned", "cancelled": "cancelled"}.get(failure, "failed")


@given(st.lists(st.integers(), min_size=2, max_size=50).map(tuple))
def test_halves_are_all_of_it_and_neither_is_empty(batch):
    left, right = halves(batch)
    assert left + right == batch
    assert left and right and abs(len(left) - len(right)) <= 1


def test_smaller_keeps_the_points_below_what_was_held():
    claims = {"a": Claim.of([(100, 1.0), (40, 2.0), (10, 8.0)], seconds=3.0), "b": Claim.of([(500, 1.0)])}
    less = smaller(claims, 100)
    assert less["a"] == Claim.of([(40, 1.0), (10, 4.0)], seconds=6.0)
    assert less["b"] == claims["b"]


def test_the_point_that_ran_out_of_memory_is_left_out_in_every_class():
    claims = {"a": Claim.of([(100, 1.0), (40, 2.0)]), "b": Claim.of([(90, 1.0), (30, 2.0)]), "c": Claim.of([(10, 1.0)])}
    less = smaller(claims, 100)
    assert (less["a"], less["b"], less["c"]) == (Claim.of([(40, 1.0)]), Claim.of([(30, 1.0)]), claims["c"])
    assert smaller(claims, 95)["a"] == Claim.of([(40, 1.0)]), "what was held is no point of the curve: by bytes"


def test_a_claim_grows_by_half_and_nearly_to_the_largest_device_of_its_class():
    claims = {"a": Claim.of([(100, 1.0)]), "b": Claim.of([(90, 1.0)])}
    assert smaller(claims, 100) == {"a": Claim.of([(150, 1.0)]), "b": Claim.of([(135, 1.0)])}
    assert smaller(claims, 100, {"a": 128, "b": 1600}) == {"a": Claim.of([(120, 1.0)]), "b": Claim.of([(135, 1.0)])}
    assert smaller(claims, 100, {"a": 100})["a"] == Claim.of([(100, 1.0)]), "no less than it had"


def test_the_last_try_gets_more_than_the_fastest_point_and_than_it_had():
    curves = {"a": Claim.of([(100, 1.0), (40, 2.0)], seconds=3.0)}
    assert last(curves, 40) == {"a": Claim.of([(150, 1.0)], seconds=3.0)}
    assert last(curves, 150) == {"a": Claim.of([(225, 1.0)], seconds=3.0)}
    assert last(curves, 150, {"a": 160}) == {"a": Claim.of([(150, 1.0)], seconds=3.0)}
    assert last(curves, 40, {"a": 64}) == {"a": Claim.of([(60, 1.0)], seconds=3.0)}, "the whole plan fits no device"


def test_the_number_of_attempts_stands_on_the_first_line():
    assert counted({"message": "a\nb"}, 3)["message"] == "a (3 attempts)\nb"
    assert counted({"message": "a"}, 1)["message"] == "a (1 attempt)"


def test_work_that_hangs_is_left_behind_and_the_rest_is_done():
    gate = threading.Event()

    def work(n):
        if n == 1:
            gate.wait()
        if n == 3:
            raise ValueError("three")
        return 10 * n

    found = list(each_within(work, range(5), 0.3))
    gate.set()
    assert [found[k] for k in (0, 2, 4)] == [0, 20, 40]
    assert isinstance(found[1], Hung) and str(found[1]) == "it took longer than 0.3 s"
    assert isinstance(found[3], ValueError)


def test_without_a_limit_slow_work_is_waited_for():
    assert list(each_within(lambda n: time.sleep(0.2) or n, [1, 2], None)) == [1, 2]


def test_trials_of_one_shape_share_one_claims_object():
    one = {"cpu": Claim.of([(100, 1.0), (50, 2.0)])}
    claims = Claims([((0, 1, 2), one)])
    assert claims(0) is claims(2) is one
    assert (claims.fastest(1, "cpu"), claims.fastest(1, "cuda")) == (100, None)


SPRINGS = """version: 1
name: springs
job: {target: "qdrun.jobs.mass_spring:MassSpring", params: {steps: 40, substeps: 10}}
"""


def points_of(tmp_path, extra):
    path = write_config(tmp_path, text=SPRINGS + extra)
    prepared, job = prepare(path)
    ((group, points),) = plan_all(prepared, job)
    return prepared, group, points


def test_without_a_budget_and_with_one_in_bytes_a_claim_is_one_point(tmp_path):
    _, group, points = points_of(tmp_path, "")
    assert claim_of(group.plan, points) == Claim.of([(group.plan.bytes, 1.0)])
    _, tight, points = points_of(tmp_path, f"memory_budget: {group.plan.bytes * 3 // 4}\n")
    assert points == ()
    assert claim_of(tight.plan, points).points[0].bytes == tight.plan.bytes <= group.plan.bytes * 3 // 4


def test_with_auto_a_claim_is_a_curve_and_a_trial_can_be_planned_into_each_of_its_points(tmp_path):
    _, group, points = points_of(tmp_path, "memory_budget: auto\n")
    claim = claim_of(group.plan, points)
    assert claim.points[0].bytes == group.plan.bytes
    assert len(claim.points) > 1
    for point in claim.points[1:]:
        path = write_config(tmp_path, text=SPRINGS + f"memory_budget: {point.bytes}\n")
        ((smaller_one, _),) = plan_all(*prepare(path))
        assert smaller_one.error == ""
        assert smaller_one.plan.bytes <= point.bytes


def test_a_job_without_gradients_or_without_a_program_has_one_point(tmp_path):
    _, job = prepare(write_config(tmp_path))
    made = job(job.Params(), wanted=())
    plan = made.plan()
    assert curve(made, plan) == ((plan.bytes, 1.0),)


@pytest.mark.parametrize("state, code", [("done", 0), ("failed", 1), ("cancelled", 1), ("lost", 5), ("interrupted", 130)])
def test_exit_codes(state, code):
    assert exit_code(state) == code


def deaths():
    """Errors of Ray about an actor, whether its node is gone, and whose fault that is."""
    exceptions = pytest.importorskip("ray.exceptions")
    from ray.core.generated.common_pb2 import ActorDiedErrorContext

    def died(text):
        return exceptions.ActorDiedError(ActorDiedErrorContext(actor_id=b"0" * 16, error_message=text))

    return [
        (died("The actor is dead because its worker process has died."), False, "crash"),
        (died("its node has died, says the job that printed this"), False, "crash"),
        (died("The actor died because its node has died."), True, "infrastructure"),
        (died("whatever"), True, "infrastructure"),
        (exceptions.ActorUnavailableError("The actor is unavailable", b"0" * 16), False, "infrastructure"),
        (exceptions.ActorUnschedulableError("no node"), False, "infrastructure"),
        (exceptions.RayActorError(actor_init_failed=True), False, "infrastructure"),
    ]


def test_the_death_of_a_worker_is_its_own_or_that_of_its_node_by_types_and_not_by_words():
    for error, node_gone, failure in deaths():
        found, said = death_of(error, node_gone=node_gone)
        assert found == failure, error
        assert said["message"]


def test_resume_keeps_retries_and_skips_by_what_the_journal_says(tmp_path):
    prepared, _ = prepare(write_config(tmp_path, sweep={"x": list(range(8))}))
    folder = create(prepared, tmp_path / "runs")
    names = [trial.id for trial in prepared.trials]
    error = {"type": "E", "message": "no\nmore"}
    with Journal(folder) as journal:
        attempts.started(journal, [(Attempt(name, 1), {"device": "cpu"}) for name in names[:6]])
        row = {"status": "done", "loss": 1.0}
        attempts.ended(journal, [(Attempt(names[0], 1), row)])
        for name, failure in ((names[1], "user_error"), (names[2], "infrastructure")):
            attempts.ended(journal, [(Attempt(name, 1), {"status": "failed", "failure": failure, "error": error})])
        stopped = {"type": "Stopped", "message": "the trial was cancelled"}
        attempts.ended(journal, [(Attempt(names[3], 1), {"status": "cancelled", "failure": "cancelled", "error": stopped})])
        attempts.ended(journal, [(Attempt(names[4], 1), {"status": "cancelled", "failure": "cancelled"})])
        for charged in (True, False):
            fields = {"failure": "crash", "error": error, "charged": charged}
            journal.write("retry", trial=names[5], attempt=1, **fields)
        attempts.started(journal, [(Attempt(names[5], 2), {})])
    plan = look(folder)
    assert plan.kept == (names[0],)
    assert plan.retried == {
        names[2]: "failed: infrastructure: E: no",
        names[4]: "it was cancelled with the run",
        names[5]: "its attempt was lost with the run",
        names[6]: "it never started",
        names[7]: "it never started",
    }
    assert plan.skipped == {names[1]: "failed: user_error: E: no", names[3]: "the trial was cancelled"}
    assert set(look(folder, failed=True).retried) == set(names[1:])
    with Journal(folder) as journal:
        state = recover(folder, journal)
        work = {names[one.place]: one for one in work_of(state, plan)}
    assert (work[names[5]].number, dict(work[names[5]].charged), work[names[5]].alone) == (2, {"crash": 1}, True)
    assert (work[names[7]].number, dict(work[names[7]].charged), work[names[7]].alone) == (0, {}, False)
    assert state.suspects == {names[5]}
