"""Plots of a run as SVG for a page of HTML, by matplotlib: text is text, lines and letters take the colour of the page around them."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from ...compiler.errors import QdrunError
from .device_load import Load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 3000
"""No plot has more points than this; of more, every k-th is shown, and the best."""
CURVES = 40
STEPS = 300
MOMENTS = 600
INK = "#010203"
"""Stands for the colour of the text around a plot."""
Curve = tuple[Sequence[float], Sequence[float]]
"""Steps, and the values there."""
BLUE, RED, GREEN = "#3f8ccb", "#d9534f", "#2a9d62"
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.formatter.useoffset": False,
}


class PlotsMissing(QdrunError, ImportError):
    """matplotlib is not installed."""


def check_matplotlib() -> None:
    """Make sure that plots can be drawn.

    Raises:
        PlotsMissing: they cannot.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ImportError as error:
        raise PlotsMissing(
            "plots and reports are drawn by matplotlib, which is not installed\n  do: pip install matplotlib"
        ) from error


@contextmanager
def _drawing(height: float = 2.7) -> Iterator[tuple[Figure, Axes]]:
    check_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(), warnings.catch_warnings():  # pyright: ignore[reportCallIssue]
        warnings.simplefilter("ignore", UserWarning)  # letters that the font does not have: the reader's browser has them
        import matplotlib

        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(4.2, height), layout="constrained")
        yield figure, figure.add_subplot()


def _svg(figure: Figure, name: str) -> str:
    """The SVG element of a figure; ``name`` keeps its ids apart from those of other figures, and is read out where it is not seen."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = name
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)  # as wide as the page lets it be
    return f'{head} role="img" aria-label="{escape(_clean(name, 200), quote=True)}">{rest}'


def _clean(text: str, most: int = 60) -> str:
    """Text that XML can hold, of a bearable length."""
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else text[: most - 3] + "..."


def _wide(values: Sequence[float]) -> bool:
    """Whether numbers are better shown on a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) > 50 * min(values)


def _spread(values: Sequence[float]) -> bool:
    """Whether a swept parameter is spread by factors: wide, and most of its values are small beside the largest."""
    return _wide(values) and sorted(values)[len(values) // 2] < 0.15 * max(values)


def _logarithmic(axis: Axes, which: str) -> None:
    """A logarithmic axis whose labels are plain text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    one = axis.xaxis if which == "x" else axis.yaxis
    one.set_major_locator(LogLocator(10, numticks=7))
    one.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    one.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """A power of ten as people write it: 0.01, 1, 100, 10⁵."""
    exponent = round(math.log10(value))
    if -3 < exponent < 4:
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def picked(count: int, most: int) -> list[int]:
    """At most ``most`` indices below ``count``, evenly spread, the last one included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _positions(axis: Axes, values: Sequence[Any]) -> list[float]:
    """The positions of values on the x axis: numbers by value, anything else by order of appearance."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values):
        if _spread(values):
            _logarithmic(axis, "x")
        return [float(value) for value in values]
    names = list(dict.fromkeys(_clean(str(value), 18) for value in values))
    shown = picked(len(names), 12)
    axis.set_xticks(
        shown, [names[i] for i in shown], rotation=30 if len(names) > 4 else 0, ha="right" if len(names) > 4 else "center"
    )
    places = {name: float(i) for i, name in enumerate(names)}
    return [places[_clean(str(value), 18)] for value in values]


def _points(axis: Axes, x: Sequence[float], y: Sequence[float | None], label: str) -> None:
    good = [(a, b) for a, b in zip(x, y) if b is not None and math.isfinite(b)]
    bad = [a for a, b in zip(x, y) if b is None or not math.isfinite(b)]
    shown = [good[i] for i in picked(len(good), POINTS)]
    if _wide([b for _, b in good]):
        _logarithmic(axis, "y")
    size = 4.5 if len(shown) <= 100 else 3 if len(shown) <= 400 else 2
    alpha = 0.9 if len(shown) <= 100 else 0.55
    if shown:
        axis.plot([a for a, _ in shown], [b for _, b in shown], "o", ms=size, mew=0, color=BLUE, alpha=alpha)
    if bad:  # along the lower edge: there is no number to show
        rows = [bad[i] for i in picked(len(bad), POINTS)]
        axis.plot(rows, [0.0] * len(rows), "|", ms=9, mew=1, color=RED, transform=axis.get_xaxis_transform(), clip_on=False)
    axis.set_ylabel(label)


def against(name: str, values: Sequence[Any], losses: Sequence[float | None], norms: Sequence[float | None]) -> list[str]:
    """Plots of the loss and of the gradient norm against a swept parameter, as far as trials have them. A red tick: a trial without one."""
    drawn = []
    for y, label in ((losses, "loss"), (norms, "gradient norm")):
        if not any(number is not None and math.isfinite(number) for number in y):
            continue
        with _drawing() as (figure, axis):
            _points(axis, _positions(axis, values), y, label)
            axis.set_xlabel(_clean(name))
            if y is losses:
                _mark_best(axis, _positions(axis, values), losses)
            drawn.append(_svg(figure, f"{label} against {name}"))
    return drawn


def _mark_best(axis: Axes, x: Sequence[float], losses: Sequence[float | None]) -> None:
    best = min((loss, i) for i, loss in enumerate(losses) if loss is not None and math.isfinite(loss))
    axis.plot([x[best[1]]], [best[0]], "o", ms=7, mfc="none", mec=GREEN, mew=1.6)


def by_step(name: str, curves: Sequence[Curve]) -> str:
    """A logged value of trials by step.

    Args:
        name: of the value.
        curves: the best trial first. Of many, some are drawn, with the best among them.
    """
    with _drawing(3.2) as (figure, axis):
        shown = [curves[i] for i in picked(len(curves), CURVES)]
        if _wide([value for _, values in shown for value in values if math.isfinite(value)]):
            _logarithmic(axis, "y")
        for k, (steps, values) in reversed(list(enumerate(shown))):
            there = [i for i in picked(len(values), STEPS) if math.isfinite(values[i])]
            style = {"color": BLUE, "lw": 0.8, "alpha": 0.5} if k else {"color": GREEN, "lw": 1.8, "label": "best"}
            axis.plot([steps[i] for i in there], [values[i] for i in there], **style)
        axis.set_xlabel("step")
        axis.set_ylabel(_clean(name, 60))
        axis.legend()
        return _svg(figure, f"{name} by step")


def _unit(top: int) -> tuple[str, int]:
    """The unit of an axis of bytes that ends at ``top``."""
    return next(
        (unit, size) for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1)) if top >= size
    )


def packing(load: Load) -> list[str]:
    """Bytes claimed on a device over time against its capacity, and how many trials ran at once."""
    check_matplotlib()
    thin = load.thinned(MOMENTS)
    top = max([*thin.claimed, load.capacity or 0, 1])
    unit, size = _unit(top)
    with _drawing(2.3) as (figure, axis):
        claimed = [number / size for number in thin.claimed]
        axis.fill_between(thin.times, claimed, step="post", color=BLUE, alpha=0.35, lw=0)
        axis.step(thin.times, claimed, where="post", color=BLUE, lw=1)
        if load.capacity is not None:
            axis.axhline(load.capacity / size, color=RED, lw=1, ls="--")
        axis.set_ylim(0, 1.08 * top / size)
        axis.set_ylabel(f"claimed, {unit}")
        axis.set_xlabel("seconds since the run began")
        bytes_drawn = _svg(figure, f"bytes claimed on {load.device}")
    with _drawing(2.3) as (figure, axis):
        axis.step(thin.times, thin.running, where="post", color=BLUE, lw=1)
        axis.set_ylim(bottom=0)
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel("trials at once")
        axis.set_xlabel("seconds since the run began")
        return [bytes_drawn, _svg(figure, f"trials at once on {load.device}")]


def planned_used(planned: Sequence[int], used: Sequence[int]) -> str:
    """Bytes used against bytes planned, one point for each trial; on the line they are equal."""
    pairs = sorted({(a, b) for a, b in zip(planned, used) if a > 0 and b > 0})
    pairs = [pairs[i] for i in picked(len(pairs), POINTS)]
    unit, size = _unit(max(max(pair) for pair in pairs))
    shown = [(a / size, b / size) for a, b in pairs]
    wide = _wide([number for pair in shown for number in pair])
    with _drawing(3.0) as (figure, axis):
        low, high = min(min(pair) for pair in shown), max(max(pair) for pair in shown)
        low, high = (low / 1.3, high * 1.3) if wide else (0.0, 1.1 * high)
        axis.plot([low, high], [low, high], color=INK, lw=0.8, ls="--", alpha=0.6)
        axis.plot([a for a, _ in shown], [b for _, b in shown], "o", ms=4, mew=0, color=BLUE, alpha=0.7)
        for which in ("x", "y") if wide else ():
            _logarithmic(axis, which)
        axis.set_xlabel(f"planned, {unit}")
        axis.set_ylabel(f"used, {unit}")
        return _svg(figure, "planned and used")
