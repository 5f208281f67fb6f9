"""The pendulum: exact recovery without noise from many starts, the spread of Cramer and Rao with it; differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from qdrun.jobs.base import execute
from qdrun.jobs.gallery.sysid_pendulum import SysidPendulum, SysidPendulumParams, SysidPendulumPicture, swing
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of

NAMES = ("mass", "length", "damping")
BOUNDS = {"mass": [0.1, 10.0], "length": [0.3, 3.0], "damping": [0.0, 3.0]}


def some(**more) -> SysidPendulumParams:
    r = np.random.default_rng()
    start = {name: float(r.uniform(0.8, 1.2) * true) for name, true in zip(NAMES, (1.0, 1.0, 0.2))}
    return SysidPendulumParams(**{"steps": 40, "noise": 0.02, "draw": float(r.integers(1 << 20)), **start, **more})


def fit(params: SysidPendulumParams) -> tuple[np.ndarray, float]:
    """Mass, length and damping that fit the recording, and the loss."""
    section = {
        "rule": "levenberg_marquardt",
        "steps": 80,
        "params": list(NAMES),
        "bounds": BOUNDS,
        "stop": {"gradient_norm": 1e-11},
    }
    body = body_of(OptimizeSection.model_validate(section).model_dump(mode="json", exclude_unset=True))
    done = execute(SysidPendulum(params), backend="cpu", threads=1, memory_limit_bytes=None, body=body)
    return np.array([done.outcome.outputs[f"opt.{name}"] for name in NAMES]), done.outcome.loss


def information(params: SysidPendulumParams) -> np.ndarray:
    """J^T J / noise^2 at the truth; the Jacobian by complex steps through numpy's swing."""
    rows = []
    for k in range(3):
        at = np.array(params.truth, dtype=complex)
        at[k] += 1e-30j
        rows.append(swing(params, *at).imag / 1e-30)
    return np.array(rows) @ np.array(rows).T / params.noise**2


def test_angles_are_those_of_numpy():
    params = some()
    angles = run(SysidPendulum(params)).outputs["angles"]
    np.testing.assert_allclose(angles, swing(params, params.mass, params.length, params.damping), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("start", [(0.8, 0.8, 0.1), (1.6, 1.3, 0.5), (0.7, 1.25, 0.02), (1.5, 0.85, 0.4)])
def test_without_noise_the_truth_is_found(start):
    known = reference("sysid_pendulum")
    found, loss = fit(SysidPendulumParams(**known["size"], **dict(zip(NAMES, start))))
    meets(found, known)
    assert loss < 1e-18


def test_the_bound_is_that_of_the_reference():
    known = reference("sysid_pendulum")
    spread = np.sqrt(np.diag(np.linalg.inv(information(SysidPendulumParams(**known["size"], noise=known["noise"])))))
    np.testing.assert_allclose(spread, known["spread"], rtol=1e-5)


def test_with_noise_the_spread_is_that_of_the_bound():
    draws, seed = 60, int(np.random.default_rng().integers(1 << 20))
    params = [SysidPendulumParams(noise=0.01, draw=float(seed + k), mass=0.9, length=1.05) for k in range(draws)]
    off = np.array([fit(one)[0] for one in params]) - params[0].truth
    squares = np.einsum("ki,ij,kj->k", off, information(params[0]), off)  # each of the chi-squared distribution, 3 degrees
    assert squares.mean() == pytest.approx(3.0, abs=6.0 * np.sqrt(6.0 / draws))


def test_gradients_equal_central_differences():
    gradients_are_differences(SysidPendulum, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(SysidPendulum, [some() for _ in range(3)])


def test_another_recording_is_refused():
    with pytest.raises(ValidationError, match="2 angles are no recording of 40 steps"):
        some(recorded=[0.1, 0.2])
    with pytest.raises(ValidationError, match=r"the draw 0\.5 is a seed: a whole number"):
        some(draw=0.5)


def test_its_picture_shows_the_swing():
    leaves_a_picture(SysidPendulumPicture(some()), "swing.png")
