"""How long a request may wait: the bounds that docs/packing.md states."""

import random

import pytest

from benchmarks.packing import GIB, cards
from qdrun.runner.packing import Claim, Request, simulate

LONGEST = 1.8


def small(name, gib, submitted, seconds, known):
    claims = {f"{size} GiB": Claim.of([(int(gib * GIB), 1.0)], seconds if known else None) for size in (24, 80)}
    return Request(name, claims, submitted)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_an_overtaken_request_starts_soon_after_however_long_the_stream_of_younger_ones(seed, known):
    r, age = random.Random(seed), 3.0
    pools, devices = [made[2:] for made in cards(16)]
    # A stream at the capacity of the lanes of two equal cards; the large ones come at 2 s, in a short row.
    seconds = {f"s{i}": r.uniform(0.2, LONGEST) for i in range(1500)}
    requests = [small(n, r.choice((3, 4, 6)), i / 32, took, known) for i, (n, took) in enumerate(seconds.items())]
    for number in range(3):
        seconds[f"big{number}"] = LONGEST
        requests.append(small(f"big{number}", 70, 2.0, LONGEST, known))
    ran = simulate(requests, pools, devices, age_s=age, takes=lambda p: seconds[p.request.id])
    arrived = {q.id: q.submitted for q in requests}
    for number in range(3):
        start = ran.starts[f"big{number}"]
        overtakers = [s for name, s in ran.starts.items() if arrived[name] > 2.0 + age and s < start]
        # From the moment when it is overtaken: a drain of one card for each of the row, this one included.
        assert not overtakers or start <= min(overtakers) + 3 * LONGEST
    plain = simulate(requests, pools, devices, age_s=1e9, takes=lambda p: seconds[p.request.id])
    assert max(ran.starts[f"big{i}"] for i in range(3)) < max(plain.starts[f"big{i}"] for i in range(3)) / 2
