"""Plans, results, states and devices as text: what the commands print on stdout."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypedDict

from ...jobs.planning.gradient_notes import warnings_of
from ..config.search_section import SearchSection
from ..fields import about
from ..optimize.results import REPORTED
from ..query.run_table import Large, Row, RunTable
from ..store.follower import shape_of
from ..store.status import RunState
from ..study.plan import PlannedGroup, Prepared
from ..study.trials import counted, short
from ..text_grid import amount, grid
from .html import SHOWN, table_html
from .view import RunningTrial

if TYPE_CHECKING:
    from ..ledger.inventory import Found
    from ..study.batches import BatchGroup
    from ..study.placement import Predicted


class WaitingTrials(TypedDict):
    """Why trials wait."""

    count: Annotated[int, about("number of trials")]
    why: Annotated[str, about("the reason, with the numbers")]


class ShownRun(RunState):
    """The state of one run, with more of a single one."""

    lanes: Annotated[Sequence[RunningTrial], about("running trials; for a single run only")]
    waiting: Annotated[list[WaitingTrials], about("why trials wait, by the latest report of the runner; for a single run only")]
    warnings: Annotated[list[str], about("warnings about gradients and optimisation runs; for a single run only")]


class StatusDocument(TypedDict):
    """The state of runs."""

    runs: Annotated[list[ShownRun], about("the requested run, or all runs, oldest first")]


class ListedRun(TypedDict):
    """A run in a list."""

    id: Annotated[str, about("id of the run")]
    folder: Annotated[str, about("its folder or URI")]
    name: Annotated[str, about("name of the config")]
    created: Annotated[float | None, about("creation time in seconds since 1970")]
    state: Annotated[str, about("as in status")]
    trials: Annotated[int, about("number of trials")]
    finished: Annotated[int, about("trials with a row: done, failed, cancelled, poisoned")]
    failed: Annotated[int, about("trials that are failed or poisoned")]
    best: Annotated[float | None, about("smallest loss")]
    tags: Annotated[list[str], about("its tags, sorted")]
    note: Annotated[str, about("its last note; empty without")]


class RunList(TypedDict):
    """A list of runs."""

    where: Annotated[str, about("the folder of the runs")]
    runs: Annotated[list[ListedRun], about("newest first")]


SHOWN_TRIALS = 5
SHOWN_DEVICES = 16
SHOWN_LANES = 8
NOTE_SHOWN = 80


def _descent(prepared: Prepared) -> str:
    """The optimisation of each trial in one line."""
    data = prepared.resolved["optimize"]
    rate, names = data.get("learning_rate"), ", ".join(data["params"])
    said = (
        "" if rate is None else f", learning rate {rate:g}" if isinstance(rate, float) else f", learning rate {', '.join(rate)}"
    )
    return f"optimize: {names} by {data['rule']}, at most {data['steps']} steps{said}"


def _search(section: SearchSection) -> str:
    """The search in one line; a plan is that of one round."""
    rounds = f"rounds of {section.trials:,} trials" + (" and fewer" if section.method == "descents" else "")
    return f"search: {section.evaluations:,} evaluations by {section.method}, in {rounds}; `qdrun search` runs it"


def _elsewhere(prepared: Prepared, groups: list[PlannedGroup]) -> str:
    """The backend of the plans, if it differs from that of the trials."""
    return next((g.plan.arch for g in groups if g.plan and g.plan.arch != prepared.arch), "")


def plan_text(
    prepared: Prepared, groups: list[PlannedGroup], placed: Predicted | None = None, together: Sequence[BatchGroup] = ()
) -> str:
    """The plan for people: trials, bytes of one trial by kind and where each number comes from, batches, where they would run."""
    config, trials = prepared.loaded.config, prepared.trials
    lines = [
        f"{config.name}: {counted(len(trials), 'trial')} of {prepared.target.text} on {prepared.where}, "
        f"{counted(config.device.threads, 'thread')} each"
    ]
    if prepared.choice is not None:
        lines += [prepared.choice.head, *(f"  {candidate.text}" for candidate in prepared.choice.candidates)]
    elsewhere = _elsewhere(prepared, groups)
    lines += [f"planned for {elsewhere}, which need not be there"] if elsewhere else []
    lines += [f"set: {', '.join(prepared.loaded.overrides)}"] if prepared.loaded.overrides else []
    lines += [f"gradients: {', '.join(prepared.gradients) or 'none'}"]
    lines += [f"warning: {text}" for text in warnings_of(groups)]
    lines += [_descent(prepared)] if config.optimize is not None else []
    lines += [_search(config.search)] if config.search is not None else []
    lines += ["", "trials"]
    lines += [f"  {trial.id}  {trial.label}" for trial in trials[:SHOWN_TRIALS]]
    lines += [f"  ... and {len(trials) - SHOWN_TRIALS} more"] if len(trials) > SHOWN_TRIALS else []
    for group in groups:
        lines += ["", f"memory of one trial ({counted(len(group.places), 'trial')} like {group.example})"]
        lines += _group_lines(group, prepared.byte_limits)
    lines += _batch_lines(together)
    return "\n".join(lines + ([] if placed is None else _placement_lines(placed)))


def _batch_lines(together: Sequence[BatchGroup]) -> list[str]:
    """Which trials run at once in one program, with what a batch of them holds, and why others run one by one."""
    lines = ["", "batches"] if together else []
    alone: dict[str, list[BatchGroup]] = {}
    for group in together:
        if group.size > 1:
            data = group.data()
            held = ", ".join(f"{amount(bytes)} each on {kind}" for kind, bytes in data["bytes"].items())
            count = f"{data['batches']} batch{'' if data['batches'] == 1 else 'es'} of up to {group.size}"
            count += f" in groups of {group.width}"
            lines.append(f"  {counted(len(group.places), 'trial')} like {group.example}: {count}, {held}")
        else:
            alone.setdefault(group.why, []).append(group)
    for why, groups in alone.items():
        first, *more = why.splitlines()
        count = counted(sum(len(group.places) for group in groups), "trial")
        lines += [f"  {count} one by one: {first}", *(f"    {line.strip()}" for line in more)]
    return lines


def _placement_lines(placed: Predicted) -> list[str]:
    data = placed.data()
    rows = [
        [
            *(row["device"], amount(row["for_trials_bytes"]), amount(row["process_bytes"]), str(row["lanes"])),
            *(str(row["at_once"]), str(row["trials"]), amount(row["peak_bytes"]), f"{100 * row['busy']:.0f} %"),
        ]
        for row in data["devices"][:SHOWN_DEVICES]
    ]
    headers = ["device", "for trials", "process", "lanes", "at once", "trials", "peak", "in use"]
    lines = ["", f"placement on {data['where']}", grid(headers, rows, indent="  ")]
    more = len(data["devices"]) - SHOWN_DEVICES
    lines += [f"  ... and {more} more devices"] if more > 0 else []
    if placed.placed:
        lines.append(f"  at once: {placed.at_once}, waves: {data['waves']}")
        finish = f"{data['finish']:g} times the longest trial, were they all as long"
        lines.append(f"  finish: {finish}; no packing ends before {data['bound']:.6g} (by {data['bound_by']})")
    if placed.misfits:
        lines += ["", "does not fit"]
    for misfit in placed.misfits:
        lines.append(f"  {counted(misfit.trials, 'trial')} like {misfit.example}: {misfit.why}")
    return lines


def _group_lines(group: PlannedGroup, limits: Mapping[str, int | None]) -> list[str]:
    if group.plan is None:
        return ["  " + line for line in f"cannot be planned: {group.error}".splitlines()]
    rows = [[e.kind, str(e.bytes), e.source, e.formula] for e in group.plan.entries]
    plan = group.plan
    total = amount(plan.bytes) + (", code not included" if plan.code_bytes else "")
    rows.append(["total", str(plan.bytes), total, ""])
    if plan.footprint != plan.bytes:
        rows.append(
            ["on the device", str(plan.footprint), amount(plan.footprint), "with what the process takes beside its program"]
        )
    lines = [grid(["kind", "bytes", "from", "how"], rows, indent="  ")]
    lines += [f"  {line}" for note in plan.notes for line in f"note: {note}".splitlines()]
    if not plan.whole:
        lines.append(
            "  not in it: what the kernels need, as the job names no launches(); these trials may take more than they claim"
        )
    return lines + [
        f"  larger than {name} ({limit} bytes): these trials will not start"
        for name, limit in beyond(plan.bytes, limits).items()
    ]


def beyond(bytes: int, limits: Mapping[str, int | None]) -> dict[str, int]:
    """The limits that a plan exceeds."""
    return {name: limit for name, limit in limits.items() if limit is not None and bytes > limit}


def varied(table: Sequence[Row]) -> list[str]:
    """The parameters that differ between the rows."""
    made = RunTable.of(table)
    names = [name for name in made.names if name.startswith("param.") and not made.is_constant(name)]
    return [name for name in names if differ(made.column(name))]


def differ(values: Sequence[Any]) -> bool:
    """Whether the values of a column are not all the same text."""
    first = str(values[0]) if values else ""
    return any(str(value) != first for value in values)


SHOWN_FIXED = (
    *("trial", "replicate", "status", "loss", "seconds", "planned_bytes", "used_bytes", "used_of_planned"),
    *("error", "error_type"),
)
SHOWN_PREFIXES = ("grad.", "out.")
"""What ``results_text`` shows of rows, besides the parameters."""


def results_text(table: Sequence[Row], swept: Sequence[str] | None = None) -> str:
    """The table for people, see ``results_cells``."""
    return grid(*results_cells(table, swept))


def results_html(table: Sequence[Row], swept: Sequence[str] | None = None, total: int | None = None) -> str:
    """The table for notebooks, see ``results_cells``: the first rows, and how many more there are. ``total``: number of all rows."""
    swept = varied(table) if swept is None else swept
    return table_html(*results_cells(table[:SHOWN], swept), total=len(table) if total is None else total)


def results_cells(table: Sequence[Row], swept: Sequence[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: what was swept, what came out; arrays as their lengths, errors in their first line.

    ``swept``: the columns of parameters to show, where the rows are a part of a run; None: those that differ between the rows.
    """
    params = varied(table) if swept is None else swept
    gradients = list(dict.fromkeys(name for row in table for name in row if name.startswith(SHOWN_PREFIXES)))
    repeated = ["replicate"] if any(row["replicate"] for row in table) else []
    headers = [
        "trial",
        *(name.removeprefix("param.") for name in params),
        *repeated,
        "status",
        "loss",
        *gradients,
        "seconds",
        "planned",
        "used",
        "used/planned",
    ]
    failed = any(row["error"] for row in table)
    lines = []
    for row in table:
        shown = (*params, *repeated, "status", "loss", *gradients)
        line = [row["trial"], *(cell(name, row.get(name)) for name in shown), _cell(row["seconds"])]
        line += [amount(row["planned_bytes"]), amount(row["used_bytes"])]
        line.append(_ratio(row["used_of_planned"]))
        error = (row["error"] or "").splitlines()
        lines.append([*line, f"{row['error_type']}: {error[0]}"[:90] if error else ""] if failed else line)
    return [*headers, "error"] if failed else headers, lines


def _ratio(part: float | None) -> str:
    """Used by planned bytes; 1.00 is said of equal numbers alone."""
    if part is None:
        return "-"
    text = f"{part:.2f}"
    return text if part == 1 or text != "1.00" else f"{'>' if part > 1 else '<'} 1.00"


def is_found(name: str) -> bool:
    """Whether a column holds what descents have found."""
    return name.startswith("out.opt.") and name.removeprefix("out.opt.") not in REPORTED


def cell(name: str, value: Any) -> str:
    """A cell of a column; of what a descent has found the first and the last numbers, too."""
    if is_found(name) and isinstance(value, list) and len(value) > 3:
        return f"[{_cell(value[0])}, {_cell(value[1])}, .. {_cell(value[-1])}] of {len(value)}"
    return _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Large):
        return str(value)
    if isinstance(value, list) and len(value) > 3:
        return extent(value)
    if isinstance(value, list):
        return "[" + ", ".join(_cell(item) for item in value) + "]"
    return short(value)


def extent(value: list[Any]) -> str:
    """The shape of an array, as ``Large`` shows it."""
    return str(Large(shape_of(value)))


def no_runs(where: str, state: str = "", tags: Sequence[str] = ()) -> str:
    """The message if no run is found, in any state or in a given one, and with these tags."""
    return f"no {state + ' ' if state else ''}runs{''.join(f' with tag `{name}`' for name in tags)} in {where}"


def status_text(states: Sequence[ShownRun]) -> str:
    """A table with one line per run."""
    lines = []
    for state in states:
        counts = ", ".join(f"{number} {word}" for word, number in sorted(state["counts"].items()))
        loss = "-" if state["best"] is None else short(state["best"]["loss"])
        word = f"{state['state']} (stopping)" if state["cancel_requested"] and state["state"] == "running" else state["state"]
        lines.append([state["id"], word, counts, loss, f"{state['seconds']:.1f}"])
    more = [line for state in states for line in _lane_lines(state["lanes"])]
    more += [line for state in states for line in _waiting_lines(state["waiting"])]
    more += [f"warning: {text}" for state in states for text in state["warnings"]]
    return "\n".join([grid(["run", "state", "trials", "best loss", "seconds"], lines), *more])


def list_text(rows: Sequence[ListedRun]) -> str:
    """One line for each run of ``ls``; tags, and the first line of the last note, where some run has them."""
    headers, lines = ["run", "created", "state", "finished", "failed", "best loss"], list[list[str]]()
    for row in rows:
        created = "-" if row["created"] is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"]))
        counts = [f"{row['finished']}/{row['trials']}", str(row["failed"])]
        lines.append([row["id"], created, row["state"], *counts, "-" if row["best"] is None else short(row["best"])])
    for header, texts in (
        ("tags", [", ".join(row["tags"]) for row in rows]),
        ("note", [row["note"].partition("\n")[0][:NOTE_SHOWN] for row in rows]),
    ):
        if any(texts):
            headers, lines = [*headers, header], [[*line, text or "-"] for line, text in zip(lines, texts, strict=True)]
    return grid(headers, lines)


def _lane_lines(lanes: Sequence[RunningTrial]) -> list[str]:
    """The running trials of one run: trial, device, progress, and seconds."""
    rows = [[one.trial, one.label, one.device, one.step or "-", f"{one.seconds:.0f} s"] for one in lanes]
    more = [f"  and {len(rows) - SHOWN_LANES} more"] if len(rows) > SHOWN_LANES else []
    return ["", grid(["running", "parameters", "device", "step", "since"], rows[:SHOWN_LANES]), *more] if rows else []


def _waiting_lines(groups: Sequence[WaitingTrials]) -> list[str]:
    lines = ["", "waiting"] if groups else []
    return lines + [f"  {group['count']}: {group['why']}" for group in groups]


@dataclass(frozen=True)
class DeviceRow:
    """A device, or a backend without one."""

    node: Annotated[str, about("name of the machine")]
    backend: Annotated[str, about("name of the backend in a config")]
    usable: Annotated[bool, about("whether programs can run on it")]
    id: Annotated[str, about("name of the device in plans, journals and `started` events")]
    index: Annotated[int, about("number of the device in this process")]
    uuid: Annotated[str, about("permanent id of the device")]
    pci: Annotated[str, about("its PCI address")]
    model: Annotated[str, about("model name from the driver")]
    kind: Annotated[str, about("device class: backend, model, threads in flight; the devices of a class share one claim")]
    driver: Annotated[str, about("version of the driver")]
    pool: Annotated[str, about("its memory pool; devices may share one")]
    threads: Annotated[int, about("threads of a running trial")]
    lanes: Annotated[int, about("number of trials that may run at once")]
    memory_bytes: Annotated[int, about("size of the pool")]
    free_bytes: Annotated[int | None, about("free bytes of the pool; null if unknown")]
    for_trials_bytes: Annotated[int, about("bytes for trials: free bytes less the reserve and what other processes hold")]
    process_bytes: Annotated[int, about("overhead of a worker process")]
    why: Annotated[str, about("why the device cannot be used")]

    @classmethod
    def of(cls, found: Found) -> DeviceRow:
        """The row of a device of the inventory."""
        made: dict[str, Any] = {name: getattr(found, name) for name in cls.__annotations__ if hasattr(found, name)}
        made |= {"node": found.node or platform.node(), "memory_bytes": found.total, "free_bytes": found.free}
        return cls(**made, for_trials_bytes=max(0, found.capacity - found.foreign) if found.usable else 0)


@dataclass(frozen=True)
class DeviceList:
    """The devices of this machine."""

    devices: Annotated[Sequence[DeviceRow], about("the CPU first; one row for each GPU")]


def devices_text(rows: Sequence[DeviceRow]) -> str:
    """One line for each device, then what is not there and why; devices that share a pool share its memory."""
    lines = [
        [
            *(row.id, row.model, row.uuid or "-", row.pci or "-", amount(row.memory_bytes)),
            *(amount(row.free_bytes), amount(row.for_trials_bytes), str(row.lanes), row.driver or "-", row.kind, row.pool),
        ]
        for row in rows
        if row.usable
    ]
    headers = ["device", "model", "uuid", "pci", "memory", "free", "for trials", "lanes", "driver", "kind", "pool"]
    absent = [[row.id, row.why] for row in rows if not row.usable]
    parts = [grid(headers, lines)] + ([grid(["backend", "why not"], absent)] if absent else [])
    return "\n\n".join(parts)
