"""``qdrun sensitivity``: all measures of a run, as data and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..fields import about
from ..observe.table import rows
from ..store.layout import RunFolder
from ..text_grid import grid
from .differences import CheckedTrial, checked
from .health import Contradiction, TrialHealth, contradictions, health_of
from .measures import Interaction, Measure, interactions, measures
from .points import Samples, samples_of

SHOWN, IMPORTANT = 10, 5
ROUGH = 10.0
"""Times the range of the losses: a parameter whose mean gradient amounts to more over its width is reported."""


@dataclass(frozen=True)
class SensitivityStudy:
    """What the gradients of a run say about its parameters."""

    run: Annotated[str, about("its id")]
    trials: Annotated[int, about("number of trials with a loss and gradients")]
    points: Annotated[int, about("number of different points; trials at one point are repeats")]
    skipped: Annotated[int, about("number of other trials")]
    parameters: Annotated[Sequence[Measure], about("the parameters with a gradient, the largest effect first")]
    interactions: Annotated[Sequence[Interaction], about("pairs of swept parameters, the strongest first")]
    health: Annotated[Sequence[TrialHealth], about("the trials, in the order of the sweep")]
    contradictions: Annotated[Sequence[Contradiction], about("neighbours that contradict their gradients, the worst first")]
    compared: Annotated[int, about("pairs of neighbours that were looked at")]
    checks: Annotated[Sequence[CheckedTrial], about("with `--check N`: N trials beside differences of their losses")]
    samples: Annotated[Any, Field(exclude=True)]  # the ``Samples``, which are no part of the document

    @classmethod
    def of(cls, run: str, s: Samples, checks: Sequence[CheckedTrial] = ()) -> SensitivityStudy:
        """Compute all measures of the samples of a run."""
        against, looked = contradictions(s)
        counts = {"trials": len(s.trials), "points": s.points, "skipped": s.skipped, "compared": looked}
        found = {"parameters": measures(s), "interactions": interactions(s), "health": health_of(s), "contradictions": against}
        return cls(run, **counts, **found, checks=checks, samples=s)

    @property
    def text(self) -> str:
        """For a terminal."""
        s: Samples = self.samples
        repeats = f", {int(s.repeats.min())} to {int(s.repeats.max())} repeats of each" if s.repeats.max() > 1 else ""
        head = f"{self.run}: {self.trials:,} trials at {self.points:,} points{repeats}"
        head += f"; {self.skipped:,} more have no loss or no gradient" if self.skipped else ""
        return "\n\n".join(
            filter(
                None,
                [head, self._importance(), self._ranking(), self._pairs(), self._health(), self._against(), self._checks()],
            )
        )

    def _importance(self) -> str:
        """One line: each parameter's share of the sum of all effects, largest first."""
        effects = [(abs(m.effect), m.name) for m in self.parameters if np.isfinite(m.effect) and m.effect != 0.0]
        effects.sort(key=lambda pair: -pair[0])
        total = sum(effect for effect, _ in effects)
        if not effects:
            return ""
        shown = ", ".join(f"{name} {100 * effect / total:.3g} %" for effect, name in effects[:IMPORTANT])
        rest = f", and {len(effects) - IMPORTANT} more" if len(effects) > IMPORTANT else ""
        return f"importance (share of the effects): {shown}{rest}"

    def _ranking(self) -> str:
        lines = [
            [
                m.name if m.numbers == 1 else f"{m.name} ({m.numbers:,} numbers)",
                _with_error(m.effect, m.effect_error),
                "100 %" if m.width is None else f"{m.width:.4g}",
                _with_error(m.elasticity, m.elasticity_error),
                _short(m.elasticity_spread),
                "" if m.total_bound is None else f"{m.total_bound:.3g}",
            ]
            for m in self.parameters
        ]
        head = ("parameter", "effect on the loss", "of a change by", "elasticity", "its spread", "bound of total index")
        note = (
            ""
            if self.samples.repeats.max() > 1
            else "\nno point has repeats: a job that draws random numbers needs them for error bars\n"
            "  do: `repeat: 3` in `sweep`, unless trials with equal parameters give equal losses"
        )
        return grid(head, lines) + note + "".join(f"\n{line}" for line in self._rough())

    def _rough(self) -> list[str]:
        """Parameters whose gradients say nothing about the loss over their width."""
        spread = float(np.ptp(self.samples.mean(self.samples.losses)))
        return [
            f"warning: over its width the gradient of {m.name} amounts to {m.effect:.3g}, and all losses differ by {spread:.3g}: the"
            " loss is rough (waves, jumps, chaos), and its gradient holds for much smaller changes\n"
            f"  do: sweep {m.name} more finely, or average the loss; the effect and the bound above are those of the waves"
            for m in self.parameters
            if m.width is not None and m.effect > ROUGH * spread > 0.0
        ]

    def _pairs(self) -> str:
        if not self.interactions:
            return ""
        lines = [
            [f"{x.one} x {x.other}", f"{x.strength:.3g}", f"{x.pairs:,}" if x.pairs else "a fit"]
            for x in self.interactions[:SHOWN]
        ]
        return grid(("interaction", "share of the loss's range", "pairs of points"), lines)

    def _health(self) -> str:
        norms = np.array([h.norm for h in self.health])
        finite = norms[np.isfinite(norms)]
        growth = [h.growth for h in self.health if h.growth is not None]
        text = "gradients: "
        text += (
            f"norm {finite.min():.3g} to {finite.max():.3g}, median {np.median(finite):.3g}"
            if finite.size
            else "none is finite"
        )
        text += f"; growth with each time step {min(growth):.4f} to {max(growth):.4f}" if growth else ""
        bad = [h for h in self.health if h.fault]
        lines = [f"\n  {h.trial}: {h.fault}" for h in bad[:SHOWN]]
        more = f"\n  and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
        return text + ("; each is finite and not zero" if not bad else "".join(lines) + more)

    def _against(self) -> str:
        if not self.compared:
            return "losses and gradients were not compared: no line of the sweep has three points"
        if not self.contradictions:
            return f"losses and gradients agree between all of {self.compared:,} pairs of neighbours"
        lines = [
            [c.parameter, " ".join(c.trials), f"{c.slope:.4g}", f"{c.low:.4g} to {c.high:.4g}"]
            for c in self.contradictions[:SHOWN]
        ]
        table = grid(("along", "between trials", "slope of the losses", "gradients there"), lines, indent="  ")
        return (
            f"warning: losses contradict gradients between {len(self.contradictions):,} of {self.compared:,} pairs of neighbours\n{table}\n"
            "  do: `qdrun check` compares a gradient with differences; a loss that jumps, or that has waves between the points, looks like"
            " this, too: sweep more finely there"
        )

    def _checks(self) -> str:
        if not self.checks:
            return ""
        bad = [c for c in self.checks if not c.agrees]
        told = [c.worst for c in self.checks if c.worst is not None]
        text = f"differences: {len(self.checks) - len(bad)} of {len(self.checks)} trials agree with theirs"
        text += f", relative error at most {max(told):.1e}" if told else ""
        lines = [f"\n  {c.trial}: {c.error or 'differs' + ('' if c.worst is None else f' by {c.worst:.1e}')}" for c in bad]
        return text + "".join(lines)


def sensitivity(folder: RunFolder, check: int = 0) -> SensitivityStudy:
    """The sensitivity of a run, which need not be finished.

    Args:
        folder: of the run.
        check: so many of its trials run again here, beside differences of their losses.

    Raises:
        NothingToSee: no finished trial has a gradient of a parameter.
        ConfigChanged: trials are to run again, and the config or the job has changed.
    """
    s = samples_of(rows(folder), folder.name)
    return SensitivityStudy.of(folder.name, s, checked(folder, s, check) if check else ())


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else ""


def _with_error(value: float, error: float | None) -> str:
    return _short(value) + ("" if error is None or not math.isfinite(error) else f" ± {error:.1g}")


__all__ = ["SensitivityStudy", "sensitivity"]
