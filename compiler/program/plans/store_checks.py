"""What a launch must prove before its gradient: that no two iterations of a parallel loop store to one element (rule 3 of data access)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir.nodes import ArgDecl, Buffer, Place
from ...ir.trials import TrialLayout
from ...passes.dependence.collisions import check_meeting
from ...passes.dependence.store_maps import WritePair
from ...runtime.base import Allocation
from ...tape.bounds.sizeexpr import ElementRead, Extent, ScalarArgument
from ..call import Call
from .gradient_plans import LaunchHost

MOST_KNOWN = 4096
"""Launches that are remembered as good."""


class StoreChecks:
    """Checks the launches of one gradient.

    Args:
        meetings: pairs of writes that are proven apart by a launch.
        owners: the program's memory behind each of the kernel's field buffers.
        trials: of the program.
    """

    def __init__(self, meetings: Sequence[WritePair], owners: Mapping[Buffer, Allocation], trials: TrialLayout) -> None:
        self._asked = tuple(m for m in meetings if not m.reads)
        self._watched = tuple(m for m in meetings if m.reads)
        self._owners, self._trials = owners, trials
        self._known: set[tuple[object, ...]] = set()

    @property
    def asks(self) -> bool:
        """Whether the arguments of each launch decide."""
        return bool(self._asked)

    def check(self, call: Call, watched: bool) -> None:
        """Check one launch. ``watched``: also the indices that are read from memory.

        Raises:
            DataAccessError: two iterations store to one element.
        """
        host = LaunchHost(call, self._owners, None, self._trials)
        for meeting in self._asked:
            key = (meeting, *(self._value(leaf, host, call) for leaf in meeting.leaves()))
            if key not in self._known:
                self._check(meeting, host, call)
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known.add(key)
        for meeting in self._watched if watched else ():
            self._check(meeting, host, call)

    def _value(self, leaf: ScalarArgument | Extent | ElementRead, host: LaunchHost, call: Call) -> object:
        """What a launch gives for a leaf, as a part of a key."""
        if isinstance(leaf, Extent):
            return host.extent(leaf.arg, leaf.axis)
        assert isinstance(leaf, ScalarArgument)
        return call.columns[leaf.arg.index].tobytes() if leaf.arg.per_trial else host.scalar(leaf.arg)

    def _check(self, meeting: WritePair, host: LaunchHost, call: Call) -> None:
        if not any(map(_per_trial, meeting.leaves())):
            check_meeting(meeting, host)
            return
        for trial in range(self._trials.count):
            check_meeting(meeting, _OfTrial(host, call, trial, self._trials.count))


def _per_trial(leaf: ScalarArgument | Extent | ElementRead) -> bool:
    return leaf.arg.per_trial if isinstance(leaf, ScalarArgument) else isinstance(leaf, ElementRead) and leaf.place.per_trial


class _OfTrial:
    """One trial of a launch of a batched program."""

    def __init__(self, host: LaunchHost, call: Call, trial: int, count: int) -> None:
        self._host, self._call, self._trial, self._count = host, call, trial, count

    def scalar(self, arg: ArgDecl) -> Any:
        return self._call.columns[arg.index][self._trial] if arg.per_trial else self._host.scalar(arg)

    def extent(self, arg: ArgDecl, axis: int) -> int:
        return self._host.extent(arg, axis)

    def array(self, place: Place) -> np.ndarray:
        if not place.per_trial:
            return self._host.array(place)
        shape = None if place.shape is None else (self._count, *place.shape)
        return self._host.array(replace(place, ndim=place.ndim + 1, shape=shape))[self._trial]
