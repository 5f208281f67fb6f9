"""The Lennard-Jones cluster: energies and gradients beside numpy, minima that are known, plan against use, the picture."""

import numpy as np
import pytest
from gallery_checks import batch_is_alone, gradients_are_differences, leaves_a_picture, meets, reference
from pydantic import ValidationError

from qdrun.jobs.base import execute
from qdrun.jobs.lj_cluster import CLOSE, KNOWN, LjCluster, LjClusterParams, LjClusterPicture, drawn
from qdrun.runner.config.optimize_section import OptimizeSection
from qdrun.runner.optimize.descent import body_of

HOW = {"backend": "cpu", "threads": 1, "memory_limit_bytes": None}


def by_numpy(x):
    """Energy and gradient of positions (atoms, 3)."""
    apart = x[:, None] - x[None]
    square = (apart**2).sum(axis=2)
    np.fill_diagonal(square, np.inf)
    sixth = square**-3
    pull = 4.0 * (-12.0 * sixth**2 + 6.0 * sixth) / square
    return 2.0 * (sixth**2 - sixth).sum(), (pull[:, :, None] * apart).sum(axis=1)


def descent(**params):
    section = OptimizeSection.model_validate(
        {"rule": "lbfgs", "steps": 400, "params": ["positions"], "stop": {"gradient_norm": 1e-9}}
    )
    body = body_of(section.model_dump(mode="json", exclude_unset=True))
    return execute(LjCluster(LjClusterParams(**params)), **HOW, body=body).outcome


def test_energy_and_gradient_are_those_of_numpy():
    params = LjClusterParams(atoms=17, start=int(np.random.default_rng().integers(1 << 30)))
    done = execute(LjCluster(params), **HOW)
    x = np.array(params.positions).reshape(-1, 3)
    energy, slope = by_numpy(x)
    assert done.outcome.loss == pytest.approx(energy, rel=1e-12)
    np.testing.assert_allclose(done.outcome.gradients["positions"], slope.ravel(), rtol=1e-9, atol=1e-9 * np.abs(slope).max())
    assert done.outcome.outputs["size"] == pytest.approx(np.linalg.norm(x - x.mean(axis=0), axis=1).max(), rel=1e-12)
    assert done.plan.bytes == done.peak_bytes


@pytest.mark.parametrize("atoms", [2, 3, 4])
def test_few_atoms_end_with_all_distances_equal(atoms):
    found = descent(atoms=atoms, start=1)
    assert found.loss == pytest.approx(KNOWN[atoms], rel=1e-12)
    x = np.reshape(found.outputs["opt.positions"], (-1, 3))
    distances = np.linalg.norm(x[:, None] - x[None], axis=2)[np.triu_indices(atoms, 1)]
    np.testing.assert_allclose(distances, 2.0 ** (1.0 / 6.0), rtol=1e-8)


def test_thirteen_atoms_from_a_start_that_leads_there_end_with_the_least_known_energy():
    known = reference("lj_cluster")
    meets(descent(start=5, **known["size"]).loss, known)
    assert KNOWN[13] == known["value"]


def test_starts_are_apart_and_come_from_their_seed_alone():
    x = np.reshape(drawn(60, 3), (-1, 3))
    distances = np.linalg.norm(x[:, None] - x[None], axis=2)[np.triu_indices(60, 1)]
    assert distances.min() >= CLOSE and drawn(60, 3) == drawn(60, 3) != drawn(60, 4)
    assert LjClusterParams(start=3, positions=drawn(13, 9)).positions == drawn(13, 9)
    with pytest.raises(ValidationError, match=r"the start 0\.5 is a seed: a whole number"):
        LjClusterParams(start=0.5)
    with pytest.raises(ValidationError, match="4 numbers are no positions of 2 atoms: each has x, y and z"):
        LjClusterParams(atoms=2, positions=[0.0] * 4)


def test_gradients_equal_central_differences():
    params = LjClusterParams(atoms=6, start=int(np.random.default_rng().integers(1 << 30)))
    gradients_are_differences(LjCluster, params, tolerance=1e-5)  # of close atoms differences see no more; numpy's slopes do


def test_a_batch_gives_what_trials_give_alone():
    batch_is_alone(LjCluster, [LjClusterParams(atoms=7, start=k) for k in range(5)])


def test_its_picture_shows_the_atoms():
    leaves_a_picture(LjClusterPicture(LjClusterParams()), "cluster.png")
