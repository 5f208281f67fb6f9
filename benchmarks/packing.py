"""The packer alone: microseconds per decision, and makespans beside a rule that takes the first in the queue, on the best fitting device.

    python -m benchmarks.packing [decisions] [makespan] [jobs] [elastic] [random]
        [--seeds 8] [--queued 20000] [--packs 1000] [--json]

On virtual time: no device and no Ray. Decisions are CPU time of one thread.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from qdrun.runner.packing import Claim, DeviceSpec, Packer, Pool, Request, lower_bound, simulate
from qdrun.runner.study.requests import choose

GIB = 1 << 30
Row = dict[str, object]
CARDS = (24, 24, 80, 80)
SMALL, LARGE = (0.5, 1, 2, 3, 4, 6, 8, 12, 16), (26, 32, 40, 48, 56, 70)
SECONDS: dict[str, Callable[[random.Random], float]] = {
    "uniform 0.2-1.8 s": lambda r: r.uniform(0.2, 1.8),
    "log-normal, mean 1 s": lambda r: r.lognormvariate(-0.125, 0.5),
    "exponential, mean 1 s": lambda r: min(8.0, r.expovariate(1.0)),
}


@dataclass
class Case:
    """Requests, the seconds that each takes, and where."""

    requests: list[Request]
    seconds: dict[str, float]
    pools: list[Pool] = field(default_factory=list)
    devices: list[DeviceSpec] = field(default_factory=list)

    def bound(self) -> float:
        """The lower bound of the makespan, whether the packer knows the seconds or not."""
        known = [
            Request(r.id, {kind: Claim(c.points, self.seconds[r.id]) for kind, c in r.claims.items()}, r.submitted)
            for r in self.requests
        ]
        return lower_bound(known, self.pools, self.devices).seconds


def cards(lanes: int, process: int = 0) -> tuple[list[Pool], list[DeviceSpec]]:
    """Two cards of 24 GiB and two of 80."""
    pools = [Pool(f"card{i}", size * GIB) for i, size in enumerate(CARDS)]
    return pools, [DeviceSpec(f"gpu{i}", f"card{i}", f"{size} GiB", lanes, process) for i, size in enumerate(CARDS)]


def mixed(seed: int, count: int, lanes: int, seconds: str, *, known: bool = False, distinct: bool = False) -> Case:
    """Trials of 0.5 to 16 GiB, and 11 % of 26 to 70. ``distinct``: bytes and seconds differ from each to the next."""
    r, kinds = random.Random(seed), sorted({f"{size} GiB" for size in CARDS})
    shared: dict[object, dict[str, Claim]] = {}
    requests, takes = [], {}
    for number in range(count):
        gib = r.choice(LARGE) if r.random() < 0.11 else r.choice(SMALL)
        took = SECONDS[seconds](r)
        size = int(gib * GIB) + (number << 10 if distinct else 0)
        claim = {kind: Claim.of([(size, 1.0)], took if known else None) for kind in kinds}
        claims = claim if known or distinct else shared.setdefault(size, claim)
        requests.append(Request(f"t{number}", claims, 0.0))
        takes[f"t{number}"] = took
    return Case(requests, takes, *cards(lanes))


def packed(case: Case) -> float:
    """The makespan of the packer."""
    return simulate(case.requests, case.pools, case.devices, takes=lambda p: case.seconds[p.request.id]).finish


def first_in_best_fit(case: Case, skip: bool = False) -> float:
    """The makespan of a plain rule: the first in the queue goes to the device where the fewest bytes are left; the others wait behind it.

    ``skip``: those behind one that does not fit may go first.
    """
    free = {d.id: next(p.capacity for p in case.pools if p.id == d.pool) for d in case.devices}
    lanes = {d.id: d.lanes for d in case.devices}
    queue, events, now = [(r.id, next(iter(r.claims.values())).points[0].bytes) for r in case.requests], [], 0.0
    while queue or events:
        left = []
        for position, (name, size) in enumerate(queue):
            able = [device for device in free if lanes[device] and free[device] >= size]
            if not able:
                left.append((name, size))
                if not skip or not any(lanes.values()):
                    left += queue[position + 1 :]
                    break
                continue
            device = min(able, key=lambda device: free[device])
            free[device] -= size
            lanes[device] -= 1
            heapq.heappush(events, (now + case.seconds[name], name, device, size))
        queue = left
        now, _, device, size = heapq.heappop(events)
        free[device] += size
        lanes[device] += 1
    return now


def largest_first(case: Case) -> float:
    """The makespan of the largest first, each on the device where the fewest bytes are left; smaller ones go where it does not fit."""
    return first_in_best_fit(_by_size(case), skip=True)


def static_split(case: Case) -> float:
    """The makespan of a split made before: the smallest requests to the small cards, by their part of all bytes, the others to the large.

    Each part is then packed by bytes, any in best fit: what Ray's tasks do that ask for a fraction of a card, which means something on
    cards of one size alone.
    """
    capacity = {p.id: p.capacity for p in case.pools}
    least = min(capacity.values())
    size = {r.id: next(iter(r.claims.values())).points[0].bytes for r in case.requests}
    budget = sum(size.values()) * sum(c for c in capacity.values() if c == least) / sum(capacity.values())
    first: set[str] = set()
    for r in reversed(_by_size(case).requests):
        if size[r.id] <= min(least, budget):
            first.add(r.id)
            budget -= size[r.id]
    ends = []
    for small in (True, False):
        requests = [r for r in case.requests if (r.id in first) == small]
        devices = [d for d in case.devices if (capacity[d.pool] == least) == small]
        ends.append(first_in_best_fit(Case(requests, case.seconds, case.pools, devices), skip=True))
    return max(ends)


def _by_size(case: Case) -> Case:
    ordered = sorted(case.requests, key=lambda r: -next(iter(r.claims.values())).points[0].bytes)
    return Case(ordered, case.seconds, case.pools, case.devices)


RULES: dict[str, tuple[bool, Callable[[Case], float]]] = {
    "packer": (False, packed),
    "packer, seconds known": (True, packed),
    "first in, best fit": (False, first_in_best_fit),
    "any in, best fit": (False, lambda case: first_in_best_fit(case, skip=True)),
    "largest first": (False, largest_first),
    "static split": (False, static_split),
}


def makespan(seeds: int) -> Iterator[Row]:
    """Makespan over lower bound, mean and largest of the seeds, for 500 trials."""
    for seconds in SECONDS:
        for lanes in (4, 8, 16):
            row: Row = {"seconds": seconds, "lanes": lanes}
            for name, (known, rule) in RULES.items():
                cases = [mixed(seed, 500, lanes, seconds, known=known) for seed in range(seeds)]
                ratios = [rule(case) / case.bound() for case in cases]
                row[name] = f"{sum(ratios) / seeds:.3f} ({max(ratios):.3f})"
            yield row


def decisions(queued: int) -> Iterator[Row]:
    """CPU microseconds to end one request and to place what may start then, with ``queued`` in the queue at first (and the event queue)."""
    for name, distinct, known in (
        ("15 shapes", False, False),
        ("all of different bytes", True, False),
        ("all of different bytes and seconds", True, True),
        ("15 shapes with curves of three points", False, False),
    ):
        case = mixed(0, queued, 8, "log-normal, mean 1 s", known=known, distinct=distinct)
        if "curves" in name:
            _bend(case)
        requests = [Request(r.id, r.claims, r.submitted, r.trials) for r in case.requests]
        runs = [_decide(case, requests) for _ in range(3)]
        row: Row = {"queue": name}
        yield row | {key: round(min(run[key] for run in runs), 1) for key in runs[0]}


def _bend(case: Case) -> None:
    bent: dict[int, dict[str, Claim]] = {}
    for i, r in enumerate(case.requests):
        size = next(iter(r.claims.values())).points[0].bytes
        claims = bent.setdefault(size, {k: Claim.of([(size, 1.0), (size // 3, 1.3), (size // 8, 1.8)], 1.0) for k in r.claims})
        case.requests[i] = Request(r.id, claims, r.submitted)


def _decide(case: Case, requests: list[Request]) -> dict[str, float]:
    packer, clock = Packer(), time.process_time
    for pool in case.pools:
        packer.add_pool(pool)
    for device in case.devices:
        packer.add_device(device)
    begun = clock()
    packer.submit(requests)
    submitted, placed, now = clock(), 0, 0.0
    events: list[tuple[float, str]] = []
    while True:  # the clock is not read here: that takes longer than a decision on some systems
        placements = packer.next(now)
        placed += len(placements)
        for placement in placements:
            heapq.heappush(events, (now + case.seconds[placement.request.id] * placement.point.time, placement.request.id))
        if not events:
            break
        now, name = heapq.heappop(events)
        packer.finish(name)
    assert placed == len(requests)
    return {"us per submit": (submitted - begun) / placed * 1e6, "us per decision": (clock() - submitted) / placed * 1e6}


NEEDS = ((0.5, 0.02), (0.05, 0.5), (0.05, 0.05))
"""What a trial of each job needs of a card while it runs alone: of its processors, and of the process that launches its kernels."""


def several_jobs(seed: int, sizes: tuple[int, ...], alike: bool) -> tuple[Case, dict[str, tuple[float, float]]]:
    """300 trials of shapes with seconds of their own, of three jobs with different needs; seconds are not said.

    ``alike``: four shapes of each job, all of 8.9 to 10 GiB; else five to fourteen shapes of 1 to 20.
    """
    r, shapes = random.Random(seed), []
    pools = [Pool(f"card{i}", size * GIB) for i, size in enumerate(sizes)]
    devices = [DeviceSpec(f"gpu{i}", f"card{i}", f"{size} GiB", 32, GIB // 2) for i, size in enumerate(sizes)]
    for k in range(12 if alike else r.randint(5, 14)):
        gib = (10 - 0.4 * (k // 4)) * r.uniform(0.97, 1.0) if alike else math.exp(r.uniform(0.0, math.log(20)))
        claim = Claim.of([(int(gib * GIB), 1.0)])
        shapes.append(({device.kind: claim for device in devices}, r.uniform(1, 6), NEEDS[k // 4 if alike else k % 3]))
    case, needs = Case([], {}, pools, devices), {}
    for number in range(300):
        claims, case.seconds[f"t{number}"], needs[f"t{number}"] = r.choice(shapes)
        case.requests.append(Request(f"t{number}", claims, 0.0))
    return case, needs


def in_each_others_way(case: Case, needs: dict[str, tuple[float, float]], mixed: bool) -> float:
    """The makespan where trials on a card go slower by as much as all of them together need more than there is.

    ``mixed``: rule 2 as it is; else the largest shape goes on until none of it is left.
    """
    packer, now = Packer(), 0.0
    if not mixed:
        packer._chooser._mixed = lambda queue, group, *others: group
    for pool in case.pools:
        packer.add_pool(pool)
    for device in case.devices:
        packer.add_device(device)
    packer.submit(case.requests)
    left: dict[str, dict[str, float]] = {device.id: {} for device in case.devices}
    begun: dict[str, float] = {}
    while True:
        for placement in packer.next(now):
            left[placement.device][placement.request.id] = case.seconds[placement.request.id]
            begun[placement.request.id] = now
        if not any(left.values()):
            return now
        pace = {name: 1.0 / max(1.0, *map(sum, zip(*(needs[one] for one in ran)))) for name, ran in left.items() if ran}
        step = min(rest / pace[name] for name, ran in left.items() for rest in ran.values())
        now += step
        for name, ran in left.items():
            for one in list(ran):
                ran[one] -= step * pace[name]
                if ran[one] <= 1e-9:
                    del ran[one]
                    packer.finish(one, now - begun[one])


def jobs(seeds: int) -> Iterator[Row]:
    """What it is worth to run shapes of nearly equal bytes side by side, where trials are in each other's way and where they are not."""
    for alike in (True, False):
        for sizes in ((140,), (80, 80), CARDS):
            cases = [several_jobs(seed, sizes, alike) for seed in range(seeds)]
            row: Row = {"bytes": "8.9 to 10 GiB" if alike else "1 to 20 GiB", "cards": ", ".join(map(str, sizes))}
            for mixed in (False, True):
                way = "side by side" if mixed else "one after the other"
                alone = [
                    in_each_others_way(case, dict.fromkeys(needs, (0.0, 0.0)), mixed) / case.bound() for case, needs in cases
                ]
                row[f"{way}: makespan / bound"] = f"{sum(alone) / seeds:.3f} ({max(alone):.3f})"
                row[f"{way}, in the way: s"] = round(sum(in_each_others_way(*one, mixed) for one in cases) / seeds, 1)
            yield row


def elastic(seeds: int) -> Iterator[Row]:
    """Runs with curves: how much earlier they finish with the points that are chosen for all, on random cards and curves."""
    for count in (20, 60, 200):
        ratios = []
        for seed in range(25 * seeds):
            requests, pools, devices = curves(seed, count)
            fixed = simulate(requests, pools, devices).finish
            ratios.append(choose(requests, pools, devices)[0].finish / fixed)
        yield {
            "trials": count,
            "runs": len(ratios),
            "finish with / without": f"{sum(ratios) / len(ratios):.3f}",
            "earliest": f"{min(ratios):.2f}",
            "earlier": sum(r < 1 - 1e-9 for r in ratios),
            "later": sum(r > 1 + 1e-9 for r in ratios),
            "latest": f"{max(ratios):.2f}",
        }


def curves(seed: int, count: int) -> tuple[list[Request], list[Pool], list[DeviceSpec]]:
    """Random cards of random speeds, and trials of one to eight shapes with curves of up to five points; all of them fit."""
    r = random.Random(f"{seed} {count}")
    sizes = [r.choice((16, 24, 48, 80)) for _ in range(r.randint(1, 4))]
    pools = [Pool(f"card{i}", size * GIB) for i, size in enumerate(sizes)]
    process = r.choice((0, GIB // 2))
    devices = [
        DeviceSpec(f"gpu{i}", f"card{i}", f"{size} GiB", r.choice((2, 4, 8, 16)), process) for i, size in enumerate(sizes)
    ]
    speed = {device.kind: r.choice((1.0, 1.0, 1.0, 2.0, 4.0)) for device in devices}
    shapes = []
    for _ in range(r.randint(1, 8)):
        points = [(int(min(r.choice((0.5, 1, 2, 4, 8, 16, 32, 60)) * r.uniform(0.8, 1.2), max(sizes) - 1) * GIB), 1.0)]
        for _ in range(r.randint(0, 4)):
            points.append((int(points[-1][0] * r.uniform(0.2, 0.8)), points[-1][1] * r.uniform(1.05, 1.6)))
        seconds = r.uniform(0.2, 3.0)
        shapes.append({kind: Claim.of(points, seconds * factor) for kind, factor in speed.items()})
    return [Request(f"t{i}", r.choice(shapes), 0.0) for i in range(count)], pools, devices


def packs(count: int) -> Iterator[Row]:
    """Random cards, curves, and true seconds that the packer does not know: how often a pool was above its capacity."""
    over = ended = 0
    fullest = 0.0
    for seed in range(count):
        requests, pools, devices = curves(seed, 20)
        r = random.Random(seed)
        truth = {q.id: r.uniform(0.1, 5.0) for q in requests}
        ran = simulate(requests, pools, devices, takes=lambda p, truth=truth: truth[p.request.id])
        capacity = {pool.id: pool.capacity for pool in pools}
        over += sum(peak > capacity[name] for name, peak in ran.peak.items())
        fullest = max(fullest, *(peak / capacity[name] for name, peak in ran.peak.items()))
        ended += len(ran.starts)
    yield {"packs": count, "trials": ended, "over capacity": over, "fullest pool": f"{fullest:.4f}"}


def show(title: str, rows: list[Row], console: Console) -> None:
    """One table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def main() -> None:
    """Run the parts that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help="decisions, makespan, jobs, elastic, random")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--queued", type=int, default=20_000)
    parser.add_argument("--packs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
        "decisions": (f"CPU time with {options.queued:,} requests queued", lambda: decisions(options.queued)),
        "makespan": (
            "500 trials on 2 x 24 and 2 x 80 GiB: makespan / lower bound, mean (largest)",
            lambda: makespan(options.seeds),
        ),
        "jobs": (
            "Three jobs of nearly equal bytes, or of any: makespan / lower bound, and seconds",
            lambda: jobs(options.seeds),
        ),
        "elastic": ("Smaller points of the curves", lambda: elastic(options.seeds)),
        "random": ("Random packs on simulated devices", lambda: packs(options.packs)),
    }
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(parts)}")
    out = {name: list(make()) for name, (_, make) in parts.items() if name in (options.parts or parts)}
    if options.json:
        print(json.dumps(out, indent=1))
    else:
        for name, rows in out.items():
            show(parts[name][0], rows, Console())


if __name__ == "__main__":
    main()
