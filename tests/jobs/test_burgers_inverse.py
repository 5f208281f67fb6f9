"""Burgers' inverse problem: the book's losses, a program in numpy, gradients beside differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from qdrun.jobs.gallery.burgers_inverse import BurgersInverse, BurgersInverseParams, BurgersInversePicture


def some(cells: int = 12, steps: int = 5) -> BurgersInverseParams:
    r = np.random.default_rng()
    return BurgersInverseParams(
        cells=cells,
        steps=steps,
        viscosity=float(r.uniform(0.005, 0.02)),
        amplitude=float(r.uniform(-0.5, 0.5)),
        initial=r.uniform(-1, 1, cells).tolist(),
        target=r.uniform(-1, 1, cells).tolist(),
    )


def by_numpy(p):
    """The loss, by whole arrays."""
    place, dt, dx = np.arange(p.cells), p.duration / p.steps, 2 / p.cells
    u = p.initial + p.amplitude * np.sin(np.pi * (place + 0.5) * dx)
    for _ in range(p.steps):
        u = u + dt * p.viscosity * (np.roll(u, 1) - 2 * u + np.roll(u, -1)) / dx**2
        u = np.interp(place - u * dt / dx, place, u, period=p.cells)
    return np.mean((u - p.target) ** 2)


def test_the_descent_meets_the_losses_of_the_book():
    known = reference("burgers_inverse")
    job = BurgersInverse(BurgersInverseParams(**known["size"]))
    losses = descend(job, "sgd", max(known["at"]), learning_rate=5.0, params=["initial"])
    meets(losses[known["at"]], known)


def test_the_loss_is_that_of_whole_arrays():
    params = some(40, 9)
    assert run(BurgersInverse(params)).loss == pytest.approx(by_numpy(params), rel=1e-12)


def test_gradients_equal_central_differences():
    gradients_are_differences(BurgersInverse, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(BurgersInverse, [some() for _ in range(3)])


def test_a_start_of_another_length_is_refused():
    with pytest.raises(ValidationError, match="initial has 3 numbers for 8 cells\n  do: give 8"):
        BurgersInverseParams(cells=8, initial=[1.0, 2.0, 3.0])


def test_its_picture_shows_the_velocities():
    leaves_a_picture(BurgersInversePicture(some()), "shock.png")
