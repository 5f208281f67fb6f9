"""Full-waveform inversion: Devito's objectives, a program in numpy, gradients beside differences, the dot test, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from qdrun.jobs.base import Session
from qdrun.jobs.gallery.fwi_circle import FwiCircle, FwiCircleParams, FwiCirclePicture

STEPS = 2  # of 5: each takes ten seconds


def some(cells: int = 8, steps: int = 25, shots: int = 2, layer: int = 3) -> FwiCircleParams:
    r = np.random.default_rng()
    return FwiCircleParams(
        cells=cells,
        layer=layer,
        shots=shots,
        steps=steps,
        radius=2.0,
        frequency=float(r.uniform(0.02, 0.03)),
        circle=float(r.uniform(2.8, 3.1)),
        velocity=r.uniform(2.2, 2.8, (cells + 2 * layer) ** 2).tolist(),
        wavelet=r.uniform(-1, 1, steps).tolist(),
    )


def traces(p, velocity, wavelet):
    """The waves at the receivers in each time step, (steps, shots, cells), by whole arrays."""
    n, depth = p.cells + 2 * p.layer, np.zeros(p.cells + 2 * p.layer)
    depth[: p.layer] = np.arange(p.layer, 0, -1)
    depth[-p.layer :] = np.arange(1, p.layer + 1)
    x = np.where(depth > 0, (depth + 1) / p.layer, 0.0)
    damp = 1.5 * np.log(1000) / p.layer * (x - np.sin(2 * np.pi * x) / (2 * np.pi)) / 10
    damp = p.dt * (damp[:, None] + damp)
    source = np.zeros((p.shots, n, n))
    for s in range(p.shots):
        place = p.layer + s * (p.cells - 1) / (p.shots - 1)
        source[s, p.layer + 3] = np.maximum(0, 1 - np.abs(np.arange(n) - place))
    old, now, out = np.zeros_like(source), np.zeros_like(source), []
    for t in range(p.steps):
        out.append(now[:, p.layer + p.cells - 3, p.layer : p.layer + p.cells])
        u = np.pad(now, ((0, 0), (2, 2), (2, 2)))
        bend = sum(
            c * (u[:, 2 + k : 2 + k + n, 2:-2] + u[:, 2:-2, 2 + k : 2 + k + n])
            for k, c in zip(range(-2, 3), (-1 / 12, 4 / 3, -2.5, 4 / 3, -1 / 12))
        )
        m = velocity**-2.0
        then = (m * (2 * now - old) + damp * now + p.dt**2 * bend / 100) / (m + damp)
        then = then + (t > 0) * wavelet[t] * (p.dt * velocity) ** 2 * source
        old, now = (now, then) if t else (old, now)
    return np.array(out)


def true(p):
    """The true velocities and the true wavelet."""
    i = np.arange(p.cells + 2 * p.layer) - p.layer - p.cells / 2
    phase = (np.pi * p.frequency * (np.arange(p.steps) * p.dt - 1 / p.frequency)) ** 2
    return np.where(i[:, None] ** 2 + i**2 <= p.radius**2, p.circle, p.background), (1 - 2 * phase) * np.exp(-phase)


def by_numpy(p):
    """Synthetic and recorded traces of the job."""
    n = p.cells + 2 * p.layer
    return traces(p, np.reshape(p.velocity, (n, n)), p.wavelet), traces(p, *true(p))


def test_the_misfit_is_that_of_whole_arrays():
    p = some(10, 60, 3, 4)
    ours, recorded = by_numpy(p)
    assert run(FwiCircle(p)).loss == pytest.approx(0.5 * ((ours - recorded) ** 2).sum(), rel=1e-10)


def test_an_odd_and_an_even_number_of_steps_end_with_the_last_one():
    for steps in (30, 31):
        p = some(steps=steps)
        ours, recorded = by_numpy(p)
        assert run(FwiCircle(p)).loss == pytest.approx(0.5 * ((ours - recorded) ** 2).sum(), rel=1e-10)


def test_gradients_equal_central_differences():
    gradients_are_differences(FwiCircle, some(), most=20)


def test_the_adjoint_of_the_waves_passes_the_dot_test():
    p = some(10, 60, 3, 4)
    ours, recorded = by_numpy(p)
    back = run(FwiCircle(p)).gradients["wavelet"]  # the adjoint, applied to the residual
    assert np.dot(back, p.wavelet) == pytest.approx(((ours - recorded) * ours).sum(), rel=1e-10)


@pytest.mark.slow
def test_the_inversion_meets_the_objectives_of_devito():
    known = reference("fwi_circle")
    p = FwiCircleParams(**known["size"])
    velocity, found = np.array(p.velocity), []
    with Session(
        FwiCircle(p, wanted=("velocity",)), backend="cpu", threads=2, memory_limit_bytes=None, memory_budget_bytes=10**9
    ) as session:
        for _ in range(STEPS - 1):
            outcome = session.run(p.model_copy(update={"velocity": velocity.tolist()}))
            found.append(outcome.loss)
            slope = -0.5 * velocity**3 * outcome.gradients["velocity"]  # with respect to 1 / velocity^2, as in the tutorial
            velocity = np.clip(velocity + 0.05 * slope / slope.max(), 2.0, 3.5)
    found.append(run(FwiCircle(p.model_copy(update={"velocity": velocity.tolist()}), wanted=()), threads=2).loss)
    meets(found, known | {"value": known["value"][:STEPS]})
    np.testing.assert_allclose(found, known["published"][:STEPS], rtol=known["published_tolerance"])


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(FwiCircle, [some() for _ in range(3)])


def test_a_source_of_another_length_is_refused():
    with pytest.raises(ValidationError, match="wavelet has 2 numbers instead of 490\n  do: give 490"):
        FwiCircleParams(wavelet=[1.0, 2.0])


def test_its_picture_shows_the_velocities():
    leaves_a_picture(FwiCirclePicture(some()), "velocity.png")
