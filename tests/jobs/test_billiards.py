"""The break shot: the loss and the descent of DiffTaichi's program."""

import numpy as np
from gallery_checks import descend, meets, reference, run

from qdrun.jobs.billiards import Billiards, BilliardsParams


def test_the_loss_and_the_descent_are_those_of_the_original():
    known = reference("billiards")
    params = BilliardsParams(**known["size"])
    meets(run(Billiards(params)).loss, known)
    losses = descend(Billiards(params), "sgd", max(known["at"]), learning_rate=0.01, params=["position", "velocity"])
    np.testing.assert_allclose(losses[known["at"]], known["unchanged"], rtol=known["unchanged_tolerance"])
