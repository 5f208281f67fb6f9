"""Two runs side by side on one page of HTML: what differs, and the losses of each by parameter and by step, on equal axes."""

from __future__ import annotations

import math
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

from ..live.points import Series, live_values
from ..observe.listing import table_of
from ..observe.report import page as report_page
from ..observe.report.library import library, packed
from ..observe.report.page import clean, json_script, section, soft, table, text
from ..observe.show import differ
from ..observe.table import write_file
from ..query.picking import NotFound
from ..store.layout import RunFolder
from ..study.trials import short
from .runs import RunPair, shown

POINTS, PARAMETERS, CURVES, BEST = 3000, 8, 20, 5
COLOURS = ("#3f8ccb", "#e08a2c")
STYLE = """
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 10px; }
.pair .chart { height: 300px; }
"""
Figure = dict[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Losses:
    """The trials of a run that have a loss, with their parameters, and the losses that they have logged by step."""

    rows: Sequence[Row]
    curves: Mapping[str, Series]


def write_page(pair: RunPair, out: str | os.PathLike[str]) -> str:
    """Write the page of two runs to a file or URI; gives its path.

    Raises:
        PlotsMissing: the chart library is not installed.
        StorageFull: no room.
        NoPlace: it cannot be written there.
    """
    plotly = library()
    return write_file(out, html(pair, plotly).encode("utf-8", "replace"))


def html(pair: RunPair, plotly: str) -> str:
    """The page. ``plotly``: the source of the chart library."""
    found = [losses_of(folder) for folder in (RunFolder(run.folder) for run in pair.runs)]
    names, figures, parts = [run.run for run in pair.runs], list[Figure](), list[str]()

    def both(title: str, made: Sequence[Figure], said: str = "") -> str:
        boxes = []
        for name, figure in zip(names, made, strict=True):
            boxes.append(
                f'<figure><figcaption>{text(name)}</figcaption><div class="chart" data-figure="{len(figures)}"></div></figure>'
            )
            figures.append(figure)
        return section(f"plot-{len(figures)}", title, soft(said), f'<div class="pair">{"".join(boxes)}</div>')

    varied = varied_in(found)
    for name in varied:
        parts.append(both(f"Loss by {name.removeprefix('param.')}", by_parameter(found, name)))
    if any(one.curves for one in found):
        said = f"What trials have logged; of each run the {CURVES} trials with the smallest losses."
        parts.append(both("Loss by step", by_step(found), said))
    rows = [[*map(text, row)] for row in pair.ends()]
    config = [[text(key), *(text(shown(value)) for value in values)] for key, values in pair.config.items()]
    versions = [[text(name), *map(text, values)] for name, values in pair.versions.items()]
    body = [
        f"<h1>{text(names[0])} and {text(names[1])}</h1>",
        table(["", *names], rows),
        section("config", "Config", table(["key", *names], config) if config else soft("The configs are equal.")),
        section("best", "Best trials", best_of(names, found, varied)),
        *parts,
        section("code", "Code", soft(f"{', '.join(pair.sources)} differ." if pair.sources else "The code is equal.")),
        section("versions", "Versions", table(["", *names], versions)) if versions else "",
        section("numbers", "Trials of both", f"<pre>{text(pair.numbers.text)}</pre>") if pair.common else "",
    ]
    return _document(f"{names[0]} and {names[1]}", "\n".join(part for part in body if part), figures, plotly)


def best_of(names: Sequence[str], found: Sequence[Losses], varied: Sequence[str]) -> str:
    """The trials with the smallest losses of each run."""
    headers, tables = ["trial", "loss", *(name.removeprefix("param.") for name in varied)], list[str]()
    for name, one in zip(names, found, strict=True):
        rows = [[text(_cell(row.get(column))) for column in ("trial", "loss", *varied)] for row in one.rows[:BEST]]
        tables.append(f"<figure><figcaption>{text(name)}</figcaption>{table(headers, rows)}</figure>")
    return f'<div class="pair">{"".join(tables)}</div>' if any(one.rows for one in found) else ""


def _cell(value: Any) -> str:
    return "-" if value is None else clean(short(value), 40)


def losses_of(folder: RunFolder) -> Losses:
    """The losses of a run, finished or not."""
    wanted = ["trial", "loss", "param.*"]
    try:
        rows = table_of(folder, where="loss is not None", columns=wanted).rows
    except NotFound:  # a job without parameters
        rows = table_of(folder, where="loss is not None", columns=wanted[:2]).rows
    rows = sorted((row for row in rows if math.isfinite(row["loss"])), key=lambda row: row["loss"])
    live = live_values(folder)
    first = [row["trial"] for row in rows if row["trial"] in live and "loss" in live[row["trial"]].values][:CURVES]
    return Losses(rows, {name: live[name] for name in first})


def varied_in(found: Sequence[Losses]) -> list[str]:
    """The parameters that differ between the trials of a run, or between the runs."""
    rows = [row for one in found for row in one.rows]
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("param."))
    scalar = [name for name in names if not any(isinstance(row.get(name), list) for row in rows)]
    return [name for name in scalar if differ([row.get(name) for row in rows])][:PARAMETERS]


def by_parameter(found: Sequence[Losses], name: str) -> list[Figure]:
    """The losses of both runs by a parameter, as figures of Plotly with equal axes."""
    every = [[row for row in one.rows if row.get(name) is not None] for one in found]
    numbers = all(isinstance(row[name], int | float) and not isinstance(row[name], bool) for rows in every for row in rows)
    axis = _axis([float(row[name]) for rows in every for row in rows]) if numbers else {"type": "category"}
    figures = []
    for rows, colour in zip(every, COLOURS, strict=True):
        some = rows[:: math.ceil(len(rows) / POINTS)] if len(rows) > POINTS else rows
        x = [float(row[name]) if numbers else _plain(row[name]) for row in some]
        trace = {
            "type": "scattergl" if len(some) > 500 else "scatter",
            "mode": "markers",
            "x": x,
            "y": [row["loss"] for row in some],
        }
        trace |= {"text": [_plain(row["trial"]) for row in some], "marker": {"color": colour, "size": 6}}
        trace |= {"hovertemplate": "%{text}<br>%{x}<br>loss %{y}<extra></extra>"}
        figures.append(_figure([trace], name.removeprefix("param."), axis, [row["loss"] for one in found for row in one.rows]))
    return figures


def by_step(found: Sequence[Losses]) -> list[Figure]:
    """What trials have logged of their losses, by step, with equal axes."""
    every = [
        float(value) for one in found for series in one.curves.values() for value in series["loss"] if math.isfinite(value)
    ]
    steps = [float(step) for one in found for series in one.curves.values() for step in series.step]
    axis = {"type": "linear", "range": [min(steps), max(steps)]} if len(set(steps)) > 1 else {"type": "linear"}
    figures = []
    for one, colour in zip(found, COLOURS, strict=True):
        traces = [
            {
                **{"type": "scatter", "mode": "lines", "x": series.step.tolist(), "line": {"color": colour, "width": 1.5}},
                **{"y": [float(value) if math.isfinite(value) else None for value in series["loss"]], "opacity": 0.7},
                **{"name": _plain(name), "hovertemplate": f"{_plain(name)}<br>step %{{x}}<br>loss %{{y}}<extra></extra>"},
            }
            for name, series in one.curves.items()
        ]
        figures.append(_figure(traces, "step", axis, every))
    return figures


def _figure(traces: Sequence[Figure], title: str, xaxis: Mapping[str, Any], losses: Sequence[float]) -> Figure:
    layout = {
        "xaxis": {"title": {"text": _plain(title)}, **xaxis},
        "yaxis": {"title": {"text": "loss"}, **_axis(losses)},
    }
    return {"data": list(traces), "layout": layout}


def _axis(values: Sequence[float]) -> dict[str, Any]:
    """An axis over these values; logarithmic where they are positive and differ by factors."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        return {"type": "linear"}
    log = low > 0 and high > 50 * low
    ends = [math.log10(low), math.log10(high)] if log else [low, high]
    room = 0.05 * (ends[1] - ends[0])
    return {"type": "log" if log else "linear", "range": [ends[0] - room, ends[1] + room]}


def _plain(value: Any) -> str:
    """A text of a user for Plotly, which takes some tags for its own."""
    return clean(value, 60).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")


def _document(title: str, body: str, figures: Sequence[Figure], plotly: str) -> str:
    """A whole document, which loads nothing, and in which its own two scripts alone run, by their hashes."""
    style = files(report_page.__name__.rpartition(".")[0]).joinpath("page.css").read_text(encoding="utf-8")
    script = f'"use strict";\n{files(__name__.rpartition(".")[0]).joinpath("page.js").read_text(encoding="utf-8")}'
    hashes = " ".join(f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'" for source in (script, plotly))
    policy = (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style}\n{STYLE}</style></head>\n<body>\n{body}\n"
        f"{json_script('compare-data', {'figures': list(figures)})}\n"
        f'<script type="application/octet-stream" id="compare-library">{packed(plotly)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


__all__ = ["by_parameter", "by_step", "html", "losses_of", "varied_in", "write_page"]
