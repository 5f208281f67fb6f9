"""What a test leaves changed in its process is told."""

import os

import numpy as np

from qdrun.tests.leftovers import changed, state


def test_what_a_test_leaves_is_told_by_its_name(monkeypatch, tmp_path):
    before = state(shared_ray=True)
    assert not changed(before, state(shared_ray=True))
    monkeypatch.setenv("QDRUN_LEFT", "1")
    monkeypatch.setenv("RAY_LEFT", "1")
    monkeypatch.chdir(tmp_path)
    with np.errstate(over="raise"):
        told = changed(before, state(shared_ray=True))
    assert told[:2] == [
        f"the working folder: {before['the working folder']} is now {os.getcwd()}",
        "environment variables: QDRUN_LEFT",
    ]
    assert told[2:] == ["numpy's treatment of errors: over"]
    assert changed({"an open Ray": False}, {"an open Ray": True}) == ["an open Ray: False is now True"]
