"""What happens in one run: all of it drawn from a kind and a seed."""

import random
from dataclasses import dataclass

KINDS = ("worker", "runner", "ledger", "raylet", "disk", "node", "lane", "rerun", "eio", "gone", "pair")


@dataclass(frozen=True)
class Fault:
    """Something bad, at a moment.

    Attributes:
        what: worker, runner, ledger, raylet, head: killed by SIGKILL; ``nodes``: all raylets but the head's; ``mend``: as many new nodes;
            ``full``: no room on the disk; ``room``: there is room again. ``lane``: the next trial ends the thread that it runs on;
            ``rerun``: the next trial ends its process by SIGSEGV, and is to run again with checks;
            ``eio``: the store gives errors to the runner for ``pick`` milliseconds; ``gone``: the run's folder is removed;
            ``second``: another run of this user begins.
        rows: when so many rows are written; None: whenever.
        delay_s: and so long after that, or after the fault before it, or after the command was started.
        pick: which of several workers or nodes; of ``full``: the bytes that are left.
    """

    what: str
    rows: int | None
    delay_s: float
    pick: int = 0


@dataclass(frozen=True)
class Scenario:
    """A run.

    Attributes:
        kind, seed: it is made of them alone.
        place: ``local`` (Ray of its own), ``cluster``, or ``emulated`` (of its own, all trials in one process on a pretended GPU).
        trials: how many.
        lanes: at once on a device.
        mean_s: seconds of a trial on average.
        salt: of the job.
        faults: of the submit, of the first resume, and so on; after those nothing bad happens any more.
    """

    kind: str
    seed: int
    place: str
    trials: int
    lanes: int
    mean_s: float
    salt: int
    faults: tuple[tuple[Fault, ...], ...]

    @property
    def label(self):
        """Its name."""
        return f"{self.kind}-{self.seed}"

    @property
    def needs_resume(self):
        """Whether the run may not come to its end by itself: who runs it is killed, or the Ray under it."""
        fatal = {"runner", "head"} | ({"raylet"} if self.place != "cluster" else set())
        return any(fault.what in fatal for faults in self.faults for fault in faults)


def _moment(rng, trials, by_rows=0.75):
    """A moment of a run: by its rows, or by the clock."""
    if rng.random() < by_rows:
        return rng.randrange(trials), rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.4)))
    return None, rng.uniform(0, 8)


def _fault(rng, what, trials):
    return Fault(what, *_moment(rng, trials), pick=rng.randrange(1 << 16))


def scenario(kind, seed):
    """The run of a kind and a seed."""
    rng = random.Random(f"{kind}/{seed}")
    alone = dict.fromkeys(("node", "pair"), (0, 1, 0)) | dict.fromkeys(("eio", "gone"), (60, 40, 0))
    known = {
        "ledger": (1, 0, 0),
        "raylet": (85, 15, 0),
        "disk": (85, 10, 5),
        "lane": (60, 25, 15),
        "rerun": (70, 30, 0),
    } | alone
    weights = known.get(kind, (80, 10, 10))
    place = rng.choices(("cluster", "local", "emulated"), weights)[0]
    trials, lanes, mean_s = rng.randint(5, 16), rng.choice((1, 2)), rng.choice((0.02, 0.1, 0.25))
    salt = rng.randrange(1 << 20)
    faults = _faults(rng, kind, place, trials)
    return Scenario(kind, seed, place, trials, lanes, mean_s, salt, faults)


def _faults(rng, kind, place, trials):
    if kind == "disk":
        return (_disk(rng, trials),)
    if kind == "runner":
        count = 1 + (rng.random() < 0.35)
        return tuple((_fault(rng, "runner", trials),) for _ in range(count))
    if kind == "node":  # its raylet; the head lives
        return ((_fault(rng, "raylet", trials),),)
    if kind == "eio":
        return ((Fault("eio", *_moment(rng, trials, by_rows=0.9), pick=rng.randrange(200, 4000)),),)
    if kind == "pair":
        second = Fault("second", *_moment(rng, trials))
        return ((second, _fault(rng, "runner", trials)),) if rng.random() < 0.4 else ((second,),)
    if kind in ("lane", "rerun", "gone"):
        return ((Fault(kind, rng.randrange(max(1, trials // 2)), rng.uniform(0, 0.3)),),)
    what = kind
    if kind == "raylet" and place == "cluster":
        what = rng.choices(("raylet", "nodes", "head"), (70, 15, 15))[0]
    first = [_fault(rng, what, trials)]
    if what == "nodes":
        first.append(Fault("mend", None, rng.uniform(0, 6)))
    if kind in ("worker", "ledger") and rng.random() < 0.35:
        first.append(Fault(kind, None, rng.uniform(0, 1.5), rng.randrange(1 << 16)))
    if kind == "ledger" and rng.random() < 0.25:
        first.append(Fault("runner", None, rng.uniform(0, 2), 0))
    return (tuple(first),)


def _disk(rng, trials):
    full = Fault("full", *_moment(rng, trials, by_rows=0.9), pick=rng.choice((0, 0, 1000, rng.randrange(20_000))))
    room = Fault("room", None, rng.uniform(0.2, 4))
    killed = rng.choices(("", "runner", "worker"), (50, 35, 15))[0]
    if not killed:
        return full, room
    return full, Fault(killed, None, rng.uniform(0, 1.5), rng.randrange(1 << 16)), room
