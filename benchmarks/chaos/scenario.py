"""What happens in one run: all of it drawn from a kind and a seed."""

import random
from dataclasses import dataclass, replace

FOREIGN = ("edited", "elsewhere", "proxy")
"""The job's files are edited; the command is given in a folder with modules of their names; the environment names a proxy."""
KINDS = ("worker", "runner", "raylet", "disk", "node", "lane", "rerun", "eio", "gone", "pair", "stop")
KINDS += ("head", "early", "erofs", "stall", "end", "up", "paused", "hostile")
"""``early``: the raylet of the head is killed up to two seconds before the run is submitted."""
KINDS += FOREIGN
BATCH = ".batch"
"""Ends a kind whose trials run in batches: ``worker.batch``."""
BATCHED = tuple(kind + BATCH for kind in (*KINDS[:11], "guilty", "hang"))
"""``guilty``, ``hang``: nothing bad happens but what the trials do."""
ENDS = {
    "nan": {("failed", "not_finite")},
    "raise": {("failed", "user_error")},
    "assert": {("failed", "user_error")},
    "memory": {("failed", "out_of_memory")},
    "wild": {("failed", "user_error"), ("poisoned", "crash")},  # the latter where its run with checks is killed
    "abort": {("poisoned", "crash")},
    "kill": {("poisoned", "crash")},
    "endless": {("failed", "timeout")},
}
"""How a trial with a trap may end: status and class of failure."""


@dataclass(frozen=True)
class Fault:
    """Something bad, at a moment.

    Attributes:
        what: worker, runner, raylet, head: killed by SIGKILL; ``nodes``: all raylets but the head's; ``mend``: as many new nodes;
            ``full``: no room on the disk; ``room``: there is room again. ``lane``: the next trial ends the thread that it runs on;
            ``rerun``: the next trial ends its process by SIGSEGV, and is to run again with checks;
            ``eio``, ``erofs``: the store gives that error to the runner for ``pick`` milliseconds; ``stall``: it does not answer;
            ``gone``: the run's folder is removed; ``pause``: SIGSTOP to the command, and another process resumes its run;
            ``edit``: the files of the job are edited;
            ``second``: another run of this user begins; ``interrupt``, ``terminate``: SIGINT or SIGTERM to the command.
        rows: when so many rows are written; None: whenever.
        delay_s: and so long after that, or after the fault before it, or after the command was started.
        pick: which of several workers or nodes; of ``full``: the bytes that are left.
    """

    what: str
    rows: int | None
    delay_s: float
    pick: int = 0


@dataclass(frozen=True)
class Batching:
    """Trials that run in batches.

    Attributes:
        size: ``batch`` of the config: a number, or ``auto``.
        traps: which trials go wrong, by number, and how.
        array: numbers of the output.
        descends: with ``optimize``.
        asserts: in debug mode.
    """

    size: int | str
    traps: tuple[tuple[int, str], ...]
    array: int
    descends: bool
    asserts: bool

    def ends(self, number):
        """How a trial may end: pairs of status and class of failure."""
        trap = dict(self.traps).get(number)
        return {("done", None)} if trap is None else ENDS[trap]


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
        batch: None: each trial runs by itself.
    """

    kind: str
    seed: int
    place: str
    trials: int
    lanes: int
    mean_s: float
    salt: int
    faults: tuple[tuple[Fault, ...], ...]
    batch: Batching | None = None

    @property
    def name(self):
        """The kind, as it is asked for."""
        return self.kind + (BATCH if self.batch else "")

    @property
    def label(self):
        """Its name."""
        return f"{self.name}-{self.seed}"

    @property
    def outcome(self):
        """The state that the run is to end in."""
        return "failed" if self.batch and self.batch.traps else "done"

    @property
    def timeout_s(self):
        """The limit of a trial; None: none."""
        return 10.0 if self.kind == "hang" else None

    @property
    def needs_resume(self):
        """Whether the run may not come to its end by itself: who runs it is killed, or the Ray under it."""
        if self.kind == "end":
            return False
        fatal = {"runner", "head", "interrupt", "terminate", "pause"} | ({"raylet"} if self.place != "cluster" else set())
        return any(fault.what in fatal for faults in self.faults for fault in faults)


def _moment(rng, trials, by_rows=0.75):
    """A moment of a run: by its rows, or by the clock."""
    if rng.random() < by_rows:
        return rng.randrange(trials), rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.4)))
    return None, rng.uniform(0, 8)


def _fault(rng, what, trials):
    return Fault(what, *_moment(rng, trials), pick=rng.randrange(1 << 16))


def scenario(kind, seed):
    """The run of a kind and a seed. That of ``worker.batch`` is that of ``worker`` in batches."""
    if not kind.endswith(BATCH):
        return _scenario(kind, seed)
    one = _scenario(kind.removesuffix(BATCH), seed)
    return replace(one, batch=_batching(random.Random(f"{kind}/{seed}"), one))


def _batching(rng, one):
    """How the trials of a run are batched, and which go wrong; nothing that was drawn before depends on it."""
    size, array = rng.choice((2, 3, 4, 5, "auto")), 10_000 if rng.random() < 0.3 else rng.randint(1, 20)
    descends, asserts = rng.random() < 0.2, rng.random() < 0.2
    count = {"guilty": rng.choice((1, 1, 2)), "hang": 1, "gone": 0}.get(one.kind, int(rng.random() < 0.5))
    known = [name for name in ENDS if name != "endless" and (asserts or name != "assert")]
    traps = [rng.choice(known) for _ in range(count)]
    if one.kind == "hang":
        size, traps = rng.choice((2, 3)), ["endless"]
    numbers = sorted(rng.sample(range(one.trials), count))
    return Batching(size, tuple(zip(numbers, traps, strict=True)), array, descends, asserts)


def _scenario(kind, seed):
    rng = random.Random(f"{kind}/{seed}")
    alone = dict.fromkeys(("node", "pair", "up", "paused"), (0, 1, 0)) | dict.fromkeys(
        ("eio", "gone", "erofs", "stall"), (60, 40, 0)
    )
    alone |= {"head": (1, 0, 0), "early": (1, 0, 0), "end": (30, 70, 0), "hostile": (20, 80, 0)}
    known = {
        "raylet": (85, 15, 0),
        "disk": (85, 10, 5),
        "lane": (60, 25, 15),
        "rerun": (70, 30, 0),
        "guilty": (70, 15, 15),
        "hang": (70, 15, 15),
    } | alone
    weights = known.get(kind, (80, 10, 10))
    place = rng.choices(("cluster", "local", "emulated"), weights)[0]
    trials, lanes, mean_s = rng.randint(5, 16), rng.choice((1, 2)), rng.choice((0.02, 0.1, 0.25))
    salt = rng.randrange(1 << 20)
    faults = _faults(rng, kind, place, trials)
    return Scenario(kind, seed, place, trials, lanes, mean_s, salt, faults)


def _faults(rng, kind, place, trials):
    if kind in ("guilty", "hang"):
        return ((),)
    if kind == "stop":
        first = _fault(rng, rng.choice(("interrupt", "interrupt", "terminate")), trials)
        again = (Fault("interrupt", None, rng.uniform(0, 1)),) if rng.random() < 0.4 and first.what == "interrupt" else ()
        return ((first, *again),)
    if kind == "disk":
        return (_disk(rng, trials),)
    if kind == "runner":
        count = 1 + (rng.random() < 0.35)
        return tuple((_fault(rng, "runner", trials),) for _ in range(count))
    if kind == "node":  # its raylet; the head lives
        return ((_fault(rng, "raylet", trials),),)
    if kind == "head":  # its raylet dies, its control plane lives
        return ((Fault("head", *_moment(rng, trials)),),)
    if kind in ("up", "hostile", "early"):  # before the run: see ``play``
        return ((),)
    if kind == "end":
        return ((Fault("terminate", trials, rng.uniform(0, 1.5)),),)
    if kind == "paused":
        return ((Fault("pause", rng.randrange(max(1, trials // 2)), rng.uniform(0, 0.1)),),)
    if kind == "stall" and rng.random() < 0.5:
        asks = (Fault("interrupt", None, rng.uniform(0.2, 2)), Fault("interrupt", None, rng.uniform(0.2, 2)))
        return ((Fault("stall", *_moment(rng, trials, by_rows=0.9), pick=100_000), *asks),)
    if kind in ("erofs", "stall"):
        return ((Fault(kind, *_moment(rng, trials, by_rows=0.9), pick=rng.randrange(200, 9000)),),)
    if kind == "eio":
        return ((Fault("eio", *_moment(rng, trials, by_rows=0.9), pick=rng.randrange(200, 4000)),),)
    if kind == "pair":
        second = Fault("second", *_moment(rng, trials))
        return ((second, _fault(rng, "runner", trials)),) if rng.random() < 0.4 else ((second,),)
    if kind == "edited":  # a new process imports the job after the edit
        edit = Fault("edit", *_moment(rng, trials))
        return ((edit, Fault(rng.choice(("worker", "worker", "runner")), None, rng.uniform(0, 0.5), rng.randrange(1 << 16))),)
    if kind in FOREIGN:
        return ((_fault(rng, "worker", trials),) if rng.random() < 0.5 else (),)
    if kind in ("lane", "rerun", "gone"):
        return ((Fault(kind, rng.randrange(max(1, trials // 2)), rng.uniform(0, 0.3)),),)
    what = kind
    if kind == "raylet" and place == "cluster":
        what = rng.choices(("raylet", "nodes", "head"), (70, 15, 15))[0]
    first = [_fault(rng, what, trials)]
    if what == "nodes":
        first.append(Fault("mend", None, rng.uniform(0, 6)))
    if kind == "worker" and rng.random() < 0.35:
        first.append(Fault(kind, None, rng.uniform(0, 1.5), rng.randrange(1 << 16)))
    return (tuple(first),)


def _disk(rng, trials):
    full = Fault("full", *_moment(rng, trials, by_rows=0.9), pick=rng.choice((0, 0, 1000, rng.randrange(20_000))))
    room = Fault("room", None, rng.uniform(0.2, 4))
    killed = rng.choices(("", "runner", "worker"), (50, 35, 15))[0]
    if not killed:
        return full, room
    return full, Fault(killed, None, rng.uniform(0, 1.5), rng.randrange(1 << 16)), room
