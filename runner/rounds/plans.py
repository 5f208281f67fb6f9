"""What each round of a search runs: ask for trials, tell their rows. Both kinds are pure: the same rows give the same rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...compiler.errors import QdrunError
from ..config.axes import SweepSection
from ..config.optimize_section import OptimizeSection
from ..config.search_section import SearchSection
from ..config.sweep import HERE, expand
from ..optimize.results import STOPPED
from ..search.descents import Descent, go_on, progress, steps_of
from ..search.samplers import Sampler

Row = Mapping[str, Any]
OVER = frozenset(STOPPED.index(why) for why in ("gradient_norm", "loss", "no_descent", "behind"))
"""Values of ``out.opt.stopped`` of a descent that does not go on."""


class NotSearchable(QdrunError, ValueError):
    """A config has no search, or one that does not fit its other sections."""


class Round(NamedTuple):
    """Trials, by swept parameter, and other keys of the config that the round sets."""

    trials: list[dict[str, Any]]
    overrides: dict[str, Any]


class Rounds(Protocol):
    """A way to choose the trials of rounds."""

    def ask(self, left: int) -> Round | None:
        """The next round, for at most so many evaluations; None: there is nothing left to try."""
        ...

    def tell(self, rows: Sequence[Row]) -> int:
        """The rows of that round, in its order; how many evaluations it took."""
        ...


class Sampled:
    """Rounds of a sampler, which sees losses alone. One evaluation is one trial."""

    def __init__(self, section: SearchSection, sweep: SweepSection, folder: Path) -> None:
        self._section, self._sampler = section, Sampler(section, sweep.params, folder)

    def ask(self, left: int) -> Round | None:
        """See ``Rounds``."""
        count = min(self._section.trials, left)
        return Round(self._sampler.ask(count), {"gradients": []}) if count else None

    def tell(self, rows: Sequence[Row]) -> int:
        """See ``Rounds``."""
        self._sampler.tell([row["loss"] if row["status"] == "done" else None for row in rows])
        return len(rows)


class DescentRounds:
    """Rounds of descents. When none goes on, the next round has fresh starts.

    Args:
        section: the search.
        sweep: where starts come from.
        names: the parameters that are optimised.
        folder: in which paths of the sweep begin.
    """

    def __init__(self, section: SearchSection, sweep: SweepSection, names: Sequence[str], folder: Path) -> None:
        self._section, self._sweep, self._names, self._folder = section, sweep, list(names), folder
        self._live, self._asked, self._fresh = list[Descent](), list[Descent](), 0

    def ask(self, left: int) -> Round | None:
        """See ``Rounds``."""
        fresh = not self._live
        found = self._starts() if fresh else self._live
        found = found[: left // 2]  # a start and one step each
        if not found:
            return None
        steps = steps_of(self._section.steps, self._section.trials, len(found), left)
        self._asked = found
        return Round([dict(one.values) for one in found], {"optimize.steps": max(1, steps)})

    def _starts(self) -> list[Descent]:
        """The next starts of the sweep: fresh draws, or of axes without draws the next points."""
        count, place = self._section.trials, self._fresh
        self._fresh += 1
        if any(axis.draws for axis in self._sweep.params.values()):
            axes = {name: axis.model_copy(update=_uncounted(axis)) for name, axis in self._sweep.params.items()}
            seed = self._section.seed + place
            drawn = self._sweep.model_copy(
                update={"method": "random", "samples": count, "seed": seed, "params": axes, "zip": [], "repeat": 1}
            )
            points = expand(drawn, self._folder)
        else:
            points = expand(self._sweep.model_copy(update={"repeat": 1}), self._folder)[place * count : (place + 1) * count]
        return [Descent(point.values, math.inf) for point in points]

    def tell(self, rows: Sequence[Row]) -> int:
        """See ``Rounds``."""
        after = [self._after(one, row) for one, row in zip(self._asked, rows, strict=True)]
        self._live = go_on(after, self._section.keep)
        return sum(max(1, len(one.history)) for one in after)

    def _after(self, before: Descent, row: Row) -> Descent:
        loss, history = row["loss"], row.get("out.opt.history")
        if loss is None or not math.isfinite(loss) or history is None:
            return Descent(before.values, math.inf, over=True)
        moved = {name: _plain(row[f"out.opt.{name}"]) for name in self._names}
        kept = {name: value for name, value in before.values.items() if not any(_within(name, whole) for whole in moved)}
        losses = [float(x) for x in np.ravel(history)]
        fallen, moves = progress(before, losses)
        over = row["status"] != "done" or int(row.get("out.opt.stopped") or 0) in OVER or not moves
        return Descent(kept | moved, float(loss), losses, over, fallen)


def _within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def _uncounted(axis: Any) -> dict[str, Any]:
    """An axis that draws, without the number of its draws."""
    form, parts = axis.form
    return {"samples": None} | ({form: list(parts[:2])} if axis.draws and form != "choice" else {})


def rounds_of(
    section: SearchSection, sweep: SweepSection, optimize: OptimizeSection | None, names: Sequence[str], folder: Path = HERE
) -> Rounds:
    """The rounds that a config asks for.

    Args:
        section: its search.
        sweep: its sweep.
        optimize: its descent.
        names: the parameters that it optimises.
        folder: of the config.

    Raises:
        NotSearchable: it has an ``optimize`` that the method does not use, or lacks.
        NoSampler, WrongAxis: see ``Sampler``.
    """
    if section.method == "descents":
        if optimize is None:
            raise NotSearchable(
                "search.method descents needs a section `optimize`\n  do: add one, as in `optimize: {rule: lbfgs}`"
            )
        if optimize.warm_start is not None:
            raise NotSearchable(
                "optimize.warm_start does not go with `search`, whose rounds go on from each other\n  do: leave it out"
            )
        return DescentRounds(section, sweep, names, folder)
    if optimize is not None:
        raise NotSearchable(
            f"search.method {section.method} chooses the parameters itself, and the config has a section `optimize`\n"
            "  do: leave `optimize` out, or use method: descents"
        )
    if not sweep.params:
        raise NotSearchable(f"search.method {section.method} needs `sweep.params`\n  do: write an axis for each parameter")
    return Sampled(section, sweep, folder)


__all__ = ["DescentRounds", "NotSearchable", "Round", "Rounds", "Row", "Sampled", "rounds_of"]
