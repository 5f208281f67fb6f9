"""The sizing of a batched gradient: rows by trials, and for each loop the largest bound of any trial.

The trial is one more index around all loops. An array with a copy per trial has the trials as its first axis. The largest trip count over
all trials is computed like that over any other index. A row belongs to a worker, which runs trials one after another.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.nodes import ArgDecl, Buffer, Op, Place
from ..ir.trials import TrialLayout
from ..ir.types import i64
from .bounds.sizeexpr import ElementRead, Index, Lit, Range, ScalarArgument, SizeExpr, rebuilt
from .sizing import LoopSizing, StackRegion, TaskSizing


def batched_sizing(tasks: tuple[TaskSizing, ...], layout: TrialLayout) -> tuple[TaskSizing, ...]:
    """The sizing of the tasks of a reverse kernel that runs for all trials of a batch."""
    return _Batched(layout).tasks(tasks)


class _Batched:
    def __init__(self, layout: TrialLayout) -> None:
        self._trial = Range(Op("index", (), i64), Lit(0), Lit(layout.count), 1)
        self._lanes = Range(Op("index", (), i64), Lit(0), Lit(layout.padded), 1)
        self._count = layout.count
        self._places: dict[Place | ArgDecl, Place] = {}

    def tasks(self, tasks: tuple[TaskSizing, ...]) -> tuple[TaskSizing, ...]:
        """The sizing of all tasks; their axes are loops within a trial."""
        return tuple(
            replace(t, axes=(self._lanes,), parallel=True, region=self._region(t.region), gate=None, trials=True) for t in tasks
        )

    def _region(self, region: StackRegion) -> StackRegion:
        arms = tuple((self._region(a), self._region(b)) for a, b in region.arms)
        return StackRegion(tuple(map(self._loop, region.loops)), arms)

    def _loop(self, loop: LoopSizing) -> LoopSizing:
        nest = (self._trial, *map(self._range, loop.nest))
        return replace(loop, range=self._range(loop.range), nest=nest, inner=self._region(loop.inner))

    def _range(self, r: Range) -> Range:
        return replace(r, begin=self._at(r.begin), end=None if r.end is None else self._at(r.end))

    def _at(self, e: SizeExpr) -> SizeExpr:
        """The expression for one trial."""
        e = rebuilt(e, self._at)
        if isinstance(e, ElementRead) and e.place.per_trial:
            return ElementRead(self._place(e.place), (Index(self._trial.index), *e.index))
        if isinstance(e, ScalarArgument) and e.arg.per_trial:
            return ElementRead(self._scalar(e.arg), (Index(self._trial.index),))
        return e

    def _place(self, place: Place) -> Place:
        """The place with the trials as its first axis."""
        if place not in self._places:
            shape = None if place.shape is None else (self._count, *place.shape)
            self._places[place] = replace(place, ndim=place.ndim + 1, shape=shape)
        return self._places[place]

    def _scalar(self, arg: ArgDecl) -> Place:
        if arg not in self._places:
            self._places[arg] = Place(
                arg.name,
                arg.dtype,
                Buffer("arg", arg),
                1,
                (self._count,),
                (),
                elem_bytes=arg.dtype.size,
                trial_bytes=arg.dtype.size,
            )
        return self._places[arg]
