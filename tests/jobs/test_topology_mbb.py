"""The MBB beam: compliances of the 88 lines, a program in numpy, gradients beside differences, batches, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, leaves_a_picture, meets, reference, run
from pydantic import ValidationError

from benchmarks.gallery import near, optimality_criteria
from qdrun.jobs.base import execute
from qdrun.jobs.gallery.topology_mbb import VOID, TopologyMbb, TopologyMbbParams, TopologyMbbPicture, element_stiffness


def some(columns: int = 5, rows: int = 3) -> TopologyMbbParams:
    r = np.random.default_rng()
    return TopologyMbbParams(
        columns=columns,
        rows=rows,
        poisson=float(r.uniform(0.2, 0.4)),
        power=float(r.uniform(2, 3)),
        radius=1.7,
        volume_weight=float(r.uniform(1, 10)),
        density=r.permutation(np.linspace(0.3, 0.95, columns * rows)).tolist(),
    )


def by_numpy(p):
    """The loss, by a dense matrix."""
    weights = near(p, p.radius)
    density = weights @ p.density / weights.sum(axis=1)
    count = 2 * (p.columns + 1) * (p.rows + 1)
    K, f = np.zeros((count, count)), np.zeros(count)
    for e, (i, j) in enumerate(np.ndindex(p.columns, p.rows)):
        upper, right = i * (p.rows + 1) + j, (i + 1) * (p.rows + 1) + j
        places = np.array([[2 * n, 2 * n + 1] for n in (upper + 1, right + 1, right, upper)]).ravel()
        K[np.ix_(places, places)] += (VOID + density[e] ** p.power * (1 - VOID)) * element_stiffness(p.poisson)
    f[1] = -1.0
    free = np.setdiff1d(np.arange(count - 1), np.arange(0, 2 * (p.rows + 1), 2))
    compliance = f[free] @ np.linalg.solve(K[np.ix_(free, free)], f[free])
    return compliance + p.volume_weight * (density.mean() - p.fraction) ** 2


@pytest.mark.parametrize("filtered", [False, True])
def test_optimality_criteria_meet_the_compliances_of_the_88_lines(filtered):
    known = reference("topology_mbb")
    job = TopologyMbb(TopologyMbbParams(**known["size"], radius=2.4 if filtered else 1.0))
    done = execute(job, backend="cpu", threads=1, memory_limit_bytes=None, body=optimality_criteria)
    meets(done.outcome.loss, known | {"value": known["value"][filtered]})
    assert done.plan.bytes == done.peak_bytes


def test_the_loss_is_that_of_a_dense_matrix():
    params = some(9, 6)
    assert run(TopologyMbb(params)).loss == pytest.approx(by_numpy(params), rel=1e-10)


def test_rigid_motions_of_an_element_need_no_force():
    turn = np.array([0, 0, 0, 1, -1, 1, -1, 0.0])
    for motion in (np.tile([1.0, 0.0], 4), np.tile([0.0, 1.0], 4), turn):
        np.testing.assert_allclose(element_stiffness(0.3) @ motion, 0, atol=1e-14)


def test_gradients_equal_central_differences():
    gradients_are_differences(TopologyMbb, some())


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(TopologyMbb, [some().model_copy(update={"poisson": 0.3}) for _ in range(3)])


def test_densities_of_another_beam_are_refused():
    with pytest.raises(ValidationError, match="density has 2 numbers for 1200 elements\n  do: give 1200"):
        TopologyMbbParams(density=[0.5, 0.5])


def test_its_picture_shows_the_beam():
    leaves_a_picture(TopologyMbbPicture(TopologyMbbParams(columns=4, rows=2, radius=1.0, density=[0.1, 0.9] * 4)), "beam.png")
