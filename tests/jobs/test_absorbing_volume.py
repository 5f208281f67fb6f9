"""The absorbing volume: Beer and Lambert's law in closed form, a program in numpy, differences, an inversion, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, descend, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from qdrun.jobs.gallery.absorbing_volume import AbsorbingVolume, AbsorbingVolumeParams, AbsorbingVolumePicture


def some(cells: int = 3, pixels: int = 4, views: int = 2, steps: int = 5) -> AbsorbingVolumeParams:
    r = np.random.default_rng()
    return AbsorbingVolumeParams(
        cells=cells,
        pixels=pixels,
        views=views,
        steps=steps,
        radius=float(r.uniform(0.5, 0.9)),
        ball=float(r.uniform(1, 2)),
        extinction=r.uniform(0.1, 1, cells**3).tolist(),
    )


def rays(p):
    """Starts, directions and lengths of the rays in the cube, and the places of their pixels: (views, pixels, pixels, ..)."""
    place = (np.arange(p.pixels) + 0.5) * 2 / p.pixels - 1
    view, across, up = np.meshgrid((np.arange(p.views) + 0.5) * np.pi / p.views, place, place, indexing="ij")
    along = np.stack([np.cos(view), np.zeros_like(view), np.sin(view)], axis=3)
    middle = np.stack([-across * np.sin(view), up, across * np.cos(view)], axis=3)
    ends = np.array([(sign - middle[..., d]) / along[..., d] for d in (0, 2) for sign in (-1, 1)]).reshape(2, 2, *view.shape)
    first, last = ends.min(axis=1).max(axis=0), ends.max(axis=1).min(axis=0)
    return middle + first[..., None] * along, along, np.maximum(last - first, 0), across, up


def by_numpy(p):
    """The loss, by whole arrays: the light is 1 - exp(- the sum of extinctions times lengths)."""
    start, along, length, across, up = rays(p)
    grid, depth = np.reshape(p.extinction, (p.cells,) * 3), np.zeros(length.shape)
    for k in range(p.steps):
        at = start + ((k + 0.5) * length / p.steps)[..., None] * along
        at = np.clip((at + 1) * p.cells / 2 - 0.5, 0, p.cells - 1)
        low = np.minimum(at.astype(int), p.cells - 2)
        share = at - low
        for corner in np.ndindex(2, 2, 2):
            weight = np.prod(np.where(np.array(corner) == 1, share, 1 - share), axis=3)
            depth += weight * grid[tuple(np.moveaxis(low + corner, 3, 0))] * length / p.steps
    wanted = 1 - np.exp(-2 * p.ball * np.sqrt(np.maximum(p.radius**2 - across**2 - up**2, 0)))
    return np.mean((1 - np.exp(-depth) - wanted) ** 2)


def test_even_fog_meets_the_law_of_beer_and_lambert():
    known = reference("absorbing_volume")
    p = AbsorbingVolumeParams(**known["size"], ball=0.0, extinction=[known["extinction"]] * known["size"]["cells"] ** 3)
    found = run(AbsorbingVolume(p))
    meets([found.loss, found.gradients["extinction"].sum()], known)
    through = np.exp(-2 * known["extinction"])
    np.testing.assert_allclose(known["value"], [(1 - through) ** 2, 4 * (1 - through) * through], rtol=1e-14)


def test_even_fog_from_all_sides_has_the_light_of_its_lengths():
    p = AbsorbingVolumeParams(cells=4, pixels=7, views=3, steps=6, ball=0.0, extinction=[0.7] * 64)
    through, length = np.exp(-0.7 * rays(p)[2]), rays(p)[2]
    found = run(AbsorbingVolume(p))
    assert found.loss == pytest.approx(np.mean((1 - through) ** 2), rel=1e-12)
    assert found.gradients["extinction"].sum() == pytest.approx(np.mean(2 * (1 - through) * through * length), rel=1e-12)


def test_the_loss_is_that_of_whole_arrays():
    params = some(5, 6, 3, 9)
    assert run(AbsorbingVolume(params)).loss == pytest.approx(by_numpy(params), rel=1e-12)


def test_gradients_equal_central_differences():
    gradients_are_differences(AbsorbingVolume, some())


def test_an_inversion_explains_the_pictures():
    job = AbsorbingVolume(AbsorbingVolumeParams())
    losses = descend(job, "lbfgs", 30, keep="best", params=["extinction"], bounds={"extinction": [0.0, 10.0]})
    assert losses.min() < 0.02 * losses[0]


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(AbsorbingVolume, [some() for _ in range(3)])


def test_a_volume_of_another_size_is_refused():
    with pytest.raises(ValidationError, match=r"extinction has 2 numbers for 3\^3 cells\n  do: give 27"):
        AbsorbingVolumeParams(cells=3, extinction=[1.0, 2.0])


def test_its_picture_shows_the_views():
    leaves_a_picture(AbsorbingVolumePicture(some()), "views.png")
