"""A run folder with its owner, and workers in this process that are always closed."""

import sys
import threading
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Workers load the file of jobs as a module of their own: it gets the gates of the tests' one."""
    import jobs_for_lanes
    from lane_helpers import Bench

    from qdrun.runner.workers import worker

    load = worker.load

    def with_gates(target, run):
        found = load(target, run)
        sys.modules[found.__module__].GATES = jobs_for_lanes.GATES
        return found

    monkeypatch.setattr(worker, "load", with_gates)
    made = Bench(str(tmp_path / "runs"))
    yield made
    for one in made.workers:
        assert one.close(30.0)
    assert not [t for t in threading.enumerate() if t.name.startswith("qdrun/")]
