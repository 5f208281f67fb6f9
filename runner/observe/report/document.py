"""Writes the report of a run: the sections of the page, and the file."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
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
from .material import Material, column_in, gather, swept_of
from .page import charts, folded, page, section, soft, text, tiles

PlaceOf = Callable[[int], int | None]
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
    data = html([gather(folder)], plotly, linked=out is not None).encode("utf-8", "replace")
    if out is None:
        folder.files.put("report.html", data)
        return f"{folder.uri}/report.html"
    return write_file(out, data)


def html(runs: Sequence[Material], plotly: str, *, linked: bool = False, differences: Sequence[str] = ()) -> str:
    """The whole page, of one run or of several, whose trials are in the same charts and in one table.

    Args:
        runs: the runs.
        plotly: the source of the chart library.
        linked: the page is not in the folder of its run: links have the address of that folder.
        differences: sections that compare the runs.
    """
    table = trial_table(runs)
    before = accumulate((len(run.trials) for run in runs), initial=0)
    placed = [(run, table.place_of(count)) for run, count in zip(runs, before)]
    steps = curves.together([curves.by_step(run, place_of) for run, place_of in placed])
    devices = [device for run in runs for device in curves.devices(run.loads)]
    parts = [
        _heads(runs),
        *differences,
        *_results(runs, table),
        section("steps", "Values by step", soft(_steps_said(runs, steps)), charts()) if steps else "",
        section("failures", "Failed trials", *_of_each(placed, failures)),
        section("artifacts", "Artifacts", *_of_each(placed, partial(gallery, linked=linked))),
        section(
            "trials", "All trials", soft(_trials_said(runs, table)), '<div class="controls"></div><div class="rows"></div>'
        ),
        section("devices", "Devices over time", soft(curves.THINNED), charts(), *_other_devices(runs)) if devices else "",
        _memory(runs),
        section("config", "Config", *(folded(_config_of(run, runs), f"<pre>{text(_config(run))}</pre>") for run in runs)),
    ]
    data = table.data(swept_of(runs)) | {"steps": steps, "devices": devices, "runs": [run.folder.name for run in runs]}
    title = " and ".join(f"{run.info['name']}: {run.view.state}" for run in runs)
    return page(title, "\n".join(part for part in parts if part), data, plotly)


def _of_each(
    placed: Sequence[tuple[Material, PlaceOf]], parts_of: Callable[[Material, PlaceOf], Sequence[str]]
) -> Iterator[str]:
    """The parts of a section, with the name of each run where there are several."""
    for run, place_of in placed:
        parts = parts_of(run, place_of)
        if parts and len(placed) > 1:
            yield f"<h3>{text(run.folder.name)}</h3>"
        yield from parts


def _config_of(run: Material, runs: Sequence[Material]) -> str:
    return "config.yaml" if len(runs) == 1 else f"config.yaml of {text(run.folder.name)}"


def _heads(runs: Sequence[Material]) -> str:
    """The head of each run; of several beside each other, below names in the colours of their trials."""
    if len(runs) == 1:
        return _head(runs[0])
    heads = [f'<div><p class="run run{k % 2}">{text(run.folder.name)}</p>{_head(run)}</div>' for k, run in enumerate(runs)]
    return f'<div class="pair">{"".join(heads)}</div>'


def _head(run: Material) -> str:
    view = run.view
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(run.info["created"])))
    counts = ", ".join(f"{number} {word}" for word, number in sorted(view.counts.items()))
    pairs = [
        (f"{view.counts.get('done', 0)} of {view.total}", "trials done"),
        (duration(view.seconds), "from submit to the end" if view.over else "since submit"),
    ]
    pairs += [(f"{view.best[0]:.6g}", f"best loss, at {re.sub(',(?=[^ ])', ', ', view.best[1])}")] if view.best else []
    own = [seconds for seconds in run.rows.column("seconds") if seconds is not None]
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


def _results(runs: Sequence[Material], table: TrialTable) -> list[str]:
    """The sections of charts over parameters, as far as there is something to draw."""
    numeric = {column.name for column in table.columns if column.numeric}
    swept = [column.name for column in table.columns if column.role == "parameter"]
    if not {"loss", "gradient_norm"} & numeric:
        over = sum(run.view.counts.get(word, 0) for run in runs for word in ("failed", "poisoned"))
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


def _steps_said(runs: Sequence[Material], steps: list[dict[str, Any]]) -> str:
    logged = {name for run in runs for series in run.live.values() for name in series.values}
    shown = {one["name"] for one in steps}
    rest = ", ".join(sorted(logged - shown))
    thick = "; that of the smallest is thick" if len(runs) == 1 else ""
    each = "" if len(runs) == 1 else " of each run"
    said = f"At most {curves.CURVES} trials{each}, from the smallest value to the largest{thick}. {curves.THINNED}"
    return said + (f" Without a chart: {rest}." if len(logged) > len(shown) else "")


def _trials_said(runs: Sequence[Material], table: TrialTable) -> str:
    shown, count = len(table.places), sum(len(run.trials) for run in runs)
    said = "" if shown == count else f"{shown} of {count} trials, evenly spread, with the best: also in the charts. "
    left_out = f" Columns without room here: {', '.join(table.left_out)}." if table.left_out else ""
    return f"{said}Click a heading to sort, a row for all of its values.{left_out}"


def _other_devices(runs: Sequence[Material]) -> list[str]:
    return [soft(curves.load_said(load)) for run in runs for load in run.loads[curves.DEVICES :]]


def _memory(runs: Sequence[Material]) -> str:
    bytes_each = zip(column_in(runs, "used_bytes"), column_in(runs, "planned_bytes"), strict=True)
    ratios = [used / planned for used, planned in bytes_each if used and planned]
    if not ratios:
        return ""
    over = sum(ratio > 1 for ratio in ratios)
    said = f"{counted(len(ratios), 'trial')}. Used by planned: {min(ratios):.4g} to {max(ratios):.4g}; {over} used more than planned."
    return section("memory", "Memory: planned and used", soft(said), charts())


def _config(run: Material) -> str:
    rest = len(run.config) - CONFIG
    return run.config[:CONFIG] + (f"\n.. and {rest} more characters" if rest > 0 else "")


__all__ = ["html", "write_report"]
