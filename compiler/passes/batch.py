"""The batch pass: transforms a kernel of one trial into a kernel that runs for every trial of a batch.

The last pass: on forward, reverse and forward-mode kernels after reductions and checks. Trials share no memory that a kernel writes, so the
results of all analyses of one trial (dependences, row predicates, bounds, stack sizes) hold for each of them. The axes of each task become
serial loops, and its reductions sums in a register. The one parallel axis is that of the trials: its index says which copy of the places
per trial an iteration means (``trials.TrialLayout``), and nothing else reads it.

Each task has the launch parameters of ``trials.TRIALS``, ``SEEDS`` and ``FAILED`` then.
"""

from __future__ import annotations

from math import inf

from ..errors import QdrunCompilationError
from ..ir.builder import StatementBuilder, const_i64
from ..ir.nodes import (
    ArgDecl,
    Axis,
    Block,
    Buffer,
    ClaimRow,
    Const,
    GlobalStore,
    If,
    Kernel,
    Loc,
    Local,
    LocalStore,
    Loop,
    Op,
    Place,
    Reduction,
    Task,
)
from ..ir.trials import FAILED, SEEDS, TRIAL_ALIGNMENT, TRIALS
from ..ir.types import i64, limits, u64
from ..ir.verify import verified
from ..ir.walk import atomic_of, conditional_locals, cooperates, inner_blocks, meets, place_of, walk
from .clone import clone_kernel

_CONTEXT = frozenset(("tmp", "tmp_grad", "tmp_dual", "ret"))


@verified()
def batch_kernel(kernel: Kernel, nested: bool = True) -> Kernel:
    """Transform a kernel of one trial into a kernel for every trial of a batch.

    Args:
        kernel: the final kernel for one trial; not changed.
        nested: the axes become loops, and the trials the one axis. Else each task keeps its axes and reductions: they are those of one
            trial, and the device finds the trial by itself.

    Raises:
        QdrunCompilationError: threads of a block meet in it, or it writes to memory that all trials share; by name and line.
    """
    out = clone_kernel(kernel)
    places = _Places(len(kernel.tmps), len(kernel.returns))
    for task in out.tasks:
        _refuse(kernel, task)
        _batch_task(task, places, nested)
    return out


def _refuse(kernel: Kernel, task: Task) -> None:
    """Raise what a batch cannot do."""
    if cooperates(task):
        loc = next((getattr(s, "loc", None) for s in walk(task.body) if meets(s)), None)
        raise QdrunCompilationError(
            f"kernel `{kernel.name}` shares memory between the threads of a block, and cannot run for a batch of trials",
            loc or task.loc,
            "use fields instead of shared arrays, or a program without batch=",
        )
    for s in walk(task.body):
        if isinstance(s, GlobalStore) or (isinstance(s, Op) and s.op == "atomic"):
            _refuse_shared(kernel, place_of(s), s.loc)
    for r in task.reductions:
        updates = (s.loc for s in walk(task.body) if isinstance(s, LocalStore) and s.local is r.local)
        _refuse_shared(kernel, r.place, next(updates, None) or task.loc)


def _refuse_shared(kernel: Kernel, place: Place | None, loc: Loc | None) -> None:
    assert place is not None
    if place.per_trial or place.buffer.kind in _CONTEXT:
        return
    if isinstance(place.buffer.owner, ArgDecl):
        what, do = "an array that all trials of the batch share", "give the kernel an ndarray of this program, or a field"
    else:
        what, do = (
            "a field that all trials of the batch share",
            "make the field without per_trial=False, or write to it from Python",
        )
    raise QdrunCompilationError(f"kernel `{kernel.name}` writes to `{place.name}`, {what}", loc, do)


class _Places:
    """The places of a batched kernel: temporaries, returned values and scalar arguments are places per trial, too."""

    def __init__(self, tmps: int, returns: int) -> None:
        self._bytes = {kind: 8 * (returns if kind == "ret" else tmps) for kind in _CONTEXT}
        self._made: dict[object, Place] = {}
        self.seed = Place("seed", u64, Buffer("trial", SEEDS), 0, (), (), trial_bytes=TRIAL_ALIGNMENT)

    def of(self, place: Place) -> Place:
        """The statements that replace one statement."""
        kind = place.buffer.kind
        if kind not in _CONTEXT:
            return place
        if place not in self._made:
            new = Place(place.name, place.dtype, place.buffer, place.ndim, place.shape, place.strides, place.offset)
            new.trial_bytes = self._bytes[kind]
            self._made[place] = new
        return self._made[place]

    def scalar(self, arg: ArgDecl) -> Place:
        """The place of a scalar argument that differs between trials."""
        if arg not in self._made:
            self._made[arg] = Place(arg.name, arg.dtype, Buffer("arg", arg), 0, (), (), trial_bytes=arg.dtype.size)
        return self._made[arg]


def _batch_task(task: Task, places: _Places, nested: bool) -> None:
    task.params += [TRIALS, SEEDS, FAILED]
    counter = _iteration_counter(task) if nested else None
    for block in (task.prologue, task.body):
        _rewrite(block, places, counter)
    for r in task.reductions:
        r.place = places.of(r.place)
    if not nested:
        return
    claims = [s for s in walk(task.body) if isinstance(s, ClaimRow)]
    if claims:
        _drop_claims(task.body)
    b = StatementBuilder([*claims[:1], *task.prologue])
    for r in task.reductions:
        b.store(r.local, _identity(r))
    if counter is not None:
        b.store(counter, const_i64(0))
    if task.axes:
        _nest(b.block, task, counter)
    else:
        b.block.extend(task.body)
    for r in task.reductions:
        _combine(b, task, r)
    index = Op("index", (), i64)
    task.axes = [Axis(index, const_i64(0), Op("param", (), i64, TRIALS))]
    task.body, task.prologue, task.reductions, task.serialize, task.block = b.block, [], [], False, 0


def _iteration_counter(task: Task) -> Local | None:
    """The local that holds the number of the iteration, if something reads it."""
    return Local(i64, "iteration") if any(isinstance(s, Op) and s.op == "iter" for s in walk(task.body)) else None


def _nest(block: Block, task: Task, counter: Local | None) -> None:
    """The iterations of a task as loops, one after another as a single thread runs them."""
    body = StatementBuilder([LocalStore(x, _zero(x)) for x in conditional_locals(task)])
    body.block.extend(task.body)
    if counter is not None:
        body.store(counter, body.op("add", body.load(counter), const_i64(1)))
    inner: Block = body.block
    for axis in reversed(task.axes):
        inner = [Loop(axis.index, axis.begin, axis.end, inner, loc=task.loc)]
    block += inner


def _zero(x: Local) -> Const:
    value: int | float | bool = 0.0 if x.dtype.is_real else False if x.dtype.kind == "b" else 0
    return Const(value, x.dtype)


def _rewrite(block: Block, places: _Places, counter: Local | None) -> None:
    """Name the places of a batched kernel, and read per trial what each trial has its own of."""
    out: Block = []
    for s in block:
        match s:
            case GlobalStore():
                s.place = places.of(s.place)
            case Op(op="gload", attr=Place() as place):
                s.attr = places.of(place)
            case Op(op="atomic"):
                place, code = atomic_of(s)
                s.attr = (places.of(place), code)
            case Op(op="arg", attr=ArgDecl(per_trial=True) as arg):
                s.op, s.attr = "gload", places.scalar(arg)
            case Op(op="iter") if counter is not None:
                s.op, s.attr = "load", counter
            case Op(op="seed"):
                launch = Op("seed", (), u64, None, s.loc)
                own = Op("gload", (), u64, places.seed, s.loc)
                out += [launch, own]
                s.op, s.args = "add", (launch, own)
            case If():
                _rewrite(s.then, places, counter)
                _rewrite(s.orelse, places, counter)
            case Loop():
                _rewrite(s.body, places, counter)
        out.append(s)
    block[:] = out


def _drop_claims(block: Block) -> None:
    block[:] = [s for s in block if not isinstance(s, ClaimRow)]
    for s in block:
        for inner in inner_blocks(s):
            _drop_claims(inner)


# ---- reductions
def _identity(r: Reduction) -> Const:
    """The initial value of a reduction."""
    d = r.local.dtype
    if r.code == "add":
        return Const(0.0 if d.is_real else 0, d)
    low, high = (-inf, inf) if d.is_real else limits(d)
    return Const(high if r.code == "min" else low, d)


def _combine(b: StatementBuilder, task: Task, r: Reduction) -> None:
    """The element and what the iterations have added up. Where there were none, the element need not exist."""
    b.loc = task.loc
    conditions = [b.op("lt", a.begin, a.end) for a in task.axes if not _has_some(a)]
    if not r.sure:
        conditions.append(b.op("ne", b.load(r.local), _identity(r)))
    open_ = b.block
    for cond in conditions:
        inner = If(cond)
        open_.append(inner)
        open_ = inner.then
    with b.into(open_):
        b.gstore(r.place, r.index, b.op(r.code, b.gload(r.place, r.index), b.load(r.local)))


def _has_some(axis: Axis) -> bool:
    return isinstance(axis.begin, Const) and isinstance(axis.end, Const) and axis.begin.value < axis.end.value
