"""The report of a run: one file of HTML that holds everything it shows, made from the run's folder alone at any time."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

import numpy as np

from ...jobs.core.paths import get, has
from ..live.points import Series, live_values
from ..packing.claims import amount
from ..store.attempts import ResultMissing, arrays_of, check_inside
from ..store.journal import read
from ..store.layout import RunFolder
from ..store.replay import Replay, replay
from ..study.plan import planned_bytes
from ..study.trials import Trial, counted, short
from ..workers.records import gradient_norm
from . import plots
from .device_load import Load, loads
from .live import duration
from .page import figure, folded, image, page, section, table, text, tiles
from .table import Row, rows_of, write_file
from .view import RunView, view_of

PARAMETERS, DEVICES, NAMES = 12, 16, 8
"""Maximum number of parameters, of devices, and of logged names, with their own plot."""
SLOWEST, FAILED, LISTED = 15, 50, 2000
TRACE = 8000
ARTIFACTS, PICTURE_BYTES = 200, 2 << 20
"""Trials whose artifacts are listed, and bytes of the pictures among these that are shown."""
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True)
class Material:
    """The data of a report: the run by its journal, its rows, gradient norms by trial, and its devices over time."""

    folder: RunFolder
    info: Mapping[str, Any]
    config: str
    view: RunView
    trials: Sequence[Trial]
    rows: Sequence[Row]
    found: Replay
    norms: Mapping[str, float | None]
    loads: Sequence[Load]
    live: Mapping[str, Series]

    @property
    def swept(self) -> list[str]:
        """The parameters that differ between trials."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.swept)
        return [name for name in names if len({str(value_of(trial, name)) for trial in self.trials}) > 1]


def value_of(trial: Trial, name: str) -> Any:
    """The value of a swept parameter in a trial: a list of trials need not give it, then it is that of the config or the job."""
    if name in trial.swept:
        return trial.swept[name]
    return get(trial.params, name) if has(trial.params, name) else None


def gather(folder: RunFolder) -> Material:
    """Read a run; one pass over its journal, and the files of large gradients whose norm was not written down.

    Raises:
        OSError: the run cannot be read.
    """
    trials, info, events = folder.trials(), folder.info(), read(folder, light=True)
    found = replay(folder, events=events, trials=[trial.id for trial in trials])
    view = view_of(folder, trials=trials)
    began = float(info["created"])
    return Material(
        folder=folder,
        info=info,
        config=folder.files.read("config.yaml").decode("utf-8", "replace"),
        view=view,
        trials=trials,
        rows=rows_of(folder, found, trials, view.state),
        found=found,
        norms={trial.id: _norm(folder, found, trial.id) for trial in trials},
        loads=loads(events.events, began, planned_bytes(folder.plan())),
        live=live_values(folder),
    )


def _norm(folder: RunFolder, found: Replay, trial: str) -> float | None:
    state = found.trials[trial]
    if state.entry is None or not state.entry.event.get("gradients"):
        return None
    norm = gradient_norm(state.entry.event)
    if norm is not None:
        return norm
    try:
        arrays = arrays_of(folder, state.entry.event).values()
    except ResultMissing:  # the row counts without them
        return None
    return math.sqrt(sum(float(np.sum(np.square(array, dtype=np.float64))) for array in arrays))


def write_report(folder: RunFolder, out: str | os.PathLike[str] | None = None) -> str:
    """Write the report of a run, finished or not, and give its path: ``report.html`` in the run's folder, or ``out``.

    Raises:
        PlotsMissing: matplotlib is not installed.
        StorageFull: no room.
        NoPlace: it cannot be written there.
        OSError: the run cannot be read.
    """
    plots.check_matplotlib()
    data = html(gather(folder), "" if out is None else f"{folder.uri}/").encode("utf-8", "replace")
    if out is None:
        folder.files.put("report.html", data)
        return f"{folder.uri}/report.html"
    return write_file(out, data)


def html(run: Material, base: str = "") -> str:
    """The whole page."""
    body = "\n".join(
        part
        for part in (
            _head(run),
            section("Loss", *_losses(run)),
            section("Values by step", *_by_step(run)),
            section("Packing over time", *_packing(run)),
            section("Memory: planned and used", *_memory(run)),
            section("Failed trials", *_failed(run)),
            section("Slowest trials", _slowest(run)),
            section("Artifacts", *_artifacts(run, base)),
            section("All trials", _all(run)),
            section("Config", folded("config.yaml", f"<pre>{text(run.config)}</pre>")),
        )
        if part
    )
    return page(f"{run.info['name']}: {run.view.state}", body)


def _head(run: Material) -> str:
    view = run.view
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(run.info["created"])))
    counts = ", ".join(f"{number} {word}" for word, number in sorted(view.counts.items()))
    busy = [tried for state in run.found.trials.values() for tried in state.attempts if tried.started_t and tried.ended_t]
    hours = sum((tried.ended_t or 0.0) - (tried.started_t or 0.0) for tried in busy)
    pairs = [
        (f"{view.counts.get('done', 0)} of {view.total}", "trials done"),
        (duration(view.seconds), "from submit to the end"),
    ]
    pairs += [(f"{view.best[0]:.6g}", f"best loss, at {view.best[1]}")] if view.best else []
    pairs += [(duration(hours), "of trials, one after the other")] if busy else []
    pairs += [(f"{hours / view.seconds:.1f}", "trials at once, on average")] if busy and view.seconds > 0 else []
    retries = sum(view.retries.values())
    pairs += [(str(retries), "attempts tried again: " + ", ".join(f"{n} {k}" for k, n in sorted(view.retries.items())))] * bool(
        retries
    )
    return (
        f"<header><h1>{text(run.info['name'])}</h1>\n"
        f'<p><span class="state {text(view.state)}">{text(view.state)}</span>: {text(counts)}</p>\n'
        f'<p class="soft"><code>{text(run.folder.name)}</code> made {made} on {text(run.info.get("host", "?"))}</p></header>\n'
        + tiles(pairs)
    )


def _losses(run: Material) -> list[str]:
    ended = [(trial, row) for trial, row in zip(run.trials, run.rows) if row["status"] in ("done", "failed", "poisoned")]
    if not ended:
        return []
    losses = [_finite(row["loss"]) if row["status"] == "done" else None for _, row in ended]
    norms = [_finite(run.norms[trial.id]) if row["status"] == "done" else None for trial, row in ended]
    names = run.swept
    if not any(loss is not None for loss in losses):
        return [f'<p class="soft">No trial has a loss: {counted(len(ended), "trial")} failed.</p>']
    said = "Each point is a trial, the ring is the best, a red tick at the lower edge is a trial that failed."
    parts = [f'<p class="soft">{said}{_sampled(len(ended))}</p>']
    for name in names[:PARAMETERS]:
        values = [_value(value_of(trial, name)) for trial, _ in ended]
        parts.append(figure(plots.against(name, values, losses, norms), f"Loss and gradient norm against {name}"))
    if not names:
        numbers = [trial.index for trial, _ in ended]
        parts.append(
            figure(
                plots.against("trial", numbers, losses, norms),
                "Loss and gradient norm of each trial, in the order of the sweep",
            )
        )
    if len(names) > PARAMETERS:
        parts.append(f'<p class="soft">Without a plot: {text(", ".join(names[PARAMETERS:]))}.</p>')
    return parts


def _sampled(count: int) -> str:
    return f" Of {count} trials {plots.POINTS} are drawn." if count > plots.POINTS else ""


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(float(value)) else float(value)


def _value(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else short(value)


def _by_step(run: Material) -> list[str]:
    """What trials have logged, finished or not; of a descent that is over the whole history of its loss."""
    logged = [name for series in run.live.values() for name in series.values]
    histories = {row["trial"]: row["out.opt.history"] for row in run.rows if isinstance(row.get("out.opt.history"), list)}
    names: list[str] = list(dict.fromkeys(["loss"] * any(histories.values()) + logged))
    parts = []
    for name in names[:NAMES]:
        curves = []
        for trial in run.trials:
            own = histories.get(trial.id) if name == "loss" else None
            series = run.live.get(trial.id)
            if own:
                curves.append((range(len(own)), own))
            elif series is not None and name in series.values:
                curves.append((series.step.tolist(), series[name].tolist()))
        curves.sort(key=lambda curve: min(filter(math.isfinite, curve[1]), default=math.inf))
        shown = min(len(curves), plots.CURVES)
        caption = f"{name} by step of {shown} of {len(curves)} trials, from the smallest value to the largest; the trial of the smallest"
        parts.append(figure([plots.by_step(name, curves)], f"{caption} one is drawn thick"))
    if len(names) > NAMES:
        parts.append(f'<p class="soft">Without a plot: {text(", ".join(names[NAMES:]))}.</p>')
    return parts


def _packing(run: Material) -> list[str]:
    parts = []
    for load in run.loads[:DEVICES]:
        size, count = load.mean()
        share = f", {100 * size / load.capacity:.0f} % of {amount(load.capacity)} (dashed)" if load.capacity else ""
        caption = f"{load.device}: {amount(round(size))} claimed on average{share}; {count:.1f} trials at once"
        parts.append(figure(plots.packing(load), caption))
    if len(run.loads) > DEVICES:
        rows = []
        for load in run.loads[DEVICES:]:
            size, count = load.mean()
            rows.append(
                [
                    text(load.device),
                    amount(round(size)),
                    "-" if load.capacity is None else amount(load.capacity),
                    f"{count:.1f}",
                ]
            )
        parts.append(table(["device", "claimed on average", "capacity", "at once"], rows, numbers=("at once",)))
    return parts


def _memory(run: Material) -> list[str]:
    pairs = [(r["planned_bytes"], r["used_bytes"]) for r in run.rows if r["planned_bytes"] and r["used_bytes"]]
    if not pairs:
        return []
    ratios = sorted(used / planned for planned, used in pairs)
    over = sum(ratio > 1 for ratio in ratios)
    said = f"{len(pairs)} trials. Used by planned: {ratios[0]:.4g} to {ratios[-1]:.4g}; {over} trials used more than planned."
    return [figure([plots.planned_used([a for a, _ in pairs], [b for _, b in pairs])], said)]


def _failed(run: Material) -> list[str]:
    failed = [(trial, row) for trial, row in zip(run.trials, run.rows) if row["status"] in ("failed", "poisoned")]
    if not failed:
        return []
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial, row in failed:
        groups[str(row["error_type"] or row["failure"] or "failed"), _first(row["error"])].append(trial)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    lines = [
        [str(len(trials)), text(kind), text(message), text(trials[0].label)] for (kind, message), trials in ordered[:FAILED]
    ]
    parts = [table(["trials", "error", "message", "for example"], lines, numbers=("trials",), wide=("message",))]
    parts += [f'<p class="soft">and {len(ordered) - FAILED} more kinds</p>'] if len(ordered) > FAILED else []
    single = [
        [f"<code>{trial.id}</code>", text(trial.label), text(row["status"]), str(row["attempts"]), _error(run, trial, row)]
        for trial, row in failed[:FAILED]
    ]
    more = f", the first {FAILED} of {len(failed)}" if len(failed) > FAILED else ""
    return [
        *parts,
        folded(f"each of them{more}", table(["trial", "parameters", "status", "attempts", "error"], single, wide=("error",))),
    ]


def _first(message: str | None) -> str:
    return ((message or "").splitlines() or [""])[0]


def _error(run: Material, trial: Trial, row: Row) -> str:
    """A message in full, and the trace that came with it."""
    entry = run.found.trials[trial.id].entry
    trace = str(((entry.event if entry else {}).get("error") or {}).get("traceback") or "")[-TRACE:]
    said = f"{text(row['error_type'] or row['failure'] or 'failed')}: {text(row['error'] or '')}"
    return f"<pre>{said}</pre>" + (folded("trace", f"<pre>{text(trace)}</pre>") if trace else "")


def _slowest(run: Material) -> str:
    timed = [(row["seconds"], trial, row) for trial, row in zip(run.trials, run.rows) if row["seconds"] is not None]
    timed.sort(key=lambda item: -item[0])
    devices = {id: state.entry.event.get("device") or "-" for id, state in run.found.trials.items() if state.entry}
    rows = [
        [f"<code>{trial.id}</code>", text(trial.label), f"{seconds:.3g}", text(devices.get(trial.id, "-")), text(row["status"])]
        for seconds, trial, row in timed[:SLOWEST]
    ]
    if not rows:
        return ""
    middle = timed[len(timed) // 2][0]
    return f'<p class="soft">The median trial took {middle:.3g} s.</p>' + table(
        ["trial", "parameters", "seconds", "device", "status"], rows, numbers=("seconds",)
    )


def _all(run: Material) -> str:
    names = run.swept
    headers = ["trial", *names, "status", "loss", "gradient norm", "seconds", "planned", "used"]
    rows = []
    for trial, row in zip(run.trials[:LISTED], run.rows):
        cells = [f"<code>{trial.id}</code>", *(text(short(value_of(trial, name))) for name in names)]
        cells += [f'<span class="{text(row["status"])}">{text(row["status"])}</span>', _number(row["loss"])]
        cells += [_number(run.norms[trial.id]), _number(row["seconds"], 3)]
        cells += ["-" if row[name] is None else amount(row[name]) for name in ("planned_bytes", "used_bytes")]
        rows.append(cells)
    counts = Counter(row["status"] for row in run.rows)
    title = f"{len(rows)} of {sum(counts.values())} trials"
    return folded(title, table(headers, rows, numbers=(*names, "loss", "gradient norm", "seconds", "planned", "used")))


def _artifacts(run: Material, base: str) -> list[str]:
    """The files that trials have left, with links to them below ``base``, and pictures as long as there is room for them."""
    lines, pictures, room = [], [], PICTURE_BYTES
    for trial, row in zip(run.trials, run.rows, strict=True):
        where, names = row.get("artifacts_folder"), row.get("artifacts") or []
        if where is None or len(lines) == ARTIFACTS:
            continue
        check_inside(run.folder, where)
        sizes = run.folder.files.below(where)
        links = [f'<a href="{text(base + quote(f"{where}/{name}"))}">{text(name)}</a>' for name in names]
        rest = len(sizes) - len(names)
        lines.append(
            [text(trial.label), ", ".join(links) + (f" and {rest} more" if rest > 0 else ""), amount(sum(sizes.values()))]
        )
        for name in names:
            kind, size = guess_type(name)[0] or "", sizes.get(f"{where}/{name}", PICTURE_BYTES)
            if kind in PICTURES and size <= room:
                room -= size
                pictures.append(figure([image(run.folder.files.read(f"{where}/{name}"), kind)], f"{trial.label}: {name}"))
    left = sum(row.get("artifacts_folder") is not None for row in run.rows)
    said = f'<p class="soft">{text(counted(left - len(lines), "more trial"))} with artifacts</p>' if left > len(lines) else ""
    return [table(["trial", "files", "size"], lines, wide=["files"]), said, *pictures] if lines else []


def _number(value: float | None, digits: int = 6) -> str:
    return "-" if value is None else f"{value:.{digits}g}"
