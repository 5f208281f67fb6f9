"""Writes the report of a run: the sections of the page, and the file."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from ...store.layout import RunFolder
from ...study.trials import counted
from ..live import duration
from ..remarks import remarks_of
from ..table import write_file
from ..view import retries_text
from . import curves
from .columns import TrialTable, trial_table
from .failures import failures
from .gallery import gallery
from .library import library
from .material import Material, gather
from .page import charts, folded, page, section, soft, text, tiles

CONFIG = 100_000
"""So many characters of the config are shown."""


def write_report(folder: RunFolder, out: str | os.PathLike[str] | None = None) -> str:
    """Write the report of a run, finished or not, and give its path: ``report.html`` in the run's folder, or ``out``.

    Raises:
        PlotsMissing: the chart library is not installed.
        StorageFull: no room.
        NoPlace: it cannot be written there.
        OSError: the run cannot be read.
    """
    plotly = library()
    data = html(gather(folder), plotly, "" if out is None else f"{folder.uri}/").encode("utf-8", "replace")
    if out is None:
        folder.files.put("report.html", data)
        return f"{folder.uri}/report.html"
    return write_file(out, data)


def html(run: Material, plotly: str, base: str = "") -> str:
    """The whole page.

    Args:
        run: the run.
        plotly: the source of the chart library.
        base: address of the run's folder in front of links; empty for a page in that folder.
    """
    table = trial_table(run)
    place_of = table.place_of()
    steps, devices = curves.by_step(run, place_of), curves.devices(run.loads)
    parts = [
        _head(run),
        *_results(run, table),
        section("steps", "Values by step", soft(_steps_said(run, steps)), charts()) if steps else "",
        section("failures", "Failed trials", *failures(run, place_of)),
        section("artifacts", "Artifacts", *gallery(run, base, place_of)),
        section("trials", "All trials", soft(_trials_said(run, table)), '<div class="controls"></div><div class="rows"></div>'),
        section("devices", "Devices over time", soft(curves.THINNED), charts(), *_other_devices(run)) if devices else "",
        _memory(run),
        section("config", "Config", folded("config.yaml", f"<pre>{text(_config(run))}</pre>")),
    ]
    data = table.data(run.swept) | {"steps": steps, "devices": devices}
    return page(f"{run.info['name']}: {run.view.state}", "\n".join(part for part in parts if part), data, plotly)


def _head(run: Material) -> str:
    view = run.view
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(run.info["created"])))
    counts = ", ".join(f"{number} {word}" for word, number in sorted(view.counts.items()))
    pairs = [
        (f"{view.counts.get('done', 0)} of {view.total}", "trials done"),
        (duration(view.seconds), "from submit to the end" if view.over else "since submit"),
    ]
    pairs += [(f"{view.best[0]:.6g}", f"best loss, at {re.sub(',(?=[^ ])', ', ', view.best[1])}")] if view.best else []
    own = [row["seconds"] for row in run.rows if row["seconds"] is not None]
    pairs += [(f"{sum(own):.3g} s", f"of the trials' own work; median {sorted(own)[len(own) // 2]:.3g} s")] if own else []
    retries = sum(view.retries.values())
    pairs += [(str(retries), f"attempts without a row; {', '.join(retries_text(view.retries))}")] if retries else []
    return (
        f"<header><h1>{text(run.info['name'])}</h1>\n"
        f'<p><span class="state {text(view.state)}">{text(view.state)}</span>: {text(counts)}</p>\n'
        f'<p class="soft"><code>{text(run.folder.name)}</code> made {made} on {text(run.info.get("host", "?"))}</p></header>\n'
        + tiles(pairs)
        + "".join(f'<p class="warning">Warning: {text(said)}</p>' for said in remarks_of(run.folder))
    )


def _results(run: Material, table: TrialTable) -> list[str]:
    """The sections of charts over parameters, as far as there is something to draw."""
    numeric = {column.name for column in table.columns if column.numeric}
    swept = [column.name for column in table.columns if column.role == "parameter"]
    if not {"loss", "gradient_norm"} & numeric:
        over = run.view.counts.get("failed", 0) + run.view.counts.get("poisoned", 0)
        said = f"No trial has a loss: {counted(over, 'trial')} failed." if over else ""
        return [section("parameters", "Loss and parameters", soft(said))]
    if not swept:
        return [section("parameters", "Loss by trial", charts())] if len(table.places) > 1 else []
    own = "Each point is a trial: point at it for its parameters, click it for its row."
    rest = " The ring is the trial with the smallest loss; a red tick at the lower edge is a trial without the value."
    parts = [section("parameters", "Loss and parameters", soft(own + rest), charts())]
    if len(swept) > 1:
        parts.append(section("pairs", "Two parameters", charts()))
        lines = "Each line is a trial that has all of these values. Drag along an axis to keep a range, also in the table of all trials."
        parts.append(section("parallel", "All parameters", soft(lines), charts()))
    return parts


def _steps_said(run: Material, steps: list[dict[str, Any]]) -> str:
    logged = {name for series in run.live.values() for name in series.values}
    shown = {one["name"] for one in steps}
    rest = ", ".join(sorted(logged - shown))
    said = f"At most {curves.CURVES} trials, from the smallest value to the largest; that of the smallest is thick. {curves.THINNED}"
    return said + (f" Without a chart: {rest}." if len(logged) > len(shown) else "")


def _trials_said(run: Material, table: TrialTable) -> str:
    all_of_them = len(table.places) == len(run.trials)
    said = (
        ""
        if all_of_them
        else f"{len(table.places)} of {len(run.trials)} trials, evenly spread, with the best: also in the charts. "
    )
    left_out = f" Columns without room here: {', '.join(table.left_out)}." if table.left_out else ""
    return f"{said}Click a heading to sort, a row for all of its values.{left_out}"


def _other_devices(run: Material) -> list[str]:
    return [soft(curves.load_said(load)) for load in run.loads[curves.DEVICES :]]


def _memory(run: Material) -> str:
    ratios = [row["used_bytes"] / row["planned_bytes"] for row in run.rows if row["planned_bytes"] and row["used_bytes"]]
    if not ratios:
        return ""
    over = sum(ratio > 1 for ratio in ratios)
    said = f"{counted(len(ratios), 'trial')}. Used by planned: {min(ratios):.4g} to {max(ratios):.4g}; {over} used more than planned."
    return section("memory", "Memory: planned and used", soft(said), charts())


def _config(run: Material) -> str:
    rest = len(run.config) - CONFIG
    return run.config[:CONFIG] + (f"\n.. and {rest} more characters" if rest > 0 else "")


__all__ = ["html", "write_report"]
