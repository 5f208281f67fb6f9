"""What is predicted is what the ledger does: the same requests on the same devices, one by a plan and one by leases on virtual time."""

import heapq
import random
from dataclasses import replace

import pytest

from qdrun.runner.ledger import LeaseEnd, Ledger
from qdrun.runner.ledger.inventory import pools_and_devices, pretended
from qdrun.runner.packing import Claim, Request, simulate

GIB = 1 << 30


def park():
    """Two cards of 24 GiB and, of another class, one of 80."""
    return [*pretended(2, 24 * GIB, "n1", 4), *(replace(row, kind="large") for row in pretended(1, 80 * GIB, "n2", 8))]


def sweep(seed, kinds, count=80):
    r = random.Random(seed)
    shapes = []
    for size in (0.5, 2, 4, 9, 16, 30, 55):
        points = [(int(size * GIB), 1.0), (int(size * 0.6 * GIB), 1.2), (int(size * 0.3 * GIB), 1.7)]
        shapes.append({kind: Claim.of(points, r.uniform(0.5, 3.0)) for kind in kinds})
    return [Request(f"t{k}", r.choice(shapes), 0.0) for k in range(count)]


def leased(rows, requests):
    """The starts, by a run that gives each lease back when its seconds are over."""
    ledger = Ledger(lease_requests=1)
    for row in rows:
        ledger.add_device(row)
    ledger.ask(requests)
    claims = {request.id: request.claims for request in requests}
    kinds = {row.id: row.kind for row in rows}
    starts, ends, now, done = {}, [], 0.0, []
    while True:
        ledger.give_back(done, now)
        answer = ledger.exchange(now)
        for lease in answer.leases:
            (name,) = lease.requests
            starts[name] = (now, lease.device, lease.point.bytes)
            took = claims[name][kinds[lease.device]].seconds * lease.point.time
            heapq.heappush(ends, (now + took, len(starts), lease.id, took))
        if not ends:
            return starts, now
        now, _, lease, took = heapq.heappop(ends)
        done = [LeaseEnd(lease, seconds=took)]
        while ends and ends[0][0] <= now:
            _, _, lease, took = heapq.heappop(ends)
            done.append(LeaseEnd(lease, seconds=took))


@pytest.mark.parametrize("seed", range(5))
def test_the_ledger_places_what_the_forecast_says(seed):
    rows = park()
    pools, devices = pools_and_devices(rows)
    requests = sweep(seed, sorted({row.kind for row in rows}))
    ran = simulate(requests, pools, devices)
    starts, finish = leased(rows, requests)
    said = {p.request.id: (ran.starts[p.request.id], p.device, p.point.bytes) for p in ran.placements}
    assert starts == said and finish == ran.finish and not ran.misfits
