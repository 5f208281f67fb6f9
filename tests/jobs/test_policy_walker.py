"""The walker: its network beside numpy, the distribution over seeds; gradients beside differences, batches, windows, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, gradients_are_tangents, leaves_a_picture, meets, reference
from pydantic import ValidationError

from qdrun.jobs.base import BatchSession, execute
from qdrun.jobs.gallery.policy_walker import WAVES, PolicyWalker, PolicyWalkerParams, PolicyWalkerPicture
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import descend_batch


def some(steps: int = 40) -> PolicyWalkerParams:
    r = np.random.default_rng()
    bias = r.uniform(-0.5, 0.5, 4).tolist()
    return PolicyWalkerParams(
        columns=3, actuation=[0.3, 0.2, 0.3], hidden=4, steps=steps, bias=bias, start=float(r.integers(1 << 20))
    )


def test_the_network_is_that_of_numpy():
    p = some()
    with PolicyWalker(p).opened() as job:
        job.run()
        x, v, activation = (field.to_numpy() for field in (job.x, job.v, job.activation))
        points, t = job.points.to_numpy(), int(np.random.default_rng().integers(1, p.steps))
    waves = np.sin(p.omega * p.dt * t + np.pi / 2 * np.arange(WAVES))
    seen = np.concatenate([waves, np.hstack([10 * (x[t] - x[t, 0] - points + points[0]), v[t]]).ravel()])
    inner = np.tanh(np.reshape(p.first, (p.hidden, -1)) @ seen + p.bias)
    wanted, a = np.tanh(np.reshape(p.second, (p.columns, -1)) @ inner), activation[t]
    for _ in range(p.substeps):
        a = a + 4 * p.dt * p.omega / p.substeps * (wanted - a) / (1 + a * a)
    np.testing.assert_allclose(activation[t + 1], a, rtol=1e-10, atol=1e-13)


def test_descents_from_many_seeds_have_the_known_median():
    known = reference("policy_walker")
    params = [PolicyWalkerParams(**known["size"], start=float(k)) for k in range(32)]
    section = {"rule": "adam", "steps": 60, "learning_rate": 0.05, "params": ["first", "bias", "second"]}
    with BatchSession.open(PolicyWalker, params[0], len(params)) as batch:
        ends = descend_batch(batch, params, OptimizeSection.model_validate(section))
    walked = np.array([-end.loss for end in ends])
    meets(np.median(walked), known)
    assert known["quantiles"]["0"] < np.quantile(walked, 0.2) < np.quantile(walked, 0.8) < known["quantiles"]["1"]


def test_a_budget_changes_no_bit():
    params, outcomes = some(), []
    for budget in (None, 30_000):
        done = execute(PolicyWalker(params), backend="cpu", threads=1, memory_limit_bytes=None, memory_budget_bytes=budget)
        assert done.plan.bytes == done.peak_bytes and (budget is None or done.peak_bytes <= budget)
        outcomes.append(done.outcome)
    assert outcomes[0].loss == outcomes[1].loss
    assert outcomes[0].gradients["first"].tolist() == outcomes[1].gradients["first"].tolist()


def test_gradients_equal_central_differences():
    gradients_are_differences(PolicyWalker, some(), tolerance=5e-4, most=8)  # contacts multiply the rounding of the loss


def test_gradients_equal_those_of_forward_mode():
    gradients_are_tangents(PolicyWalker, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(PolicyWalker, [some() for _ in range(3)], tolerance=1e-9)


def test_weights_of_another_network_are_refused():
    with pytest.raises(ValidationError, match="second has 2 weights, the network 64"):
        PolicyWalkerParams(second=[0.1, 0.2])
    with pytest.raises(ValidationError, match=r"the start 0\.5 is a seed: a whole number"):
        PolicyWalkerParams(start=0.5)


def test_its_picture_shows_the_robot():
    leaves_a_picture(PolicyWalkerPicture(some()), "walk.png")
