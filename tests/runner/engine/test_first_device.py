"""A run on a cluster that has no device yet: refused at once, or, with ``limits.device_wait``, begun when the first node comes."""

from types import SimpleNamespace

import pytest

from qdrun.runner.engine import start
from qdrun.runner.engine.start import check_device
from qdrun.runner.ray_adapter.cluster import ClusterError


class Cluster:
    """A ledger whose cluster has a device, and its cores, from the look ``at`` on."""

    def __init__(self, at):
        self.at, self.looks, self.closed, self.asked, self.notes = at, 0, False, [], []
        self.source = SimpleNamespace(look_for=self.asked.append)

    def devices(self):
        return [SimpleNamespace(usable=self.looks >= self.at, backend="cuda")]

    def cores(self):
        self.looks += 1
        return 8 if self.looks >= self.at - 1 else 0

    def close(self):
        self.closed = True

    def check(self, wait, cancelled_at=10**9):
        device, limits = SimpleNamespace(threads=2), SimpleNamespace(device_wait=wait)
        loaded = SimpleNamespace(config=SimpleNamespace(device=device, limits=limits))
        prepared = SimpleNamespace(loaded=loaded, each={"cuda": None, "cpu": None}, where="cuda")
        check_device(prepared, self, self.cores, self.notes.append, lambda: self.looks >= cancelled_at)


def test_a_cluster_that_has_a_device_is_asked_for_nothing():
    cluster = Cluster(1)
    cluster.check(5.0)
    assert (cluster.looks, cluster.asked, cluster.notes, cluster.closed) == (1, [], [], False)


def test_a_run_waits_with_a_message_asks_for_a_device_and_takes_the_demand_back(monkeypatch):
    monkeypatch.setattr(start, "DEVICE_LOOK_S", 0.001)
    cluster = Cluster(5)
    cluster.check(60.0)
    assert cluster.looks == 5 and not cluster.closed
    assert cluster.asked == ["cuda", None]
    (note,) = cluster.notes
    assert note == (
        "one trial wants 2 threads, no node of the cluster has more than 0 cores yet: the run waits for one, for 60 s at most; "
        "Ctrl-C or `qdrun cancel` ends it"
    )


def test_a_run_that_waits_ends_when_it_is_cancelled(monkeypatch):
    monkeypatch.setattr(start, "DEVICE_LOOK_S", 0.001)
    cluster = Cluster(10**9)
    with pytest.raises(start.RunCancelled):
        cluster.check(60.0, cancelled_at=3)
    assert cluster.closed and cluster.asked == ["cuda", None] and cluster.looks == 3


@pytest.mark.parametrize(("wait", "asked"), [(None, 0), (0.01, 2)])
def test_a_cluster_without_a_device_is_refused_at_once_or_when_the_time_is_up(monkeypatch, wait, asked):
    monkeypatch.setattr(start, "DEVICE_LOOK_S", 0.001)
    cluster = Cluster(10**9)
    with pytest.raises(ClusterError, match=r"no node of the cluster has more than 0 cores\n  do: .* set limits.device_wait"):
        cluster.check(wait)
    assert cluster.closed and len(cluster.asked) == asked
