"""Plans, results, states and devices as text and as plain data: everything that the commands print on stdout."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...jobs.planning.gradient_notes import warnings_of
from ..config.search_section import SearchSection
from ..optimize.results import REPORTED, best_at, value_text
from ..query.run_table import Large, Row, RunTable, best, column_of
from ..store.encoding import plain
from ..store.follower import shape_of
from ..study.plan import PlannedGroup, Prepared
from ..study.trials import counted, short
from ..text_grid import amount, grid
from ..visible import visible
from .html import SHOWN, table_html
from .remarks import remarks_of

if TYPE_CHECKING:
    from ..ledger.inventory import Found
    from ..store.layout import RunFolder
    from ..study.batches import BatchGroup
    from ..study.placement import Predicted


class EndedRun(Protocol):
    """A run that a command has brought to its end."""

    @property
    def folder(self) -> RunFolder:
        """Of the run."""
        ...

    @property
    def state(self) -> str:
        """How it ended."""
        ...

    @property
    def rows(self) -> Sequence[Row]:
        """Its table."""
        ...

    @property
    def timing(self) -> dict[str, float | None]:
        """Where the seconds went."""
        ...

    @property
    def exit_code(self) -> int:
        """Of the command."""
        ...


SHOWN_TRIALS = 5
SHOWN_FAILURES, SHOWN_EXAMPLES = 10, 3
SHOWN_DEVICES = 16
SHOWN_LANES = 8
NOTE_SHOWN = 80


def plan_data(
    prepared: Prepared, groups: list[PlannedGroup], placed: Predicted | None = None, together: Sequence[BatchGroup] = ()
) -> dict[str, Any]:
    """The plan as plain data, with where the trials would run, and which of them together, where that is known."""
    config = prepared.loaded.config
    return {
        "name": config.name,
        "target": prepared.target.text,
        "backend": prepared.arch,
        "choice": None if prepared.choice is None else prepared.choice.data(),
        "threads": config.device.threads,
        "gradients": list(prepared.gradients),
        "trials": [
            {"id": t.id, "label": t.label, "replicate": t.replicate, "seed": t.seed, "params": t.params}
            for t in prepared.trials
        ],
        "memory": [_group_data(group, prepared.byte_limits) for group in groups],
        "warnings": warnings_of(groups),
        "batch": config.batch,
        "batches": [group.data() for group in together],
        "memory_budget": config.memory_budget,
        "overrides": list(prepared.loaded.overrides),
        "at_once": None if placed is None else placed.at_once,
        "placement": None if placed is None else placed.data(),
    }


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


def _group_data(group: PlannedGroup, limits: Mapping[str, int | None]) -> dict[str, Any]:
    plan = group.plan
    data: dict[str, Any] = {"trials": list(group.trials), "example": group.example, "error": group.error or None}
    data |= {"arch": plan.arch if plan else None, "bytes": plan.bytes if plan else None}
    data |= {"footprint": plan.footprint if plan else None}
    data |= {"by_kind": plan.by_kind() if plan else {}}
    data |= {"entries": [entry.model_dump() for entry in plan.entries] if plan else []}
    data |= {"notes": list(plan.notes) if plan else []}
    data |= {"gradients": [note.model_dump() for note in group.gradients]}
    return data | {"fits": None if plan is None else not _beyond(plan.bytes, limits)}


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
        lines += ["", f"memory of one trial ({counted(len(group.trials), 'trial')} like {group.example})"]
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
            lines.append(f"  {counted(len(group.trials), 'trial')} like {group.example}: {count}, {held}")
        else:
            alone.setdefault(group.why, []).append(group)
    for why, groups in alone.items():
        first, *more = why.splitlines()
        count = counted(sum(len(group.trials) for group in groups), "trial")
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
    beyond = _beyond(plan.bytes, limits)
    return lines + [f"  larger than {name} ({limit} bytes): these trials will not start" for name, limit in beyond.items()]


def _beyond(bytes: int, limits: Mapping[str, int | None]) -> dict[str, int]:
    """The limits that a plan exceeds."""
    return {name: limit for name, limit in limits.items() if limit is not None and bytes > limit}


def varied(table: Sequence[Row]) -> list[str]:
    """The parameters that differ between the rows."""
    made = RunTable.of(table)
    names = [name for name in made.columns if name.startswith("param.") and not made.is_constant(name)]
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


def summary_data(done: EndedRun) -> dict[str, Any]:
    """The end of a submit, as plain data."""
    found = best(done.rows)
    failures = _failures(done)
    return plain(
        {
            "run": done.folder.name,
            "folder": done.folder.uri,
            "results": done.folder.table,
            "state": done.state,
            "exit_code": done.exit_code,
            "trials": len(done.rows),
            "counts": dict(Counter(column_of(done.rows, "status"))),
            "best": found and {name: value for name, value in found.items() if value is not None},
            "failures": [{name: row[name] for name in ("trial", "error_type", "error")} for row in failures],
            "warnings": remarks_of(done.folder),
            "seconds": done.timing["ended_s"],
            "timing": done.timing,
        }
    )


def _failures(done: EndedRun) -> list[Row]:
    """The rows of trials that failed, those that crashed each time among them."""
    statuses = column_of(done.rows, "status")
    return [done.rows[place] for place, status in enumerate(statuses) if status in ("failed", "poisoned")]


def summary_text(done: EndedRun) -> str:
    """The end of a submit, as text: counts, best trial, failures, seconds, path of the results."""
    counts = Counter(column_of(done.rows, "status"))
    timing, found = done.timing, best(done.rows)
    lines = [
        f"{done.state}: "
        + ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
        + f" of {counted(len(done.rows), 'trial')}"
    ]
    if found is not None:
        own = [name for name in varied(done.rows) if name in found]  # dictionaries may have other keys in each trial
        start = ", ".join(f"{name.removeprefix('param.')}={value_text(found[name])}" for name in own)
        outputs = {
            name.removeprefix("out."): value for name, value in found.items() if name.startswith("out.") and value is not None
        }
        reached = best_at("", outputs)
        where = f"{reached}, from the start {start or 'of the config'}" if reached else start or "its parameters"
        lines.append(f"best: loss {found['loss']:.6g} at {where} (trial {found['trial']})")
    lines += _failure_lines(done)
    lines += [f"warning: {text}" for text in remarks_of(done.folder)]
    parts = [("in all", timing["ended_s"], "s"), ("to the first trial", timing["first_start_s"], "s")]
    parts += [("overhead per trial", timing["overhead_ms_per_trial"], "ms")]
    lines.append("time: " + ", ".join(f"{value:.2f} {unit} {word}" for word, value, unit in parts if value is not None))
    lines += [f"results: {done.folder.table}"]
    left = sum(value is not None for value in column_of(done.rows, "artifacts_folder"))
    where = f"`qdrun results {done.folder.uri} --columns trial,artifacts` names them"
    lines += [f"artifacts: {counted(left, 'trial')} left some; {where}"] if left else []
    lines += [f"next: qdrun {'resume' if done.state in ('lost', 'interrupted') else 'results'} {done.folder.uri}"]
    return "\n".join(lines)


def _failure_lines(done: EndedRun) -> list[str]:
    """The failures, equal ones in one line with the first trials that have it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in _failures(done):
        said = f"{row['error_type']}: {visible((row['error'] or '').partition(chr(10))[0])}"
        groups.setdefault((row["status"], said), []).append(row)
    lines = []
    for (status, said), rows in list(groups.items())[:SHOWN_FAILURES]:
        names = ", ".join(row["trial"] for row in rows[:SHOWN_EXAMPLES]) + (", .." if len(rows) > SHOWN_EXAMPLES else "")
        lines.append(f"{status}: {names} {said}" if len(rows) == 1 else f"{status}: {len(rows)} trials ({names}) {said}")
    rest = sum(map(len, list(groups.values())[SHOWN_FAILURES:]))
    return lines + ([f"  ... and {counted(rest, 'more failure')}"] if rest else [])


def no_runs(where: str, state: str = "", tags: Sequence[str] = ()) -> str:
    """The message if no run is found, in any state or in a given one, and with these tags."""
    return f"no {state + ' ' if state else ''}runs{''.join(f' with tag `{name}`' for name in tags)} in {where}"


def status_text(states: list[dict[str, Any]]) -> str:
    """A table with one line per run."""
    lines = []
    for state in states:
        counts = ", ".join(f"{number} {word}" for word, number in sorted(state["counts"].items()))
        loss = "-" if state["best"] is None else short(state["best"]["loss"])
        word = f"{state['state']} (stopping)" if state["cancel_requested"] and state["state"] == "running" else state["state"]
        lines.append([state["id"], word, counts, loss, f"{state['seconds']:.1f}"])
    more = [line for state in states for line in _lane_lines(state.get("lanes", []))]
    more += [line for state in states for line in _waiting_lines(state.get("waiting", []))]
    more += [f"warning: {text}" for state in states for text in state.get("warnings", [])]
    return "\n".join([grid(["run", "state", "trials", "best loss", "seconds"], lines), *more])


def resume_text(data: Mapping[str, Any]) -> str:
    """The trials that ``resume`` keeps, runs and skips, by reason."""
    lines = [["kept", str(len(data["kept"])), "they have succeeded"]] if data["kept"] else []
    for word in ("retried", "skipped"):
        reasons = Counter(data[word].values()).most_common()
        lines += [[word, str(count), why] for why, count in reasons[:SHOWN_FAILURES]]
        rest = reasons[SHOWN_FAILURES:]
        lines += [[word, str(sum(count for _, count in rest)), f"{len(rest)} other reasons"]] if rest else []
    hint = ["`--failed` runs the skipped ones again"] if data["skipped"] else []
    hint += [f"code: {text}" for text in data.get("code_changes", ())]
    if changed := data.get("config_changes"):
        hint.append(f"config: edited since, in {', '.join(changed)}; `resume` refuses it without --force or --config")
    return "\n".join([f"{data['run']}: {data['state']}", grid(["", "trials", "why"], lines), *hint])


def list_text(rows: list[dict[str, Any]]) -> str:
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


def _lane_lines(lanes: list[dict[str, Any]]) -> list[str]:
    """The running trials of one run: trial, device, progress, and seconds."""
    rows = [[one["trial"], one["label"], one["device"], one["step"] or "-", f"{one['seconds']:.0f} s"] for one in lanes]
    more = [f"  and {len(rows) - SHOWN_LANES} more"] if len(rows) > SHOWN_LANES else []
    return ["", grid(["running", "parameters", "device", "step", "since"], rows[:SHOWN_LANES]), *more] if rows else []


def _waiting_lines(groups: list[dict[str, Any]]) -> list[str]:
    lines = ["", "waiting"] if groups else []
    return lines + [f"  {group['count']}: {group['why']}" for group in groups]


def devices_data(rows: Sequence[Found]) -> list[dict[str, Any]]:
    """The inventory as plain data."""
    names = ("id", "backend", "usable", "index", "uuid", "pci", "model", "kind", "driver", "pool", "threads", "lanes")
    return [
        {name: getattr(row, name) for name in names}
        | {"node": row.node or platform.node(), "memory_bytes": row.total, "free_bytes": row.free}
        | {"for_trials_bytes": max(0, row.capacity - row.foreign) if row.usable else 0}
        | {"process_bytes": row.process_bytes, "why": row.why}
        for row in rows
    ]


def devices_text(rows: list[dict[str, Any]]) -> str:
    """One line for each device, then what is not there and why; devices that share a pool share its memory."""
    there = [row for row in rows if row["usable"]]
    lines = [
        [
            *(row["id"], row["model"], row["uuid"] or "-", row["pci"] or "-", amount(row["memory_bytes"])),
            *(amount(row["free_bytes"]), amount(row["for_trials_bytes"]), str(row["lanes"])),
            *(row["driver"] or "-", row["kind"], row["pool"]),
        ]
        for row in there
    ]
    headers = ["device", "model", "uuid", "pci", "memory", "free", "for trials", "lanes", "driver", "kind", "pool"]
    absent = [[row["id"], row["why"]] for row in rows if not row["usable"]]
    parts = [grid(headers, lines)] + ([grid(["backend", "why not"], absent)] if absent else [])
    return "\n\n".join(parts)
